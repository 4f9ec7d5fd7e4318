//! Flags that wrap around: packets whose flags have so few bits that a stale one would soon be taken for new.

use congruent::collectives::{Layout, Op, Protocol, Reduction};
use congruent::device::Semaphore;
use congruent::{Error, Grid, World, fixed_kernels};
use congruent_test_kernels::collectives::delay;

use super::limit::is_limited;
use super::machines::all_shapes;
use super::sweep::{Bench, Length};
use super::ways::Way;

/// Bits of a flag: it comes again after 16 uses of a queue or inbox.
const BITS: u32 = 4;
/// How late one member is, so that others look at what it has not yet written.
const LATE_US: u64 = 200;

/// Messages of changing length over LL and LL128. After a long one come short ones that do not reach its last words, until a
/// long one has the flag again that these words still hold. Then one member is late: whoever takes an old flag for new reads
/// old data.
pub fn flags(world: &mut World) -> Result<(), Error> {
    let mut bench = Bench::new(world, Layout::new(world.team(), 3).buffer(0).flag_bits(BITS))?;
    let never = world.alloc::<Semaphore>(1)?;
    let periods: &[usize] = match (all_shapes(), is_limited()) {
        (true, _) => &[1, 2, 3, 4, 5, 7, 8, 16, 32],
        (_, true) => &[16],
        _ => &[4, 8, 16],
    };
    for way in Way::all(world.npes()).into_iter().filter(|way| way.protocol != Protocol::Simple) {
        for &period in periods {
            let calls = if is_limited() { 2 * period + 1 } else { 4 * period.max(4) };
            for call in 0..calls {
                let long = call % period == 0;
                if long && call / period % world.npes() == world.pe().index() {
                    world.launch(bench.stream(), delay, Grid::one(1), (never.view(), LATE_US))?;
                }
                let len = if long { Length::Steps(1, 0) } else { Length::ShortSteps(1) };
                bench.once(world, way, len)?;
            }
        }
    }
    Ok(())
}

/// Simple calls leave data in a queue whose words look like packets with the flag that a call over LL awaits next; then a member
/// is late with its packets. Whoever had one queue for both protocols would take that data for the packets.
pub fn protocols(world: &mut World) -> Result<(), Error> {
    const WORDS: usize = 64;
    const DEPTH: u32 = Layout::DEPTH as u32;
    let (n, me) = (world.npes() as u32, world.pe().index() as u32);
    let plan = world.plan(Layout::new(world.team(), 1))?;
    let (dst, src) = (world.alloc::<u32>(WORDS)?, world.alloc::<u32>(WORDS)?);
    let never = world.alloc::<Semaphore>(1)?;
    let stream = world.stream()?;
    let max = Reduction::new::<u32>(Op::Max, None);
    let max = max.unwrap_or_else(|| panic!("there is a maximum of integers"));
    let call = |protocol, first: u32, rest: u32| {
        let values: Vec<u32> = (0..WORDS as u32).map(|i| if i % 2 == 0 { first } else { rest }).collect();
        src.write(0, &values)?;
        let (to, from) = (dst.view().cast(), src.view().cast());
        let args = (to, from, max, 0, plan.view().over(protocol), 1);
        world.run(&stream, fixed_kernels::all_reduce_recursive, Grid::one(32), args)?;
        Ok::<_, Error>(dst.to_vec()?)
    };
    for round in 0..8 {
        // Every call is one piece, and the flag of a piece is its number, from 1 on.
        let awaited = (DEPTH + 1) * (round + 1);
        for _ in 0..DEPTH {
            assert_eq!(call(Protocol::Simple, awaited, u32::MAX)?, [awaited, u32::MAX].repeat(WORDS / 2));
        }
        if round % n == me {
            world.launch(&stream, delay, Grid::one(1), (never.view(), LATE_US))?;
        }
        let most = 10 * round + n - 1;
        assert_eq!(call(Protocol::Ll, 10 * round + me, me)?, [most, n - 1].repeat(WORDS / 2), "round {round}");
    }
    Ok(())
}
