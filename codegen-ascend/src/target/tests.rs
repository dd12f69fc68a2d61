//! Single ops: what they become, and what is said about it.

use super::*;
use artifact::Param;
use ir::{Dim, TensorType};

pub(super) fn target() -> AscendTarget {
    AscendTarget::new(crate::chip::chip("ascend910_93").unwrap())
}

/// `bf16[3,64]`, with a layout behind it, or `state` before it.
fn operand(text: &str) -> Operand {
    if let Some(text) = text.strip_prefix("state ") {
        let mut operand = operand(text);
        operand.ty.storage = ir::Storage::State;
        return operand;
    }
    let (dtype, rest) = text.split_once('[').unwrap();
    let (list, layout) = rest.split_once(']').unwrap();
    let dims = list.split(',').map(|d| Dim::Const(d.parse().unwrap()));
    let ty = TensorType::new(dtype.parse().unwrap(), dims);
    Operand::dense(match layout.trim() {
        "" => ty,
        layout => ty.with_layout(layout.parse().unwrap()),
    })
}

fn lower(op: &Op, operands: &[&str]) -> Result<Lowered, LowerError> {
    let operands: Vec<Operand> = operands.iter().map(|text| operand(text)).collect();
    let types: Vec<&TensorType> = operands.iter().map(|o| &o.ty).collect();
    let results = op.infer(&types).unwrap_or_else(|e| panic!("{e}"));
    let results: Vec<Operand> = results.into_iter().map(Operand::dense).collect();
    target().lower(op, &operands, &results)
}

fn kernels(lowered: &Lowered) -> Vec<&str> {
    lowered.calls.iter().map(|c| c.kernel.as_str()).collect()
}

fn tensor(lowered: &Lowered, call: usize, index: usize) -> artifact::TensorParam {
    lowered.calls[call].operator.as_ref().unwrap().tensors().nth(index).unwrap().clone()
}

#[test]
fn a_weight_in_fractals_is_a_transposed_view_with_fractal_storage() {
    let op = Op::Matmul { out: DType::BF16 };
    let lowered = lower(&op, &["bf16[3,100]", "bf16[40,100]nz"]).unwrap();
    assert_eq!(kernels(&lowered), ["aclnnMatmulWeightNz"]);
    let weight = tensor(&lowered, 0, 1);
    assert_eq!((weight.dims, weight.strides), (vec![100, 40], vec![1, 100]));
    assert_eq!((weight.layout, weight.storage), (Layout::Nz, vec![7, 3, 16, 16]));
    let params = &lowered.calls[0].operator.as_ref().unwrap().params;
    assert_eq!(params[3], Param::Int(0));
    assert!(lowered.why.contains("fractals"), "{}", lowered.why);
}

#[test]
fn a_product_in_f32_says_why_not_fractals() {
    let op = Op::Matmul { out: DType::F32 };
    let lowered = lower(&op, &["f32[3,100]", "f32[40,100]"]).unwrap();
    assert_eq!(kernels(&lowered), ["aclnnMm"]);
    assert!(lowered.why.contains("not MatmulWeightNz: fractals are for bf16"), "{}", lowered.why);
    assert_eq!(tensor(&lowered, 0, 1).storage, [40, 100]);
}

#[test]
fn logits_are_rounded_and_converted() {
    let op = Op::Matmul { out: DType::F32 };
    let lowered = lower(&op, &["bf16[3,64]", "bf16[512,64]nz"]).unwrap();
    assert_eq!(kernels(&lowered), ["aclnnMatmulWeightNz", "aclnnCast"]);
    assert_eq!(lowered.scratch_bytes, [3 * 512 * 2]);
    assert!(lowered.why.contains("converted to f32"), "{}", lowered.why);
}

#[test]
fn heads_come_first_as_views() {
    let op = Op::HeadMatmul { out: DType::BF16 };
    let lowered = lower(&op, &["bf16[5,4,16]", "bf16[4,32,16]"]).unwrap();
    assert_eq!(kernels(&lowered), ["aclnnBatchMatMul"]);
    let (x, weight, y) = (tensor(&lowered, 0, 0), tensor(&lowered, 0, 1), tensor(&lowered, 0, 2));
    assert_eq!((x.dims, x.strides, x.storage), (vec![4, 5, 16], vec![16, 64, 1], vec![5, 4, 16]));
    assert_eq!((weight.dims, weight.strides), (vec![4, 16, 32], vec![512, 1, 16]));
    assert_eq!((y.dims, y.strides), (vec![4, 5, 32], vec![32, 128, 1]));
}

#[test]
fn static_products_hand_over_bias_and_scale() {
    let op = Op::StaticMatmul { out: DType::BF16 };
    let operands = ["i8[3,64]", "i8[48,64]nz", "i32[48]", "f32[48]"];
    let lowered = lower(&op, &operands).unwrap();
    assert_eq!(kernels(&lowered), ["aclnnQuantMatmulWeightNz"]);
    let found: Vec<_> = (0..5).map(|i| tensor(&lowered, 0, i).dims).collect();
    assert_eq!(found, [vec![3, 64], vec![48, 64], vec![48], vec![48], vec![3, 48]]);
    assert_eq!(tensor(&lowered, 0, 1).storage, [2, 3, 16, 32]);
}

#[test]
fn sums_of_integers_are_scaled_by_a_kernel_where_the_operator_does_not() {
    let op = Op::QuantMatmul { group: 64, out: DType::F32 };
    let operands = ["i8[3,64]", "f32[3,1]", "i8[48,64]nz", "f32[48,1]"];
    let lowered = lower(&op, &operands).unwrap();
    assert_eq!(kernels(&lowered)[0], "aclnnQuantMatmulWeightNz");
    assert_eq!(lowered.calls[1].args.len(), 4, "sums, both scales, result");
    assert_eq!(tensor(&lowered, 0, 3).element, artifact::Element::Of(DType::I32));
    let source = &lowered.files[0].text;
    assert!(source.contains("GM_ADDR sums, GM_ADDR rowScale, GM_ADDR weightScale, GM_ADDR out"));
    assert!(source.contains("WIDTH = 48;") && !source.contains('@'), "{source}");
    let error = lower(
        &Op::QuantMatmul { group: 32, out: DType::BF16 },
        &["i8[3,64]", "f32[3,1]", "i8[48,64]nz", "f32[48,2]"],
    );
    let text = error.unwrap_err().to_string();
    assert!(text.contains("scales are for groups of 32 of 64 inputs"), "{text}");
}

#[test]
fn grouped_products_read_their_groups_from_the_device() {
    let op = Op::GroupedMatmul { out: DType::BF16 };
    let operands = ["bf16[3,64]", "i32[3,2]", "i32[5]", "bf16[4,48,64]nz"];
    let lowered = lower(&op, &operands).unwrap();
    assert_eq!(kernels(&lowered)[1], "aclnnGroupedMatmulWeightNz");
    let (x, weight, list) =
        (tensor(&lowered, 1, 0), tensor(&lowered, 1, 1), tensor(&lowered, 1, 2));
    assert_eq!((x.dims, list.dims), (vec![6, 64], vec![4]));
    assert_eq!((weight.dims, weight.storage), (vec![4, 64, 48], vec![4, 4, 3, 16, 16]));
    assert_eq!(weight.strides, [48 * 64, 1, 64]);

    let op = Op::GroupedQuantMatmul { group: 64, out: DType::BF16 };
    let operands =
        ["i8[3,2,64]", "f32[3,2,1]", "i32[3,2]", "i32[5]", "i8[4,48,64]nz", "f32[4,48,1]"];
    let lowered = lower(&op, &operands).unwrap();
    let names = kernels(&lowered);
    assert_eq!((names.len(), names[2]), (5, "aclnnGroupedMatmulV4"), "{names:?}");
    assert!(names[3].starts_with("dequantize_experts"), "{names:?}");
}

#[test]
fn weights_of_four_bits_are_multiplied_as_they_are() {
    let op = Op::GroupedMixedMatmul { out: DType::BF16 };
    let operands = [
        "i8[3,2,512]",
        "f32[3,2,1]",
        "i32[3,2]",
        "i32[5]",
        "i4[4,512,48]nz",
        "i64[4,2,48]",
        "f32[4,48]",
    ];
    let lowered = lower(&op, &operands).unwrap();
    let names = kernels(&lowered);
    assert_eq!((names.len(), names[2]), (4, "aclnnGroupedMatmulWeightNz"), "{names:?}");
    let at = |i| tensor(&lowered, 2, i);
    let (weight, assist, scale, tokens) = (at(1), at(2), at(3), at(4));
    assert_eq!((weight.dims, weight.storage), (vec![4, 512, 48], vec![4, 1, 32, 16, 64]));
    assert_eq!((scale.element, scale.dims), (artifact::Element::U64, vec![4, 2, 48]));
    assert_eq!((assist.dims, tokens.dims), (vec![4, 48], vec![6]));
    // The chip, and a release that lacks the operator, for which 4 bits become 8.
    let has = |target: AscendTarget| target.info().has("grouped_mixed_matmul");
    let target = target();
    assert!(has(target) && has(target.for_release(Release::V8_5)));
    assert!(!has(target.for_release(Release::V8_3)));
    let f32_rows = lower(&Op::GroupedMixedMatmul { out: DType::F32 }, &operands);
    assert!(f32_rows.unwrap_err().to_string().contains("rounds to bf16, not to f32"));
}

#[test]
fn sparse_attention_of_one_row_each_is_the_librarys() {
    let op = Op::SelectKeys { keys: 2048, scale: 0.125 };
    let operands = ["bf16[4,64,128]", "f32[4,64]", "state bf16[9,128,128]", "i32[4,8]", "i32[4]"];
    let lowered = lower(&op, &operands).unwrap();
    assert_eq!(kernels(&lowered)[1..], ["aclnnMuls", "aclnnLightningIndexer"]);
    assert_eq!(tensor(&lowered, 2, 1).dims, [9, 128, 1, 128]);

    let op = Op::SparseLatentAttention { scale: 0.125, out: DType::BF16 };
    let operands = [
        "bf16[4,128,512]",
        "bf16[4,128,64]",
        "state bf16[9,128,512]",
        "state bf16[9,128,64]",
        "i32[4,8]",
        "i32[4]",
        "i32[4,2048]",
    ];
    let lowered = lower(&op, &operands).unwrap();
    assert_eq!(kernels(&lowered)[1], "aclnnSparseFlashAttention");
    let chunk = operands.map(|o| if o == "i32[4,8]" { "i32[1,8]" } else { o });
    let lowered = lower(&op, &chunk).unwrap();
    assert!(
        lowered.why.contains("not SparseFlashAttention: 4 rows of 1 sequences"),
        "{}",
        lowered.why
    );
}

#[test]
fn operators_that_a_release_does_not_have_are_passed_over() {
    let op = Op::SparseLatentAttention { scale: 0.125, out: DType::BF16 };
    let operands = [
        "bf16[4,128,512]",
        "bf16[4,128,64]",
        "state bf16[9,128,512]",
        "state bf16[9,128,64]",
        "i32[4,8]",
        "i32[4]",
        "i32[4,2048]",
    ]
    .map(operand);
    let types: Vec<&TensorType> = operands.iter().map(|o| &o.ty).collect();
    let results: Vec<Operand> = op.infer(&types).unwrap().into_iter().map(Operand::dense).collect();
    let older = target().for_release(Release::V8_5);
    let lowered = older.lower(&op, &operands, &results).unwrap();
    assert!(lowered.calls.iter().all(|c| c.operator.is_none()), "{:?}", kernels(&lowered));
    let text = "SparseFlashAttention is not in the release compiled for";
    assert!(lowered.why.contains(text), "{}", lowered.why);
}

#[test]
fn what_cannot_be_computed_is_refused_with_a_remedy() {
    let error = lower(&Op::AllGather { group: "tp".into(), ranks: 2 }, &["f32[3,64]"]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("ascend910_93") && text.contains("all_gather"), "{text}");
    assert!(text.contains("tensor parallelism 1"), "{text}");
    let expanded = Op::ExpandedLatentAttention { scale: 0.125, out: DType::BF16 };
    let operands = [
        "bf16[4,2,16]",
        "bf16[4,2,8]",
        "bf16[2,16,32]",
        "bf16[2,16,32]",
        "state bf16[9,128,32]",
        "state bf16[9,128,8]",
        "i32[4,8]",
        "i32[4]",
    ];
    let text = lower(&expanded, &operands).unwrap_err().to_string();
    assert!(text.contains("no kernel for `expanded_latent_attention`"), "{text}");
    assert!(text.contains("the pass absorb-latent replaces it"), "{text}");
    let copy = lower(&Op::AllReduce { group: "tp".into() }, &["f32[3,64]"]).unwrap();
    assert_eq!(kernels(&copy), ["memcpy"]);
}

#[test]
fn the_script_that_builds_kernels_names_the_chip() {
    assert!(target().files(&[]).is_empty(), "nothing to build");
    let kernel = KernelFile { path: "kernels/a.cpp".into(), text: String::new() };
    let files = target().files(&[kernel]);
    assert_eq!(files[0].path, "kernels/build.sh");
    assert!(files[0].text.contains("npu_arch=dav-2201") && !files[0].text.contains("_ARCH@"));
}

/// A file of the lowering that the hash does not cover would change plans without changing it.
#[test]
fn the_hash_covers_the_whole_lowering() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/target");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() || matches!(name, "sources.rs" | "tests.rs" | "kernel_tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(target().sources().contains(&text.as_str()), "{name} is not in sources.rs");
    }
}
