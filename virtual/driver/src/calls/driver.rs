//! The driver and its devices.

use core::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::{CUdevice, CUresult, CUuuid};

use crate::config;
use crate::driver;
use crate::entry::entry_points;
use crate::errors;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

entry_points! {
    /// Initialises the driver.
    Nothing fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID);
        }
        driver::init()
    }

    /// The driver's version: 1000 major + 10 minor. It needs no initialisation.
    Nothing fn cuDriverGetVersion(version: *mut c_int) {
        version.set(config::get().map_err(|_| INVALID)?.version as c_int)
    }

    /// The name of a code.
    Nothing fn cuGetErrorName(error: c_uint, name: *mut *const c_char) {
        let found = errors::name(error);
        name.set(found.map_or(core::ptr::null(), |found| found.as_ptr()))?;
        found.map(drop).ok_or(INVALID)
    }

    /// What a code means.
    Nothing fn cuGetErrorString(error: c_uint, text: *mut *const c_char) {
        let found = errors::text(error);
        text.set(found.map_or(core::ptr::null(), |found| found.as_ptr()))?;
        found.map(drop).ok_or(INVALID)
    }

    /// How many devices there are.
    Driver fn cuDeviceGetCount(count: *mut c_int) {
        count.set(driver::get()?.devices().len() as c_int)
    }

    /// The handle of a device, which is its ordinal.
    Driver fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) {
        device.set(driver::get()?.device(ordinal)?.ordinal)
    }

    /// A device's name.
    Driver fn cuDeviceGetName(name: *mut c_char, room: c_int, device: CUdevice) {
        let device = driver::get()?.device(device)?;
        name.set_text(&device.name(), usize::try_from(room).map_err(|_| INVALID)?)
    }

    /// What a device is known by in all processes; the older form, which is the same here.
    Driver fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice) {
        uuid.set(CUuuid { bytes: driver::get()?.device(device)?.uuid().map(|byte| byte as c_char) })
    }

    /// What a device is known by in all processes.
    Driver fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) {
        uuid.set(CUuuid { bytes: driver::get()?.device(device)?.uuid().map(|byte| byte as c_char) })
    }

    /// Bytes of a device's memory.
    Driver fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) {
        bytes.set(driver::get()?.device(device)?.memory as usize)
    }

    /// An attribute of a device.
    Driver fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice) {
        value.set(driver::get()?.device(device)?.attribute(attribute)?)
    }

    /// Whether a device reaches another's memory: all do, or none.
    Driver fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice) {
        let driver = driver::get()?;
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        can.set(c_int::from(driver.config.reach && device.ordinal != peer.ordinal))
    }
}
