//! What kernels get wrong: what a call must refuse, panics of a program's own, and waits in vain.

use congruent_device::{Group, Signal, Sym, kernels};

kernels! {
    /// A store behind the last element.
    pub fn store_past_the_end(_block, ctx, numbers: Sym<u64>, _index: u64) {
        ctx.store(numbers, numbers.len(), 1);
    }

    /// A slice that is longer than its object.
    pub fn slice_past_the_end(block, ctx, numbers: Sym<u64>, index: u64) {
        let slice = numbers.slice(index as usize..numbers.len() + 1);
        ctx.put(block, slice.at(ctx.world().next()), slice);
    }

    /// A chunk of more than there are.
    pub fn chunk_past_the_last(block, ctx, numbers: Sym<u64>, index: u64) {
        let chunk = numbers.chunk(index as usize, 2);
        ctx.put(block, chunk.at(ctx.world().next()), chunk);
    }

    /// An object that is none of this world's.
    pub fn object_of_another_world(block, ctx, numbers: Sym<u64>, index: u64) {
        let foreign = Sym::<u64>::from_raw(index << 40, numbers.len() as u64);
        ctx.put(block, foreign.at(ctx.world().next()), numbers);
    }

    /// A rank that the team lacks.
    pub fn rank_past_the_last(block, ctx, numbers: Sym<u64>, index: u64) {
        ctx.put(block, numbers.at(ctx.world().rank(index as usize)), numbers);
    }

    /// Lengths that differ.
    pub fn lengths_that_differ(block, ctx, numbers: Sym<u64>, index: u64) {
        ctx.put(block, numbers.at(ctx.world().next()), numbers.slice(index as usize..));
    }

    /// A stride of nothing.
    pub fn stride_of_zero(block, ctx, numbers: Sym<u64>, index: u64) {
        ctx.put_strided(block, numbers.at(ctx.world().next()), index as usize - 2, numbers, 1, 2);
    }

    /// Strides that lead out of the object.
    pub fn stride_past_the_end(block, ctx, numbers: Sym<u64>, index: u64) {
        ctx.get_strided(block, numbers, 1, numbers.at(ctx.world().next()), index as usize, numbers.len());
    }

    /// An atomic on an element that is not there.
    pub fn atomic_past_the_end(_block, ctx, numbers: Sym<u64>, _index: u64) {
        ctx.fetch_add(numbers.elem(numbers.len()).at(ctx.world().next()), 1);
    }

    /// Shared memory that is not there.
    pub fn shared_past_the_end(block, ctx, numbers: Sym<u64>, index: u64; shared: ([u64; 4],)) {
        let (words,) = shared.sync(block);
        ctx.store(numbers, 0, words.all().get(index as usize + 2));
    }

    /// A panic of the program's own.
    pub fn panic_of_its_own(_block, _ctx, _numbers: Sym<u64>, index: u64) {
        assert!(index == 0, "number {index} is out");
    }

    /// The same of one thread alone.
    pub fn panic_of_one_thread(block, _ctx, _numbers: Sym<u64>, index: u64) {
        assert!(block.index() != 1 || block.rank() != index as usize + 3, "thread 5 of block 1 is out");
    }

    /// An index that the language checks.
    pub fn array_past_the_end(_block, ctx, numbers: Sym<u64>, index: u64) {
        let array = [1, 2, index];
        ctx.store(numbers, 0, array[index as usize + 1]);
    }

    /// A division that the language refuses.
    pub fn division_by_zero(_block, ctx, numbers: Sym<u64>, index: u64) {
        ctx.store(numbers, 0, 7 / (index - 2));
    }

    /// Says that it never waits, and does.
    pub fn waits_all_the_same(block, ctx, signals: Sym<Signal>, index: u64, value: u64) blocks(independent) {
        ctx.wait_at_least(block, signals.elem(index as usize), value);
    }

    /// Waits for a signal, which may be in vain.
    pub fn waits(block, ctx, signals: Sym<Signal>, index: u64, value: u64) {
        ctx.wait_at_least(block, signals.elem(index as usize), value);
    }
}
