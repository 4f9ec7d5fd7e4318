//! Teams against plain lists of PEs: who is a member, in which order, and what is no team.

use std::collections::BTreeSet;

use congruent::device::Pe;
use congruent_heap::{Members, TeamError};
use proptest::prelude::*;

fn list(team: &Members) -> Vec<u32> {
    team.pes().map(Pe::raw).collect()
}

/// Ranks and PEs name each other, and nobody else is in it.
fn check(team: &Members, expected: &[u32], parent: u32) -> Result<(), TestCaseError> {
    prop_assert_eq!(list(team), expected);
    prop_assert_eq!(team.size() as usize, expected.len());
    for rank in 0..team.size() + 3 {
        let pe = team.pe(rank);
        prop_assert_eq!(pe.map(Pe::raw), expected.get(rank as usize).copied());
        if let Some(pe) = pe {
            prop_assert_eq!(team.rank_of(pe), Some(rank));
        }
    }
    for pe in 0..parent + 3 {
        let rank = expected.iter().position(|&member| member == pe).map(|rank| rank as u32);
        prop_assert_eq!(team.rank_of(Pe::new(pe)), rank);
    }
    Ok(())
}

/// The colour and key of each PE.
fn choices() -> impl Strategy<Value = Vec<Option<(u32, u32)>>> {
    prop::collection::vec(prop::option::weighted(0.9, (0u32..4, 0u32..6)), 1..40)
}

proptest! {
    #[test]
    fn a_strided_team_is_its_formula(parent in 1u32..70, start in 0u32..70, stride in 0u32..20, size in 0u32..70) {
        let expected: Vec<u64> = (0..u64::from(size)).map(|i| u64::from(start) + i * u64::from(stride)).collect();
        match Members::strided(parent, start, stride, size) {
            Ok(team) => check(&team, &expected.iter().map(|&pe| pe as u32).collect::<Vec<_>>(), parent)?,
            Err(TeamError::Empty) => prop_assert_eq!(size, 0),
            Err(TeamError::ZeroStride { .. }) => prop_assert!(stride == 0 && size > 1),
            Err(TeamError::OutOfRange { member, .. }) => {
                prop_assert_eq!(Some(&member), expected.last());
                prop_assert!(member >= u64::from(parent));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn no_numbers_make_a_strided_team_overflow(parent: u32, start: u32, stride: u32, size: u32) {
        let last = u64::from(start) + u64::from(stride) * u64::from(size.max(1) - 1);
        let exists = size > 0 && (stride > 0 || size == 1) && last < u64::from(parent);
        prop_assert_eq!(Members::strided(parent, start, stride, size).is_ok(), exists);
    }

    #[test]
    fn a_listed_team_is_its_list(parent in 1u32..20, asked in prop::collection::vec(0u32..22, 0..12)) {
        let distinct: BTreeSet<u32> = asked.iter().copied().collect();
        match Members::listed(parent, &asked) {
            Ok(team) => check(&team, &asked, parent)?,
            Err(TeamError::Empty) => prop_assert!(asked.is_empty()),
            Err(TeamError::OutOfRange { member, .. }) => {
                prop_assert!(member >= u64::from(parent) && asked.iter().any(|&pe| u64::from(pe) == member));
            }
            Err(TeamError::Twice { member }) => {
                prop_assert!(asked.iter().filter(|&&pe| pe == member).count() > 1);
                prop_assert!(distinct.len() < asked.len());
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn any_order_of_distinct_pes_is_a_team(order in Just((0u32..12).collect::<Vec<_>>()).prop_shuffle(), size in 1usize..12) {
        check(&Members::listed(12, &order[..size]).unwrap(), &order[..size], 12)?;
    }

    #[test]
    fn a_split_parts_the_pes_by_colour_and_orders_them_by_key(choices in choices()) {
        let mut seen = vec![0; choices.len()];
        for (pe, choice) in choices.iter().enumerate() {
            let team = Members::split(&choices, pe);
            prop_assert_eq!(team.is_some(), choice.is_some());
            let (Some(team), Some((colour, _))) = (team, choice) else { continue };
            let mut expected: Vec<u32> = (0..choices.len() as u32)
                .filter(|&other| choices[other as usize].is_some_and(|(theirs, _)| theirs == *colour))
                .collect();
            // A stable sort leaves PEs of one key in their order.
            expected.sort_by_key(|&other| choices[other as usize].map(|(_, key)| key));
            check(&team, &expected, choices.len() as u32)?;
            let rank = team.rank_of(Pe::new(pe as u32)).unwrap();
            seen[pe] += usize::from(team.pe(rank) == Some(Pe::new(pe as u32)));
        }
        let joined: Vec<usize> = choices.iter().map(|choice| usize::from(choice.is_some())).collect();
        prop_assert_eq!(seen, joined, "everybody with a colour is in a team of their own colour, once");
        prop_assert!(Members::split(&choices, choices.len()).is_none());
    }

    #[test]
    fn a_team_of_a_team_names_the_same_pes(
        order in Just((0u32..16).collect::<Vec<_>>()).prop_shuffle(),
        ranks in Just((0u32..10).collect::<Vec<_>>()).prop_shuffle(),
        size in 1usize..10,
    ) {
        let parent = Members::listed(16, &order[..10]).unwrap();
        let child = Members::listed(10, &ranks[..size]).unwrap();
        let expected: Vec<u32> = ranks[..size].iter().map(|&rank| order[rank as usize]).collect();
        check(&child.through(&parent).unwrap(), &expected, 16)?;
        let smaller = Members::world(5);
        prop_assert_eq!(child.through(&smaller).is_some(), ranks[..size].iter().all(|&rank| rank < 5));
    }
}
