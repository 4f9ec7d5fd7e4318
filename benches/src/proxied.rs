//! Puts through proxies: by libfabric beside a C program on the same provider, and by the memory of one host.

use std::error::Error;

use comfy_table::Table;
use congruent::device::{Sym, kernels};

use crate::peer::{self, Effort, PeerError};
use crate::sample::{Case, Work, summarize};
use crate::table::{Row, Time, Verdict, render, rows};

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
}

/// What was measured.
pub struct Proxied {
    rows: Vec<Row>,
    half_round_trip_ns: Option<f64>,
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
    let round_trip = Case { pes: 2, work: Work::SendRecv, bytes: 8 };
    Ok(Proxied {
        rows: rows(&ours, LIBFABRIC, &theirs),
        half_round_trip_ns: local.get(&round_trip).map(|summary| summary.median),
    })
}

impl Proxied {
    /// Whether what is promised is kept.
    pub fn is_kept(&self) -> bool {
        self.rows.iter().all(|row| matches!(row.verdict(), Verdict::Pass | Verdict::Informative))
    }

    /// Our times beside theirs.
    pub fn table(&mut self, judged: bool) -> Table {
        render(&mut self.rows, judged)
    }

    /// What else was measured.
    pub fn sentence(&self) -> Result<String, Box<dyn Error>> {
        let ns = self.half_round_trip_ns.ok_or("no round trip was measured")?;
        Ok(format!("half the round trip of a put_signal of 8 bytes through proxies of one host: {}", Time(ns)))
    }
}
