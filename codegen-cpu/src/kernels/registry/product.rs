//! Products of coded weights, and of one of several weights for each row.

use super::{Table, choose};
use crate::kernels::matmul::Store;
use crate::kernels::product::{
    All, BiasScale, ByExpert, Coded, CodedBytes, Exact, Float, Fp8, Fp8Fp8, I4, I8, Integer, MxFp4,
    Product,
};
use half::bf16;

type Dense<M, O> = Product<M, All, Store<O>>;
type Grouped<M, O> = Product<M, ByExpert, Store<O>>;

pub(super) const KERNELS: Table = &[
    ("quant_matmul_i8_f32", choose::<Dense<Integer<I8>, f32>>),
    ("quant_matmul_i8_bf16", choose::<Dense<Integer<I8>, bf16>>),
    ("quant_matmul_i4_f32", choose::<Dense<Integer<I4>, f32>>),
    ("quant_matmul_i4_bf16", choose::<Dense<Integer<I4>, bf16>>),
    ("quant_matmul_fp8_f32", choose::<Dense<Fp8Fp8, f32>>),
    ("quant_matmul_fp8_bf16", choose::<Dense<Fp8Fp8, bf16>>),
    ("static_matmul_i8_f32", choose::<Product<Exact, All, BiasScale<f32>>>),
    ("static_matmul_i8_bf16", choose::<Product<Exact, All, BiasScale<bf16>>>),
    ("dequant_matmul_fp8_f32_f32", choose::<Dense<Coded<Fp8, f32>, f32>>),
    ("dequant_matmul_fp8_f32_bf16", choose::<Dense<Coded<Fp8, f32>, bf16>>),
    ("dequant_matmul_fp8_bf16_f32", choose::<Dense<Coded<Fp8, bf16>, f32>>),
    ("dequant_matmul_fp8_bf16_bf16", choose::<Dense<Coded<Fp8, bf16>, bf16>>),
    ("dequant_matmul_mxfp4_f32_f32", choose::<Dense<Coded<MxFp4, f32>, f32>>),
    ("dequant_matmul_mxfp4_f32_bf16", choose::<Dense<Coded<MxFp4, f32>, bf16>>),
    ("dequant_matmul_mxfp4_bf16_f32", choose::<Dense<Coded<MxFp4, bf16>, f32>>),
    ("dequant_matmul_mxfp4_bf16_bf16", choose::<Dense<Coded<MxFp4, bf16>, bf16>>),
    ("dequant_matmul_i8_f32_f32", choose::<Dense<Coded<I8, f32>, f32>>),
    ("dequant_matmul_i8_f32_bf16", choose::<Dense<Coded<I8, f32>, bf16>>),
    ("dequant_matmul_i8_bf16_f32", choose::<Dense<CodedBytes, f32>>),
    ("dequant_matmul_i8_bf16_bf16", choose::<Dense<CodedBytes, bf16>>),
    ("dequant_matmul_i4_f32_f32", choose::<Dense<Coded<I4, f32>, f32>>),
    ("dequant_matmul_i4_f32_bf16", choose::<Dense<Coded<I4, f32>, bf16>>),
    ("dequant_matmul_i4_bf16_f32", choose::<Dense<Coded<I4, bf16>, f32>>),
    ("dequant_matmul_i4_bf16_bf16", choose::<Dense<Coded<I4, bf16>, bf16>>),
    ("grouped_matmul_f32_f32", choose::<Grouped<Float<f32>, f32>>),
    ("grouped_matmul_f32_bf16", choose::<Grouped<Float<f32>, bf16>>),
    ("grouped_matmul_bf16_f32", choose::<Grouped<Float<bf16>, f32>>),
    ("grouped_matmul_bf16_bf16", choose::<Grouped<Float<bf16>, bf16>>),
    ("grouped_quant_matmul_i8_f32", choose::<Grouped<Integer<I8>, f32>>),
    ("grouped_quant_matmul_i8_bf16", choose::<Grouped<Integer<I8>, bf16>>),
    ("grouped_quant_matmul_i4_f32", choose::<Grouped<Integer<I4>, f32>>),
    ("grouped_quant_matmul_i4_bf16", choose::<Grouped<Integer<I4>, bf16>>),
    ("grouped_quant_matmul_fp8_f32", choose::<Grouped<Fp8Fp8, f32>>),
    ("grouped_quant_matmul_fp8_bf16", choose::<Grouped<Fp8Fp8, bf16>>),
    ("grouped_dequant_matmul_fp8_f32_f32", choose::<Grouped<Coded<Fp8, f32>, f32>>),
    ("grouped_dequant_matmul_fp8_f32_bf16", choose::<Grouped<Coded<Fp8, f32>, bf16>>),
    ("grouped_dequant_matmul_fp8_bf16_f32", choose::<Grouped<Coded<Fp8, bf16>, f32>>),
    ("grouped_dequant_matmul_fp8_bf16_bf16", choose::<Grouped<Coded<Fp8, bf16>, bf16>>),
    ("grouped_dequant_matmul_mxfp4_f32_f32", choose::<Grouped<Coded<MxFp4, f32>, f32>>),
    ("grouped_dequant_matmul_mxfp4_f32_bf16", choose::<Grouped<Coded<MxFp4, f32>, bf16>>),
    ("grouped_dequant_matmul_mxfp4_bf16_f32", choose::<Grouped<Coded<MxFp4, bf16>, f32>>),
    ("grouped_dequant_matmul_mxfp4_bf16_bf16", choose::<Grouped<Coded<MxFp4, bf16>, bf16>>),
    ("grouped_dequant_matmul_i8_f32_f32", choose::<Grouped<Coded<I8, f32>, f32>>),
    ("grouped_dequant_matmul_i8_f32_bf16", choose::<Grouped<Coded<I8, f32>, bf16>>),
    ("grouped_dequant_matmul_i8_bf16_f32", choose::<Grouped<CodedBytes, f32>>),
    ("grouped_dequant_matmul_i8_bf16_bf16", choose::<Grouped<CodedBytes, bf16>>),
    ("grouped_dequant_matmul_i4_f32_f32", choose::<Grouped<Coded<I4, f32>, f32>>),
    ("grouped_dequant_matmul_i4_f32_bf16", choose::<Grouped<Coded<I4, f32>, bf16>>),
    ("grouped_dequant_matmul_i4_bf16_f32", choose::<Grouped<Coded<I4, bf16>, f32>>),
    ("grouped_dequant_matmul_i4_bf16_bf16", choose::<Grouped<Coded<I4, bf16>, bf16>>),
];
