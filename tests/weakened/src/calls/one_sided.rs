//! Calls of one PE to another, and the meetings in between.

use congruent::device::Sym;
use congruent::{Error, Grid, fixed_kernels};

use super::{Calls, THREADS};

impl Calls<'_> {
    /// What one PE does to another, with meetings in between, and what was moved moved on.
    pub(super) fn one_sided(&mut self) -> Result<(), Error> {
        self.put_and_barrier()?;
        self.meetings()?;
        self.barriers()?;
        self.back_and_forth(0, "get", |calls, to, from, _| {
            let args = (to.slice(..calls.put), from.slice(..calls.put), calls.world.npes() as u32, 2);
            calls.world.launch(&calls.stream, fixed_kernels::perf_get, calls.grid, args)?;
            calls.barrier()
        })?;
        self.back_and_forth(0, "put of values", |calls, to, from, _| {
            calls.world.launch(&calls.stream, fixed_kernels::perf_put_value, calls.grid, (to.slice(..8).cast(), 2))?;
            calls.barrier()?;
            calls.put(from, to)?;
            calls.barrier()
        })?;
        self.back_and_forth(0, "fetch-add", |calls, to, from, _| {
            calls.world.launch(&calls.stream, fixed_kernels::perf_fetch_add, calls.grid, (to.slice(..8).cast(), 2))?;
            calls.barrier()?;
            calls.put(from, to)?;
            calls.barrier()
        })?;
        self.ping_pong()
    }

    pub(super) fn put(&self, to: Sym<u8>, from: Sym<u8>) -> Result<(), Error> {
        let args = (to.slice(..self.put), from.slice(..self.put), self.world.npes() as u32, 2);
        Ok(self.world.launch(&self.stream, fixed_kernels::perf_put, self.grid, args)?)
    }

    pub(super) fn barrier(&self) -> Result<(), Error> {
        Ok(self.world.launch(&self.stream, fixed_kernels::barrier, self.grid, (self.world.team(), 2))?)
    }

    pub(super) fn put_and_barrier(&mut self) -> Result<(), Error> {
        self.back_and_forth(0, "put", |calls, to, from, _| {
            calls.put(to, from)?;
            calls.barrier()
        })
    }

    /// Meetings of the world by the kernel that is timed.
    pub(super) fn barriers(&mut self) -> Result<(), Error> {
        self.back_and_forth(0, "perf-barrier", |calls, to, from, _| {
            calls.put(to, from)?;
            Ok(calls.world.launch(&calls.stream, fixed_kernels::perf_barrier, calls.grid, (2,))?)
        })
    }

    /// Meetings of a team that is looked up in a list.
    pub(super) fn meetings(&mut self) -> Result<(), Error> {
        self.back_and_forth(1, "meet", |calls, to, from, view| {
            let meet = || calls.world.launch(&calls.stream, fixed_kernels::meet, calls.grid, (view, 2));
            meet()?;
            calls.put(to, from)?;
            Ok(meet()?)
        })?;
        self.back_and_forth(1, "barrier by a list", |calls, to, from, view| {
            let barrier = || calls.world.launch(&calls.stream, fixed_kernels::barrier, calls.grid, (view.team(), 2));
            barrier()?;
            calls.put(to, from)?;
            Ok(barrier()?)
        })
    }

    pub(super) fn ping_pong(&mut self) -> Result<(), Error> {
        let turn = self.turn.view();
        self.back_and_forth(0, "ping-pong", |calls, to, from, _| {
            let args = (to.slice(..calls.put), from.slice(..calls.put), turn, 3);
            Ok(calls.world.launch(&calls.stream, fixed_kernels::perf_ping_pong, Grid::one(THREADS), args)?)
        })?;
        // What comes goes back: who sends too early sends something else.
        self.back_and_forth(0, "ping-pong of what came", |calls, to, _, _| {
            let args = (to.slice(..calls.put), to.slice(..calls.put), turn, 2);
            Ok(calls.world.launch(&calls.stream, fixed_kernels::perf_ping_pong, Grid::one(THREADS), args)?)
        })
    }
}
