//! From a module to an artifact, for a target that computes every op with a kernel of its name.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use artifact::{Artifact, BuildTarget, Manifest, Model, Plan, Space};
use ir::{DType, Layout, Module, Op};
use passes::{Quantize, TargetInfo};
use precast_compiler::{
    Arg, Checkpoint, CompileError, KernelCall, KvBudget, LowerError, Lowered, Operand, Options,
    Prepared, Target, prepare,
};
use std::path::PathBuf;
use tensor::{TensorInfo, WeightError, WeightSource};

/// No composites: plans then list the ops one by one.
struct Anything;

impl Target for Anything {
    fn info(&self) -> TargetInfo {
        TargetInfo { row_wise_ops: Vec::new(), ..TargetInfo::everything() }
    }
    fn build_target(&self) -> BuildTarget {
        BuildTarget {
            device: "anything".to_owned(),
            instruction_set: "portable".to_owned(),
            tensor_parallel: 1,
            kv_block_tokens: 16,
        }
    }
    fn arena_align(&self) -> u64 {
        64
    }
    fn weight_align(&self) -> u64 {
        64
    }
    fn sources(&self) -> &'static [&'static str] {
        &[]
    }
    fn lower(
        &self,
        op: &Op,
        operands: &[Operand],
        results: &[Operand],
    ) -> Result<Lowered, LowerError> {
        let operands = (0..operands.len()).map(Arg::Operand);
        let args = operands.chain((0..results.len()).map(Arg::Result)).collect();
        let call = KernelCall { kernel: op.mnemonic().to_owned(), args, ..KernelCall::default() };
        Ok(Lowered { calls: vec![call], ..Lowered::default() })
    }
}

/// Bytes that depend on the name and the place.
struct Bytes;

impl WeightSource for Bytes {
    fn info(&self, _: &str) -> Option<&TensorInfo> {
        None
    }
    fn read(&self, name: &str, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
        for (at, byte) in (start..).zip(out) {
            // Below 0x40, no two bytes of it are a large or a missing number.
            *byte = ((at * 31 + name.len() as u64) % 64) as u8;
        }
        Ok(())
    }
}

/// Layers with experts, a sliding window and recurrent memory.
const LAYERS: &str = "  weight %embed : bf16[64,64]
  weight %gate : f32[4,64]
  weight %conv : f32[64,4]
  weight %proj : bf16[64,64]
  weight %e.0 : bf16[64,64]
  weight %e.1 : bf16[64,64]
  weight %e.2 : bf16[64,64]
  weight %e.3 : bf16[64,64]
  %x = embed %token_ids, %embed {out = f32} : f32[T,64]
  %conv.next, %c = causal_conv %conv.0, %x, %conv, %sequences, %positions {} : state bf16[NS,3,64], f32[T,64]
  %k = reshape %c {dims = [T,4,16]} : f32[T,4,16]
  %kv.next = kv_write %kv.0, %k, %k, %slots {} : state bf16[NB,2,4,16,16]
  %window.next = kv_write %window.0, %k, %k, %window_slots {} : state bf16[NW,2,4,16,16]
  %a = attention %k, %window.next, %window_table, %positions {scale = 1, out = f32} : f32[T,4,16]
  %rows = reshape %a {dims = [T,64]} : f32[T,64]
  %logits.e = matmul %rows, %gate {out = f32} : f32[T,4]
  %ids, %weights = route %logits.e {spec = route(softmax,k=2,renormalize=true)} : i32[T,2], f32[T,2]
  %order, %starts = expert_groups %ids {experts = 4} : i32[T,2], i32[5]
  %experts = stack %e.0, %e.1, %e.2, %e.3 : bf16[4,64,64]
  %b = cast %rows {to = bf16} : bf16[T,64]
  %pairs = grouped_matmul %b, %order, %starts, %experts {out = f32} : f32[T,2,64]
  %moe = combine_experts %pairs, %weights {out = bf16} : bf16[T,64]
  %y = matmul %moe, %proj {out = f32} : f32[T,64]
";

const STATES: &str = "%kv.0: state bf16[NB,2,4,16,16], %window.0: state bf16[NW,2,4,16,16], \
                      %conv.0: state bf16[NS,3,64]";

fn module() -> Module {
    let inputs = |sequences: &str| {
        format!(
            "%token_ids: i32[T], %positions: i32[T], %slots: i32[T], %block_table: i32[{sequences},W], \
             %window_slots: i32[T], %window_table: i32[{sequences},W], %sequences: i32[T], {STATES}"
        )
    };
    let head = "  weight %head : bf16[96,64]
  %h = cast %y {to = bf16} : bf16[T,64]
  %logits = matmul %h, %head {out = f32} : f32[T,96]
  %argmax = argmax %logits : i32[T]
";
    let text = format!(
        "func @decode({}) {{\n{LAYERS}{head}  \
           return %logits, %argmax, %kv.next, %window.next, %conv.next\n}}\n\
         func @prefill({}, %hidden: state f32[R,64]) {{\n{LAYERS}  \
           %hidden.out = store_rows %hidden, %y : state f32[R,64]\n  \
           return %kv.next, %window.next, %conv.next, %hidden.out\n}}\n\
         func @head(%rows: i32[T], %hidden: state f32[R,64]) {{\n  weight %head : bf16[96,64]\n  \
           %y = gather_rows %hidden, %rows : f32[T,64]\n{}  return %logits, %argmax\n}}\n",
        inputs("T"),
        inputs("1"),
        head.replace("  weight %head : bf16[96,64]\n", ""),
    );
    ir::text::parse("model.ir", &text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn model() -> Model {
    Model {
        name: "test".to_owned(),
        model_type: "test".to_owned(),
        architecture: "Test".to_owned(),
        vocab_size: 96,
        max_context: 256,
        eos_token_ids: vec![0],
        dtype: DType::BF16,
        parameters: 1,
        sliding_window: Some(40),
    }
}

fn options() -> Options {
    Options {
        graph_bs: vec![1, 4],
        max_running_requests: None,
        prefill_chunks: vec![32],
        context_tiers: vec![],
        max_context: None,
        kv: KvBudget::Blocks(20),
        memory_limit: None,
        compact_rows: None,
        quantize: None,
        disabled_passes: Vec::new(),
        catalog: passes::Catalog::builtin(),
        extensions: Vec::new(),
        rewrite_limit: usize::MAX,
        dump_ir: false,
        config: Default::default(),
    }
}

fn prepared(options: &Options) -> Prepared {
    prepare(module(), &model(), &Anything, options).unwrap()
}

/// Writes the artifact and reads it back.
fn written(prepared: Prepared, name: &str) -> (Manifest, Vec<Plan>, Vec<u8>) {
    let out: PathBuf =
        std::env::temp_dir().join(format!("precast-prepare-{}-{name}", std::process::id()));
    let checkpoint = Checkpoint {
        model: model(),
        config_json: Vec::new(),
        tensors: Vec::new(),
        weights: &Bytes,
        files: Vec::new(),
    };
    let manifest = prepared.write(&checkpoint, &out, &mut |_| {}, None).unwrap();
    let artifact = Artifact::open(&out).unwrap();
    assert_eq!(*artifact.manifest(), manifest);
    let plans = artifact.plans().unwrap();
    let weights = std::fs::read(out.join(&manifest.weights_file.path)).unwrap();
    drop(artifact);
    std::fs::remove_dir_all(&out).unwrap();
    (manifest, plans, weights)
}

#[test]
fn every_memory_is_sized_and_its_inputs_are_ports() {
    let (manifest, plans, _) = written(prepared(&options()), "memory");
    let window = manifest.window.unwrap();
    // 39 older tokens in 3 blocks and a part for each of 4, 32 new ones in 2 and a part.
    assert_eq!((window.tokens, window.blocks), (40, 4 * 4 + 3));
    assert_eq!(window.bytes_per_block, 2 * 4 * 16 * 16 * 2);
    let sequences = manifest.sequences.unwrap();
    assert_eq!((sequences.slots, sequences.bytes_per_slot), (4, 3 * 64 * 2));
    assert_eq!(manifest.kv.bytes_per_token, 2 * 4 * 16 * 2, "the window is not counted");
    assert_eq!(manifest.model.sliding_window, Some(40));
    let state = |name: &str| {
        let entry = manifest.states.iter().find(|s| s.name == name).unwrap();
        entry.dims[0]
    };
    assert_eq!((state("kv.0"), state("window.0"), state("conv.0")), (21, 20, 5));

    let decode = plans.iter().find(|p| p.name == "decode-bs4-ctx256").unwrap();
    let ports: Vec<(&str, &[u64])> =
        decode.inputs.iter().map(|p| (p.name.as_str(), &p.dims[..])).collect();
    let table: &[u64] = &[4, 16];
    let rows: &[u64] = &[4];
    let expected = [
        ("token_ids", rows),
        ("positions", rows),
        ("slots", rows),
        ("block_table", table),
        ("window_slots", rows),
        ("window_table", table),
        ("sequences", rows),
    ];
    assert_eq!(ports, expected);
    let prefill = plans.iter().find(|p| p.name == "prefill-len32-ctx256").unwrap();
    assert_eq!(prefill.input("window_table").unwrap().dims, [1, 16]);
    // The convolution reads and writes its state in place; its other result is in the arena.
    let at = decode.kernels.iter().position(|k| k == "causal_conv").unwrap() as u32;
    let step = decode.steps.iter().find(|s| s.kernel == at).unwrap();
    assert_eq!(step.args[0], step.args[5]);
    assert_eq!((step.args[0].space, step.args[6].space), (Space::State, Space::Arena));
}

/// What ran, not what was asked for, with the source of every pass and what it made of a step.
#[test]
fn the_manifest_tells_how_the_program_came_to_be() {
    let quantize = Some(Quantize { bits: 8, group: None, head: false });
    let disabled = vec!["fuse-qkv".to_owned(), "quantize-matmuls".to_owned()];
    let options = Options { quantize, disabled_passes: disabled, rewrite_limit: 1, ..options() };
    let (manifest, ..) = written(prepared(&options), "pipeline");
    let pipeline = &manifest.pipeline;
    assert_eq!(pipeline.quantize, None, "the pass that does it was left out");
    assert_eq!(pipeline.rewrite_limit, Some(1));
    assert_eq!(pipeline.target.matmul_weight_layout, Layout::Panels);
    assert_eq!(pipeline.target.fused, Anything.info().fused_ops);
    let stages = options.catalog.pipeline();
    let steps: Vec<_> = stages.iter().flat_map(|s| &s.steps).collect();
    assert_eq!(pipeline.passes.len(), steps.len());
    for (entry, step) in pipeline.passes.iter().zip(steps) {
        assert_eq!(entry.pass, step.pass.name());
        assert_eq!(entry.source, Some(artifact::checksum(step.pass.source().as_bytes())));
        assert_eq!(entry.disabled, options.disabled_passes.contains(&entry.pass), "{entry:?}");
    }
    let fired = |m: &Manifest, pass: &str| -> u64 {
        let entries = m.pipeline.passes.iter().filter(|p| p.pass == pass);
        entries.flat_map(|p| p.fired.values()).sum()
    };
    let optional = pipeline.passes.iter().filter(|p| p.pass != "assign-layouts");
    assert_eq!(optional.flat_map(|p| p.fired.values()).sum::<u64>(), 1, "the limit held");
    assert!(fired(&manifest, "assign-layouts") > 0);

    let (whole, ..) = written(prepared(&Options { quantize, ..self::options() }), "whole");
    assert_eq!((whole.pipeline.rewrite_limit, whole.pipeline.quantize.unwrap().bits), (None, 8));
    assert_eq!(whole.functions.iter().map(|f| f.rows).collect::<Vec<_>>(), [4, 32, 1]);
    for f in &whole.functions {
        let (matmuls, products) = (f.before.ops["matmul"], f.before.ops.get("quant_matmul"));
        assert!(matmuls > 0 && products.is_none(), "{f:?}");
        assert!(f.before.activation_bytes > 0 && f.after.total() > 0, "{f:?}");
    }
    assert!(whole.functions[0].after.ops["fused:moe"] > 0);
    assert_ne!(whole.functions[0].before, whole.functions[0].after);
}

#[test]
fn experts_are_one_weight_for_all_plans() {
    let prepared = prepared(&options());
    let experts: Vec<_> =
        prepared.weights().iter().filter(|w| w.recipe == "rows(e.{0..3})").collect();
    assert_eq!(experts.len(), 1);
    assert_eq!((&experts[0].dims[..], experts[0].layout), (&[4, 64, 64][..], Layout::Panels));
    let (manifest, _, weights) = written(prepared, "experts");
    assert_eq!(weights.len() as u64, manifest.memory.weights_bytes);
    let entry = manifest.weights.iter().find(|w| w.recipe == "rows(e.{0..3})").unwrap();
    // Element (expert 2, output 5, inputs 10 and 11) in panels of 64 outputs and pairs of inputs.
    let at = (entry.offset + 2 * (2 * 64 * 64) + (10 / 2 * 64 + 5) * 4) as usize;
    let mut pair = [0; 4];
    Bytes.read("e.2", (5 * 64 + 10) * 2, &mut pair).unwrap();
    assert_eq!(weights[at..at + 4], pair);
}

#[test]
fn quantised_products_say_what_they_lost() {
    let quantize = Some(Quantize { bits: 4, group: Some(32), head: false });
    let prepared = prepared(&Options { quantize, ..options() });
    assert!(prepared.report.fired("quantize-matmuls") > 0);
    let (manifest, _, _) = written(prepared, "quantised");
    let lossy: Vec<_> =
        manifest.weights.iter().filter(|w| w.quantization_error.is_some()).collect();
    let recipes: Vec<&str> = lossy.iter().map(|w| w.recipe.as_str()).collect();
    assert_eq!(recipes, ["i4_codes32(rows(e.{0..3}))", "i4_codes32(proj)"]);
    for weight in lossy {
        assert_eq!((weight.dtype, weight.layout), (DType::I4, Layout::Panels));
        let error = weight.quantization_error.unwrap();
        assert!((0.001..0.5).contains(&error), "{error}");
    }
    let scales = manifest.weights.iter().find(|w| w.recipe == "i4_scales32(proj)").unwrap();
    assert_eq!((scales.dtype, &scales.dims[..]), (DType::F32, &[64, 2][..]));
    assert_eq!(manifest.config["quantize"]["bits"], 4);
}

#[test]
fn what_does_not_fit_is_named() {
    let fits = prepared(&options());
    let needed = fits.memory.weights_bytes + fits.memory.state_bytes + fits.memory.arena_bytes;
    let limited = |memory_limit| {
        let memory_limit = Some(memory_limit);
        prepare(module(), &model(), &Anything, &Options { memory_limit, ..options() })
    };
    assert!(limited(needed).is_ok());
    let error = limited(needed - 1).err().unwrap();
    let CompileError::DoesNotFit { demand, .. } = &error else { panic!("{error}") };
    assert_eq!(demand.total(), needed);
    assert_eq!(demand.window_bytes, 20 * 2 * 4 * 16 * 16 * 2);
    assert_eq!(demand.sequence_bytes, 5 * 3 * 64 * 2);
    let error = limited(1000).err().unwrap().to_string();
    assert!(error.contains("the weights alone are too large: choose --quantize"), "{error}");
    let unknown = Model { sliding_window: None, ..model() };
    let error = prepare(module(), &unknown, &Anything, &options()).err().unwrap().to_string();
    assert!(error.contains("sliding-window memory %window.0"), "{error}");
}

/// Columns of heads are cut without a copy where rows stay contiguous, and by a kernel elsewhere;
/// rows are joined by a kernel.
#[test]
fn cuts_and_joins_of_columns() {
    let text = "func @decode(%token_ids: i32[T], %x: f32[T,24], %kv: state f32[NB,16,4]) {
  %two = reshape %x {dims = [T,2,12]} : f32[T,2,12]
  %cut = slice %two {axis = 2, start = 8, len = 4} : f32[T,2,4]
  %one = reshape %x {dims = [T,1,24]} : f32[T,1,24]
  %view = slice %one {axis = 2, start = 8, len = 8} : f32[T,1,8]
  %flat = reshape %cut {dims = [T,8]} : f32[T,8]
  %half = reshape %view {dims = [T,8]} : f32[T,8]
  %sum = add %flat, %half : f32[T,8]
  %logits = concat %sum, %half {axis = 1} : f32[T,16]
  return %logits
}
func @prefill(%kv: state f32[NB,16,4]) {\n  return %kv\n}
func @head(%kv: state f32[NB,16,4]) {\n  return %kv\n}
";
    let module = ir::text::parse("cut.ir", text).unwrap();
    let prepared = prepare(module, &model(), &Anything, &options()).unwrap();
    let (_, plans, _) = written(prepared, "cuts");
    let decode = plans.iter().find(|p| p.name == "decode-bs4-ctx256").unwrap();
    let calls: Vec<&str> =
        decode.steps.iter().map(|s| decode.kernels[s.kernel as usize].as_str()).collect();
    assert_eq!(calls, ["slice", "add", "concat"]);
    let x = decode.input("x").unwrap().at;
    let view = decode.steps[1].args[1];
    assert_eq!((view.space, view.offset), (Space::Arena, x.offset + 8 * 4));
    assert_eq!(view.bytes, (3 * 24 + 8) * 4, "rows of x lie 24 elements apart");
}
