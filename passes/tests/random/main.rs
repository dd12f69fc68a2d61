//! The whole pipeline on random graphs: the numbers stay the same, bit for bit but for what passes say
//! that they round elsewhere, with every fused kernel or none, and wherever a bisection stops it.

mod graph;
mod paged;
mod recurrent;
mod steps;

use graph::{Forms, Pick, random_func};
use ir::{Func, Layout, Module, Op, text};
use precast_passes::{
    Options, ReferenceError, Stage, TargetInfo, check_numerics, default_pipeline, names,
    numeric_reference, pipeline_of, run_func, sample_bindings,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn bare() -> TargetInfo {
    TargetInfo {
        name: "bare".to_owned(),
        matmul_weight_layout: Layout::Nd,
        layout_rules: Vec::new(),
        weight_types: Vec::new(),
        gate_up_block: None,
        scales_parts: true,
        fused_ops: Vec::new(),
        row_wise_ops: Vec::new(),
    }
}

/// What `stages` must make of `before`, bit for bit; its own replacements are close.
fn reference(
    before: &Func,
    stages: &[Stage],
    target: &TargetInfo,
    seed: u64,
) -> Result<Func, ReferenceError> {
    let module = Module { funcs: vec![before.clone()] };
    let reference = numeric_reference(&module, stages, &Options::default(), target, &[seed]);
    reference.map(|mut module| module.funcs.remove(0))
}

fn picks() -> impl Strategy<Value = Vec<Pick>> {
    prop::collection::vec(any::<Pick>(), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_pipeline_keeps_every_bit(
        picks in picks(),
        everything in any::<bool>(),
        limit in prop_oneof![Just(usize::MAX), 0..12usize],
    ) {
        let before = random_func(&picks, Forms::Model);
        let mut after = before.clone();
        let target = if everything { TargetInfo::everything() } else { bare() };
        let mut options = Options { rewrite_limit: limit, ..Options::default() };
        let report = run_func(&mut after, &default_pipeline(), &mut options, &target);
        let texts = || format!("{}{}", text::print(&before), text::print(&after));
        prop_assert!(report.is_ok(), "{report:?}\n{}", texts());
        let reference = reference(&before, &default_pipeline(), &target, 7);
        prop_assert!(reference.is_ok(), "{reference:?}\n{}", texts());
        let numbers = check_numerics(&reference?, &after, &[7], &sample_bindings(&before));
        prop_assert!(numbers.is_ok(), "{numbers:?}\n{}", texts());

        let mut again = after.clone();
        let report = run_func(&mut again, &default_pipeline(), &mut Options::default(), &target);
        let is_final = limit == usize::MAX && !everything;
        prop_assert!(!is_final || report.is_ok(), "{report:?}\n{}", texts());
        let fired: Vec<_> = report.iter().flat_map(|r| &r.passes).filter(|p| p.fired > 0).collect();
        prop_assert!(!is_final || fired.is_empty(), "{fired:?}\n{}", texts());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// By itself, and after what comes before layouts in the pipeline.
    #[test]
    fn every_pass_keeps_every_bit(picks in picks(), which in any::<usize>(), piped in any::<bool>()) {
        let before = random_func(&picks, if piped { Forms::Model } else { Forms::All });
        let target = TargetInfo::everything();
        let mut after = before.clone();
        let mut ran = if piped { default_pipeline()[..2].to_vec() } else { Vec::new() };
        let limit = which / 64 % 16;
        let mut options = Options { rewrite_limit: limit, ..Options::default() };
        run_func(&mut after, &ran, &mut options, &target).expect("it runs");
        let name = names()[which % names().len()];
        let stages = pipeline_of(&[name]).expect("a pass");
        let report = run_func(&mut after, &stages, &mut Options::default(), &target);
        ran.extend(stages);
        let texts = || format!("{name}\n{}{}", text::print(&before), text::print(&after));
        prop_assert!(report.is_ok(), "{report:?}\n{}", texts());
        let reference = reference(&before, &ran, &target, 11);
        prop_assert!(reference.is_ok(), "{reference:?}\n{}", texts());
        let numbers = check_numerics(&reference?, &after, &[11], &sample_bindings(&before));
        prop_assert!(numbers.is_ok(), "{numbers:?}\n{}", texts());
    }
}

/// Functions as the tests above draw them, the same at every run.
fn samples(forms: Forms) -> impl Iterator<Item = Func> {
    let mut random = 1u64;
    let mut draw = move || {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    (0..400).map(move |_| {
        let picks: Vec<Pick> =
            (0..40).map(|_| (draw() as u8, draw(), draw(), draw(), draw() % 2 == 0)).collect();
        random_func(&picks, forms)
    })
}

/// Ops that no random graph has, and why.
const NOT_DRAWN: &[(&str, &str)] = &[("fused", "passes make it, of the ops that are drawn")];

#[test]
fn random_graphs_have_every_op() {
    let mut drawn = BTreeSet::new();
    for func in samples(Forms::All) {
        drawn.extend(func.order.iter().map(|&n| func.nodes[n].op.mnemonic()));
    }
    let expected: BTreeSet<&str> = Op::MNEMONICS.iter().copied().collect();
    let excepted: BTreeSet<&str> = NOT_DRAWN.iter().map(|(op, _)| *op).collect();
    let missing: Vec<_> =
        expected.difference(&drawn).filter(|op| !excepted.contains(*op)).collect();
    assert!(missing.is_empty(), "draw these, or say why not: {missing:?}");
    let listed: Vec<_> = excepted.intersection(&drawn).collect();
    assert!(listed.is_empty(), "these are drawn: {listed:?}");
    assert_eq!(drawn.len() + NOT_DRAWN.len(), Op::MNEMONICS.len());
}

/// The graphs above contain what fusions look for.
#[test]
fn random_graphs_make_every_fusion_fire() {
    let mut fired = BTreeMap::new();
    for mut func in samples(Forms::Model) {
        let target = TargetInfo::everything();
        let report = run_func(&mut func, &default_pipeline(), &mut Options::default(), &target);
        for pass in report.expect("the pipeline runs").passes {
            *fired.entry(pass.pass).or_insert(0) += pass.fired;
        }
    }
    // Nothing is quantised unless asked for.
    assert_eq!(fired.remove("quantize-matmuls"), Some(0));
    // This one takes the sizes of released models alone.
    assert_eq!(fired.remove("fuse-mla-prolog"), Some(0));
    // This one rounds in other places, so no graph of a model has experts of 4 bits in 8-bit rows.
    assert_eq!(fired.remove("w4a8-experts"), Some(0));
    assert!(fired.values().all(|&n| n > 0), "{fired:?}");
}
