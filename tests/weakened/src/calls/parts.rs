//! Calls that are given lists: parts of any length, and sends and receives.

use congruent::collectives::Listed;
use congruent::collectives::exchange::Parts;
use congruent::{Error, fixed_kernels};

use super::{BYTES, Calls};

impl Calls<'_> {
    /// Calls with parts of any length, none among them, and sends and receives.
    pub(super) fn parts(&mut self) -> Result<(), Error> {
        let n = self.world.npes();
        for (team, most) in [(1, 40), (0, 3000)] {
            let me = self.teams[team].rank;
            let count = |from: usize, to: usize| (from + 2 * to) % 4 * most / 3;
            let starts = |counts: &[usize]| (0..n).map(|i| counts[..i].iter().sum()).collect::<Vec<usize>>();
            let sent: Vec<_> = (0..n).map(|peer| count(me, peer)).collect();
            let received: Vec<_> = (0..n).map(|peer| count(peer, me)).collect();
            let own: Vec<_> = (0..n).map(|peer| count(peer, peer)).collect();
            let lists = [&sent, &starts(&sent), &received, &starts(&received), &own, &starts(&own)];
            let lists: Vec<u64> = lists.into_iter().flatten().map(|&entry| entry as u64).collect();
            self.lists.write(0, &lists)?;
            let list = self.lists.view();
            let pair = |i: usize| Parts::new(list.slice(i * n..(i + 1) * n), list.slice((i + 1) * n..(i + 2) * n));
            self.back_and_forth(team, &format!("all-to-all-v {most}"), |calls, to, from, view| {
                let args = (to, from, pair(2), pair(0), view, 1);
                Ok(calls.world.launch(&calls.stream, fixed_kernels::all_to_all_v_direct, calls.grid, args)?)
            })?;
            self.back_and_forth(team, &format!("all-gather-v {most}"), |calls, to, from, view| {
                let args = (to, from.slice(..own[me]), pair(4), view, 1);
                Ok(calls.world.launch(&calls.stream, fixed_kernels::all_gather_v_direct, calls.grid, args)?)
            })?;
            self.transfers(team, most)?;
        }
        Ok(())
    }

    /// Sends and receives, several between the same two, of a member to itself, and of no bytes; and to and fro, so that each call sends
    /// what the one before has received. Of one team, members have something for the next one only. Behind the lists are receives that
    /// nobody's sends fit.
    fn transfers(&mut self, team: usize, most: usize) -> Result<(), Error> {
        const EACH: usize = 5;
        let (me, n) = (self.teams[team].rank, self.world.npes());
        let (next, before) = ((me + 1) % n, (me + n - 1) % n);
        let sends = [(next, most), (next, most / 3), (me, most / 2), (before, most / 4), (before, 0)];
        let receives = [(before, most), (before, most / 3), (me, most / 2), (next, most / 4), (next, 0)];
        let listed = |all: [(usize, usize); EACH], half: usize, longer: usize| {
            (0..).zip(all).flat_map(move |(i, (peer, count))| {
                [peer, half * BYTES / 2 + i * BYTES / 2 / EACH, count + longer].map(|word| word as u64)
            })
        };
        let each = [listed(sends, 0, 0), listed(receives, 1, 0), listed(sends, 1, 0), listed(receives, 0, 0)];
        let words: Vec<u64> = each.into_iter().flatten().chain(listed(receives, 1, 1)).collect();
        self.lists.write(0, &words)?;
        let (list, used) = (self.lists.view(), if team == 1 { EACH } else { 2 });
        let list = |i: usize| list.slice(3 * EACH * i..3 * (EACH * i + used)).cast();
        let memory = self.buffers[0].view();
        self.back_and_forth(team, &format!("send-recv {most}"), |calls, to, _, view| {
            let first = if to == memory { 2 } else { 0 };
            let args = (memory, Listed { sends: list(first), receives: list(first + 1) }, view, 1);
            Ok(calls.world.launch(&calls.stream, fixed_kernels::send_recv_direct, calls.grid, args)?)
        })
    }
}
