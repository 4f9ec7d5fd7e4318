//! Width 1: a block of one lane, alone on its thread.

use std::ops::Range;

use congruent_device::Note;
use congruent_device::cpu::{At, Machine};

use super::{BlockWatch, CpuMachine, Site, exit_kernel, park};

pub(super) struct Solo<'c> {
    machine: &'c CpuMachine,
    site: &'c Site,
    watch: &'c BlockWatch,
}

impl<'c> Solo<'c> {
    pub(super) fn new(machine: &'c CpuMachine, site: &'c Site, watch: &'c BlockWatch) -> Self {
        Self { machine, site, watch }
    }
}

impl Machine for Solo<'_> {
    fn block_any(&self, _lane: u32, flag: bool, _at: At) -> bool {
        flag
    }
    fn warp_any(&self, _lane: u32, flag: bool, _at: At) -> bool {
        flag
    }
    fn block_broadcast(&self, _lane: u32, value: u64, _at: At) -> u64 {
        value
    }
    fn warp_broadcast(&self, _lane: u32, value: u64, _at: At) -> u64 {
        value
    }
    fn gather(&self, _lane: u32, _lanes: Range<u32>, word: u128, _at: At, see: &mut dyn FnMut(&[Option<u128>])) {
        see(&[Some(word)]);
    }
    unsafe fn pause(&self, _lane: u32, turn: u32, word: *const u32, seen: u32) {
        // SAFETY: the caller's contract, and the context is that of the launch.
        unsafe { self.machine.pass(self.site, turn, word, seen) };
    }
    fn pass(&self, _lane: u32) {
        std::thread::yield_now();
    }
    unsafe fn wake(&self, word: *const u32) {
        // SAFETY: the caller's contract.
        unsafe { park::wake(word) };
    }
    fn now_ns(&self) -> u64 {
        self.machine.born.elapsed().as_nanos() as u64
    }
    fn exit(&self) -> ! {
        exit_kernel()
    }
    fn note(&self, note: Note) {
        self.watch.note(note);
    }
}
