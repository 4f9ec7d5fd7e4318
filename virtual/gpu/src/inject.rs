//! Fault injection: what goes wrong with a device on purpose, to see how those end who wait for it.

/// Something that happens to a device, after its warps have executed so many instructions, of 32 lanes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// Its warps stop for good.
    Halt {
        /// The device.
        device: u32,
        /// Instructions before.
        step: u64,
    },
    /// Of the next store in the scope of the system, as packets and signals are, a bit is inverted: one of what the first lane
    /// stores.
    Flip {
        /// The device.
        device: u32,
        /// Instructions before.
        step: u64,
        /// Which bit, counted from the lowest of the first scalar; those behind the last start at it again.
        bit: u32,
    },
    /// Nobody tells its warps that a word has changed: they find out when they look again, now and then.
    Late {
        /// The device.
        device: u32,
    },
}

/// What is about to happen to one device.
pub(crate) struct Injections {
    /// Instructions that its warps have executed.
    steps: u64,
    halt: Option<u64>,
    /// By step.
    flips: Vec<(u64, u32)>,
    pub(crate) is_late: bool,
}

impl Injections {
    /// Those of a device.
    pub(crate) fn of(own: u32, all: &[Injection]) -> Self {
        let mut injections = Self { steps: 0, halt: None, flips: Vec::new(), is_late: false };
        for injection in all {
            match *injection {
                Injection::Halt { device, step } if device == own => {
                    injections.halt = Some(injections.halt.map_or(step, |halt| halt.min(step)));
                }
                Injection::Flip { device, step, bit } if device == own => injections.flips.push((step, bit)),
                Injection::Late { device } if device == own => injections.is_late = true,
                _ => {}
            }
        }
        injections.flips.sort_unstable();
        injections
    }

    /// After how many instructions it has stopped, if it has.
    pub(crate) fn halted(&self) -> Option<u64> {
        self.halt.filter(|&halt| halt <= self.steps)
    }

    /// The bit that the next store in the scope of the system inverts.
    pub(crate) fn flip(&self) -> Option<u32> {
        self.flips.first().filter(|(step, _)| *step <= self.steps).map(|&(_, bit)| bit)
    }

    /// How many instructions a warp may execute until something happens.
    pub(crate) fn budget(&self, budget: u32) -> u32 {
        let steps = self.halt.into_iter().chain(self.flips.first().map(|(step, _)| *step));
        let left = steps.filter_map(|step| step.checked_sub(self.steps)).filter(|&left| left > 0).min();
        left.map_or(budget, |left| budget.min(u32::try_from(left).unwrap_or(u32::MAX)))
    }

    /// A warp has executed instructions, and has inverted the bit that it was to.
    pub(crate) fn passed(&mut self, instructions: u64, has_flipped: bool) {
        self.steps += instructions;
        if has_flipped {
            self.flips.remove(0);
        }
    }
}
