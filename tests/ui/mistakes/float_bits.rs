//! Bitwise atomics are for integers.
use congruent::device::{AtomicInteger, Ctx, Sym};

fn flip<T: AtomicInteger>(ctx: &Ctx<'_>, values: Sym<T>, bits: T) -> T {
    ctx.fetch_xor(values.at(ctx.world().next()), bits)
}

pub fn of_a_float(ctx: &Ctx<'_>, values: Sym<f32>) {
    flip(ctx, values, 1.0);
}

fn main() {}
