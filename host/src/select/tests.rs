//! What the selector chooses, and what it says where it cannot.

use congruent_collectives::{Datatype, Op};

use super::*;
use Collective::{AllReduce, AllToAll, Barrier, Broadcast, ReduceScatter};
use Protocol::{Ll, Ll128, Simple};

const RING: Algorithm = Algorithm::RING;
const TREE: Algorithm = Algorithm::TREE;
const RECURSIVE: Algorithm = Algorithm::RECURSIVE;
const ONE_SHOT: Algorithm = Algorithm::ONE_SHOT;
const DIRECT: Algorithm = Algorithm::DIRECT;
const MULTIMEM: Algorithm = Algorithm::MULTIMEM;

fn tunables(vars: &[(&str, &str)]) -> Tunables {
    Tunables::from_vars(vars.iter().map(|(name, value)| (name.to_string(), value.to_string()))).unwrap()
}

fn with(vars: &[(&str, &str)]) -> Selector {
    Selector::from_tunables(&tunables(vars), Parameters::cpu(1, 2, false), &[]).unwrap()
}

fn chosen(selector: &Selector, collective: Collective, members: usize, bytes: u64) -> (Algorithm, Protocol, Source) {
    let choice = selector.choose(collective, &Circumstances::plain(members, bytes)).unwrap();
    (choice.algorithm, choice.protocol, choice.source)
}

fn refused(selector: &Selector, collective: Collective, call: &Circumstances) -> String {
    selector.choose(collective, call).expect_err("impossible").to_string()
}

fn measured(up_to_bytes: u64, algorithm: Algorithm, protocol: Protocol, ns: f64) -> Measured {
    let (machine, collective) = (Parameters::cpu(1, 2, false).name, AllReduce);
    Measured { machine, collective, members: 2, up_to_bytes, algorithm, protocol, blocks: 1, ns }
}

#[test]
fn the_model_takes_packets_for_short_messages_and_copies_for_long_ones() {
    let selector = with(&[]);
    assert_eq!(chosen(&selector, AllReduce, 2, 4), (ONE_SHOT, Ll, Source::Model));
    assert_eq!(chosen(&selector, AllReduce, 2, 1 << 20), (DIRECT, Simple, Source::Model));
    assert_eq!(chosen(&selector, Barrier, 2, 0), (DIRECT, Simple, Source::Model));
    assert_eq!(chosen(&selector, Barrier, 16, 0), (RECURSIVE, Simple, Source::Model));
}

#[test]
fn the_prediction_is_that_of_the_fastest_candidate() {
    let selector = with(&[]);
    for &collective in Collective::ALL {
        for members in [1, 2, 3, 7, 8, 64] {
            for bytes in [0, 1, 1024, 100_000, 1 << 30] {
                let call = Circumstances::plain(members, bytes);
                let choice = selector.choose(collective, &call).unwrap();
                let candidates = selector.candidates(collective, &call);
                assert!(candidates.contains(&(choice.algorithm, choice.protocol)));
                for (algorithm, protocol) in candidates {
                    let other = selector.predict(collective, algorithm, protocol, &call);
                    assert!(choice.predicted_ns <= other, "{collective} {members} {bytes}: {algorithm} {protocol}");
                }
            }
        }
    }
}

#[test]
fn candidates_are_what_is_possible() {
    let call = Circumstances { all_direct: false, ..Circumstances::plain(4, 1024) };
    let selector = Selector::new(Parameters::cpu(1, 2, true));
    assert_eq!(selector.candidates(AllReduce, &call), [(RING, Simple), (TREE, Simple), (RECURSIVE, Simple)]);
    let everything = Circumstances { multicast: true, ll128: Ll128State::Works, ..Circumstances::plain(4, 1024) };
    assert_eq!(selector.candidates(AllReduce, &everything).len(), 13);
    let filtered = with(&[("CONGRUENT_ALGO", "tree,multimem"), ("CONGRUENT_PROTO", "^ll")]);
    assert_eq!(filtered.candidates(AllReduce, &everything), [(TREE, Simple), (TREE, Ll128), (MULTIMEM, Simple)]);
}

#[test]
fn of_pes_that_share_a_gpu_the_fastest_is_chosen_as_measured() {
    let ways = [(ONE_SHOT, Ll), (DIRECT, Simple), (RING, Simple), (RING, Ll), (TREE, Simple), (TREE, Ll)];
    let ways = ways.into_iter().chain([(RECURSIVE, Simple), (RECURSIVE, Ll)]);
    let selector = Selector::new(Parameters::cuda_one_gpu(8));
    // Of `benches/results/2026-11-26-h100.md`, in microseconds.
    for (bytes, times) in [
        (8, [8.8, 12.0, 71.5, 32.7, 50.6, 39.1, 48.6, 42.2]),
        (512, [9.7, 10.9, 86.1, 74.7, 56.8, 50.6, 45.3, 42.7]),
        (4 << 10, [6.4, 10.7, 113.7, 126.1, 57.4, 51.6, 45.3, 41.1]),
        (32 << 10, [7.4, 10.7, 113.1, 120.0, 56.4, 50.6, 44.3, 41.0]),
        (256 << 10, [51.6, 10.5, 109.5, 121.9, 57.7, 59.2, 47.4, 88.0]),
        (2 << 20, [405.7, 14.9, 121.7, 307.0, 175.1, 402.2, 194.8, 419.2]),
        (16 << 20, [3_238.0, 98.7, 934.1, 2_434.0, 1_252.0, 3_148.0, 1_469.0, 3_386.0]),
    ] {
        let call = Circumstances { blocks: 16, ..Circumstances::plain(8, bytes) };
        let choice = selector.choose(AllReduce, &call).unwrap();
        let best = ways.clone().zip(times).min_by(|a, b| f64::total_cmp(&a.1, &b.1)).map(|(way, _)| way);
        assert_eq!(Some((choice.algorithm, choice.protocol)), best, "{bytes} bytes");
    }
}

#[test]
fn links_that_reduce_are_used_for_what_would_fill_them() {
    let selector = Selector::new(Parameters::cuda_nvlink());
    let call =
        |members, bytes, multicast| Circumstances { multicast, blocks: 16, ..Circumstances::plain(members, bytes) };
    let best = |call| selector.choose(AllReduce, &call).unwrap().algorithm;
    assert_eq!(best(call(8, 64 << 20, true)), MULTIMEM);
    assert_ne!(best(call(8, 64 << 20, false)), MULTIMEM);
    assert_ne!(best(call(8, 64, true)), MULTIMEM, "packets are faster");
    let product = Circumstances { reduction: Some((Op::Prod, Datatype::F32)), ..call(8, 64 << 20, true) };
    assert_ne!(best(product), MULTIMEM);
    // Emulated for tests, multicast is never the fastest.
    let cpu = with(&[]);
    for bytes in [4, 4 << 10, 64 << 20] {
        assert_ne!(cpu.choose(AllReduce, &call(8, bytes, true)).unwrap().algorithm, MULTIMEM);
    }
}

#[test]
fn a_forced_choice_is_obeyed_at_every_size() {
    let selector = with(&[("CONGRUENT_ALGO", "ring"), ("CONGRUENT_PROTO", "simple")]);
    for bytes in [0, 4, 1 << 10, 1 << 30] {
        assert_eq!(chosen(&selector, AllReduce, 4, bytes), (RING, Simple, Source::Forced));
    }
    // One entry that leaves a choice forces nothing.
    let selector = with(&[("CONGRUENT_ALGO", "allreduce:ring,tree")]);
    let (algorithm, _, source) = chosen(&selector, AllReduce, 4, 4);
    assert!(matches!(algorithm, RING | TREE));
    assert_eq!(source, Source::Model);
    assert_eq!(chosen(&selector, ReduceScatter, 2, 4), chosen(&with(&[]), ReduceScatter, 2, 4));
}

#[test]
fn an_impossible_forced_choice_names_the_filter_and_every_reason() {
    let selector = with(&[("CONGRUENT_ALGO", "tree")]);
    assert_eq!(
        refused(&selector, ReduceScatter, &Circumstances::plain(4, 1024)),
        "CONGRUENT_ALGO=tree leaves no way for reduce-scatter of 1024 bytes over 4 members: tree with simple/ll/ll128: \
         reduce-scatter has no such algorithm; it has one-shot, direct, ring, recursive, multimem, two-level"
    );
    let both = with(&[("CONGRUENT_ALGO", "allreduce:one-shot"), ("CONGRUENT_PROTO", "ll,ll128")]);
    let said = refused(&both, AllReduce, &Circumstances { element: 16, ..Circumstances::plain(4, 1 << 20) });
    for part in [
        "CONGRUENT_ALGO=allreduce:one-shot with CONGRUENT_PROTO=ll,ll128 leaves no way for all-reduce",
        "one-shot with ll/ll128: it packs elements into words of 8 bytes",
    ] {
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
    let proxied = Circumstances { all_direct: false, ..Circumstances::plain(4, 64) };
    let said = refused(&with(&[("CONGRUENT_ALGO", "direct")]), AllReduce, &proxied);
    assert!(said.contains("some members are reached through the proxy only"), "{said}");
    let said = refused(&with(&[("CONGRUENT_ALGO", "multimem")]), Broadcast, &Circumstances::plain(4, 64));
    assert!(said.contains("no multicast addresses"), "{said}");
}

#[test]
fn the_table_stands_over_the_model_and_filters_over_the_table() {
    let table = TuningTable::new(vec![
        measured(1024, RING, Simple, 90.0),
        measured(1024, TREE, Simple, 95.0),
        measured(1 << 20, RECURSIVE, Simple, 9_000.0),
        measured(1 << 22, MULTIMEM, Simple, 9_000.0),
    ]);
    let selector = with(&[]).with_table(table.clone());
    assert_eq!(chosen(&selector, AllReduce, 2, 1024), (RING, Simple, Source::Table));
    assert_eq!(chosen(&selector, AllReduce, 2, 1025), (RECURSIVE, Simple, Source::Table));
    assert_eq!(chosen(&selector, AllReduce, 4, 4).2, Source::Model, "the table has teams of 2");
    assert_eq!(chosen(&selector, AllReduce, 2, 1 << 22).2, Source::Model, "multimem is impossible here");
    let call = Circumstances::plain(2, 1024);
    assert_eq!(selector.choose(AllReduce, &call).unwrap().predicted_ns, 90.0);
    assert_eq!(selector.predict(AllReduce, TREE, Simple, &call), 95.0);
    assert!(selector.predict(AllReduce, RING, Simple, &Circumstances::plain(2, 8)) < 90.0);
    let without = with(&[("CONGRUENT_ALGO", "^ring")]).with_table(table.clone());
    assert_eq!(chosen(&without, AllReduce, 2, 4), (TREE, Simple, Source::Table));
    let forced = with(&[("CONGRUENT_ALGO", "direct")]).with_table(table);
    assert_eq!(chosen(&forced, AllReduce, 2, 4), (DIRECT, Simple, Source::Forced));
}

#[test]
fn the_digest_tells_selectors_apart() {
    let machine = Parameters::cpu(1, 2, false);
    let table = TuningTable::new(vec![measured(8, RING, Simple, 1.0)]);
    let other = TuningTable::new(vec![measured(8, RING, Simple, 2.0)]);
    let digests = [
        with(&[]).digest(),
        with(&[("CONGRUENT_ALGO", "ring")]).digest(),
        with(&[("CONGRUENT_PROTO", "simple")]).digest(),
        with(&[("CONGRUENT_LL128_ENABLE", "1")]).digest(),
        with(&[]).with_table(table).digest(),
        with(&[]).with_table(other).digest(),
        Selector::new(Parameters { copy_rate: 16.0, ..machine.clone() }).digest(),
    ];
    let unique: std::collections::BTreeSet<_> = digests.iter().collect();
    assert_eq!(unique.len(), digests.len());
    assert_eq!(with(&[]).digest(), Selector::new(machine).digest());
}

#[test]
fn a_selector_reads_its_table_and_refuses_that_of_another_machine() {
    let path = std::env::temp_dir().join(format!("congruent-select-{}.csv", std::process::id()));
    std::fs::write(&path, TuningTable::new(vec![measured(64, TREE, Ll, 50.0)]).to_text()).unwrap();
    let tunables = tunables(&[("CONGRUENT_TUNING", &path.display().to_string())]);
    let here = Selector::from_tunables(&tunables, Parameters::cpu(1, 2, false), &[]);
    let elsewhere = Selector::from_tunables(&tunables, Parameters::cuda_pcie(), &[]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(chosen(&here.unwrap(), AllReduce, 2, 64), (TREE, Ll, Source::Table));
    assert!(matches!(elsewhere, Err(SelectError::Table(TableError::OtherMachine { .. }))), "{elsewhere:?}");
}

#[test]
fn ll128_needs_both_the_user_and_the_test() {
    assert_eq!(with(&[]).ll128(true), Ll128State::Disabled);
    let enabled = with(&[("CONGRUENT_LL128_ENABLE", "1")]);
    assert_eq!(enabled.ll128(false), Ll128State::Failed);
    assert_eq!(enabled.ll128(true), Ll128State::Works);
    assert!(enabled.candidates(AllToAll, &Circumstances::plain(2, 64)).iter().all(|way| way.1 != Ll128));
}
