//! Composites change where values lie and how often threads meet, not one bit of a result.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use artifact::{Artifact, Scalar};
use cli::{Extension, Precast};
use codegen_cpu::external::{ExternalCall, ExternalKernel, Row, RowMut};
use compiler::Operand;
use ir::Func;
use precast_tests::{
    compile_here, compile_with,
    engine::{Output, load, request},
    fixture,
};
use runtime::StepOutcome;
use tempfile::TempDir;

const TOKENS: usize = 12;
/// More rows than threads, and padding in the last plan.
const LENGTHS: [u32; 5] = [1, 7, 20, 33, 60];

macro_rules! models {
    ($($name:ident)*) => {
        $(#[test] fn $name() { chains_keep_every_bit(stringify!($name)) })*
    };
}

models! {
    deepseek_v3_w8a8_dynamic deepseek_v32_fp8 gpt_oss qwen2 qwen3_moe qwen3_next_w8a8 qwen3_w8a8
}

/// Tokens and log-probabilities of requests that run together.
fn answers(artifact: &Artifact, threads: u32) -> Vec<Vec<(u32, f32)>> {
    let mut engine = load(artifact, threads);
    let outputs: Vec<Output> = LENGTHS.iter().map(|_| Output::default()).collect();
    for (id, (&len, output)) in (0..).zip(LENGTHS.iter().zip(&outputs)) {
        let prompt: Vec<u32> = (0..len).map(|i| (i * 37 + len * 11) % 470).collect();
        engine.add(request(id, &prompt, TOKENS, output)).unwrap();
    }
    while engine.step().unwrap() != StepOutcome::Idle {}
    outputs.iter().map(Output::tokens).collect()
}

fn launches(artifact: &Artifact) -> (usize, usize) {
    let plans = artifact.plans().unwrap();
    let chains = plans.iter().map(|p| p.chains.len()).sum();
    (chains, plans.iter().map(artifact::Plan::launches).sum())
}

fn chains_keep_every_bit(model: &str) {
    let dir = TempDir::new().unwrap();
    let compile = |name: &str, options: &str| {
        let options = format!(
            "{options} --max-context 128 --no-record --graph-bs 1 8 --prefill-chunks 16 --kv-blocks 64"
        );
        compile_here(&fixture(model), &dir.path().join(name), &options)
    };
    let chained = compile("chained", "");
    let plain = compile("plain", "--disable-pass fuse-rows fuse-qk-rope-write");
    let (chains, with) = launches(&chained);
    let (none, without) = launches(&plain);
    assert!(chains > 0 && none == 0 && with < without, "{chains} {with}, {none} {without}");
    let expected = answers(&plain, 2);
    assert!(expected.iter().all(|tokens| tokens.len() == TOKENS));
    for threads in [1, 2, 3] {
        assert!(answers(&chained, threads) == expected, "{model}, {threads} threads");
    }
}

/// Makes the target want composites of a kind, and leaves their ops to run one by one.
struct OpByOp(&'static str);

impl ExternalKernel for OpByOp {
    fn kind(&self) -> &str {
        self.0
    }
    fn lower(&self, _: &Func, _: &[Operand], _: &[Operand]) -> Option<ExternalCall> {
        None
    }
    fn run(&self, _: &[Scalar], _: &[Row<'_>], _: &mut [RowMut<'_>]) {
        unreachable!("it is never called")
    }
}

/// Composites that the CPU has no kernel of its own for, with others inside.
#[test]
fn larger_composites_keep_every_bit() {
    const OPTIONS: &str = "--max-context 128 --no-record --graph-bs 1 8 --kv-blocks 64";
    let dir = TempDir::new().unwrap();
    let kinds = ["mla_preprocess", "moe"];
    let extension = kinds.into_iter().fold(Extension::new("larger"), |e, k| e.kernel(OpByOp(k)));
    let precast = Precast::builder().register(extension).build().unwrap();
    for model in ["deepseek_v3_w8a8", "deepseek_v32", "gpt_oss", "qwen3_next"] {
        let at = |name: &str| dir.path().join(format!("{model}.{name}"));
        let larger = compile_with(&precast, &fixture(model), &at("larger"), OPTIONS);
        let decode = larger.manifest().functions.iter().find(|f| f.name == "decode").unwrap();
        let fused = |kind: &str| decode.after.ops.contains_key(&format!("fused:{kind}"));
        assert_eq!(fused("mla_preprocess"), model.starts_with("deepseek"), "{model}");
        assert!(fused("moe"), "{model}");
        assert!(launches(&larger).0 > 0, "{model}: chains inside");
        let plain = compile_here(&fixture(model), &at("plain"), OPTIONS);
        assert!(launches(&plain).1 < launches(&larger).1, "{model}: why the CPU does without");
        assert!(answers(&larger, 2) == answers(&plain, 2), "{model}");
    }
}
