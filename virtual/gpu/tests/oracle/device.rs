//! The compiler, and a device with a module that it compiled.

use std::io::Write;
use std::marker::PhantomData;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;
use congruent_build::nvcc;
use congruent_virtual_gpu::{Access, Backing, Launch, Machine, Program, Schedule, Segment, Settings, Space, Window};

/// nvcc has one code generator for the older architectures and another for the newer ones, and they print other PTX.
const ARCHITECTURES: [&str; 2] = ["sm_90", "sm_100"];

/// How warps take turns, with the seed, and whether races are errors.
const SCHEDULES: [(Schedule, u64, bool); 3] =
    [(Schedule::Lockstep, 0, false), (Schedule::Random, 1, false), (Schedule::Random, 2, true)];

/// A file of kernels.
pub(crate) struct Module {
    name: &'static str,
    programs: OnceLock<Option<Vec<Arc<Program>>>>,
}

impl Module {
    /// The kernels of `name.cu` beside this file.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, programs: OnceLock::new() }
    }

    /// Runs a test on a new device with these kernels, for each of the compiler's dialects and some schedules.
    pub(crate) fn on_devices(&self, test: impl Fn(&mut Device)) {
        let Some(programs) = self.programs.get_or_init(|| self.compile()) else { return };
        for (program, architecture) in programs.iter().zip(ARCHITECTURES) {
            for (schedule, seed, races) in SCHEDULES {
                // Where a test fails, this is shown.
                println!("{}.cu for {architecture}, {schedule:?}, seed {seed}, races {races}", self.name);
                test(&mut Device::new(program, Settings { schedule, seed, races, ..Settings::default() }));
            }
        }
    }

    /// None if there is no compiler, where there may be none.
    fn compile(&self) -> Option<Vec<Arc<Program>>> {
        let Some(nvcc) = nvcc() else {
            assert!(!is_required(), "nvcc is not installed: ./check tools does that");
            let _ = writeln!(std::io::stderr(), "SKIPPED kernels of {}.cu: no nvcc", self.name);
            return None;
        };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/oracle/{}.cu", self.name));
        let programs = ARCHITECTURES.map(|architecture| {
            let ptx = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.{architecture}.ptx", self.name));
            let mut command = Command::new(&nvcc);
            command.args(["-ptx", "-lineinfo", "-std=c++17", "-arch", architecture, "-o"]).arg(&ptx).arg(&source);
            let output = command.output().expect("nvcc starts");
            assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
            let text = std::fs::read_to_string(&ptx).expect("what nvcc wrote");
            Program::new(&text).unwrap_or_else(|error| {
                let line = text.lines().nth(error.line.saturating_sub(1)).unwrap_or_default();
                panic!("{}: {error}\n{line}", ptx.display())
            })
        });
        Some(programs.into())
    }
}

/// Whether this is a system on which the compiler must be there.
fn is_required() -> bool {
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    cfg!(target_arch = "x86_64") && system.lines().any(|line| matches!(line, "ID=debian" | "ID=ubuntu"))
}

/// A device with a module loaded.
pub(crate) struct Device {
    machine: Arc<Machine>,
    program: Arc<Program>,
    space: Arc<Space>,
    globals: Arc<[u64]>,
    end: u64,
}

impl Device {
    fn new(program: &Arc<Program>, settings: Settings) -> Self {
        let machine = Machine::new(settings).expect("a thread");
        let mut device =
            Self { machine, program: program.clone(), space: Space::new(0), globals: [].into(), end: 1 << 32 };
        let outline = program.outline();
        let places: Vec<_> = outline.globals.iter().map(|global| device.place(global.bytes)).collect();
        device.globals = places.iter().map(|(at, _)| *at).collect();
        for (index, (_, memory)) in places.iter().enumerate() {
            memory.write(0, &outline.initial(index, &device.globals));
        }
        device
    }

    /// Memory of its own. Nothing is mapped behind it, so that whoever goes on reading there is found.
    fn place(&mut self, bytes: u64) -> (u64, Arc<Segment>) {
        let (at, memory) = (self.end, Segment::zeroed(bytes));
        let backing = Backing::Memory(memory.clone(), 0);
        self.space.map(Window { at, bytes, backing, access: Access::ReadWrite });
        self.end = (at + bytes).next_multiple_of(4096) + 4096;
        (at, memory)
    }

    /// Memory that holds `values`.
    pub(crate) fn buffer<T: Pod>(&mut self, values: &[T]) -> Buffer<T> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let (at, memory) = self.place(bytes.len() as u64);
        memory.write(0, bytes);
        Buffer { at, memory, of: PhantomData }
    }

    /// Memory for `count` values, zero at first.
    pub(crate) fn zeros<T: Pod>(&mut self, count: usize) -> Buffer<T> {
        let (at, memory) = self.place((count * size_of::<T>()) as u64);
        Buffer { at, memory, of: PhantomData }
    }

    /// Runs a kernel.
    pub(crate) fn launch(&self, kernel: &str, shape: Shape, params: &[&dyn Param]) {
        let slots = self.program.parameters(kernel).unwrap_or_else(|| panic!("no kernel {kernel}"));
        assert_eq!(slots.len(), params.len(), "parameters of {kernel}");
        let mut bytes = Vec::new();
        for (&(offset, length), param) in slots.iter().zip(params) {
            bytes.resize(offset as usize, 0);
            bytes.extend(param.bytes());
            assert_eq!(bytes.len() as u64, offset + length, "a parameter of {kernel}");
        }
        let launch = Launch {
            program: self.program.clone(),
            globals: self.globals.clone(),
            kernel: kernel.to_owned(),
            space: self.space.clone(),
            pe: None,
            blocks: shape.blocks,
            threads: shape.threads,
            shared: shape.shared,
            registers: 32,
            params: bytes,
        };
        self.machine.launch(launch).unwrap_or_else(|fault| panic!("{fault}"));
    }
}

/// How many blocks, and of how many threads.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    blocks: [u32; 3],
    threads: [u32; 3],
    shared: u32,
}

impl Shape {
    pub(crate) const fn line(blocks: u32, threads: u32) -> Self {
        Self { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared: 0 }
    }

    pub(crate) const fn plane(blocks: [u32; 2], threads: [u32; 2]) -> Self {
        Self { blocks: [blocks[0], blocks[1], 1], threads: [threads[0], threads[1], 1], shared: 0 }
    }

    pub(crate) const fn cube(blocks: [u32; 3], threads: [u32; 3]) -> Self {
        Self { blocks, threads, shared: 0 }
    }

    /// With bytes of shared memory beside what the kernel declares.
    pub(crate) const fn shared(self, bytes: u32) -> Self {
        Self { shared: bytes, ..self }
    }
}

/// Memory of a device.
pub(crate) struct Buffer<T> {
    at: u64,
    memory: Arc<Segment>,
    of: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// What is in it.
    pub(crate) fn read(&self) -> Vec<T> {
        let mut values = vec![T::zeroed(); self.memory.bytes() as usize / size_of::<T>()];
        self.memory.read(0, bytemuck::cast_slice_mut(&mut values));
        values
    }
}

/// What a kernel takes.
pub(crate) trait Param {
    /// As it lies among the parameters.
    fn bytes(&self) -> Vec<u8>;
}

impl<T> Param for Buffer<T> {
    fn bytes(&self) -> Vec<u8> {
        self.at.to_le_bytes().to_vec()
    }
}

macro_rules! params {
    ($($plain:ty),*) => { $(impl Param for $plain {
        fn bytes(&self) -> Vec<u8> {
            bytemuck::bytes_of(self).to_vec()
        }
    })* };
}

params!(u32, [u32; 2], [i32; 3], [u8; 40]);

/// Numbers that look random and are the same each time: Steele, Lea and Flood's SplitMix64.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// From -1 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    pub(crate) fn list<T>(&mut self, count: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..count).map(|_| make(self)).collect()
    }
}
