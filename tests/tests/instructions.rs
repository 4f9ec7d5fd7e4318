//! How many instructions the hot loops of the examples' kernels take for each 16 bytes of a thread, beside CUDA C++ with accesses of 16
//! bytes, compiled by nvcc -O3: as virtual GPUs execute PTX, and as a difference between two sizes, in which all else cancels.
//!
//! `cargo test --workspace --test instructions -- --nocapture` prints the table.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use congruent::collectives::Layout;
use congruent::device::{Semaphore, SmallFloat, bf16};
use congruent::fused::gemm::{Eight, SHARED, THREADS};
use congruent::{Chunked, Error, Grid, MachineKind, Packed, World};
use congruent_build::{Ptxas, nvcc};
use congruent_example_kernels::axpy::axpy;
use congruent_example_kernels::gemm::gemm;
use congruent_example_kernels::jacobi::{Four, Plate, Rest, fours, jacobi};
use congruent_example_kernels::rows::{rms_norm, softmax};
use congruent_tests::{repository, skip};
use congruent_virtual_driver::congruentVirtualExecuted;
use congruent_virtual_gpu::{Access, Backing, Launch, Machine, Program, Segment, Settings, Space, Window};

/// What is asked: so many times the instructions of nvcc's, at most.
const ASKED: f64 = 1.25;

/// A kernel of ours and its like of nvcc's.
struct Case {
    name: &'static str,
    threads: u32,
    /// Two sizes; what they are of, the launches say.
    sizes: [usize; 2],
    /// How often a thread does the hot loop's work of a size: for 16 bytes, or with its warp for an `mma`.
    units: fn(usize) -> usize,
    ours: fn(&mut World, &Case, usize) -> Result<Ran, Error>,
    theirs: fn(&Gpu, &Case, usize) -> Ran,
}

/// The lanes' instructions of a launch, and what it computed.
type Ran = (u64, Vec<f32>);

const CASES: [Case; 5] = [
    Case {
        name: "axpy",
        threads: 128,
        sizes: [1024, 3072],
        units: |fours| fours,
        ours: |world, case, fours| {
            let (mut x, mut y) = (world.buffer(4 * fours)?, world.buffer(4 * fours)?);
            x.write(0, &numbers(4 * fours))?;
            y.fill(1.0)?;
            let executed = launched(world, |world, stream| {
                world.run(stream, axpy, Grid::one(case.threads), (0.5, Packed::new(&x), Packed::new(&mut y), 1))
            })?;
            Ok((executed, y.to_vec()?))
        },
        theirs: |gpu, case, fours| {
            let memory = [numbers(4 * fours), vec![1.0; 4 * fours]].map(|numbers| bytes(&numbers));
            let params = [Param::Float(0.5), Param::Memory(&memory[0]), Param::Memory(&memory[1]), Param::Long(fours)];
            gpu.run(case, &params, 2, floats)
        },
    },
    Case {
        name: "softmax",
        threads: 128,
        sizes: [256, 768],
        units: |fours| ROWS * fours,
        ours: |world, case, fours| {
            let mut rows = world.buffer(4 * ROWS * fours)?;
            rows.write(0, &numbers(4 * ROWS * fours))?;
            let executed = launched(world, |world, stream| {
                world.run(stream, softmax, Grid::one(case.threads), (Chunked::new(Packed::new(&mut rows), fours),))
            })?;
            Ok((executed, rows.to_vec()?))
        },
        theirs: |gpu, case, fours| {
            let rows = bytes(&numbers(4 * ROWS * fours));
            gpu.run(case, &[Param::Memory(&rows), Param::Long(ROWS), Param::Long(fours)], 0, floats)
        },
    },
    Case {
        name: "rms_norm",
        threads: 128,
        sizes: [256, 768],
        units: |fours| ROWS * fours,
        ours: |world, case, fours| {
            let (mut rows, mut weights) = (world.buffer(4 * ROWS * fours)?, world.buffer(4 * fours)?);
            rows.write(0, &numbers(4 * ROWS * fours))?;
            weights.write(0, &numbers(4 * fours))?;
            let executed = launched(world, |world, stream| {
                world.run(
                    stream,
                    rms_norm,
                    Grid::one(case.threads),
                    (Chunked::new(Packed::new(&mut rows), fours), Packed::new(&weights)),
                )
            })?;
            Ok((executed, rows.to_vec()?))
        },
        theirs: |gpu, case, fours| {
            let (rows, weights) = (bytes(&numbers(4 * ROWS * fours)), bytes(&numbers(4 * fours)));
            let params = [Param::Memory(&rows), Param::Memory(&weights), Param::Long(ROWS), Param::Long(fours)];
            gpu.run(case, &params, 0, floats)
        },
    },
    Case {
        name: "jacobi",
        threads: 256,
        sizes: [256, 768],
        units: |fours| STEPS * ROWS * fours,
        ours: |world, case, columns| {
            let (rows, columns) = (ROWS as u32, 4 * columns as u32);
            let plane = (ROWS + 2) * fours(columns);
            let cells = world.alloc::<Four>(2 * plane)?;
            let start: Vec<Four> = numbers(8 * plane).chunks(4).map(|four| Four::from_fn(|i| four[i])).collect();
            cells.write(0, &start)?;
            let (from_above, from_below) = (world.alloc::<Semaphore>(1)?, world.alloc::<Semaphore>(1)?);
            let (result, plan) = (world.alloc::<u32>(2)?, world.plan(Layout::new(world.team(), 1))?);
            let plate = Plate {
                cells: cells.view(),
                from_above: from_above.view(),
                from_below: from_below.view(),
                room: rows,
                rows_above: rows,
                rows,
                columns,
            };
            let rest = Rest { tolerance: 0.0, every: u32::MAX, limit: STEPS as u32 };
            let executed = launched(world, |world, stream| {
                world.run(stream, jacobi, Grid::one(case.threads), (plate, result.view(), plan.view(), rest))
            })?;
            Ok((executed, cells.to_vec()?.into_iter().flat_map(|four| four.0).collect()))
        },
        theirs: |gpu, case, columns| {
            let (cells, moved) = (bytes(&numbers(8 * (ROWS + 2) * (columns + 2))), bytes(&[0.0]));
            let [rows, columns, steps] = [ROWS, columns, STEPS].map(Param::Long);
            gpu.run(case, &[Param::Memory(&cells), Param::Memory(&moved), rows, columns, steps], 0, floats)
        },
    },
    Case {
        name: "gemm",
        threads: 128,
        sizes: [8, 24],
        // Of 32 lanes.
        units: |eights| 32 * (SIDE / 16) * (SIDE / 8) * (eights / 2),
        ours: |world, _, eights| {
            let (a, b) = (eights_of(SIDE * eights, 0), eights_of(SIDE * eights, 3));
            let (mut x, mut y) = (world.buffer::<Eight>(a.len())?, world.buffer::<Eight>(b.len())?);
            x.write(0, &a)?;
            y.write(0, &b)?;
            let mut product = world.buffer::<bf16>(SIDE * SIDE)?;
            let executed = launched(world, |world, stream| {
                let grid = Grid::one(THREADS as u32).with_shared(SHARED as u32);
                world.run(stream, gemm, grid, (&x, &y, &mut product, eights as u32))
            })?;
            Ok((executed, product.to_vec()?.into_iter().map(SmallFloat::widen).collect()))
        },
        theirs: |gpu, case, eights| {
            let factors = [0, 3].map(|seed| eights_of(SIDE * eights, seed));
            let [a, b] = factors.map(|factor| bytemuck::cast_slice(&factor).to_vec());
            let product = vec![0; 2 * SIDE * SIDE];
            let [side, eights] = [SIDE, eights].map(Param::Long);
            let params = [Param::Memory(&a), Param::Memory(&b), Param::Memory(&product), side, side, eights];
            gpu.run(case, &params, 2, |bytes| {
                bytes.chunks(2).map(|two| bf16::from_bits(u16::from_le_bytes([two[0], two[1]])).widen()).collect()
            })
        },
    },
];

/// Rows of a matrix or of a plate, and steps of that.
const ROWS: usize = 4;
const STEPS: usize = 2;
/// Rows and columns of a product: tiles of ours and of theirs.
const SIDE: usize = 384;

/// Some numbers between 0 and 2.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7 % 101) as f32 / 50.0).collect()
}

/// Sixteenths of small integers, of whose products sums are exact.
fn eights_of(count: usize, seed: usize) -> Vec<Eight> {
    (0..count)
        .map(|i| Eight::from_fn(|j| bf16::narrow(((8 * i + j) * 7 + seed) as f32 % 29.0 / 16.0 - 0.875)))
        .collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(numbers).to_vec()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

/// The lanes' instructions of a launch.
fn launched(
    world: &World,
    launch: impl FnOnce(&World, &congruent::Stream) -> Result<(), congruent::LaunchError>,
) -> Result<u64, Error> {
    let stream = world.stream()?;
    let before = congruentVirtualExecuted();
    launch(world, &stream)?;
    Ok(congruentVirtualExecuted() - before)
}

/// A virtual GPU with nvcc's kernels.
struct Gpu {
    machine: Arc<Machine>,
    program: Arc<Program>,
}

/// What one of these takes.
#[derive(Clone, Copy)]
enum Param<'p> {
    Float(f32),
    Long(usize),
    /// The address of memory that holds this at first.
    Memory(&'p [u8]),
}

impl Gpu {
    /// Runs one block of a case's kernel; what it computed is in the memory of that parameter.
    fn run(&self, case: &Case, params: &[Param<'_>], result: usize, read: impl Fn(&[u8]) -> Vec<f32>) -> Ran {
        let (space, mut at, mut places, mut given) = (Space::new(0), 1 << 32, Vec::new(), Vec::new());
        let slots = self.program.parameters(case.name).unwrap();
        assert_eq!(slots.len(), params.len());
        for (&(offset, _), param) in slots.iter().zip(params) {
            given.resize(offset as usize, 0);
            places.push(match param {
                Param::Float(number) => {
                    given.extend(number.to_le_bytes());
                    None
                }
                Param::Long(number) => {
                    given.extend((*number as u64).to_le_bytes());
                    None
                }
                Param::Memory(bytes) => {
                    let memory = Segment::zeroed(bytes.len() as u64);
                    memory.write(0, bytes);
                    let backing = Backing::Memory(memory.clone(), 0);
                    space.map(Window { at, bytes: memory.bytes(), backing, access: Access::ReadWrite });
                    given.extend(at.to_le_bytes());
                    at = (at + memory.bytes()).next_multiple_of(4096) + 4096;
                    Some(memory)
                }
            });
        }
        let before = self.machine.executed();
        let launch = Launch {
            program: self.program.clone(),
            globals: [].into(),
            kernel: case.name.to_owned(),
            space,
            pe: None,
            blocks: [1, 1, 1],
            threads: [case.threads, 1, 1],
            shared: 0,
            registers: 255,
            params: given,
        };
        self.machine.launch(launch).unwrap_or_else(|fault| panic!("{}: {fault}", case.name));
        let memory = places[result].as_ref().unwrap();
        let mut bytes = vec![0; memory.bytes() as usize];
        memory.read(0, &mut bytes);
        (self.machine.executed() - before, read(&bytes))
    }
}

/// Instructions of the hot loop for one unit, from launches of both sizes.
fn for_a_unit(case: &Case, [small, large]: [u64; 2]) -> f64 {
    let [few, many] = case.sizes.map(case.units);
    (large - small) as f64 / (many - few) as f64
}

/// Registers of a thread and bytes of shared memory, of our kernels, as their table says.
fn ours_cost(name: &str) -> (u32, u32) {
    let table = std::fs::read_to_string(repository().join("host/examples/kernels/ptx/usage.txt")).unwrap();
    let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = row.into_iter().find(|words| words.first() == Some(&"sm_90") && words.last() == Some(&name));
    let [_, registers, _, _, _, shared, _] = row.unwrap_or_else(|| panic!("{name} is not in the table"))[..] else {
        panic!("a row has seven columns");
    };
    (registers.parse().unwrap(), shared.parse().unwrap())
}

#[test]
fn hot_loops_take_few_instructions_more_than_those_of_nvcc() {
    let (Some(nvcc), Ok(ptxas)) = (nvcc(), Ptxas::find()) else {
        return skip("hot_loops_take_few_instructions_more_than_those_of_nvcc", "no nvcc or no ptxas");
    };
    let (source, ptx) = (
        repository().join("tests/tests/instructions/kernels.cu"),
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions.ptx"),
    );
    let mut compile = Command::new(nvcc);
    compile.args(["-ptx", "-O3", "-std=c++17", "-arch", "sm_90", "-o"]).arg(&ptx).arg(&source);
    let output = compile.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let program = Program::new(&std::fs::read_to_string(&ptx).unwrap()).unwrap();
    let gpu = Gpu { machine: Machine::new(Settings::default()).unwrap(), program };
    let cost = ptxas.assemble_for(&ptx, "sm_90").unwrap().functions;

    let all = |world: &mut World| {
        let run = |case: &Case, world: &mut World| -> Result<_, Error> {
            Ok([(case.ours)(world, case, case.sizes[0])?, (case.ours)(world, case, case.sizes[1])?])
        };
        CASES.iter().map(|case| run(case, world)).collect::<Result<Vec<_>, Error>>()
    };
    let ours = World::builder().machine(MachineKind::Virtual).heap(32 << 20).local(1, all).unwrap().swap_remove(0);

    println!("| hot loop | ours | nvcc -O3 | ratio | at most | registers | theirs | shared | theirs |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut worse = Vec::new();
    for (case, ours) in CASES.iter().zip(ours) {
        let theirs = case.sizes.map(|size| (case.theirs)(&gpu, case, size));
        for ((_, ours), (_, theirs)) in ours.iter().zip(&theirs) {
            let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-5 * x.abs().max(y.abs()) + 1e-6;
            assert!(ours.len() == theirs.len() && ours.iter().zip(theirs).all(close), "{} computes other", case.name);
        }
        let [ours, theirs] = [ours, theirs].map(|ran| for_a_unit(case, ran.map(|(executed, _)| executed)));
        let ((registers, shared), ratio) = (ours_cost(case.name), ours / theirs);
        let other = cost.iter().find(|function| function.name == case.name).unwrap();
        println!(
            "| {} | {ours:.2} | {theirs:.2} | {ratio:.2} | {ASKED:.2} | {registers} | {} | {shared} | {} |",
            case.name,
            other.registers.unwrap(),
            other.shared
        );
        if ratio > ASKED {
            worse.push(format!("{} takes {ratio:.2} times as many, at most {ASKED}", case.name));
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}
