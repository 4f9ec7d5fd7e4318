//! Multicast on the CPU machine, which emulates it for these tests.

use congruent::collectives::{Algorithm, Collective, Layout, PlanView, Prod, Protocol, multimem};
use congruent::device::{MultimemOp, MultimemReduction, MultimemType, Sym, kernels};
use congruent::{Error, Grid, World};
use congruent_tests::conformance::{self, Shape, processes_with_multicast, threads_with_multicast};

/// Every number of PEs at the fast width; fewer where lanes are told apart.
const SHAPES: [Shape; 11] = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 7), (1, 8), (4, 2), (4, 3), (4, 8)];

#[test]
fn multicast() {
    threads_with_multicast(conformance::multicast, &SHAPES);
}

#[test]
fn multicast_of_processes() {
    processes_with_multicast("multicast_of_processes", conformance::multicast, &[(1, 2), (1, 5), (4, 3)]);
}

#[test]
fn multicast_among_others() {
    threads_with_multicast(|world| conformance::mixed(world, 23, 400), &[(1, 2), (1, 3), (1, 8), (4, 4)]);
}

/// What a world with and one without multicast say of it.
fn asked(multicast: bool) -> Result<Vec<Vec<(Algorithm, Protocol)>>, Error> {
    World::builder().multicast(multicast).local(2, |world| {
        let comm = world.comm(world.team())?;
        let call = comm.circumstances(1 << 20, None);
        assert_eq!((call.multicast, world.team().window()), (multicast, u32::from(multicast)));
        Ok(comm.selector().candidates(Collective::Broadcast, &call))
    })
}

#[test]
fn it_is_offered_where_the_machine_has_it() -> Result<(), Error> {
    let way = (Algorithm::MULTIMEM, Protocol::Simple);
    assert!(asked(true)?.iter().all(|ways| ways.contains(&way)));
    assert!(asked(false)?.iter().all(|ways| !ways.is_empty() && !ways.contains(&way)));
    Ok(())
}

kernels! {
    /// What links have no instruction for.
    pub fn product(block, ctx, words: Sym<u32>, plan: PlanView) {
        multimem::all_reduce(&mut plan.enter(block, ctx), words, words, Prod);
    }

    /// Half a word to all.
    pub fn half_a_word(block, ctx, words: Sym<u32>, _plan: PlanView) {
        let half = words.cast::<u16>().elem(1);
        if let Some(all) = ctx.world().multicast(half) {
            ctx.put_multicast(block, all, half);
        }
    }

    /// Words of 8 bytes that start within one.
    pub fn half_of_a_long_word(block, ctx, words: Sym<u32>, _plan: PlanView) {
        let halves = words.slice(1..3);
        if let (Some(all), Some(how)) =
            (ctx.world().multicast(halves), MultimemReduction::new(MultimemType::U64, MultimemOp::Max))
        {
            ctx.reduce_multicast(block, halves, all, how);
        }
    }
}

#[test]
fn what_links_cannot_do_is_refused_by_kernels() {
    macro_rules! refused {
        ($kernel:ident, $why:literal) => {
            let told = World::builder().multicast(true).heap(8 << 20).local(1, |world| {
                let (words, plan) = (world.alloc::<u32>(8)?, world.plan(Layout::new(world.team(), 1))?);
                let stream = world.stream()?;
                let ended = world.run(&stream, $kernel, Grid::one(1), (words.view(), plan.view()));
                Ok::<_, Error>(ended.map_err(|error| error.to_string()))
            });
            let told = told.map(|mut ends| ends.remove(0));
            assert!(matches!(&told, Ok(Err(said)) if said.contains($why)), "{told:?}");
        };
    }
    refused!(product, "the switch does not reduce this");
    refused!(half_a_word, "whole words");
    refused!(half_of_a_long_word, "whole words");
}
