//! Multicast on the CPU machine, which emulates it for these tests.

use congruent::collectives::{Algorithm, Collective, Protocol};
use congruent::{Error, World};
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
    let way = (Algorithm::Multimem, Protocol::Simple);
    assert!(asked(true)?.iter().all(|ways| ways.contains(&way)));
    assert!(asked(false)?.iter().all(|ways| !ways.is_empty() && !ways.contains(&way)));
    Ok(())
}
