//! How the memory of PEs that are processes gets from one to the other, over the virtual driver: by descriptors, by handles of a
//! fabric, or not at all.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod processes;
mod virtual_support;

use std::time::Duration;

use congruent::{Error, World};
use processes::{Port, is_pe, myself, say, seat};
use virtual_support::{declare, ends, on_virtual};

const PATIENCE: Duration = Duration::from_secs(60);

/// Every PE writes, and reads what the PE before it wrote; on a heap that has grown.
fn scenario(world: &mut World) -> Result<(), Error> {
    let (stream, next) = (world.stream()?, (world.pe().index() + 1) % world.npes());
    let (mine, theirs) = (world.alloc::<u64>(1 << 20)?, world.alloc::<u64>(1 << 20)?);
    mine.fill(world.pe().index() as u64 + 1)?;
    world.barrier()?;
    world.put(&stream, theirs.view().at(world.rank(next as u32)?), mine.view())?;
    world.synchronize(&stream)?;
    world.barrier()?;
    let expected = (world.pe().index() + world.npes() - 1) % world.npes() + 1;
    assert_eq!(theirs.to_vec()?, vec![expected as u64; 1 << 20]);
    Ok(world.barrier()?)
}

/// Two PEs whose virtual drivers have these handles; what each says.
fn both(test: &str, handles: [&str; 2]) -> Vec<String> {
    let port = Port::reserve();
    let commands = (0..2).map(|pe| {
        let mut command = seat(myself(test), &port, pe, 2);
        command.env("CONGRUENT_PTX", declare("handles", &[]));
        on_virtual(command, &format!("handles={}", handles[pe as usize]))
    });
    let ends = ends(commands.collect(), PATIENCE);
    ends.into_iter().inspect(|end| assert!(end.succeeded, "{end:?}")).map(|end| end.said).collect()
}

#[test]
fn memory_goes_the_way_that_all_devices_have() {
    if is_pe() {
        let ended = World::builder().heap(4 << 20).heap_max(64 << 20).run(2, scenario);
        return say(&match ended {
            Ok(_) => "RIGHT".to_owned(),
            Err(error) => format!("REFUSED {}", error.to_string().replace('\n', " ")),
        });
    }
    let test = "memory_goes_the_way_that_all_devices_have";
    for handles in [["posix", "posix"], ["fabric", "fabric"], ["both", "fabric"], ["posix", "both"]] {
        for said in both(test, handles) {
            assert!(said.contains("\nRIGHT\n"), "{handles:?}: {said}");
        }
    }
    for handles in [["none", "both"], ["posix", "fabric"]] {
        for said in both(test, handles) {
            assert!(said.contains("REFUSED ") && said.contains("by all PEs' devices alike"), "{handles:?}: {said}");
        }
    }
}
