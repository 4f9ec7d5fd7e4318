//! Running as a record says: launches begin when it says so, and another run than it has ends.

use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

use super::{Engine, LEAP};
use crate::fault::{Cause, Fault};
use crate::machine::{Request, Stream};
use crate::record::{Event, Recorded, Replay};

/// How long what a record says may take to come, by a clock on the wall.
const COMES: Duration = Duration::from_secs(30);

impl Engine {
    /// Begins what a record says that begins now, and waits until that has come. Whether there is anybody left to ask for anything.
    pub(super) fn follow(&mut self) -> bool {
        while self.replay.is_some() {
            while let Ok(request) = self.inbox.try_recv() {
                self.take_early(request);
            }
            let Some(Recorded { round, event, .. }) = self.replay.as_ref().and_then(Replay::next) else {
                self.replay = None;
                core::mem::take(&mut self.early).into_iter().for_each(|stream| self.begin_noted(stream));
                return true;
            };
            let is_over = self.running.is_empty() && matches!(event, Event::Launch(_)) && *round > self.round;
            if *round < self.round || is_over {
                self.lose_track(&format!("nothing of it until round {}", self.round));
                continue;
            }
            let Event::Launch(launch) = event else { return true };
            if *round > self.round {
                return true;
            }
            if let Some(at) = self.early.iter().position(|stream| stream.launch.described() == *launch) {
                let stream = self.early.remove(at);
                self.replay.iter_mut().for_each(Replay::advance);
                self.begin_noted(stream);
            } else if !self.await_recorded() {
                return false;
            }
        }
        true
    }

    /// Waits for a launch that is due by a record. Whether there is anybody left to ask for anything.
    fn await_recorded(&mut self) -> bool {
        let names = self.early.iter().map(|stream| stream.launch.described());
        let odd = names.into_iter().find(|name| self.replay.as_ref().is_some_and(|replay| !replay.has(name)));
        if let Some(odd) = odd {
            self.lose_track(&odd);
            return true;
        }
        // Where nobody is there who could be told, it may take any time.
        let limit = if self.running.is_empty() && self.early.is_empty() { Duration::MAX } else { COMES };
        match self.inbox.recv_timeout(limit) {
            Ok(request) => self.take_early(request),
            Err(RecvTimeoutError::Timeout) => self.lose_track(&format!("nothing for {} s", COMES.as_secs())),
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    /// Everybody waits: as long as a record says.
    pub(super) fn wait_as_recorded(&mut self) {
        let next = self.replay.as_ref().and_then(Replay::next).filter(|next| next.round == self.round);
        let time = match next.map(|next| &next.event) {
            Some(&Event::Idle(time)) => {
                // The host has as long for what it does meanwhile.
                thread::sleep(Duration::from_nanos(time));
                time
            }
            Some(Event::Leap) => LEAP,
            Some(Event::Launch(_)) | None => {
                return self.lose_track(&format!("a wait of all in round {}", self.round));
            }
        };
        self.replay.iter_mut().for_each(Replay::advance);
        self.time += time;
        self.wake_all();
    }

    fn take_early(&mut self, request: Request) {
        match request {
            Request::Launches(streams) => self.early.extend(streams),
            Request::Withdraw(process) => {
                self.early.retain(|stream| stream.launch.space.process != process);
                self.take(Request::Withdraw(process));
            }
        }
    }

    /// The run is another one than was recorded: all that runs and waits ends, and what comes later begins as it comes.
    fn lose_track(&mut self, came: &str) {
        let replay = self.replay.take();
        let Some(next) = replay.as_ref().and_then(Replay::next) else { return };
        let cause = Cause::Unrecorded { line: next.line, recorded: next.to_string(), came: came.to_owned() };
        for index in (0..self.running.len()).rev() {
            let fault = Fault::of(&self.running[index].launch, cause.clone());
            self.end(index, Err(Box::new(fault)));
        }
        for Stream { launch, done, .. } in core::mem::take(&mut self.early) {
            done(Err(Box::new(Fault::of(&launch, cause.clone()))));
        }
    }
}
