//! Flags that wrap around: packets whose flags have so few bits that a stale one would soon be taken for new.

use congruent::collectives::{Layout, Protocol};
use congruent::device::Semaphore;
use congruent::{Error, Grid, World};
use congruent_test_kernels::collectives::delay;

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
    let periods: &[usize] = if all_shapes() { &[1, 2, 3, 4, 5, 7, 8, 16, 32] } else { &[4, 8, 16] };
    for way in Way::all(world.npes()).into_iter().filter(|way| way.protocol != Protocol::Simple) {
        for &period in periods {
            for call in 0..4 * period.max(4) {
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
