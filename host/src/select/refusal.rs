//! Why an algorithm with a protocol is impossible for a call.

use std::fmt::Display;

use congruent_collectives::{Algorithm, Collective, Datatype, Descriptor, Members, Op, Protocol};

use super::circumstances::{Circumstances, Ll128State};

/// Why an algorithm with a protocol is impossible for a call, in words that follow its name.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The collective has no such algorithm.
    #[error("{collective} has no such algorithm; it has {}", names(has))]
    NoAlgorithm {
        /// The collective.
        collective: Collective,
        /// Those that it has.
        has: Vec<Algorithm>,
    },
    /// The algorithm does not come with that protocol.
    #[error("{algorithm} {collective} has no such protocol; it has {}", names(*has))]
    NoProtocol {
        /// The collective.
        collective: Collective,
        /// The algorithm.
        algorithm: Algorithm,
        /// Those that it has.
        has: &'static [Protocol],
    },
    /// Loads and stores do not reach every member.
    #[error("it loads and stores in every member's memory, and some members are reached through the proxy only")]
    NotDirect,
    /// The team is too large.
    #[error("it is for teams of up to {most} members, and this one has {members}")]
    TooManyMembers {
        /// Members of the team.
        members: usize,
        /// The most that it is for.
        most: usize,
    },
    /// The team is too small.
    #[error("it is for teams of more than {few} members, and this one has {members}")]
    TooFewMembers {
        /// Members of the team.
        members: usize,
        /// It is for more than so many.
        few: usize,
    },
    /// No two levels.
    #[error(
        "it is for teams on several hosts, with as many members on each, two or more, whose ranks are those of one host after the other"
    )]
    OneLevel,
    /// An average of averages.
    #[error("its levels each round, and an average is rounded once")]
    Average,
    /// Scalars of the members' own.
    #[error(
        "members combine what others contribute, and here each has a scalar of its own for what it contributes; ring and tree can"
    )]
    OwnScalars,
    /// Elements that do not pack into words.
    #[error("it packs elements into words of 8 bytes, and elements of {element} bytes do not divide them")]
    Element {
        /// Bytes of an element.
        element: usize,
    },
    /// LL128 is off.
    #[error("LL128 is off unless CONGRUENT_LL128_ENABLE=1")]
    Ll128Disabled,
    /// LL128 does not work here.
    #[error("the self-test of LL128 failed here, so it would corrupt data")]
    Ll128Failed,
    /// No multicast addresses.
    #[error(
        "the team has no multicast addresses: they need GPUs that one NVSwitch joins and a driver that takes their PTX; `congruent info` tells what is missing"
    )]
    NoMulticast,
    /// Links do not do the operator on the type, or not as it says.
    #[error(
        "links do not reduce {operator} of {datatype} as the operator says; they have sum of int32, int64, half, bfloat16, float \
         and double, avg of those but half and bfloat16, and min, max, and, or, xor of the integers"
    )]
    MultimemType {
        /// The operator.
        operator: Op,
        /// The type.
        datatype: Datatype,
    },
    /// No instruction for an operator of the program's own.
    #[error("the NVLink switch reduces by operators of its own, not by a program's")]
    MultimemOperator,
}

/// Whether an algorithm with a protocol is possible for a call.
///
/// # Errors
/// Why it is not.
pub fn check(of: &Descriptor, protocol: Protocol, call: &Circumstances) -> Result<(), Refusal> {
    let &Descriptor { collective, algorithm, protocols: has, .. } = of;
    if !has.contains(&protocol) {
        return Err(Refusal::NoProtocol { collective, algorithm, has });
    }
    let members = call.members;
    match of.members {
        Members::UpTo(most) if members > most => return Err(Refusal::TooManyMembers { members, most }),
        Members::MoreThan(few) if members <= few => return Err(Refusal::TooFewMembers { members, few }),
        _ => {}
    }
    if of.multicast {
        multimem(collective, call)?;
    }
    if of.levels && call.hosts < 2 {
        return Err(Refusal::OneLevel);
    }
    if of.levels && matches!(call.reduction, Some((Op::Avg, _))) {
        return Err(Refusal::Average);
    }
    if call.own_scalars && !of.own_scalars {
        return Err(Refusal::OwnScalars);
    }
    // Packets are stores of the lanes themselves: the proxy would have to copy them whole, flag and all.
    if (of.direct_only || protocol != Protocol::Simple) && !call.all_direct {
        return Err(Refusal::NotDirect);
    }
    if protocol != Protocol::Simple {
        packets(protocol, call)?;
    }
    Ok(())
}

fn multimem(collective: Collective, call: &Circumstances) -> Result<(), Refusal> {
    if !call.multicast {
        return Err(Refusal::NoMulticast);
    }
    if !collective.reduces() {
        return Ok(());
    }
    match call.reduction {
        None => Err(Refusal::MultimemOperator),
        Some((operator, datatype)) if operator.multimem(datatype, call.members).is_none() => {
            Err(Refusal::MultimemType { operator, datatype })
        }
        Some(_) => Ok(()),
    }
}

fn packets(protocol: Protocol, call: &Circumstances) -> Result<(), Refusal> {
    let element = call.element;
    if element == 0 || 8 % element != 0 {
        return Err(Refusal::Element { element });
    }
    match call.ll128 {
        Ll128State::Disabled if protocol == Protocol::Ll128 => Err(Refusal::Ll128Disabled),
        Ll128State::Failed if protocol == Protocol::Ll128 => Err(Refusal::Ll128Failed),
        _ => Ok(()),
    }
}

/// A list for people: `a, b, c`.
pub(super) fn names<T: Display>(things: impl IntoIterator<Item = T>) -> String {
    things.into_iter().map(|thing| thing.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use Protocol::{Ll, Ll128, Simple};
    use congruent_collectives::{direct, multimem, one_shot, recursive, ring, tree, two_level};

    #[test]
    fn what_does_not_exist_is_told_with_what_does() {
        let call = Circumstances::plain(4, 1024);
        let refused = check(&one_shot::ALL_REDUCE, Simple, &call).unwrap_err();
        assert_eq!(refused.to_string(), "one-shot all-reduce has no such protocol; it has ll, ll128");
    }

    #[test]
    fn the_proxy_stands_in_for_puts_only() {
        let call = Circumstances { all_direct: false, ..Circumstances::plain(4, 1024) };
        assert_eq!(check(&direct::ALL_REDUCE, Simple, &call), Err(Refusal::NotDirect));
        assert_eq!(check(&one_shot::ALL_REDUCE, Ll, &call), Err(Refusal::NotDirect));
        assert_eq!(check(&ring::ALL_REDUCE, Ll, &call), Err(Refusal::NotDirect));
        assert_eq!(check(&ring::ALL_REDUCE, Simple, &call), Ok(()));
        assert_eq!(check(&direct::ALL_GATHER, Simple, &call), Ok(()));
    }

    #[test]
    fn two_levels_take_several_hosts_and_no_average() {
        let on = |hosts, op| {
            let call = Circumstances { hosts, all_direct: false, ..Circumstances::plain(4, 1024) };
            check(&two_level::ALL_REDUCE, Simple, &Circumstances { reduction: Some((op, Datatype::F32)), ..call })
        };
        assert_eq!(on(2, Op::Sum), Ok(()));
        assert_eq!(on(2, Op::Avg), Err(Refusal::Average));
        assert_eq!(on(1, Op::Sum), Err(Refusal::OneLevel));
    }

    #[test]
    fn scalars_of_members_own_take_members_that_combine_their_own() {
        let call = Circumstances {
            own_scalars: true,
            hosts: 2,
            reduction: Some((Op::PreMulSum, Datatype::F32)),
            ..Circumstances::plain(4, 1024)
        };
        for possible in
            [&ring::ALL_REDUCE, &ring::REDUCE, &ring::REDUCE_SCATTER, &tree::ALL_REDUCE, &two_level::ALL_REDUCE]
        {
            assert_eq!(check(possible, Simple, &call), Ok(()), "{possible:?}");
        }
        for (not, protocol) in
            [(&direct::ALL_REDUCE, Simple), (&one_shot::ALL_REDUCE, Ll), (&recursive::ALL_REDUCE, Simple)]
        {
            assert_eq!(check(not, protocol, &call), Err(Refusal::OwnScalars), "{not:?}");
        }
    }

    #[test]
    fn teams_have_sizes() {
        let of = |members| Circumstances::plain(members, 1024);
        let barrier = |algorithm| Descriptor::of(Collective::Barrier, algorithm).unwrap();
        assert_eq!(check(barrier(Algorithm::DIRECT), Simple, &of(8)), Ok(()));
        let refused = check(barrier(Algorithm::DIRECT), Simple, &of(9));
        assert_eq!(refused, Err(Refusal::TooManyMembers { members: 9, most: 8 }));
        assert_eq!(check(barrier(Algorithm::RECURSIVE), Simple, &of(9)), Ok(()));
        let refused = check(barrier(Algorithm::RECURSIVE), Simple, &of(8));
        assert_eq!(refused, Err(Refusal::TooFewMembers { members: 8, few: 8 }));
    }

    #[test]
    fn packets_take_elements_that_divide_a_word() {
        for (element, possible) in [(1, true), (2, true), (4, true), (8, true), (0, false), (3, false), (16, false)] {
            let call = Circumstances { element, ..Circumstances::plain(4, 1024) };
            assert_eq!(check(&ring::ALL_REDUCE, Ll, &call).is_ok(), possible, "{element}");
            assert_eq!(check(&ring::ALL_REDUCE, Simple, &call), Ok(()));
        }
    }

    #[test]
    fn ll128_is_asked_for_and_tested() {
        for (ll128, expected) in [
            (Ll128State::Disabled, Err(Refusal::Ll128Disabled)),
            (Ll128State::Failed, Err(Refusal::Ll128Failed)),
            (Ll128State::Works, Ok(())),
        ] {
            let call = Circumstances { ll128, ..Circumstances::plain(4, 1024) };
            assert_eq!(check(&tree::ALL_REDUCE, Ll128, &call), expected);
            assert_eq!(check(&tree::ALL_REDUCE, Ll, &call), Ok(()));
        }
    }

    #[test]
    fn multimem_is_for_what_links_can_do() {
        let call = |reduction| Circumstances { multicast: true, reduction, ..Circumstances::plain(4, 1024) };
        let with = |op, datatype| check(&multimem::ALL_REDUCE, Simple, &call(Some((op, datatype))));
        assert_eq!(with(Op::Sum, Datatype::F32), Ok(()));
        let possible = [
            (Op::Sum, Datatype::Bf16),
            (Op::Avg, Datatype::F64),
            (Op::Avg, Datatype::I32),
            (Op::Max, Datatype::U64),
            (Op::Xor, Datatype::I64),
        ];
        for (operator, datatype) in possible {
            assert_eq!(with(operator, datatype), Ok(()));
        }
        let impossible = [
            (Op::Max, Datatype::F32),
            (Op::Prod, Datatype::I32),
            (Op::PreMulSum, Datatype::F32),
            (Op::Sum, Datatype::I8),
            (Op::Sum, Datatype::F8E4M3),
            // Which zero and which of a number and a NaN, links do not say; and their sum of 16 bits is rounded already.
            (Op::Min, Datatype::F16),
            (Op::Avg, Datatype::Bf16),
        ];
        for (operator, datatype) in impossible {
            assert_eq!(with(operator, datatype), Err(Refusal::MultimemType { operator, datatype }));
        }
        assert_eq!(check(&multimem::ALL_REDUCE, Simple, &call(None)), Err(Refusal::MultimemOperator));
        assert_eq!(check(&multimem::BROADCAST, Simple, &call(None)), Ok(()));
        assert_eq!(check(&multimem::ALL_REDUCE, Simple, &Circumstances::plain(4, 1024)), Err(Refusal::NoMulticast));
    }
}
