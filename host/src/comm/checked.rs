//! Checked mode: before each collective, members compare what they are about to call.
//!
//! A kernel of one block exchanges 32 bytes with every other member and ends with a fault where they differ, so that a wrong call
//! is an error that says what is wrong, before any data moves, instead of wrong data or a deadline. It costs about as much as a
//! barrier and the fence that it needs. It is on on the CPU machine, where programs are tried out, and off on GPUs;
//! `CONGRUENT_CHECK` or [`CommOptions::check`](super::CommOptions::check) turns it on or off.
//!
//! Sends and receives are not compared: they are no collectives, and compare their counts themselves.

use std::fmt;

use congruent_collectives::{Algorithm, Collective, Datatype, Op, Protocol};

/// What has to be the same on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Description {
    /// How many collectives of this communicator this stream has had, this one included.
    pub(super) number: u64,
    pub(super) collective: Collective,
    /// Its number.
    pub(super) algorithm: usize,
    pub(super) protocol: Protocol,
    /// Of a reduction.
    pub(super) reduction: Option<(Op, Datatype)>,
    /// Whether members have scalars of their own.
    pub(super) own_scalars: bool,
    pub(super) members: usize,
    /// Elements of a member's part, 0 where they may differ.
    pub(super) count: usize,
    pub(super) root: u32,
    /// Bytes of an element.
    pub(super) element: usize,
}

/// In what the calls of two members of a communicator differ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallMismatch {
    /// How many collectives of this communicator the stream has had, this one included.
    pub call: u64,
    /// What this PE called, as it is named: `all-reduce`.
    pub called: &'static str,
    /// What differs.
    pub field: &'static str,
    /// This PE's.
    pub mine: String,
    /// The other PE's.
    pub theirs: String,
}

/// A field of a description: its name, its word, where in the word it begins, and its bits.
type Field = (&'static str, usize, u32, u32);

const COLLECTIVE: Field = ("collective", 1, 0, 8);
const OWN_SCALARS: Field = ("scalars of the members' own", 1, 8, 8);
const MEMBERS: Field = ("team size", 1, 40, 24);
const DATATYPE: Field = ("type", 1, 24, 8);
const OPERATOR: Field = ("operator", 1, 32, 8);
const ROOT: Field = ("root", 3, 0, 24);
const ELEMENT: Field = ("bytes of an element", 3, 24, 24);
const ALGORITHM: Field = ("algorithm", 3, 48, 8);
const PROTOCOL: Field = ("protocol", 3, 56, 8);

/// All fields, causes before their effects: PEs with different counts choose different algorithms, too.
const FIELDS: [Field; 11] = [
    ("call number", 0, 0, 64),
    COLLECTIVE,
    MEMBERS,
    DATATYPE,
    OPERATOR,
    OWN_SCALARS,
    ("count", 2, 0, 64),
    ROOT,
    ELEMENT,
    ALGORITHM,
    PROTOCOL,
];

/// Stands where there is nothing to name.
const NOTHING: u64 = 0xff;

impl Description {
    /// As members send it: number, what is called, count, and the rest.
    pub(super) fn words(&self) -> [u64; 4] {
        let put = |field: Field, of: u64| value(field, of << field.2) << field.2;
        let (op, datatype) = match self.reduction {
            Some((op, datatype)) => (op as u64, datatype as u64),
            None => (NOTHING, NOTHING),
        };
        let called = put(COLLECTIVE, self.collective as u64)
            | put(DATATYPE, datatype)
            | put(OPERATOR, op)
            | put(OWN_SCALARS, self.own_scalars.into())
            | put(MEMBERS, self.members as u64);
        let rest = put(ROOT, u64::from(self.root))
            | put(ELEMENT, self.element as u64)
            | put(ALGORITHM, self.algorithm as u64)
            | put(PROTOCOL, self.protocol as u64);
        [self.number, called, self.count as u64, rest]
    }
}

impl CallMismatch {
    /// What a kernel recorded: which call it is, its word that says what this PE called, and the word of both that differs.
    pub(crate) fn new(call: u64, called: u64, word: u32, mine: u64, theirs: u64) -> Self {
        let in_word = FIELDS.iter().copied().filter(|field| field.1 == word as usize);
        let differs = in_word.clone().find(|&field| value(field, mine) != value(field, theirs));
        let field = differs.unwrap_or(COLLECTIVE);
        Self {
            call,
            called: name_of(Collective::ALL, value(COLLECTIVE, called)),
            field: field.0,
            mine: shown(field, mine),
            theirs: shown(field, theirs),
        }
    }

    /// Says it, of this PE and another.
    pub(crate) fn tell(&self, f: &mut fmt::Formatter<'_>, pe: u32, peer: &str) -> fmt::Result {
        let Self { call, called, field, mine, theirs } = self;
        if *field == COLLECTIVE.0 {
            write!(f, "{peer} called {theirs} where PE {pe} called {mine}")?;
        } else {
            write!(f, "{peer} called {called} with {field} {theirs} where PE {pe} has {mine}")?;
        }
        write!(
            f,
            " (call {call} of this communicator on this stream); every member makes the same calls in the same order"
        )
    }
}

fn value((_, _, shift, bits): Field, word: u64) -> u64 {
    (word >> shift) & (u64::MAX >> (64 - bits))
}

fn shown(field: Field, word: u64) -> String {
    let value = value(field, word);
    let named = match field {
        COLLECTIVE => name_of(Collective::ALL, value),
        ALGORITHM if value >= Algorithm::ALL.len() as u64 => "the program's own",
        ALGORITHM => name_of(Algorithm::ALL, value),
        PROTOCOL => name_of(Protocol::ALL, value),
        DATATYPE => name_of(Datatype::ALL, value),
        OPERATOR => name_of(Op::ALL, value),
        OWN_SCALARS => ["no", "yes"][usize::from(value != 0)],
        _ => return value.to_string(),
    };
    named.to_owned()
}

/// The name of number `value`.
fn name_of<T: Named>(all: &'static [T], value: u64) -> &'static str {
    usize::try_from(value).ok().and_then(|at| all.get(at)).map_or("none", |one| one.called())
}

/// What has a number and a name.
trait Named {
    fn called(&self) -> &'static str;
}

macro_rules! named {
    ($($name:ident)*) => {$(
        impl Named for $name {
            fn called(&self) -> &'static str {
                self.name()
            }
        }
    )*};
}
named!(Collective Algorithm Protocol Datatype Op);

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Description = Description {
        number: 7,
        collective: Collective::AllReduce,
        algorithm: 0,
        protocol: Protocol::Simple,
        reduction: Some((Op::Sum, Datatype::F32)),
        own_scalars: false,
        members: 4,
        count: 1000,
        root: 0,
        element: 4,
    };

    /// What a kernel records that finds these.
    fn mismatch(theirs: Description) -> CallMismatch {
        let (mine, theirs) = (MINE.words(), theirs.words());
        let part = (0..4).find(|&i| mine[i] != theirs[i]).unwrap();
        CallMismatch::new(mine[0], mine[1], part as u32, mine[part], theirs[part])
    }

    #[test]
    fn every_field_is_found_and_named() {
        let cases = [
            (Description { number: 8, ..MINE }, "call number", "7", "8"),
            (
                Description { collective: Collective::Broadcast, reduction: None, ..MINE },
                "collective",
                "all-reduce",
                "broadcast",
            ),
            (Description { algorithm: 1, ..MINE }, "algorithm", "ring", "tree"),
            (Description { algorithm: 8, ..MINE }, "algorithm", "ring", "the program's own"),
            (Description { protocol: Protocol::Ll, ..MINE }, "protocol", "simple", "ll"),
            (Description { reduction: Some((Op::Max, Datatype::F32)), ..MINE }, "operator", "sum", "max"),
            (Description { reduction: Some((Op::Sum, Datatype::F64)), element: 8, ..MINE }, "type", "float", "double"),
            (Description { own_scalars: true, ..MINE }, "scalars of the members' own", "no", "yes"),
            (Description { members: 5, ..MINE }, "team size", "4", "5"),
            (Description { count: 1001, ..MINE }, "count", "1000", "1001"),
            (Description { root: 3, ..MINE }, "root", "0", "3"),
            (Description { element: 2, ..MINE }, "bytes of an element", "4", "2"),
        ];
        for (theirs, field, mine, other) in cases {
            let found = mismatch(theirs);
            assert_eq!((found.field, &*found.mine, &*found.theirs), (field, mine, other));
            assert_eq!((found.call, found.called), (7, "all-reduce"));
        }
    }

    #[test]
    fn fields_do_not_share_bits() {
        for (i, &(name, word, shift, bits)) in FIELDS.iter().enumerate() {
            assert!(shift + bits <= 64, "{name}");
            for &(other, its_word, its_shift, its_bits) in &FIELDS[..i] {
                assert!(
                    word != its_word || shift >= its_shift + its_bits || its_shift >= shift + bits,
                    "{name} {other}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_known_is_none() {
        let plain = Description { reduction: None, ..MINE };
        assert_eq!(shown(OPERATOR, plain.words()[1]), "none");
    }
}
