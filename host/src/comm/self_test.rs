//! Whether lines of the LL128 protocol arrive as a whole on this machine. The memory model does not say so (MM-8), so it is
//! tried before the protocol is used.

use congruent_collectives::PlanView;
use congruent_device::TeamView;
use congruent_kernels as kernels;

use crate::{CollectiveError, CommError, Grid, LaunchError, World};

/// Exchanges of all with all, each with numbers of its own.
const ROUNDS: u32 = 64;

/// Numbers that each member gives: many lines, and the last of them in part.
const COUNT: usize = 1001;

/// Runs exchanges over lines by `plan`, which is over that protocol, and tells whether every member of every team found every number.
///
/// # Collective
/// Over the world; `largest` is the size of its largest team.
pub(super) fn lines_arrive(
    world: &mut World,
    team: TeamView,
    plan: PlanView,
    largest: usize,
) -> Result<bool, CommError> {
    let (all, mine) = (world.alloc::<u32>(largest * COUNT)?, world.alloc::<u32>(COUNT)?);
    let number =
        |round: u32, rank: usize, i: usize| (round << 20 ^ (rank as u32) << 12 ^ i as u32).wrapping_mul(0x9e37_79b1);
    let mut found = true;
    let tried = (|| {
        let stream = world.stream()?;
        let dst = all.view().slice(..team.size() * COUNT).cast();
        for round in 0..ROUNDS {
            let numbers: Vec<u32> = (0..COUNT).map(|i| number(round, team.me(), i)).collect();
            // The buffer has as many elements.
            found &= mine.write(0, &numbers).is_ok();
            let args = (dst, mine.view().cast(), 0, plan, 1);
            world.run(&stream, kernels::all_gather_one_shot, Grid::one(256), args)?;
            let expected = (0..team.size()).flat_map(|rank| (0..COUNT).map(move |i| number(round, rank, i)));
            // What cannot be read is a failure of the world, which the exchange below tells.
            found &=
                all.to_vec().is_ok_and(|all| all.into_iter().zip(expected).all(|(seen, expected)| seen == expected));
        }
        Ok::<_, LaunchError>(())
    })();
    let said = if tried.is_ok() && found { "lines arrive" } else { "lines do not arrive" };
    let everyone = world.exchange("self-test of LL128", said)?;
    match tried {
        Err(LaunchError::World(failure)) => Err(CollectiveError::World(failure).into()),
        _ => Ok(everyone.iter().all(|one| one == "lines arrive")),
    }
}
