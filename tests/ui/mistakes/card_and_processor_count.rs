//! What network cards count with, processors do not.
use congruent::device::{Ctx, NicWord, Sym};

fn count(ctx: &Ctx<'_>, words: Sym<NicWord>, one: NicWord) {
    ctx.add(words.at(ctx.world().next()), one);
}

fn main() {
    let _count = count;
}
