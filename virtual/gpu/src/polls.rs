//! What lanes that may be polling have seen, by which a loop that waits is known.

/// Loads since memory was last written, or something else was seen than before.
#[derive(Clone, Default)]
pub(crate) struct Polls(Vec<Seen>);

/// What an instruction loaded from an address.
#[derive(Clone, Copy)]
struct Seen {
    at: usize,
    address: u64,
    value: u64,
    is_strong: bool,
}

impl Polls {
    /// A loop that loads from more places than this is not known as one that waits.
    const MOST: usize = 64;

    /// Something has happened, so that the next turn of a loop may do something else than the last one.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether anything was loaded that a loop could wait for.
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// A strong load, or an atomic that changed nothing. Tells whether it saw what it saw before, with nothing else in between: then the
    /// lanes will do what they did, until something is written there.
    pub(crate) fn strong(&mut self, at: usize, address: u64, value: u64) -> bool {
        self.again(Seen { at, address, value, is_strong: true })
    }

    /// A plain load. One that sees what it saw before changes nothing; after any other one, a strong load has to be seen again.
    pub(crate) fn plain(&mut self, at: usize, address: u64, value: u64) {
        if !self.again(Seen { at, address, value, is_strong: false }) {
            self.0.retain(|seen| !seen.is_strong);
        }
    }

    fn again(&mut self, new: Seen) -> bool {
        if let Some(seen) = self.0.iter_mut().find(|seen| (seen.at, seen.address) == (new.at, new.address)) {
            return core::mem::replace(seen, new).value == new.value;
        }
        if self.0.len() == Self::MOST {
            self.0.clear();
        }
        self.0.push(new);
        false
    }
}
