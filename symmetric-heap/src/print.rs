//! What kernels print, on its way to their host.

/// Lines that kernels print, in memory of their own PE. Producers wait for nobody: where there is no room, a line is lost and counted.
#[repr(C, align(64))]
pub struct Prints {
    /// How many lines have a place.
    pub reserved: u64,
    /// How many the host has taken.
    pub taken: u64,
    /// How many were lost since the host last looked.
    pub lost: u64,
    /// How many spans were.
    pub lost_spans: u64,
    /// Line `i` is in slot `i` modulo their number.
    pub slots: [PrintLine; Self::SLOTS],
}

/// One line, or a part of a kernel's work that is over.
#[repr(C, align(64))]
pub struct PrintLine {
    /// One more than the line's number, once all of it is there.
    pub ready: u64,
    /// The launch, by the host's count.
    pub launch: u32,
    /// The block, in its launch.
    pub block: u32,
    /// The thread, in its block.
    pub thread: u32,
    /// What the values are, a [`Printed`] of four bits each; or [`PrintLine::SPAN`].
    pub kinds: u32,
    /// The values in their order. Of a span: begin and end on the device's clock, which part of how many in the halves of a word, the
    /// peer, and bytes.
    pub values: [u64; Self::VALUES],
    /// How many bytes of `text` count.
    pub bytes: u64,
    /// The text, in which each `{}` stands for a value.
    pub text: [u8; Self::TEXT],
}

/// How the bits of a value are to be read.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printed {
    /// An unsigned integer.
    Unsigned = 1,
    /// A signed integer.
    Signed = 2,
    /// An `f64`.
    Float = 3,
    /// A truth value.
    Bool = 4,
    /// An `f32`, or what has fewer bits.
    Short = 5,
}

impl Prints {
    /// How many lines have room at once.
    pub const SLOTS: usize = 256;
}

impl PrintLine {
    /// The most values of a line.
    pub const VALUES: usize = 6;
    /// Room for a text, bytes.
    pub const TEXT: usize = 104;
    /// The kinds of a span, of which the text is the name.
    pub const SPAN: u32 = u32::MAX;

    /// What of `text` counts.
    pub fn said(&self) -> &[u8] {
        &self.text[..(self.bytes as usize).min(Self::TEXT)]
    }
}

impl Printed {
    /// How value `i` of a line is to be read, or `None` where it has none.
    pub const fn of(kinds: u32, i: usize) -> Option<Self> {
        match kinds >> (4 * i) & 0xf {
            1 => Some(Self::Unsigned),
            2 => Some(Self::Signed),
            3 => Some(Self::Float),
            4 => Some(Self::Bool),
            5 => Some(Self::Short),
            _ => None,
        }
    }
}

const _: () = assert!(size_of::<PrintLine>() == 192);
