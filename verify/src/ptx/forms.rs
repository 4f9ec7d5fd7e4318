//! Every instruction the parser knows: opcodes and the modifiers each takes, in order.

/// Why an instruction is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The opcode.
    Opcode,
    /// The modifier with this index; one past the last if something is missing.
    Modifier(usize),
}

/// Whether `opcode` takes exactly these modifiers.
pub(crate) fn check(opcode: &str, modifiers: &[String]) -> Result<(), Unknown> {
    let mut furthest = None;
    for (_, form) in FORMS.iter().filter(|(name, _)| *name == opcode) {
        let slots: Vec<&str> = form.split_whitespace().collect();
        match matched(&slots, modifiers) {
            Ok(()) => return Ok(()),
            Err(at) => furthest = furthest.max(Some(at)),
        }
    }
    Err(furthest.map_or(Unknown::Opcode, Unknown::Modifier))
}

/// Every list of modifiers that `opcode` takes: what a tool must know to know the opcode. Modifiers that may be repeated are
/// left out.
pub fn spellings(opcode: &str) -> Vec<Vec<&'static str>> {
    let mut all = Vec::new();
    for (_, form) in FORMS.iter().filter(|(name, _)| *name == opcode) {
        let mut lists = vec![Vec::new()];
        for slot in form.split_whitespace().filter(|slot| !slot.starts_with('*')) {
            let skipped = if slot.starts_with('?') { lists.clone() } else { Vec::new() };
            let words = words(slot.trim_start_matches('?'));
            let longer = lists.iter().flat_map(|list| words.iter().map(|word| [list.as_slice(), &[*word]].concat()));
            lists = longer.chain(skipped).collect();
        }
        all.extend(lists);
    }
    all
}

/// Whether `name`, with `part` such as `.x`, is a register of the machine.
pub(crate) fn is_special_register(name: &str, part: Option<&str>) -> bool {
    match part {
        Some(part) => VECTOR_REGISTERS.contains(&name) && matches!(part, ".x" | ".y" | ".z" | ".w"),
        None => name == "WARP_SZ" || SCALAR_REGISTERS.contains(&name),
    }
}

/// How far `modifiers` fit into `slots`; each slot is `?` optional, `*` any number of, or one of a choice.
fn matched(slots: &[&str], modifiers: &[String]) -> Result<(), usize> {
    let Some((slot, later)) = slots.split_first() else {
        return if modifiers.is_empty() { Ok(()) } else { Err(0) };
    };
    let (optional, repeated) = (slot.starts_with(['?', '*']), slot.starts_with('*'));
    let choice = slot.trim_start_matches(['?', '*']);
    let mut furthest = 0;
    if modifiers.first().is_some_and(|modifier| is_one_of(modifier, choice)) {
        let next = if repeated { slots } else { later };
        match matched(next, &modifiers[1..]) {
            Ok(()) => return Ok(()),
            Err(at) => furthest = at + 1,
        }
    }
    if optional {
        return matched(later, modifiers).map_err(|at| at.max(furthest));
    }
    Err(furthest)
}

/// Whether `choice`, words and class names separated by `|`, has `modifier`.
fn is_one_of(modifier: &str, choice: &str) -> bool {
    choice.split('|').any(|word| match CLASSES.iter().find(|(name, _)| *name == word) {
        Some((_, members)) => is_one_of(modifier, members),
        None => word == modifier,
    })
}

/// The words of `choice`, those of its classes instead of their names.
fn words(choice: &'static str) -> Vec<&'static str> {
    let members = |word| CLASSES.iter().find(|(name, _)| *name == word).map(|(_, members)| words(members));
    choice.split('|').flat_map(|word| members(word).unwrap_or_else(|| vec![word])).collect()
}

/// Names for sets of modifiers.
const CLASSES: &[(&str, &str)] = &[
    ("INT", "u16|u32|u64|s16|s32|s64"),
    ("I32", "u32|s32"),
    ("BITS", "b16|b32|b64"),
    ("HALF", "f16|f16x2|bf16|bf16x2"),
    ("FLOAT", "f16|bf16|f32|f64"),
    ("MEMORY", "b8|b16|b32|b64|b128|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"),
    ("VALUE", "pred|b16|b32|b64|b128|u16|u32|u64|s16|s32|s64|f32|f64|f16|f16x2|bf16|bf16x2"),
    ("CONVERT", "u8|u16|u32|u64|s8|s16|s32|s64|f16|f16x2|bf16|bf16x2|f32|f64|tf32|e4m3x2|e5m2x2|b16|b32"),
    ("ROUND", "rn|rz|rm|rp|rna|rs"),
    ("TOWARDS", "rni|rzi|rmi|rpi"),
    ("SCOPE", "cta|cluster|gpu|sys"),
    ("SPACE", "global|shared|shared::cta|shared::cluster|local|param|param::entry|param::func|const"),
    ("SHARED", "shared|shared::cta|shared::cluster"),
    ("VECTOR", "v2|v4|v8"),
    (
        "TILE",
        "m8n8k4|m8n8k16|m8n8k32|m8n8k128|m16n8k4|m16n8k8|m16n8k16|m16n8k32|m16n8k64|m16n8k256|m16n16k16|m32n8k16|m8n32k16|m16n16k8",
    ),
    ("ELEMENT", "f16|bf16|tf32|f64|e4m3|e5m2|u8|s8|u4|s4"),
    ("COMPARE", "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan"),
    ("BOOLEAN", "and|or|xor"),
    ("ATOMIC", "add|min|max|and|or|xor|inc|dec|exch|cas"),
    ("REDUCE", "add|min|max|and|or|xor|inc|dec"),
    (
        "CACHE",
        "ca|cg|cs|lu|cv|wb|wt|L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate\
         |L2::evict_normal|L2::evict_first|L2::evict_last|L2::cache_hint|L2::64B|L2::128B|L2::256B",
    ),
];

/// One line per form; an opcode may have several.
const FORMS: &[(&str, &str)] = &[
    // Integers.
    ("add", "?sat INT"),
    ("add", "cc INT"),
    ("add", "u16x2|s16x2"),
    ("addc", "?cc INT"),
    ("sub", "?sat INT"),
    ("sub", "cc INT"),
    ("subc", "?cc INT"),
    ("mul", "hi|lo|wide INT"),
    ("mul24", "hi|lo I32"),
    ("mad", "hi|lo|wide ?sat|cc INT"),
    ("mad24", "hi|lo ?sat I32"),
    ("madc", "hi|lo ?cc INT"),
    ("sad", "INT"),
    ("div", "INT"),
    ("rem", "INT"),
    ("abs", "s16|s32|s64"),
    ("neg", "s16|s32|s64"),
    ("min", "?relu INT|u16x2|s16x2"),
    ("max", "?relu INT|u16x2|s16x2"),
    ("popc", "b32|b64"),
    ("clz", "b32|b64"),
    ("bfind", "?shiftamt I32|u64|s64"),
    ("fns", "b32"),
    ("brev", "b32|b64"),
    ("bfe", "I32|u64|s64"),
    ("bfi", "b32|b64"),
    ("bmsk", "clamp|wrap b32"),
    ("szext", "clamp|wrap I32"),
    ("dp4a", "I32 I32"),
    ("dp2a", "lo|hi I32 I32"),
    // Floats.
    ("add", "?ROUND ?ftz ?sat f32|f32x2"),
    ("add", "?ROUND f64"),
    ("add", "?ROUND ?ftz ?sat HALF"),
    ("sub", "?ROUND ?ftz ?sat f32|f32x2"),
    ("sub", "?ROUND f64"),
    ("sub", "?ROUND ?ftz ?sat HALF"),
    ("mul", "?ROUND ?ftz ?sat f32|f32x2"),
    ("mul", "?ROUND f64"),
    ("mul", "?ROUND ?ftz ?sat HALF"),
    ("mad", "?ROUND ?ftz ?sat f32|f64"),
    ("fma", "ROUND ?ftz ?sat ?relu f32|f32x2|f64|HALF"),
    ("fma", "ROUND oob ?relu HALF"),
    ("div", "approx|full ?ftz f32"),
    ("div", "ROUND ?ftz f32|f64"),
    ("abs", "?ftz f32|f64|HALF"),
    ("neg", "?ftz f32|f64|HALF"),
    ("min", "?ftz ?NaN ?xorsign ?abs f32|f64|HALF"),
    ("max", "?ftz ?NaN ?xorsign ?abs f32|f64|HALF"),
    ("copysign", "f32|f64"),
    ("testp", "finite|infinite|number|notanumber|normal|subnormal f32|f64"),
    ("rcp", "approx|ROUND ?ftz f32|f64"),
    ("sqrt", "approx|ROUND ?ftz f32|f64"),
    ("rsqrt", "approx ?ftz f32|f64"),
    ("sin", "approx ?ftz f32"),
    ("cos", "approx ?ftz f32"),
    ("lg2", "approx ?ftz f32"),
    ("ex2", "approx ?ftz f32|HALF"),
    ("tanh", "approx ?ftz f32|HALF"),
    // Comparison, logic, movement, conversion.
    ("set", "COMPARE ?BOOLEAN ?ftz CONVERT CONVERT"),
    ("setp", "COMPARE ?BOOLEAN ?ftz VALUE"),
    ("selp", "VALUE"),
    ("slct", "?ftz VALUE f32|s32"),
    ("and", "pred|BITS"),
    ("or", "pred|BITS"),
    ("xor", "pred|BITS"),
    ("not", "pred|BITS"),
    ("cnot", "BITS"),
    ("lop3", "?BOOLEAN b32"),
    ("shf", "l|r clamp|wrap b32"),
    ("shl", "BITS"),
    ("shr", "BITS|INT"),
    ("prmt", "b32 ?f4e|b4e|rc8|ecl|ecr|rc16"),
    ("mov", "VALUE"),
    ("cvt", "?ROUND|TOWARDS ?ftz ?satfinite ?relu ?sat|satfinite CONVERT CONVERT"),
    ("cvta", "?to global|shared|shared::cta|shared::cluster|local|const|param|param::entry u32|u64"),
    ("isspacep", "SPACE"),
    ("mapa", "?SHARED u32|u64"),
    ("getctarank", "?SHARED u32|u64"),
    // Memory.
    ("ld", "?weak|relaxed|acquire|volatile ?SCOPE ?SPACE *CACHE ?nc *CACHE ?VECTOR MEMORY"),
    ("ld", "mmio relaxed sys ?global MEMORY"),
    ("ldu", "?global ?VECTOR MEMORY"),
    ("st", "?weak|relaxed|release|volatile ?SCOPE ?SPACE *CACHE ?VECTOR MEMORY"),
    ("st", "mmio relaxed sys ?global MEMORY"),
    ("atom", "?relaxed|acquire|release|acq_rel ?SCOPE ?SPACE ATOMIC ?noftz *CACHE ?VECTOR MEMORY|HALF"),
    ("red", "?relaxed|release ?SCOPE ?SPACE REDUCE ?noftz *CACHE ?VECTOR MEMORY|HALF"),
    ("prefetch", "?global|local L1|L2|L2::evict_last|L2::evict_normal"),
    ("prefetchu", "L1"),
    ("discard", "?global L2"),
    ("applypriority", "?global L2::evict_normal"),
    (
        "createpolicy",
        "fractional L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged ?L2::evict_first|L2::evict_unchanged b64",
    ),
    (
        "multimem",
        "ld_reduce ?weak|relaxed|acquire ?SCOPE ?global add|min|max|and|or|xor ?acc::f32|acc::f16 ?VECTOR MEMORY|HALF",
    ),
    ("multimem", "st ?weak|relaxed|release ?SCOPE ?global ?VECTOR MEMORY|HALF"),
    ("multimem", "red ?relaxed|release ?SCOPE ?global add|min|max|and|or|xor ?VECTOR MEMORY|HALF"),
    // Order.
    ("fence", "?sc|acq_rel|acquire|release ?SCOPE"),
    ("fence", "proxy alias ?acquire|release ?sys"),
    ("fence", "proxy async ?global|shared::cta|shared::cluster"),
    ("fence", "proxy async::generic acquire|release sync_restrict::shared::cta|sync_restrict::shared::cluster SCOPE"),
    ("fence", "proxy tensormap::generic acquire|release SCOPE"),
    ("fence", "mbarrier_init release cluster"),
    ("fence", "acquire|release sync_restrict::shared::cta|sync_restrict::shared::cluster SCOPE"),
    ("membar", "cta|gl|sys"),
    ("membar", "proxy alias|async"),
    // Bulk copies and their barriers.
    ("cp", "async ca|cg SHARED global *CACHE"),
    ("cp", "async commit_group|wait_group|wait_all"),
    ("cp", "async mbarrier arrive ?noinc ?SHARED b64"),
    ("cp", "async bulk SHARED|global SHARED|global mbarrier::complete_tx::bytes ?multicast::cluster *CACHE"),
    ("cp", "async bulk global SHARED bulk_group *CACHE ?cp_mask"),
    ("cp", "async bulk commit_group"),
    ("cp", "async bulk wait_group ?read"),
    ("cp", "async bulk prefetch L2 global *CACHE"),
    (
        "cp",
        "reduce async bulk SHARED|global SHARED mbarrier::complete_tx::bytes|bulk_group *CACHE REDUCE ?noftz MEMORY|HALF",
    ),
    ("mbarrier", "init|inval ?SHARED b64"),
    ("mbarrier", "arrive|arrive_drop ?expect_tx ?noComplete ?release|relaxed ?SCOPE ?SHARED b64"),
    ("mbarrier", "expect_tx|complete_tx ?relaxed ?SCOPE ?SHARED b64"),
    ("mbarrier", "test_wait|try_wait ?parity ?acquire|relaxed ?SCOPE ?SHARED b64"),
    ("mbarrier", "pending_count b64"),
    // Threads together.
    ("bar", "?cta sync|arrive"),
    ("bar", "?cta red popc u32"),
    ("bar", "?cta red and|or pred"),
    ("bar", "warp sync"),
    ("barrier", "?cta sync|arrive ?aligned"),
    ("barrier", "?cta red popc ?aligned u32"),
    ("barrier", "?cta red and|or ?aligned pred"),
    ("barrier", "cluster arrive ?release|relaxed ?aligned"),
    ("barrier", "cluster wait ?acquire ?aligned"),
    ("shfl", "sync up|down|bfly|idx b32"),
    ("vote", "sync all|any|uni pred"),
    ("vote", "sync ballot b32"),
    ("match", "any|all sync b32|b64"),
    ("activemask", "b32"),
    ("redux", "sync add|min|max|and|or|xor ?abs ?NaN I32|b32|f32"),
    ("elect", "sync"),
    // Matrices.
    ("ldmatrix", "sync aligned m8n8 x1|x2|x4 ?trans ?SHARED b16"),
    ("stmatrix", "sync aligned m8n8 x1|x2|x4 ?trans ?SHARED b16"),
    ("movmatrix", "sync aligned m8n8 trans b16"),
    ("mma", "sync aligned TILE row|col row|col ?satfinite f16|f32|f64|s32 ELEMENT ELEMENT f16|f32|f64|s32"),
    ("wmma", "load a|b|c sync aligned row|col TILE ?global|shared|shared::cta ELEMENT|f32|s32"),
    ("wmma", "store d sync aligned row|col TILE ?global|shared|shared::cta f16|f32|f64|s32"),
    (
        "wmma",
        "mma sync aligned row|col row|col TILE ?ROUND f16|f32|f64|s32 ?ELEMENT ?ELEMENT ?f16|f32|f64|s32 ?satfinite",
    ),
    // Control.
    ("bra", "?uni"),
    ("brx", "idx ?uni"),
    ("call", "?uni"),
    ("ret", "?uni"),
    ("exit", ""),
    ("trap", ""),
    ("brkpt", ""),
    ("pmevent", "?mask"),
    ("nanosleep", "u32"),
    ("griddepcontrol", "launch_dependents|wait"),
    ("stacksave", "u32|u64"),
    ("stackrestore", "u32|u64"),
    ("alloca", "u32|u64"),
];

const VECTOR_REGISTERS: &[&str] =
    &["%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"];

const SCALAR_REGISTERS: &[&str] = &[
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%clock",
    "%clock_hi",
    "%clock64",
    "%globaltimer",
    "%globaltimer_lo",
    "%globaltimer_hi",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%is_explicit_cluster",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%aggr_smem_size",
    "%current_graph_exec",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(name: &str) -> Result<(), Unknown> {
        let mut parts = name.split('.').map(str::to_owned);
        let opcode = parts.next().unwrap_or_default();
        check(&opcode, &parts.collect::<Vec<_>>())
    }

    #[test]
    fn what_congruent_and_the_compiler_use_is_known() {
        let known = "add.s32 add.rn.f32 add.rn.bf16x2 fma.rn.f16x2 mad.lo.s32 mul.wide.u32 mul.hi.u64 setp.ne.b16 \
            setp.gtu.f32 selp.b32 cvt.u64.u32 cvt.rn.f32.u32 cvt.rzi.u32.f32 cvt.rn.bf16.f32 cvt.rn.satfinite.e4m3x2.f32 \
            cvt.rn.f16x2.e4m3x2 cvta.to.global.u64 cvta.shared.u64 ld.param.b64 ld.global.b32 \
            ld.acquire.sys.global.b64 ld.relaxed.sys.global.v4.b32 ld.relaxed.sys.b128 ld.global.nc.L1::no_allocate.L2::128B.v4.b32 \
            ld.volatile.global.v2.b64 ld.mmio.relaxed.sys.global.u32 st.release.sys.global.u64 st.mmio.relaxed.sys.global.u64 \
            atom.acq_rel.sys.global.add.u64 atom.relaxed.sys.global.cas.b128 atom.add.u64 red.release.sys.global.add.u64 \
            red.relaxed.sys.global.add.noftz.bf16x2 fence.acq_rel.sys fence.sc.sys fence.proxy.alias fence.proxy.async.global \
            membar.gl multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 multimem.st.relaxed.sys.global.v4.f32 \
            multimem.red.release.sys.global.add.u32 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes \
            cp.async.bulk.global.shared::cta.bulk_group cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 \
            cp.async.bulk.wait_group.read mbarrier.try_wait.parity.shared::cta.b64 mbarrier.arrive.expect_tx.shared::cta.b64 \
            bar.sync bar.red.or.pred barrier.sync barrier.cta.sync.aligned barrier.red.popc.u32 bar.warp.sync \
            barrier.cluster.arrive.release.aligned shfl.sync.bfly.b32 vote.sync.ballot.b32 match.any.sync.b64 \
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 \
            ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 stmatrix.sync.aligned.m8n8.x4.shared.b16 \
            movmatrix.sync.aligned.m8n8.trans.b16 wmma.load.a.sync.aligned.row.m16n16k16.global.f16 \
            wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 wmma.store.d.sync.aligned.row.m16n16k16.f32 \
            activemask.b32 redux.sync.add.s32 elect.sync nanosleep.u32 griddepcontrol.wait bra.uni brx.idx call.uni ret exit trap";
        for name in known.split_whitespace() {
            assert_eq!(check_text(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn every_spelling_is_known() {
        for opcode in ["add", "cvt", "st", "mma"] {
            let all = spellings(opcode);
            assert!(all.len() > 20, "{opcode}");
            for modifiers in all {
                let modifiers: Vec<String> = modifiers.into_iter().map(str::to_owned).collect();
                assert_eq!(check(opcode, &modifiers), Ok(()), "{opcode} {modifiers:?}");
            }
        }
        assert!(spellings("shf").contains(&vec!["l", "wrap", "b32"]));
        assert!(spellings("tcgen05").is_empty());
    }

    #[test]
    fn the_first_unknown_part_is_named() {
        assert_eq!(check_text("tcgen05.alloc"), Err(Unknown::Opcode));
        assert_eq!(check_text("ld.relaxed.galaxy.b32"), Err(Unknown::Modifier(1)));
        assert_eq!(check_text("ld.relaxed.sys.b32.b32"), Err(Unknown::Modifier(3)));
        assert_eq!(check_text("atom.add"), Err(Unknown::Modifier(1)));
    }

    #[test]
    fn registers_of_the_machine() {
        assert!(is_special_register("%tid", Some(".x")) && is_special_register("%laneid", None));
        assert!(!is_special_register("%tid", None) && !is_special_register("%r1", None));
    }
}
