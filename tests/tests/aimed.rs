//! Delays aimed at points of protocols: a PE, a lane or a transport is late exactly where its peers must wait for it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(clippy::disallowed_types, reason = "what a point that was passed is told by")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use congruent::collectives::{Description, Layout, PlanView, Sum, agree, direct, ring};
use congruent::device::abi::FaultKind;
use congruent::device::{Group, Note, Pe, Signal, Sym, kernels};
use congruent::{Error, Grid, World, WorldFailure};
use congruent_transports::{Local, Operation, PeerState, Progress, Transport, TransportError};

/// How long who is held stays behind: time for a peer that does not wait to do its worst.
const LATE: Duration = Duration::from_millis(300);
/// Longer than any test may take.
const PATIENCE: Duration = Duration::from_secs(60);
const WIDTHS: [u32; 3] = [1, 4, 32];

kernels! {
    /// Waits for a count that has wrapped around, while it stands just before.
    pub fn waits_beyond_the_wrap(block, ctx, signal: Sym<Signal>) {
        ctx.notify(block, signal.at(ctx.world().me()).set(u64::MAX - 1));
        ctx.wait_at_least(block, signal, 1);
    }

    /// Waits for a count from before the wrap, when it stands just behind.
    pub fn waits_before_the_wrap(block, ctx, signal: Sym<Signal>) {
        ctx.notify(block, signal.at(ctx.world().me()).set(1));
        ctx.wait_at_least(block, signal, u64::MAX - 1);
    }

    /// In each round one lane leaves, and the others meet once more: the last lane first, or the one after the leader.
    pub fn lanes_leave(block, ctx, rounds: Sym<u32>, last_first: u32) {
        let lanes = block.size();
        let leaves = |round| if last_first == 1 { lanes - 1 - round } else { round + 1 };
        let mut round = 0;
        while round < lanes - 1 && block.rank() != leaves(round) {
            block.sync();
            block.warp().sync();
            if block.broadcast(round as u64) != round as u64 {
                break;
            }
            round += 1;
        }
        ctx.store(rounds, block.rank(), round as u32);
    }

    /// Several calls that all agree on.
    pub fn agrees(block, ctx, plan: PlanView) {
        for number in 1..=3 {
            agree(&mut plan.enter(block, ctx), Description { words: [number; 4] });
        }
    }

    /// An exchange in place of one piece each way, then a long reduction to PE 1: PE 0 runs ahead as far as its queue lets it.
    pub fn exchanges_and_reduces(block, ctx, parts: Sym<u32>, numbers: Sym<u32>, plan: PlanView) {
        let world = ctx.world();
        direct::all_to_all(&mut plan.enter(block, ctx), parts, parts);
        ring::reduce(&mut plan.enter(block, ctx), numbers, numbers, Sum, 1);
    }

    /// A value to the next PE, and nobody waits for it but this.
    pub fn puts_and_is_quiet(block, ctx, words: Sym<u64>) {
        ctx.put_value(words.elem(0).at(ctx.world().next()), 7);
        ctx.quiet(block);
    }

    /// The same, quiet towards that PE alone.
    pub fn puts_and_is_quiet_to(block, ctx, words: Sym<u64>) {
        let next = ctx.world().next();
        ctx.put_value(words.elem(0).at(next), 7);
        ctx.quiet_to(block, next);
    }
}

#[test]
fn a_wait_for_a_count_beyond_the_wrap_waits() {
    for width in WIDTHS {
        let settings = World::builder().width(width).heap(4 << 20).deadline(Duration::from_millis(100));
        let told = settings.local(1, |world| {
            let (signal, stream) = (world.alloc::<Signal>(1)?, world.stream()?);
            world.run(&stream, waits_before_the_wrap, Grid::one(32), (signal.view(),))?;
            world.launch(&stream, waits_beyond_the_wrap, Grid::one(32), (signal.view(),))?;
            Ok::<_, Error>(world.synchronize(&stream))
        });
        let told = told.unwrap().remove(0);
        let Err(WorldFailure::Fault(fault)) = told else { panic!("width {width}: the wait ended early: {told:?}") };
        assert_eq!((fault.kind, fault.seen, fault.expected), (FaultKind::Timeout, u64::MAX - 1, 1), "width {width}");
    }
}

#[test]
fn lanes_that_have_left_are_not_waited_for() {
    for (width, threads) in [(4, 32), (4, 64), (32, 32), (32, 64)] {
        for last_first in [0, 1] {
            let rounds = in_time(move || {
                let rounds = World::builder().width(width).heap(4 << 20).local(1, |world| {
                    let (rounds, stream) = (world.alloc::<u32>(2 * width as usize)?, world.stream()?);
                    world.run(&stream, lanes_leave, Grid::one(threads), (rounds.view(), last_first))?;
                    Ok::<_, Error>(rounds.to_vec()?)
                });
                rounds.unwrap().remove(0)
            });
            let lanes = width * threads / 32;
            // The leader alone goes all the way.
            let left = |lane| if last_first == 1 { lanes - 1 - lane } else { lane - 1 };
            let expected = (0..lanes).map(|lane| if lane == 0 { lanes - 1 } else { left(lane) });
            assert_eq!(rounds[..lanes as usize], expected.collect::<Vec<_>>(), "{lanes} lanes at width {width}");
        }
    }
}

/// Runs what may hang.
fn in_time<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(run()));
    result.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("not over after {PATIENCE:?}"))
}

/// Holds a PE right after its `nth` signal, of which `signals` counts those that went before.
fn hold(signals: &AtomicU32, nth: u32, note: Note) {
    if matches!(note, Note::Signalled(_)) && signals.fetch_add(1, Ordering::Relaxed) + 1 == nth {
        sleep(LATE);
    }
}

/// Who has heard the words of all goes on to the next call, and tells the next words there, while another has not yet read.
#[test]
fn a_fast_member_does_not_overwrite_what_a_slow_one_is_about_to_read() {
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
    // PE 0's first signal says that its words are told.
    let hold = |pe: Pe, note| {
        if pe.raw() == 0 {
            hold(&SIGNALS, 1, note)
        }
    };
    let agreed = World::builder().width(1).heap(8 << 20).hold(hold).local(2, |world| {
        let (plan, stream) = (world.plan(Layout::new(world.team(), 1))?, world.stream()?);
        world.run(&stream, agrees, Grid::one(32), (plan.view(),))?;
        Ok::<_, Error>(())
    });
    agreed.unwrap();
    assert!(SIGNALS.load(Ordering::Relaxed) > 1, "PE 0 was held at a signal, and went on");
}

/// A place of a queue is given back when it has been read, and not before: the sender may overwrite it at once.
#[test]
fn a_piece_is_read_before_its_place_is_given_back() {
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
    // PE 1's first signal says that its piece is sent, its second one that it has received the other.
    let hold = |pe: Pe, note| {
        if pe.raw() == 1 {
            hold(&SIGNALS, 2, note)
        }
    };
    let exchanged = World::builder().width(1).heap(8 << 20).deadline(10 * LATE).hold(hold).local(2, |world| {
        let me = world.pe().raw();
        let layout = Layout::new(world.team(), 1).buffer(0);
        let (plan, stream) = (world.plan(layout)?, world.stream()?);
        let (parts, numbers) = (world.alloc::<u32>(200)?, world.alloc::<u32>(3 * layout.slot())?);
        let sent = |from: u32, to: u32| (0..100).map(move |i| 4 * i + 2 * from + to);
        parts.write(0, &sent(me, 0).chain(sent(me, 1)).collect::<Vec<_>>())?;
        numbers.fill(1_000_000)?;
        world.run(&stream, exchanges_and_reduces, Grid::one(32), (parts.view(), numbers.view(), plan.view()))?;
        assert_eq!(parts.to_vec()?, sent(0, me).chain(sent(1, me)).collect::<Vec<_>>(), "on PE {me}");
        Ok::<_, Error>(numbers.to_vec()?.iter().all(|&sum| sum == (1 + me) * 1_000_000))
    });
    assert_eq!(exchanged.unwrap(), [true, true]);
    assert!(SIGNALS.load(Ordering::Relaxed) > 2, "PE 1 was held at a signal, and went on");
}

/// A network that takes its time: every operation begins late, in the order in which it was asked for.
struct Late {
    local: Local,
    asked: VecDeque<(Instant, u64, Pe, Operation)>,
}

impl Late {
    fn over(local: Local) -> Box<dyn Transport> {
        Box::new(Self { local, asked: VecDeque::new() })
    }
}

impl Transport for Late {
    fn start(&mut self, ticket: u64, peer: Pe, operation: Operation) -> Result<(), TransportError> {
        self.asked.push_back((Instant::now() + LATE, ticket, peer, operation));
        Ok(())
    }

    fn poll(&mut self, tell: &mut dyn FnMut(u64, Progress)) -> bool {
        while let Some((_, ticket, peer, operation)) = self.asked.pop_front_if(|asked| asked.0 <= Instant::now()) {
            self.local.start(ticket, peer, operation).unwrap();
        }
        self.local.poll(tell)
    }

    fn state(&self, peer: Pe) -> PeerState {
        self.local.state(peer)
    }
}

#[test]
fn who_is_quiet_has_waited_for_the_proxy() {
    let found = World::builder().heap(4 << 20).proxied_over(Late::over).local(2, |world| {
        let (words, stream) = (world.alloc::<u64>(1)?, world.stream()?);
        let mut found = [0; 2];
        for (i, found) in found.iter_mut().enumerate() {
            words.fill(0)?;
            world.barrier()?;
            match (world.pe().raw(), i) {
                (0, 0) => world.run(&stream, puts_and_is_quiet, Grid::one(32), (words.view(),))?,
                (0, _) => world.run(&stream, puts_and_is_quiet_to, Grid::one(32), (words.view(),))?,
                _ => {}
            }
            world.barrier()?;
            *found = words.to_vec()?[0];
            // Whatever came later than it should have is not taken for the next one.
            sleep(2 * LATE);
            world.barrier()?;
        }
        Ok::<_, Error>(found)
    });
    assert_eq!(found.unwrap(), [[0; 2], [7; 2]]);
}

/// The faults in `tests/mutations` are put in by `./check mutations` only, so nobody else would notice.
#[test]
fn every_mutation_fits_the_sources() {
    let patches: Vec<_> = std::fs::read_dir(congruent_tests::repository().join("tests/mutations"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .collect();
    assert!(patches.len() >= 7, "{patches:?}");
    for patch in patches {
        let mut git = std::process::Command::new("git");
        let fits =
            git.current_dir(congruent_tests::repository()).args(["apply", "--check"]).arg(&patch).output().unwrap();
        assert!(fits.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&fits.stderr));
    }
}
