//! Puts through proxies: by libfabric beside a C program on the same provider, and by the memory of one host.

use std::error::Error;

use comfy_table::Table;

use crate::peer::{self, Effort, PeerError};
use crate::sample::{Case, Work, summarize};
use crate::table::{Row, Time, Verdict, render, rows};

/// The word on the command line that calls our side.
pub const WORD: &str = "proxied";

/// Whom puts by libfabric are measured beside.
pub const LIBFABRIC: &str = "libfabric";

/// The largest put.
pub const LARGEST: u64 = 1 << 20;

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
