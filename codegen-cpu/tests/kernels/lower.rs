//! What the compile side writes into plans is what kernels bind: an op is lowered, and its call is
//! bound to buffers of exactly its types' sizes and run.

use crate::support::*;
use artifact::BufferRef;
use codegen_cpu::{InstructionSet, target::CpuTarget};
use compiler::{Arg, Operand, Target};
use hal::{Device, MemoryRequest};
use ir::{Dim, Op, TensorType};
use tensor::{
    DType::{BF16, F32, I32},
    Layout,
};

fn tensor<const N: usize>(dtype: tensor::DType, dims: [u64; N]) -> TensorType {
    TensorType::new(dtype, dims.map(Dim::Const))
}

fn state<const N: usize>(dtype: tensor::DType, dims: [u64; N]) -> TensorType {
    TensorType::state(dtype, dims.map(Dim::Const))
}

/// Lowers `op` on dense operands, binds and runs its only call; returns the kernel's name.
fn kernel(op: Op, operands: &[TensorType]) -> String {
    let results = op.infer(&operands.iter().collect::<Vec<_>>()).unwrap();
    let dense =
        |types: &[TensorType]| types.iter().cloned().map(Operand::dense).collect::<Vec<_>>();
    let (operands, results) = (dense(operands), dense(&results));
    let lowered = CpuTarget.lower(&op, &operands, &results).unwrap();
    let [call] = &lowered.calls[..] else { panic!("{} calls", lowered.calls.len()) };

    let bytes = |o: &Operand| o.ty.bytes().unwrap() as usize;
    let lengths = call.args.iter().map(|arg| match *arg {
        Arg::Operand(i) => bytes(&operands[i]),
        Arg::Result(i) => bytes(&results[i]),
        Arg::Scratch(i) => lowered.scratch_bytes[i] as usize,
        part => panic!("{part:?} of a buffer"),
    });
    let (refs, arena_bytes): (Vec<BufferRef>, u64) = place(lengths);
    let mut device = device(InstructionSet::best(), 1);
    device
        .load(MemoryRequest {
            root: Default::default(),
            weights: no_weights(),
            arena_bytes,
            state_bytes: 0,
        })
        .unwrap();
    device.begin_capture().unwrap();
    device.launch(&hal::Launch::new(&call.kernel, &refs, &call.scalars)).unwrap();
    let graph = device.end_capture().unwrap();
    device.replay(&graph).unwrap();
    call.kernel.clone()
}

/// The form that a model is defined in is not the one that is computed.
#[test]
fn expanded_latent_attention_is_the_work_of_a_pass() {
    let weight = tensor(F32, [2, 4, 6]);
    let mut types = vec![tensor(F32, [3, 2, 4]), tensor(F32, [3, 2, 2]), weight.clone(), weight];
    types.extend([state(F32, [5, 4, 6]), state(F32, [5, 4, 2]), tensor(I32, [3, 2])]);
    types.push(tensor(I32, [3]));
    for sparse in [false, true] {
        let (scale, out) = (0.5, F32);
        let (op, name) = match sparse {
            false => (Op::ExpandedLatentAttention { scale, out }, "`expanded_latent_attention`"),
            true => {
                types.push(tensor(I32, [3, 2]));
                let op = Op::SparseExpandedLatentAttention { scale, out };
                (op, "`sparse_expanded_latent_attention`")
            }
        };
        let results = op.infer(&types.iter().collect::<Vec<_>>()).unwrap();
        let dense = |types: &[TensorType]| -> Vec<Operand> {
            types.iter().cloned().map(Operand::dense).collect()
        };
        let error = CpuTarget.lower(&op, &dense(&types), &dense(&results)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(name), "{text}");
        assert!(text.contains("the pass absorb-latent replaces it"), "{text}");
    }
}

#[test]
fn norms_products_and_writes() {
    let norm = Op::LayerNorm { eps: 1e-6, out: BF16 };
    let weight = tensor(F32, [8]);
    let name = kernel(norm, &[tensor(F32, [3, 2, 8]), weight.clone(), weight]);
    assert_eq!(name, "layer_norm_f32_bf16");

    let weight = tensor(BF16, [2, 5, 8]).with_layout(Layout::Panels);
    let name = kernel(Op::HeadMatmul { out: F32 }, &[tensor(BF16, [3, 2, 8]), weight]);
    assert_eq!(name, "head_matmul_bf16_f32");

    let memory = state(BF16, [4, 16, 8]);
    let name = kernel(Op::PagedWrite {}, &[memory, tensor(F32, [3, 8]), tensor(I32, [3])]);
    assert_eq!(name, "paged_write_bf16");
}

#[test]
fn sinks() {
    let cache = state(BF16, [4, 2, 1, 16, 8]);
    let op = Op::SinkAttention { scale: 0.5, window: 20, out: F32 };
    let q = tensor(F32, [3, 2, 8]);
    let name = kernel(op, &[q, cache, tensor(I32, [1, 2]), tensor(I32, [3]), tensor(F32, [2])]);
    assert_eq!(name, "sink_attention_bf16_f32");
}

#[test]
fn latent_attention() {
    let (q_latent, q_rope) = (tensor(F32, [3, 2, 8]), tensor(F32, [3, 2, 4]));
    let (latent, rope) = (state(BF16, [4, 16, 8]), state(BF16, [4, 16, 4]));
    let mut operands = vec![q_latent, q_rope, latent, rope, tensor(I32, [1, 2]), tensor(I32, [3])];
    let name = kernel(Op::LatentAttention { scale: 0.5, out: F32 }, &operands);
    assert_eq!(name, "latent_attention_bf16_f32");
    operands.push(tensor(I32, [3, 5]));
    let name = kernel(Op::SparseLatentAttention { scale: 0.5, out: BF16 }, &operands);
    assert_eq!(name, "sparse_latent_attention_bf16_bf16");
}

/// [`kernel`] of an op with one operand.
fn unary(op: Op, x: &TensorType) -> String {
    kernel(op, std::slice::from_ref(x))
}

#[test]
fn elementwise_work_of_any_rank() {
    let x = tensor(F32, [3, 2, 8]);
    let rows = tensor(F32, [3, 16]);
    assert_eq!(unary(Op::Sigmoid {}, &x), "sigmoid_f32");
    assert_eq!(unary(Op::AddScalar { value: 1.0 }, &x), "add_scalar_f32");
    assert_eq!(unary(Op::Silu {}, &x), "silu_f32");
    assert_eq!(kernel(Op::Mul {}, &[x.clone(), x.clone()]), "mul_f32");
    assert_eq!(kernel(Op::SiluMul { out: BF16 }, &[x.clone(), x.clone()]), "silu_mul_bf16");
    assert_eq!(unary(Op::Cast { to: BF16 }, &x), "cast_f32_bf16");
    assert_eq!(kernel(Op::AddBias {}, &[x.clone(), tensor(F32, [8])]), "add_bias_f32");
    assert_eq!(unary(Op::L2Norm { eps: 1e-6, scale: 1.0 }, &x), "l2_norm_f32");
    assert_eq!(kernel(Op::ScaleRows {}, &[rows.clone(), tensor(F32, [3, 1])]), "scale_rows_f32");
    let clamped = Op::SwigluClamped { alpha: 1.7, limit: 7.0, out: BF16 };
    assert_eq!(kernel(clamped, &[x.clone(), x.clone()]), "swiglu_clamped_bf16");
    let pairs = tensor(F32, [3, 2, 128]);
    let silu = Op::SiluMulPairs { block: 32, out: BF16 };
    assert_eq!(unary(silu, &pairs), "silu_mul_pairs_bf16");
    let clamped = Op::SwigluClampedPairs { block: 32, alpha: 1.7, limit: 7.0, out: F32 };
    assert_eq!(unary(clamped, &pairs), "swiglu_clamped_pairs_f32");
    for axis in [1, 2] {
        let parts = [x.clone(), x.clone(), x.clone()];
        assert_eq!(kernel(Op::Concat { axis }, &parts), "concat_f32");
    }
    assert_eq!(kernel(Op::Concat { axis: 1 }, &[rows.clone(), rows]), "concat_f32");
    assert_eq!(unary(Op::Slice { axis: 2, start: 3, len: 5 }, &x), "slice_f32");
}

#[test]
fn experts() {
    let spec = |text: &str| Op::Route { spec: text.parse().unwrap() };
    let logits = tensor(F32, [3, 8]);
    let plain = spec("route(softmax,k=2,renormalize=true)");
    assert_eq!(unary(plain, &logits), "route");
    let grouped = spec("route(sigmoid,k=2,renormalize=true,groups=4,top_groups=2,scale=2.5)");
    assert_eq!(kernel(grouped, &[logits, tensor(F32, [8])]), "route_bias");
    let (x, ids) = (tensor(F32, [3, 2, 16]), tensor(I32, [3, 2]));
    assert_eq!(unary(Op::ExpertGroups { experts: 8 }, &ids), "expert_groups");
    let bias = tensor(F32, [8, 16]);
    assert_eq!(kernel(Op::ExpertBias {}, &[x.clone(), ids, bias]), "expert_bias_f32");
    let weights = tensor(F32, [3, 2]);
    assert_eq!(kernel(Op::CombineExperts { out: BF16 }, &[x, weights]), "combine_experts_bf16");
}

#[test]
fn quantisation_of_rows_and_of_pairs() {
    for x in [tensor(BF16, [3, 200]), tensor(BF16, [3, 2, 200])] {
        let one = || tensor(F32, [1]);
        assert_eq!(unary(Op::QuantizeRows {}, &x), "quantize_rows_bf16");
        let name = kernel(Op::QuantizeStatic {}, &[x.clone(), one(), one()]);
        assert_eq!(name, "quantize_static_bf16");
        let fp8 = Op::QuantizeFp8 { group: 128, power_of_two: true };
        assert_eq!(kernel(fp8, &[x]), "quantize_fp8_bf16");
    }
}

#[test]
fn recurrent_memory() {
    let (rows, heads) = (tensor(I32, [5]), tensor(F32, [5, 4]));
    let operands = [
        state(BF16, [3, 3, 24]),
        tensor(F32, [5, 24]),
        tensor(F32, [24, 4]),
        rows.clone(),
        rows.clone(),
    ];
    assert_eq!(kernel(Op::CausalConv {}, &operands), "causal_conv_bf16");
    let of_heads = tensor(F32, [4]);
    let name = kernel(Op::DeltaGate {}, &[heads.clone(), of_heads.clone(), of_heads]);
    assert_eq!(name, "delta_gate");
    let (memory, key) = (state(F32, [3, 4, 8, 20]), tensor(F32, [5, 2, 8]));
    let operands = [
        memory,
        key.clone(),
        key,
        tensor(F32, [5, 4, 20]),
        heads.clone(),
        heads,
        rows.clone(),
        rows,
    ];
    assert_eq!(kernel(Op::GatedDelta {}, &operands), "gated_delta");
}

#[test]
fn the_indexer() {
    let (q, weights) = (tensor(F32, [3, 2, 8]), tensor(F32, [3, 2]));
    let memory = state(BF16, [4, 16, 8]);
    let operands = [q, weights, memory, tensor(I32, [1, 2]), tensor(I32, [3])];
    let name = kernel(Op::SelectKeys { keys: 5, scale: 0.5 }, &operands);
    assert_eq!(name, "select_keys_bf16");
}

#[test]
fn products_of_codes_and_by_expert() {
    use tensor::DType::{F8E4M3, I4, I8, MxFp4, U8};
    let packed = |dtype, dims: &[u64]| {
        TensorType::new(dtype, dims.iter().map(|&d| Dim::Const(d))).with_layout(Layout::Panels)
    };
    let (x8, one) = (tensor(I8, [3, 40]), tensor(F32, [3, 1]));
    let quant = |group| Op::QuantMatmul { group, out: BF16 };
    let name =
        kernel(quant(40), &[x8.clone(), one.clone(), packed(I8, &[70, 40]), packed(F32, &[70, 1])]);
    assert_eq!(name, "quant_matmul_i8_bf16");
    let name = kernel(quant(8), &[x8.clone(), one, packed(I4, &[70, 40]), packed(F32, &[70, 5])]);
    assert_eq!(name, "quant_matmul_i4_bf16");
    let name = kernel(
        quant(16),
        &[
            tensor(F8E4M3, [3, 40]),
            tensor(F32, [3, 3]),
            packed(F8E4M3, &[70, 40]),
            packed(F32, &[70, 3]),
        ],
    );
    assert_eq!(name, "quant_matmul_fp8_bf16");
    let name = kernel(
        Op::StaticMatmul { out: F32 },
        &[x8, packed(I8, &[70, 40]), tensor(I32, [70]), tensor(F32, [70])],
    );
    assert_eq!(name, "static_matmul_i8_f32");
    for (codes, scale) in [(F8E4M3, F32), (MxFp4, U8), (I8, F32), (I4, F32)] {
        for x in [F32, BF16] {
            let weight = [packed(codes, &[70, 72]), packed(scale, &[70, 3])];
            let op = Op::DequantMatmul { group: 32, out: BF16 };
            let name = kernel(op, &[&[tensor(x, [3, 72])], &weight[..]].concat());
            assert_eq!(name, format!("dequant_matmul_{codes}_{x}_bf16"));

            let (order, starts) = (tensor(I32, [3, 2]), tensor(I32, [6]));
            let weight = [packed(codes, &[5, 70, 72]), packed(scale, &[5, 70, 3])];
            let op = Op::GroupedDequantMatmul { group: 32, out: F32 };
            let x_type = tensor(x, [3, 2, 72]);
            let name = kernel(op, &[&[x_type, order, starts], &weight[..]].concat());
            assert_eq!(name, format!("grouped_dequant_matmul_{codes}_{x}_f32"));
        }
    }
    let (order, starts) = (tensor(I32, [3, 2]), tensor(I32, [6]));
    for x in [tensor(BF16, [3, 40]), tensor(BF16, [3, 2, 40])] {
        let weight = packed(BF16, &[5, 70, 40]);
        let op = Op::GroupedMatmul { out: BF16 };
        let name = kernel(op, &[x, order.clone(), starts.clone(), weight]);
        assert_eq!(name, "grouped_matmul_bf16_bf16");
    }
    let weight = [packed(I4, &[5, 70, 40]), packed(F32, &[5, 70, 5])];
    let op = Op::GroupedQuantMatmul { group: 8, out: F32 };
    let inputs = [tensor(I8, [3, 2, 40]), tensor(F32, [3, 2, 1]), order, starts];
    assert_eq!(kernel(op, &[&inputs, &weight[..]].concat()), "grouped_quant_matmul_i4_f32");
}

/// [`kernel`] of the composite that `body` is, in text.
fn composite(body: &str) -> String {
    let func = ir::text::parse("body.ir", body).unwrap().funcs.remove(0);
    let operands: Vec<TensorType> =
        func.params.iter().map(|&p| func.values[p].ty.clone()).collect();
    kernel(Op::Fused { body: ir::Body::new(func).unwrap() }, &operands)
}

#[test]
fn products_with_ends() {
    let all = "func @linear(%x: bf16[3,40], %w: bf16[128,40] panels, %b: f32[128], %r: f32[3,64]) {
  %p = matmul %x, %w {out = f32} : f32[3,128]
  %c = add_bias %p, %b : f32[3,128]
  %g = silu_mul_pairs %c {block = 32, out = f32} : f32[3,64]
  %s = add %r, %g : f32[3,64]
  %y = cast %s {to = bf16} : bf16[3,64]
  return %y
}
";
    assert_eq!(composite(all), "linear_matmul_bf16_bf16");
    let codes = "func @linear(%x: i8[3,40], %s: f32[3,1], %w: i8[70,40] panels, %ws: f32[70,1] panels, %r: f32[3,70]) {
  %p = quant_matmul %x, %s, %w, %ws {group = 40, out = f32} : f32[3,70]
  %y = add %p, %r : f32[3,70]
  return %y
}
";
    assert_eq!(composite(codes), "linear_quant_matmul_i8_f32");
    let fixed = "func @linear(%x: i8[3,40], %w: i8[128,40] panels, %b: i32[128], %s: f32[128]) {
  %p = static_matmul %x, %w, %b, %s {out = f32} : f32[3,128]
  %y = silu_mul_pairs %p {block = 32, out = bf16} : bf16[3,64]
  return %y
}
";
    assert_eq!(composite(fixed), "linear_static_matmul_i8_bf16");
    let experts = "func @linear(%x: bf16[3,64], %o: i32[3,2], %st: i32[6], %w: mxfp4[5,128,64] panels, %ws: u8[5,128,2] panels, %ids: i32[3,2], %b: f32[5,128]) {
  %p = grouped_dequant_matmul %x, %o, %st, %w, %ws {group = 32, out = f32} : f32[3,2,128]
  %c = expert_bias %p, %ids, %b : f32[3,2,128]
  %y = swiglu_clamped_pairs %c {block = 32, alpha = 1.702, limit = 7, out = bf16} : bf16[3,2,64]
  return %y
}
";
    assert_eq!(composite(experts), "linear_grouped_dequant_matmul_mxfp4_bf16_bf16");
    let kept = "func @linear(%x: f32[3,40], %w: f32[70,40] panels) {
  %l = matmul %x, %w {out = f32} : f32[3,70]
  %i = argmax %l : i32[3]
  return %l, %i
}
";
    assert_eq!(composite(kept), "linear_matmul_f32_f32");
    assert_eq!(composite(&kept.replace("return %l, %i", "return %i")), "linear_matmul_f32_f32");
    let top = "  %v, %j = top_k %l {k = 5} : f32[3,5], i32[3,5]\n  return";
    let sampled = kept.replace("  return", top);
    for results in ["%l, %i, %v, %j", "%v", "%i, %j"] {
        let some = sampled.replace("%l, %i\n}", &format!("{results}\n}}"));
        assert_eq!(composite(&some), "linear_matmul_f32_f32");
    }
}

/// Ends that no kernel has are run op by op.
#[test]
fn products_that_quantise() {
    let rows =
        "func @linear(%x: f32[3,40], %w: i8[70,40] panels, %ws: f32[70,1] panels, %r: f32[3,70]) {
  %q, %s = quantize_rows %x : i8[3,40], f32[3,1]
  %p = quant_matmul %q, %s, %w, %ws {group = 40, out = f32} : f32[3,70]
  %y = add %r, %p : f32[3,70]
  return %y
}
";
    assert_eq!(composite(rows), "linear_quant_matmul_i8_f32_f32");
    let alone = "func @linear(%x: bf16[3,64], %w: i4[70,64] panels, %ws: f32[70,2] panels) {
  %q, %s = quantize_rows %x : i8[3,64], f32[3,1]
  %p = quant_matmul %q, %s, %w, %ws {group = 32, out = bf16} : bf16[3,70]
  return %p
}
";
    assert_eq!(composite(alone), "linear_quant_matmul_i4_bf16_bf16");
    let fixed = "func @linear(%x: f32[3,40], %a: f32[1], %o: f32[1], %w: i8[70,40] panels, %b: i32[70], %s: f32[70]) {
  %q = quantize_static %x, %a, %o : i8[3,40]
  %p = static_matmul %q, %w, %b, %s {out = f32} : f32[3,70]
  %y = cast %p {to = bf16} : bf16[3,70]
  return %y
}
";
    assert_eq!(composite(fixed), "linear_static_matmul_i8_f32_bf16");
    for group in [32, 128] {
        let groups = 64u64.div_ceil(group);
        let fp8 = format!(
            "func @linear(%x: f32[3,64], %w: fp8[70,64] panels, %ws: f32[70,2] panels) {{
  %q, %s = quantize_fp8 %x {{group = {group}, power_of_two = true}} : fp8[3,64], f32[3,{groups}]
  %p = quant_matmul %q, %s, %w, %ws {{group = 32, out = f32}} : f32[3,70]
  return %p
}}
"
        );
        assert_eq!(composite(&fp8), "linear_quant_matmul_fp8_f32_f32");
    }
    for x in ["3,2,64", "3,64"] {
        let s = x.replace("64", "1");
        let experts = format!("func @linear(%x: f32[{x}], %o: i32[3,2], %st: i32[6], %w: i8[5,128,64] panels, %ws: f32[5,128,1] panels) {{
  %q, %s = quantize_rows %x : i8[{x}], f32[{s}]
  %p = grouped_quant_matmul %q, %s, %o, %st, %w, %ws {{group = 64, out = f32}} : f32[3,2,128]
  %y = silu_mul_pairs %p {{block = 32, out = bf16}} : bf16[3,2,64]
  return %y
}}
");
        assert_eq!(composite(&experts), "linear_grouped_quant_matmul_i8_f32_bf16");
    }
}

/// Many rows are quantised in a launch of their own.
#[test]
fn many_rows_are_quantised_before_the_product() {
    for (rows, kernels) in [
        (64, &["linear_quant_matmul_i8_f32_f32"][..]),
        (65, &["quantize_rows_f32", "linear_quant_matmul_i8_f32"][..]),
    ] {
        let body = format!("func @linear(%x: f32[{rows},40], %w: i8[70,40] panels, %ws: f32[70,1] panels, %r: f32[{rows},70]) {{
  %q, %s = quantize_rows %x : i8[{rows},40], f32[{rows},1]
  %p = quant_matmul %q, %s, %w, %ws {{group = 40, out = f32}} : f32[{rows},70]
  %y = add %r, %p : f32[{rows},70]
  return %y
}}
");
        let func = ir::text::parse("test.ir", &body).unwrap().funcs.remove(0);
        let types = |values: &[ir::ValueId]| -> Vec<Operand> {
            values.iter().map(|&v| Operand::dense(func.values[v].ty.clone())).collect()
        };
        let (operands, results) = (types(&func.params), types(&func.results));
        let op = Op::Fused { body: ir::Body::new(func.clone()).unwrap() };
        let lowered = CpuTarget.lower(&op, &operands, &results).unwrap();
        let found: Vec<&str> = lowered.calls.iter().map(|c| c.kernel.as_str()).collect();
        assert_eq!(found, kernels);
        if let [first, then] = &lowered.calls[..] {
            let (codes, scales) = (Arg::Scratch(0), Arg::Scratch(1));
            assert_eq!(first.args, [Arg::Operand(0), codes, scales]);
            let [weight, scale, residual] = [1, 2, 3].map(Arg::Operand);
            assert_eq!(then.args, [codes, scales, weight, scale, residual, Arg::Result(0)]);
            assert_eq!(lowered.scratch_bytes, [rows * 40, rows * 4]);
        }
    }
}

#[test]
fn other_ends_have_no_kernel() {
    let blocks = "func @linear(%x: f32[3,40], %w: f32[128,40] panels) {
  %p = matmul %x, %w {out = f32} : f32[3,128]
  %y = silu_mul_pairs %p {block = 16, out = f32} : f32[3,64]
  return %y
}
";
    let late = "func @linear(%x: f32[3,40], %w: f32[64,40] panels, %r: f32[3,64], %b: f32[64]) {
  %p = matmul %x, %w {out = f32} : f32[3,64]
  %s = add %p, %r : f32[3,64]
  %y = add_bias %s, %b : f32[3,64]
  return %y
}
";
    let rounded = "func @linear(%x: bf16[3,40], %w: bf16[64,40] panels, %r: bf16[3,64]) {
  %p = matmul %x, %w {out = bf16} : bf16[3,64]
  %y = add %p, %r : bf16[3,64]
  return %y
}
";
    let other = late.replace("@linear", "@other");
    for text in [blocks, late, rounded, &other] {
        let func = ir::text::parse("body.ir", text).unwrap().funcs.remove(0);
        let operand = |v: &ir::ValueId| Operand::dense(func.values[*v].ty.clone());
        let operands: Vec<Operand> = func.params.iter().map(operand).collect();
        let results: Vec<Operand> = func.results.iter().map(operand).collect();
        let op = Op::Fused { body: ir::Body::new(func).unwrap() };
        assert!(CpuTarget.lower(&op, &operands, &results).is_err(), "{text}");
    }
}

#[test]
fn groups_that_cut_a_word_have_no_kernel() {
    let packed = |dtype, dims| tensor(dtype, dims).with_layout(Layout::Panels);
    let operands =
        [tensor(F32, [3, 40]), packed(tensor::DType::I4, [70, 40]), packed(F32, [70, 10])]
            .map(Operand::dense);
    let result = [Operand::dense(tensor(F32, [3, 70]))];
    let op = Op::DequantMatmul { group: 4, out: F32 };
    assert!(CpuTarget.lower(&op, &operands, &result).is_err());
}
