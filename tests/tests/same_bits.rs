//! Reductions of numbers whose sums are rounded, natively and by the shipped PTX: on the same schedule they have the same bits. Their order
//! is the algorithm's, and so is the rounding of each step; no step may be contracted or done in another precision.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;

use std::collections::BTreeMap;
use std::fmt::LowerHex;
use std::num::NonZeroU32;

use congruent::collectives::{Algorithm, Collective, HasDatatype, Op, Protocol};
use congruent::{Comm, CommOptions, Error, LaunchError, Stream, World};
use congruent_heap::{bf16, f16};
use processes::{is_pe, myself};

/// Not a power of two, and with a partner more than pairs have.
const NPES: usize = 5;
/// Of each member; of two blocks, with a tail that fills no vector.
const LEN: usize = 403;
const ALGORITHMS: [Algorithm; 5] =
    [Algorithm::ONE_SHOT, Algorithm::DIRECT, Algorithm::RING, Algorithm::TREE, Algorithm::RECURSIVE];
const COLLECTIVES: [Collective; 3] = [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce];
const OPS: [Op; 3] = [Op::Sum, Op::Prod, Op::Avg];

/// Numbers of which a computer's sums and products are hardly ever exact.
trait Rounded: HasDatatype + PartialEq {
    type Bits: LowerHex;
    fn of(value: f64) -> Self;
    fn bits(self) -> Self::Bits;
}

macro_rules! rounded {
    ($($type:ty: $bits:ty, $of:expr;)*) => {$(
        impl Rounded for $type {
            type Bits = $bits;
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn bits(self) -> $bits {
                self.to_bits()
            }
        }
    )*};
}
rounded! { f32: u32, |value| value as f32; f64: u64, |value| value; f16: u16, f16::from_f64; bf16: u16, bf16::from_f64; }

/// Between 0.5 and 1.5.
fn sample<T: Rounded>(pe: usize, i: usize) -> T {
    let mixed = ((pe * 100_003 + i + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    T::of(0.5 + (mixed >> 11) as f64 / (1u64 << 53) as f64)
}

/// Says what every reduction of a type gives this PE, in every way that it has here.
fn each<T: Rounded>(world: &mut World, comm: &mut Comm, stream: &Stream) -> Result<(), Error> {
    let (pe, name) = (world.pe().index(), std::any::type_name::<T>());
    let (src, dst) = (world.alloc::<T>(NPES * LEN)?, world.alloc::<T>(NPES * LEN)?);
    src.write(0, &(0..NPES * LEN).map(|i| sample(pe, i)).collect::<Vec<T>>())?;
    for collective in COLLECTIVES {
        for (&algorithm, &protocol) in
            ALGORITHMS.iter().flat_map(|one| Protocol::ALL.iter().map(move |protocol| (one, protocol)))
        {
            for op in OPS {
                dst.fill(T::of(0.0))?;
                world.barrier()?;
                comm.force(algorithm, protocol);
                let (all, mine) = (src.view(), dst.view().slice(..LEN));
                let called = match collective {
                    Collective::AllReduce => comm.all_reduce(stream, dst.view(), all, op),
                    Collective::ReduceScatter => comm.reduce_scatter(stream, mine, all, op),
                    _ => comm.reduce(stream, dst.view(), all, op, 1),
                };
                match called {
                    Err(LaunchError::Forced { .. } | LaunchError::NoSuchKernel { .. }) => continue,
                    called => called?,
                }
                world.synchronize(stream)?;
                let bits: Vec<String> = dst.to_vec()?.into_iter().map(|one| format!("{:x}", one.bits())).collect();
                println!("SAME {collective} {algorithm} {protocol} {op:?} {name} PE {pe}: {}", bits.join(" "));
            }
        }
    }
    Ok(())
}

/// What a process does, on its machine.
fn reductions() {
    let run = |world: &mut World| {
        let (blocks, threads) = (NonZeroU32::new(2), NonZeroU32::new(64));
        let options = CommOptions { blocks, threads, buffer: Some(64 << 10), ..CommOptions::default() };
        let (mut comm, stream) = (world.comm_with(world.team(), options)?, world.stream()?);
        each::<f32>(world, &mut comm, &stream)?;
        each::<f64>(world, &mut comm, &stream)?;
        each::<f16>(world, &mut comm, &stream)?;
        each::<bf16>(world, &mut comm, &stream)
    };
    World::builder().heap(32 << 20).local(NPES, run).unwrap();
}

/// By what was called and whose it is, the bits of the result.
fn on(machine: &str) -> BTreeMap<String, String> {
    let output = myself("natively_and_by_ptx").env("CONGRUENT_MACHINE", machine).output().unwrap();
    assert!(output.status.success(), "{machine}: {}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let lines = said.lines().filter_map(|line| line.split_once("SAME ")?.1.split_once(": "));
    lines.map(|(call, bits)| (call.to_owned(), bits.to_owned())).collect()
}

#[test]
fn natively_and_by_ptx() {
    if is_pe() {
        return reductions();
    }
    let (native, ptx) = (on("cpu"), on("virtual"));
    let calls = |all: &BTreeMap<String, String>| all.keys().cloned().collect::<Vec<_>>();
    // Lines need what no virtual GPU promises unless it is told to.
    let common: Vec<_> = calls(&native).into_iter().filter(|call| !call.contains("LL128")).collect();
    assert_eq!(calls(&ptx), common);
    for algorithm in ALGORITHMS {
        assert!(common.iter().any(|call| call.contains(&format!(" {algorithm} "))), "no result of {algorithm}");
    }
    for call in common {
        assert_eq!(native[&call], ptx[&call], "{call}");
    }
}
