//! A device: so many multiprocessors, so much memory, and one primary context.

use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUresult};

use crate::config::{Config, Engine};
use crate::context::Context;
use crate::errors::Outcome;
use crate::monitor::lock;
use crate::vmm::physical::{FABRIC, POSIX};

/// Threads that a multiprocessor holds.
pub(crate) const THREADS_PER_SM: u32 = 2048;
/// Blocks that a multiprocessor holds.
pub(crate) const BLOCKS_PER_SM: u32 = 32;
/// Blocks of a grid, in each dimension.
pub(crate) const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// Threads of a block.
pub(crate) const THREADS_PER_BLOCK: u32 = 1024;
/// Threads of a warp.
pub(crate) const WARP: u32 = 32;
/// Bytes of shared memory that the system takes for itself in each block.
pub(crate) const SHARED_RESERVED: u32 = 1 << 10;
/// Bytes of shared memory that a block has without asking.
pub(crate) const SHARED_PER_BLOCK: u32 = 48 << 10;

/// One GPU.
pub(crate) struct Device {
    pub(crate) ordinal: i32,
    pub(crate) sms: u32,
    pub(crate) memory: u64,
    /// Bytes of shared memory that a block may ask for.
    pub(crate) shared: u32,
    pub(crate) capability: (u32, u32),
    pub(crate) multicast: bool,
    pub(crate) rdma: bool,
    mps: bool,
    /// The kinds of handles that memory can be exported as.
    handles: u32,
    /// Whether kernels reach memory that the driver did not allocate.
    registers: bool,
    pub(crate) context: Arc<Context>,
    used: Mutex<u64>,
}

impl Device {
    pub(crate) fn new(ordinal: i32, config: &Config) -> Self {
        Self {
            ordinal,
            sms: config.sms,
            memory: config.memory,
            shared: config.shared,
            capability: config.capability,
            multicast: config.multicast,
            rdma: config.rdma,
            mps: config.mps,
            handles: config.handles,
            registers: config.engine == Engine::Native,
            context: Context::new(ordinal),
            used: Mutex::new(0),
        }
    }

    /// Takes a part of the memory, until the result is dropped.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Outcome<Charge> {
        let mut used = lock(&self.used);
        let free = self.memory - *used;
        if bytes > free {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        *used += bytes;
        Ok(Charge { device: self.clone(), bytes })
    }

    /// Bytes that are free.
    pub(crate) fn free(&self) -> u64 {
        self.memory - *lock(&self.used)
    }

    /// Bytes of shared memory of a multiprocessor: of a block that asks for all, and what the system takes beside it.
    pub(crate) fn shared_per_sm(&self) -> u32 {
        self.shared + SHARED_RESERVED
    }

    pub(crate) fn name(&self) -> String {
        format!("congruent virtual GPU, sm_{}{}", self.capability.0, self.capability.1)
    }

    /// The same in every process, as a GPU's is.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        let mut uuid = *b"congruentvirtual";
        // Sixteen bytes have a last one, and ordinals stay below 64.
        uuid[15] = self.ordinal as u8;
        uuid
    }

    /// An attribute by its number. What a virtual driver has nothing to say to is 0, as for a feature that a GPU lacks.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for what is no attribute
    pub(crate) fn attribute(&self, number: u32) -> Outcome<i32> {
        use Attribute as A;
        if number == 0 || number >= A::CU_DEVICE_ATTRIBUTE_MAX as u32 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let limits = [
            (A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, THREADS_PER_BLOCK),
            (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
            (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),
            (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
            (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, GRID[0]),
            (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, GRID[1]),
            (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, GRID[2]),
            (A::CU_DEVICE_ATTRIBUTE_WARP_SIZE, WARP),
            (A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, self.sms),
            (A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, THREADS_PER_SM),
            (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, BLOCKS_PER_SM),
            (A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, SHARED_PER_BLOCK),
            (A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, self.shared),
            (A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, self.shared_per_sm()),
            (A::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, SHARED_RESERVED),
            (A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65_536),
            (A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65_536),
            (A::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65_536),
            (A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1_000_000),
            (A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20),
            (A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 1),
            (A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, self.ordinal as u32 + 1),
            (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self.capability.0),
            (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self.capability.1),
            (A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, u32::from(self.multicast)),
            (A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, u32::from(self.rdma)),
            (A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, u32::from(self.rdma)),
            // What network devices write has to be flushed, by the host.
            (A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, u32::from(self.rdma)),
            (A::CU_DEVICE_ATTRIBUTE_MPS_ENABLED, u32::from(self.mps)),
            (A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, u32::from(self.handles & POSIX != 0)),
            (A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, u32::from(self.handles & FABRIC != 0)),
        ];
        let own = [
            A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
            A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        ];
        let supported = [
            A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
            A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
            A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR,
            A::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED,
            A::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS,
            A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH,
            A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            A::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED,
            A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
            A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        ];
        let limit = limits.iter().find(|(attribute, _)| *attribute as u32 == number).map(|&(_, value)| value as i32);
        let own = own.iter().filter(|_| self.registers);
        let one = || supported.iter().chain(own).any(|&attribute| attribute as u32 == number);
        Ok(limit.unwrap_or_else(|| i32::from(one())))
    }
}

/// A part of a device's memory, given back when dropped.
pub(crate) struct Charge {
    device: Arc<Device>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        *lock(&self.device.used) -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Arc<Device> {
        Arc::new(Device::new(0, &Config { sms: 3, memory: 100, capability: (8, 6), ..Config::default() }))
    }

    #[test]
    fn memory_is_given_back() {
        let device = device();
        let first = device.charge(60).unwrap();
        assert_eq!(device.charge(41).err(), Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(device.free(), 40);
        drop(first);
        assert_eq!(device.free(), 100);
    }

    #[test]
    fn attributes_follow_the_configuration() {
        let device = device();
        let of = |attribute: Attribute| device.attribute(attribute as u32);
        assert_eq!(of(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), Ok(3));
        assert_eq!(of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR), Ok(6));
        assert_eq!(of(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), Ok(1));
        assert_eq!(of(Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), Ok(0));
        assert_eq!(of(Attribute::CU_DEVICE_ATTRIBUTE_MAX), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    }
}
