//! The whole pipeline over every model of the fixtures: phases hold, and numbers stay the same, bit
//! for bit but for what passes say that they round elsewhere, on weights drawn at random.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ir::{DType, Func, Layout, Module, Op};
use models::{BuildOptions, Checkpoint, Precision};
use precast_passes::{
    Options, Quantize, Report, TargetInfo, check_numerics, default_pipeline, numeric_reference,
    run, sample_bindings,
};
use std::path::Path;

const F32: BuildOptions = BuildOptions {
    precision: Precision { weights: DType::F32, activations: DType::F32 },
    kv_dtype: DType::F32,
    kv_block_tokens: 4,
    quantize_activations: false,
    head_top_k: 64,
};

const BF16: BuildOptions = BuildOptions {
    precision: Precision { weights: DType::BF16, activations: DType::F32 },
    kv_dtype: DType::BF16,
    quantize_activations: true,
    ..F32
};

fn built(name: &str, options: &BuildOptions) -> Module {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name);
    models::build(&Checkpoint::open(folder).unwrap(), options)
}

fn piped(before: &Module, quantize: Option<Quantize>, target: &TargetInfo) -> (Module, Report) {
    let mut after = before.clone();
    let mut options = Options { quantize, ..Options::default() };
    let report = run(&mut after, &default_pipeline(), &mut options, target).unwrap();
    (after, report)
}

/// Ops of the functions and of the bodies of their composites.
fn count(module: &Module, is_it: impl Fn(&Op) -> bool) -> usize {
    fn ops(func: &Func, is_it: &impl Fn(&Op) -> bool) -> usize {
        let of = |op: &Op| match op {
            Op::Fused { body } => ops(body.func(), is_it),
            op => usize::from(is_it(op)),
        };
        func.order.iter().map(|&n| of(&func.nodes[n].op)).sum()
    }
    module.funcs.iter().map(|f| ops(f, &is_it)).sum()
}

fn numbers_stay(name: &str) {
    let bare = TargetInfo {
        name: "bare".to_owned(),
        matmul_weight_layout: Layout::Nd,
        layout_rules: Vec::new(),
        weight_types: Vec::new(),
        gate_up_block: None,
        scales_parts: true,
        fused_ops: Vec::new(),
        row_wise_ops: Vec::new(),
    };
    for (options, target) in
        [(F32, TargetInfo::everything()), (BF16, TargetInfo::everything()), (BF16, bare)]
    {
        let before = built(name, &options);
        let (after, report) = piped(&before, None, &target);
        let (stages, all) = (default_pipeline(), Options::default());
        let reference = numeric_reference(&before, &stages, &all, &target, &[1]);
        let reference = reference.unwrap_or_else(|e| panic!("{name}: {e}"));
        for (old, new) in reference.funcs.iter().zip(&after.funcs) {
            let report = check_numerics(old, new, &[1], &sample_bindings(old));
            report.unwrap_or_else(|e| panic!("{name} @{}: {e}", old.name));
        }
        if target.has("add_rms_norm") {
            let sums = |op: &Op| matches!(op, Op::AddRmsNorm { .. });
            assert!(count(&after, sums) > 0, "{name}: {report}");
            let siblings = report.fired("fuse-qkv") + report.fired("fuse-gate-up");
            assert!(siblings > 0, "{name}: {report}");
        }
    }
}

macro_rules! fixtures {
    ($($name:ident),* $(,)?) => { $(
        #[test]
        fn $name() {
            numbers_stay(stringify!($name));
        }
    )* };
}

fixtures!(
    deepseek_v3,
    deepseek_v32,
    deepseek_v32_fp8,
    deepseek_v32_w8a8,
    deepseek_v3_fp8,
    deepseek_v3_w4a8_dynamic,
    deepseek_v3_w8a8,
    deepseek_v3_w8a8_dynamic,
    qwen2,
    qwen3,
    qwen3_moe,
    qwen3_moe_w4a8_dynamic,
    qwen3_moe_w4a8_mixed,
    qwen3_moe_w8a8,
    qwen3_moe_w8a8_dynamic,
    qwen3_next,
    qwen3_next_w8a8,
    qwen3_w4a8_dynamic,
    qwen3_w8a8,
    qwen3_w8a8_dynamic,
);

/// Weights of FP8 projections stay codes, by themselves or with quantised inputs.
#[test]
fn codes_are_not_stored_as_floats() {
    for name in ["deepseek_v3_fp8", "deepseek_v32_fp8"] {
        for (options, fused) in [(F32, true), (BF16, false)] {
            let (after, _) = piped(&built(name, &options), None, &TargetInfo::everything());
            let values =
                |op: &Op| matches!(op, Op::DequantMatmul { .. } | Op::GroupedDequantMatmul { .. });
            assert_eq!(count(&after, values) > 0, fused, "{name}");
            let head = |op: &Op| matches!(op, Op::HeadMatmul { .. });
            let dequantized = |op: &Op| matches!(op, Op::Dequantize { .. });
            assert!(count(&after, dequantized) <= count(&after, head), "{name}");
        }
    }
}

/// Projections and experts are quantised; routers, heads and products of each head are not.
#[test]
fn float_models_are_quantised_where_it_pays() {
    for name in ["qwen3", "qwen3_moe", "deepseek_v32", "qwen3_next"] {
        for bits in [8, 4] {
            let before = built(name, &BF16);
            let quantize = Some(Quantize { bits, group: None, head: false });
            let (after, report) = piped(&before, quantize, &TargetInfo::everything());
            assert!(report.fired("quantize-matmuls") > 0, "{name}: {report}");
            let routers = |op: &Op| matches!(op, Op::Route { .. });
            let floats = |op: &Op| matches!(op, Op::Matmul { .. });
            assert!(count(&after, floats) > count(&after, routers), "{name}: the head is float");
            assert_eq!(count(&after, |op| matches!(op, Op::GroupedMatmul { .. })), 0, "{name}");
        }
    }
}
