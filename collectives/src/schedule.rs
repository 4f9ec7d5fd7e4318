//! What a collective will do, told before it runs: which bytes go from whom to whom, in which step, in how many bytes on the
//! wire. Selectors price it and simulators read it; a test compares it with what kernels really move.
//!
//! It is computed with the same divisions that the algorithms use ([`Share`], the pairs, the trees, the slots of a
//! [`Layout`]), for one block after the other.

use congruent_device::{Sym, packed_words};

use crate::node::Node;
use crate::pairs::{Pairs, Role, kept};
use crate::plan::{Layout, payload};
use crate::share::Share;
use crate::{Algorithm, Collective, Protocol, scratch};

/// One call of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// What it does.
    pub collective: Collective,
    /// Along which paths.
    pub algorithm: Algorithm,
    /// How data and signals travel.
    pub protocol: Protocol,
    /// The root, where it has one.
    pub root: usize,
    /// Bytes of the longer of the two buffers: one part for each member where members have parts.
    pub bytes: usize,
    /// Whether destination and source are the same buffer, where a collective allows that.
    pub in_place: bool,
    /// Blocks that share the work.
    pub blocks: usize,
}

/// Data that one member moves: it writes to another's memory, or reads from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// What the step is called in traces.
    pub name: &'static str,
    /// Which step of how many.
    pub step: (u32, u32),
    /// From this member's memory.
    pub from: usize,
    /// To this member's.
    pub to: usize,
    /// Bytes of data.
    pub bytes: usize,
    /// Bytes that travel: with flags, where the protocol has them. Twice while a plan's flags are used up every 2^30 steps,
    /// and at its first steps, the queue's places are written as a whole, which is not in it.
    pub wire: usize,
}

impl Layout {
    /// Gives `visit` every movement of data by member `me`, in their order. False for collectives whose parts have lengths
    /// of their own, and for algorithms that they do not have: those move what their lists say, or nothing. False for
    /// multimem, too: what links combine and replicate goes to a switch and not from one member to another.
    pub fn moves(&self, job: &Job, me: usize, mut visit: impl FnMut(Move)) -> bool {
        if self.members() == 1 {
            return true;
        }
        (0..job.blocks).all(|block| {
            let blocks = Share::new(block, job.blocks);
            Teller { layout: self, job, n: self.members(), me, blocks, visit: &mut visit }.tell()
        })
    }

    /// Bytes that `bytes` bytes take on the wire where they travel in pieces of at most `most`.
    fn wire(&self, bytes: usize, most: usize, protocol: Protocol) -> usize {
        let packed = |bytes| match protocol {
            Protocol::Simple => bytes,
            Protocol::Ll => packed_words(bytes, 1) * 8,
            Protocol::Ll128 => packed_words(bytes, self.line_bytes()) * 8,
        };
        bytes / most * packed(most) + packed(bytes % most)
    }
}

/// One member's block, telling what it does.
struct Teller<'t> {
    layout: &'t Layout,
    job: &'t Job,
    n: usize,
    me: usize,
    blocks: Share,
    visit: &'t mut dyn FnMut(Move),
}

type Range = Sym<u8>;

impl Teller<'_> {
    fn tell(mut self) -> bool {
        use Algorithm::{Bruck, Direct, OneShot, Recursive, Ring, Tree};
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
        match (self.job.collective, self.job.algorithm) {
            (AllReduce, Ring) => self.ring(true, true),
            (ReduceScatter, Ring) => self.ring(true, false),
            (AllGather, Ring) => self.ring(false, true),
            (Broadcast, Ring) => self.chain(self.job.root),
            // The chain ends at the root, and begins after it.
            (Reduce, Ring) => self.chain(self.wrap(self.job.root + 1)),
            (AllReduce, Tree) => {
                for tree in 0..2 {
                    let node = Node::of_two(tree, self.me, self.n);
                    let half = self.mine(Share::new(tree, 2).of(self.whole())).len();
                    self.up(&node, half);
                    self.down(&node, half);
                }
            }
            (Reduce, Tree) => self.up(&self.rooted(), self.mine(self.whole()).len()),
            (Broadcast, Tree) => self.down(&self.rooted(), self.mine(self.whole()).len()),
            (AllReduce, Recursive) => self.doubling(),
            (ReduceScatter, Recursive) => self.halving(),
            (AllGather, Recursive) => self.dissemination(),
            (AllReduce | ReduceScatter | AllGather | AllToAll, OneShot) => self.one_shot(),
            (AllReduce, Direct) => {
                let chunk = self.mine(Share::new(self.me, self.n).of(self.whole())).len();
                self.read_others("reduce and give", chunk);
                self.write_others("reduce and give", chunk);
            }
            (ReduceScatter, Direct) => self.read_others("reduce", self.mine(self.part(self.me)).len()),
            (Reduce, Direct) => {
                let chunk = self.mine(Share::new(self.me, self.n).of(self.whole())).len();
                self.read_others("reduce", chunk);
                self.plain("reduce", (0, 1), self.me, self.job.root, chunk);
            }
            (AllGather | AllToAll, Direct) => self.write_others("give", self.mine(self.part(self.me)).len()),
            (Broadcast, Direct) => {
                let chunk = self.mine(Share::new(self.me, self.n).of(self.whole())).len();
                self.plain("take and give", (0, 1), self.job.root, self.me, chunk);
                for to in 0..self.n {
                    if to != self.job.root || !self.job.in_place {
                        self.plain("take and give", (0, 1), self.me, to, chunk);
                    }
                }
            }
            (Scatter, Direct) => self.plain("take", (0, 1), self.job.root, self.me, self.mine(self.part(0)).len()),
            (Gather, Direct) => self.plain("give", (0, 1), self.me, self.job.root, self.mine(self.part(0)).len()),
            (AllToAll, Bruck) => self.bruck(),
            _ => return false,
        }
        true
    }

    fn whole(&self) -> Range {
        Sym::from_raw(0, self.job.bytes as u64)
    }

    fn part(&self, i: usize) -> Range {
        let each = self.job.bytes / self.n;
        self.whole().slice(i * each..(i + 1) * each)
    }

    fn mine(&self, range: Range) -> Range {
        self.blocks.of(range)
    }

    fn wrap(&self, i: usize) -> usize {
        i % self.n
    }

    fn rooted(&self) -> Node {
        Node::rooted(self.me, self.n, self.job.root)
    }

    /// Bytes of data in a slot.
    fn most(&self) -> usize {
        payload(self.layout.slot(), self.job.protocol, self.layout.line_bytes())
    }

    /// A movement of plain bytes, if it is one between two.
    fn plain(&mut self, name: &'static str, step: (usize, usize), from: usize, to: usize, bytes: usize) {
        self.give(name, step, (from, to), bytes, bytes);
    }

    /// A movement to `to` through its queue.
    fn queued(&mut self, name: &'static str, step: (usize, usize), to: usize, bytes: usize) {
        let wire = self.layout.wire(bytes, self.most(), self.job.protocol);
        self.give(name, step, (self.me, to), bytes, wire);
    }

    fn give(
        &mut self,
        name: &'static str,
        step: (usize, usize),
        (from, to): (usize, usize),
        bytes: usize,
        wire: usize,
    ) {
        if bytes > 0 && from != to {
            (self.visit)(Move { name, step: (step.0 as u32, step.1 as u32), from, to, bytes, wire });
        }
    }

    fn read_others(&mut self, name: &'static str, bytes: usize) {
        for i in 1..self.n {
            self.plain(name, (i - 1, self.n - 1), self.wrap(self.me + i), self.me, bytes);
        }
    }

    fn write_others(&mut self, name: &'static str, bytes: usize) {
        for i in 1..self.n {
            self.plain(name, (i - 1, self.n - 1), self.me, self.wrap(self.me + i), bytes);
        }
    }

    /// Chunk by chunk to the right: partial sums, finished chunks, or first the ones and then the others.
    fn ring(&mut self, reduces: bool, gathers: bool) {
        let (n, me, right) = (self.n, self.me, self.wrap(self.me + 1));
        let chunk = |teller: &Self, c| match teller.job.collective {
            Collective::AllReduce => teller.mine(Share::new(c, n).of(teller.whole())).len(),
            _ => teller.mine(teller.part(c)).len(),
        };
        if reduces {
            for step in 0..n - 1 {
                let bytes = chunk(self, self.wrap(me + 2 * n - 1 - step));
                self.queued("scatter-reduce", (step, n - 1), right, bytes);
            }
        }
        if gathers {
            for step in 0..n - 1 {
                let bytes = chunk(self, self.wrap(me + n - step));
                self.queued("all-gather", (step, n - 1), right, bytes);
            }
        }
    }

    /// Everything to the right, from member `first` to the last one before it.
    fn chain(&mut self, first: usize) {
        let right = self.wrap(self.me + 1);
        if right != first {
            let name = if self.job.collective == Collective::Broadcast { "broadcast" } else { "reduce" };
            self.queued(name, (0, 1), right, self.mine(self.whole()).len());
        }
    }

    fn up(&mut self, node: &Node, bytes: usize) {
        if let Some(parent) = node.parent() {
            self.queued("reduce up", (0, 1), parent, bytes);
        }
    }

    fn down(&mut self, node: &Node, bytes: usize) {
        for child in (0..node.degree()).filter_map(|i| node.child(i)) {
            self.queued("broadcast down", (0, 1), child, bytes);
        }
    }

    /// Recursive doubling, or halving and doubling.
    fn doubling(&mut self) {
        let (pairs, mine) = (Pairs::new(self.n), self.mine(self.whole()));
        let (core, extra) = match pairs.role(self.me) {
            Role::Extra => return self.queued("fold in", (0, 1), self.me - 1, mine.len()),
            Role::Core(core, extra) => (core, extra),
        };
        let (steps, whole) = (pairs.steps(), mine.len() <= self.most());
        let kept = |core, steps| if whole { mine.len() } else { kept(mine, core, steps).len() };
        for step in 0..steps {
            let partner = core ^ (1 << step);
            self.queued("reduce", (step, steps), pairs.rank(partner), kept(partner, step + 1));
        }
        for step in (0..if whole { 0 } else { steps }).rev() {
            let partner = core ^ (1 << step);
            self.queued("all-gather", (steps - 1 - step, steps), pairs.rank(partner), kept(core, step + 1));
        }
        if let Some(extra) = extra {
            self.queued("fold out", (0, 1), extra, mine.len());
        }
    }

    /// Recursive halving, as much at a time as the scratch has room for.
    fn halving(&mut self) {
        let pairs = Pairs::new(self.n);
        self.in_scratch(scratch::SLOTS, |teller, len| {
            let (core, extra) = match pairs.role(teller.me) {
                Role::Extra => return teller.queued("fold in", (0, 1), teller.me - 1, teller.n * len),
                Role::Core(core, extra) => (core, extra),
            };
            let (mut first, mut count, steps) = (0, pairs.cores, pairs.steps());
            for step in 0..steps {
                count /= 2;
                let partner = core ^ count;
                let (keep, give) = if core < partner { (first, first + count) } else { (first + count, first) };
                let parts = pairs.rank(give + count) - pairs.rank(give);
                teller.queued("reduce", (step, steps), pairs.rank(partner), parts * len);
                first = keep;
            }
            if let Some(extra) = extra {
                teller.queued("fold out", (0, 1), extra, len);
            }
        });
    }

    fn dissemination(&mut self) {
        let (part, steps) = (self.mine(self.part(0)).len(), self.n.next_power_of_two().trailing_zeros() as usize);
        for step in 0..steps {
            let have = 1 << step;
            let gives = have.min(self.n - have);
            self.plain("all-gather", (step, steps), self.me, self.wrap(self.me + have), gives * part);
        }
    }

    fn bruck(&mut self) {
        let steps = self.n.next_power_of_two().trailing_zeros() as usize;
        // Blocks are held in the first two thirds of the scratch, and packed in the last.
        self.in_scratch(scratch::SLOTS / 3 * 2, |teller, len| {
            for step in 0..steps {
                let bit = 1 << step;
                let blocks = (bit..teller.n).filter(|distance| distance & bit != 0).count();
                teller.queued("travel", (step, steps), teller.wrap(teller.me + bit), blocks * len);
            }
        });
    }

    /// Parts of this block, as many bytes of each at a time as there is room for in `slots` slots of the queue.
    fn in_scratch(&mut self, slots: usize, mut run: impl FnMut(&mut Self, usize)) {
        let mut rest = self.mine(self.part(0)).len();
        let most = scratch::each::<u8>(slots * self.layout.slot(), self.n);
        while rest > 0 {
            run(self, most.min(rest));
            rest -= most.min(rest);
        }
    }

    fn one_shot(&mut self) {
        let bytes = match self.job.collective {
            Collective::AllReduce => self.mine(self.whole()).len(),
            _ => self.mine(self.part(0)).len(),
        };
        let wire = self.layout.wire(bytes, self.layout.shot(self.job.protocol), self.job.protocol);
        for i in 1..self.n {
            let to = self.wrap(self.me + i);
            self.give("exchange", (i - 1, self.n - 1), (self.me, to), bytes, wire);
        }
    }
}
