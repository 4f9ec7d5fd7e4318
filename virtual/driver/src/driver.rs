//! What the process has of the driver: its devices, once `cuInit` was called.

use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::CUresult;

use crate::config::{self, Config};
use crate::device::Device;
use crate::errors::Outcome;

/// An initialised driver.
pub(crate) struct Driver {
    pub(crate) config: &'static Config,
    devices: Vec<Arc<Device>>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Initialises the driver; further calls do nothing.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a malformed configuration, which is explained on standard error, and
/// `CUDA_ERROR_NO_DEVICE` where there is none
pub(crate) fn init() -> Outcome {
    let config = config::get().map_err(|why| {
        eprintln!("congruent-virtual-driver: {why}");
        CUresult::CUDA_ERROR_INVALID_VALUE
    })?;
    if config.devices == 0 {
        return Err(CUresult::CUDA_ERROR_NO_DEVICE);
    }
    DRIVER.get_or_init(|| {
        let devices = (0..config.devices as i32).map(|ordinal| Arc::new(Device::new(ordinal, config))).collect();
        Driver { config, devices }
    });
    Ok(())
}

/// # Errors
/// `CUDA_ERROR_NOT_INITIALIZED`
pub(crate) fn get() -> Outcome<&'static Driver> {
    DRIVER.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
}

impl Driver {
    pub(crate) fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`
    pub(crate) fn device(&self, ordinal: i32) -> Outcome<&Arc<Device>> {
        let index = usize::try_from(ordinal).ok();
        index.and_then(|index| self.devices.get(index)).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }
}
