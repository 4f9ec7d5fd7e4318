//! Received tokens by expert, one behind the other, as grouped matrix products want them.

use congruent_device::{Group, Sym, refuse};

use super::{MicroBatch, Moe, Received, Row};

/// What rows by expert need more room than there is for: so many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRows(pub usize);

impl Moe<'_> {
    /// Where the rows of an expert of this PE begin, where those of each begin at a multiple of `align` rows; of the number of experts,
    /// where the last one's end.
    ///
    /// # Panics
    /// Where this PE has no such expert.
    #[inline(always)]
    #[track_caller]
    pub fn start_of(&self, batch: &MicroBatch<Received>, expert: usize, align: usize) -> usize {
        self.check(batch);
        self.start(batch.index, expert, align)
    }

    #[inline(always)]
    #[track_caller]
    fn start(&self, batch: u32, expert: usize, align: usize) -> usize {
        let listed = self.listed(batch);
        let rows = |before| (self.ctx.load(listed, before) as usize).next_multiple_of(align.max(1));
        (0..expert).fold(0, |start, before| start + rows(before))
    }

    /// Copies the payloads of all rows to `dst`, by expert, and of an expert in the order of [`row_of`](Moe::row_of): row `place` of an expert
    /// is row [`start_of`](Moe::start_of) that expert plus `place`. Rows that are left over up to a multiple of `align` become zeros. Gives
    /// how many rows there are.
    ///
    /// A token with two experts here is copied twice. Which blocks copy what is not said: what they have copied is there after a
    /// launch, or a meeting of the blocks.
    ///
    /// # Errors
    /// How many rows there would have been, where `dst` has room for fewer; nothing is copied then.
    #[inline(always)]
    #[track_caller]
    pub fn by_expert(&self, batch: &MicroBatch<Received>, dst: Sym<u8>, align: usize) -> Result<usize, TooManyRows> {
        self.copy_by_expert(batch, dst, align, self.view.payload as usize, Row::payload)
    }

    /// The same of the rows' scales.
    ///
    /// # Errors
    /// As [`by_expert`](Moe::by_expert).
    ///
    /// # Panics
    /// Where tokens have no scales.
    #[inline(always)]
    #[track_caller]
    pub fn scales_by_expert(
        &self,
        batch: &MicroBatch<Received>,
        dst: Sym<u8>,
        align: usize,
    ) -> Result<usize, TooManyRows> {
        if self.view.scales == 0 {
            refuse!("tokens of this exchange have no scales");
        }
        self.copy_by_expert(batch, dst, align, self.view.scales as usize, Row::scales)
    }

    /// Copies so many bytes of each row.
    #[inline(always)]
    #[track_caller]
    fn copy_by_expert(
        &self,
        batch: &MicroBatch<Received>,
        dst: Sym<u8>,
        align: usize,
        bytes: usize,
        part: impl Fn(&Row) -> Sym<u8>,
    ) -> Result<usize, TooManyRows> {
        let experts = self.experts().len();
        let rows = self.block.uniform(self.start_of(batch, experts, align) as u64) as usize;
        if rows > dst.len() / bytes {
            return Err(TooManyRows(rows));
        }
        let mut start = 0;
        for expert in 0..experts {
            let count = self.block.uniform(self.count_of(batch, expert) as u64) as usize;
            let end = start + count.next_multiple_of(align.max(1));
            // Rows of all experts together are dealt in turn.
            let blocks = self.block.count();
            let mut row = start + (self.block.index() + blocks - start % blocks) % blocks;
            while row < end {
                let dst = dst.slice(row * bytes..(row + 1) * bytes);
                if row < start + count {
                    self.ctx.start_copy(&self.block, dst, part(&self.row_of(batch, expert, row - start)));
                } else {
                    self.ctx.start_fill_at(&self.block, dst.at(self.own_rank()), 0);
                }
                row += blocks;
            }
            start = end;
        }
        self.block.sync();
        Ok(rows)
    }

    /// Which row by expert is that of a received row, for choice `k` of its token, which is an expert of this PE.
    #[inline(always)]
    #[track_caller]
    pub fn row_by_expert(&self, row: &Row, k: usize, align: usize) -> usize {
        let expert = self.expert(row, k) as usize - self.experts().start;
        self.start(row.batch(), expert, align) + self.place(row, k)
    }
}
