//! A peer's memory by load and store, on machines where every peer is near.

use std::any::type_name;

use congruent::{Error, Grid, World};
use congruent_test_kernels::direct::Direct;
use congruent_test_kernels::rma::Particle;

use super::limit::limited;
use super::pattern::{assert_same, neighbours, values};

/// Direct views.
pub fn direct(world: &mut World) -> Result<(), Error> {
    views::<u16>(world)?;
    views::<u64>(world)?;
    views::<[u8; 3]>(world)?;
    views::<Particle>(world)
}

fn views<T: Direct>(world: &mut World) -> Result<(), Error> {
    let (me, (next, prev)) = (world.pe().index(), neighbours(world));
    let (stream, told) = (world.stream()?, world.alloc::<u64>(2)?);
    for len in limited(&[1, 65, 4095]) {
        let (to, back, from) = (world.alloc::<T>(len)?, world.alloc::<T>(len)?, world.alloc::<T>(len)?);
        from.write(0, &values(1, me, len))?;
        told.fill(u64::MAX)?;
        world.run(&stream, T::Peers::default(), Grid::one(64), (to.view(), back.view(), from.view(), told.view()))?;
        let case = || format!("{len} {}", type_name::<T>());
        assert_eq!(told.to_vec()?, [len as u64, 0], "{}: length, and whether empty", case());
        assert_same(&to.to_vec()?, &values(1, prev, len), case);
        assert_same(&back.to_vec()?, &values(1, next, len), case);
    }
    Ok(())
}
