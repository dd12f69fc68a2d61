//! Draft layers go the way of the main model: through the pipeline to kernels of the CPU.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use codegen_cpu::target::{CpuTarget, KV_BLOCK_TOKENS};
use compiler::{Operand, Target};
use ir::{Bindings, DType, Func, Node, Op, Symbol};
use models::{BuildOptions, Checkpoint, Precision, draft::Draft};
use precast_tests::fixture;

/// The drafts of the fixtures, multi-token prediction and EAGLE-3.
fn drafts() -> Vec<(&'static str, Draft)> {
    let open = |name: &str| Checkpoint::open(fixture(name)).unwrap();
    let mut all = Vec::new();
    for name in ["deepseek_v3", "deepseek_v3_w8a8_dynamic", "deepseek_v32", "qwen3_next"] {
        all.push((name, Draft::mtp(&open(name)).unwrap().unwrap()));
    }
    for (name, target) in [("eagle3_qwen3", "qwen3"), ("eagle3_qwen3_moe", "qwen3_moe")] {
        all.push((name, Draft::eagle3(fixture(name), &open(target)).unwrap()));
    }
    all
}

#[test]
fn every_op_of_a_draft_has_a_kernel() {
    let target = CpuTarget;
    for (name, draft) in drafts() {
        for dtype in [DType::F32, DType::BF16] {
            let mut module = draft.build(&BuildOptions {
                precision: Precision { weights: dtype, activations: DType::F32 },
                kv_dtype: dtype,
                kv_block_tokens: u64::from(KV_BLOCK_TOKENS),
                quantize_activations: false,
                head_top_k: 0,
            });
            let stages = passes::default_pipeline();
            passes::run(&mut module, &stages, &mut passes::Options::default(), &target.info())
                .unwrap();
            for func in &module.funcs {
                let sizes = ["T", "W", "NB", "R", "NS", "NW"].map(|s| (Symbol::new(s), 8));
                let special = passes::specialise(func, &Bindings::from(sizes)).unwrap();
                let calls = kernels(&target, &special).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert!(calls > 10, "{name} @{}: {calls} calls", func.name);
            }
        }
    }
}

/// How many kernel calls a function takes. Constants and views of other values take none; a composite
/// without a kernel those of its ops.
fn kernels(target: &CpuTarget, func: &Func) -> Result<usize, String> {
    let calls = |node: &Node| {
        let is_view = matches!(node.op, Op::Reshape { .. } | Op::Slice { axis: 0 | 1, .. });
        if is_view || node.outs.iter().all(|&v| func.is_const(v)) {
            return Ok(0);
        }
        let dense = |&v: &ir::ValueId| Operand::dense(func.values[v].ty.clone());
        let operands: Vec<Operand> = node.args.iter().map(dense).collect();
        let results: Vec<Operand> = node.outs.iter().map(dense).collect();
        match (&node.op, target.lower(&node.op, &operands, &results)) {
            (_, Ok(lowered)) => Ok(lowered.calls.len()),
            (Op::Fused { body }, Err(_)) => kernels(target, body.func()),
            (_, Err(e)) => Err(e.to_string()),
        }
    };
    func.order.iter().map(|&n| calls(&func.nodes[n])).sum()
}
