//! Puts through proxies: by libfabric beside a C program on the same provider, and by the memory of one host.

use std::error::Error;
use std::time::Instant;

use comfy_table::Table;
use congruent::device::{Group, Semaphore, Sym, kernels};

use crate::peer::{self, Effort, PeerError};
use crate::sample::{Case, Summaries, Work, summarize};
use crate::table::{Row, Time, Verdict, render, rows};
use crate::threads::Threads;

/// The word on the command line that calls our side.
pub const WORD: &str = "proxied";

/// Whom puts by libfabric are measured beside.
pub const LIBFABRIC: &str = "libfabric";

/// The largest put.
pub const LARGEST: u64 = 1 << 20;

/// Rows of a mixture of experts: how many, bytes of each, and how far apart they go.
pub(crate) const TOKENS: usize = 1000;
pub(crate) const TOKEN: usize = 7168;
const APART: usize = 37;

/// How many times a hop and a yield of two threads half the round trip of a signal takes at most, by the memory of one host.
const MOST_TURNS: f64 = 1.5;

kernels! {
    /// PE 0 puts to PE 1 so many times, and awaits each before the next.
    pub fn puts(block, ctx, dst: Sym<u8>, src: Sym<u8>, rounds: u64) {
        let team = ctx.world();
        if team.me().index() == 0 {
            for _ in 0..rounds {
                ctx.put_nbi(block, dst.at(team.next()), src);
                ctx.quiet_to(block, team.next());
            }
        }
    }

    /// PE 0 puts rows to places of PE 1 that are apart, and awaits them together, so many times.
    pub fn tokens(block, ctx, dst: Sym<u8>, src: Sym<u8>, rounds: u64) {
        let (team, places) = (ctx.world(), dst.len() / TOKEN);
        let row = |buffer: Sym<u8>, at: usize| buffer.slice(at % places * TOKEN..(at % places + 1) * TOKEN);
        for _ in 0..rounds {
            if team.me().index() == 0 {
                for token in 0..TOKENS {
                    ctx.put_nbi(block, row(dst, token * APART).at(team.next()), row(src, token));
                }
                ctx.quiet(block);
            }
        }
    }

    /// Two PEs put to each other with a signal, in turn. PE 0 stores how many nanoseconds each round trip takes.
    pub fn round_trips(block, ctx, dst: Sym<u8>, src: Sym<u8>, turn: Sym<Semaphore>, times: Sym<u64>) {
        let (peer, first) = (ctx.world().next(), ctx.world().me().index() == 0);
        for at in 0..times.len() {
            let started = Instant::now();
            if !first {
                ctx.wait(block, turn.from_rank(peer), 1);
            }
            ctx.put_signal(block, dst.at(peer), src, turn.at(peer).post());
            if first {
                ctx.wait(block, turn.from_rank(peer), 1);
            }
            if block.leader() {
                ctx.store(times, at, started.elapsed().as_nanos() as u64);
            }
        }
    }
}

/// What was measured.
pub struct Proxied {
    rows: Vec<Row>,
    local: Summaries,
    threads: Option<Threads>,
}

/// Measures our side over both transports, and the C program.
///
/// # Errors
/// As for peers.
pub fn measure(effort: Effort) -> Result<Proxied, PeerError> {
    let effort = Effort { pes: 2, max_bytes: effort.max_bytes.min(LARGEST), ..effort };
    let theirs = summarize(&peer::libfabric().samples(effort)?);
    let ours = summarize(&peer::proxied(effort, "fabric")?);
    let local = summarize(&peer::proxied(effort, "local")?);
    let threads = Threads::measure(100_000).map_err(PeerError::Threads)?;
    Ok(Proxied { rows: rows(&ours, LIBFABRIC, &theirs), local, threads })
}

impl Proxied {
    /// Whether what is promised is kept.
    pub fn is_kept(&self) -> bool {
        // Where there is a limit and no round trip was measured, nothing is kept.
        let is_soon = self.threads.is_none() || self.turns().is_some_and(|turns| turns <= MOST_TURNS);
        is_soon && self.rows.iter().all(|row| matches!(row.verdict(), Verdict::Pass | Verdict::Informative))
    }

    fn half_round_trip(&self, work: Work) -> Option<f64> {
        Some(self.local.get(&Case { pes: 2, work, bytes: 8 })?.median)
    }

    /// How many times a hop and a yield half a round trip takes.
    fn turns(&self) -> Option<f64> {
        let threads = self.threads?;
        Some(self.half_round_trip(Work::SendRecv)? / (threads.hop + threads.turn))
    }

    /// Our times beside theirs.
    pub fn table(&mut self, judged: bool) -> Table {
        render(&mut self.rows, judged)
    }

    /// What else was measured.
    pub fn sentence(&self, judged: bool) -> Result<String, Box<dyn Error>> {
        let [usual, late] = [Work::SendRecv, Work::SendRecvLate].map(|work| self.half_round_trip(work).map(Time));
        let (usual, late) = usual.zip(late).ok_or("no round trip was measured")?;
        let times = format!(
            "half the round trip of a put_signal of 8 bytes through proxies of one host: {usual}, {late} at p99"
        );
        let (Some(threads), Some(turns)) = (self.threads, self.turns()) else {
            return Ok(format!("{times}; a hop and a yield between threads: SKIPPED, this process has one core"));
        };
        let verdict = match (judged, turns <= MOST_TURNS) {
            (false, _) => "which is not judged",
            (true, true) => "pass",
            (true, false) => "FAIL",
        };
        let (hop, turn) = (Time(threads.hop), Time(threads.turn));
        Ok(format!(
            "{times}; {turns:.2} times a hop and a yield between threads, {hop} and {turn}, at most {MOST_TURNS}: {verdict}"
        ))
    }
}
