//! Matrix products, of coded weights and of one of several weights for each row too. Each has a
//! `linear_*` with an end of its own.

#[cfg(target_arch = "x86_64")]
use super::compiled;
use super::{Table, by_machine, choose, kernel};
use crate::device::InstructionSet;
use crate::kernels::bind::{Binder, Run};
use crate::kernels::matmul::{Compact, Matmul};
#[cfg(target_arch = "x86_64")]
use crate::kernels::matmul::{Tiled, TiledCompact};
use crate::kernels::product::{
    ByRow, ByScale, Coded, CodedBytes, Compacted, Exact, Float, Fp8, Fp8Fp8, I4, I8, InFp8,
    Integer, MxFp4, Product,
};
#[cfg(target_arch = "x86_64")]
use crate::kernels::simd::Avx512Bf16;
use half::bf16;

/// Products with bf16 weights, which AMX tiles multiply in an order of their own.
fn bf16_matmul(set: InstructionSet, b: &mut Binder<'_>) -> Result<Box<dyn Run>, String> {
    #[cfg(target_arch = "x86_64")]
    if set == InstructionSet::Avx512Amx {
        return compiled::<Tiled, Avx512Bf16>(b);
    }
    choose::<Matmul<bf16>>(set, b)
}

/// As [`bf16_matmul`], with compact weights.
fn compact_matmul(set: InstructionSet, b: &mut Binder<'_>) -> Result<Box<dyn Run>, String> {
    #[cfg(target_arch = "x86_64")]
    if set == InstructionSet::Avx512Amx {
        return compiled::<TiledCompact, Avx512Bf16>(b);
    }
    choose::<Compact>(set, b)
}

pub(super) const KERNELS: Table = &[
    kernel::<Matmul<f32>>("matmul_f32_f32"),
    kernel::<Matmul<f32>>("matmul_f32_bf16"),
    by_machine("matmul_bf16_f32", bf16_matmul),
    by_machine("matmul_bf16_bf16", bf16_matmul),
    by_machine("matmul_compact_f32", compact_matmul),
    by_machine("matmul_compact_bf16", compact_matmul),
    kernel::<Product<Integer<I8>>>("quant_matmul_i8_f32"),
    kernel::<Product<Integer<I8>>>("quant_matmul_i8_bf16"),
    kernel::<Product<Integer<I4>>>("quant_matmul_i4_f32"),
    kernel::<Product<Integer<I4>>>("quant_matmul_i4_bf16"),
    kernel::<Product<Fp8Fp8>>("quant_matmul_fp8_f32"),
    kernel::<Product<Fp8Fp8>>("quant_matmul_fp8_bf16"),
    kernel::<Product<Integer<I8, ByRow<f32>>>>("quant_matmul_i8_f32_f32"),
    kernel::<Product<Integer<I8, ByRow<f32>>>>("quant_matmul_i8_f32_bf16"),
    kernel::<Product<Integer<I8, ByRow<bf16>>>>("quant_matmul_i8_bf16_f32"),
    kernel::<Product<Integer<I8, ByRow<bf16>>>>("quant_matmul_i8_bf16_bf16"),
    kernel::<Product<Integer<I4, ByRow<f32>>>>("quant_matmul_i4_f32_f32"),
    kernel::<Product<Integer<I4, ByRow<f32>>>>("quant_matmul_i4_f32_bf16"),
    kernel::<Product<Integer<I4, ByRow<bf16>>>>("quant_matmul_i4_bf16_f32"),
    kernel::<Product<Integer<I4, ByRow<bf16>>>>("quant_matmul_i4_bf16_bf16"),
    kernel::<Product<Fp8Fp8<InFp8<f32>>>>("quant_matmul_fp8_f32_f32"),
    kernel::<Product<Fp8Fp8<InFp8<f32>>>>("quant_matmul_fp8_f32_bf16"),
    kernel::<Product<Fp8Fp8<InFp8<bf16>>>>("quant_matmul_fp8_bf16_f32"),
    kernel::<Product<Fp8Fp8<InFp8<bf16>>>>("quant_matmul_fp8_bf16_bf16"),
    kernel::<Product<Exact>>("static_matmul_i8_f32"),
    kernel::<Product<Exact>>("static_matmul_i8_bf16"),
    kernel::<Product<Exact<ByScale<f32>>>>("static_matmul_i8_f32_f32"),
    kernel::<Product<Exact<ByScale<f32>>>>("static_matmul_i8_f32_bf16"),
    kernel::<Product<Exact<ByScale<bf16>>>>("static_matmul_i8_bf16_f32"),
    kernel::<Product<Exact<ByScale<bf16>>>>("static_matmul_i8_bf16_bf16"),
    kernel::<Product<Coded<Fp8, f32>>>("dequant_matmul_fp8_f32_f32"),
    kernel::<Product<Coded<Fp8, f32>>>("dequant_matmul_fp8_f32_bf16"),
    kernel::<Product<Coded<Fp8, bf16>>>("dequant_matmul_fp8_bf16_f32"),
    kernel::<Product<Coded<Fp8, bf16>>>("dequant_matmul_fp8_bf16_bf16"),
    kernel::<Product<Coded<MxFp4, f32>>>("dequant_matmul_mxfp4_f32_f32"),
    kernel::<Product<Coded<MxFp4, f32>>>("dequant_matmul_mxfp4_f32_bf16"),
    kernel::<Product<Coded<MxFp4, bf16>>>("dequant_matmul_mxfp4_bf16_f32"),
    kernel::<Product<Coded<MxFp4, bf16>>>("dequant_matmul_mxfp4_bf16_bf16"),
    kernel::<Product<Coded<I8, f32>>>("dequant_matmul_i8_f32_f32"),
    kernel::<Product<Coded<I8, f32>>>("dequant_matmul_i8_f32_bf16"),
    kernel::<Product<CodedBytes>>("dequant_matmul_i8_bf16_f32"),
    kernel::<Product<CodedBytes>>("dequant_matmul_i8_bf16_bf16"),
    kernel::<Product<Coded<I4, f32>>>("dequant_matmul_i4_f32_f32"),
    kernel::<Product<Coded<I4, f32>>>("dequant_matmul_i4_f32_bf16"),
    kernel::<Product<Coded<I4, bf16>>>("dequant_matmul_i4_bf16_f32"),
    kernel::<Product<Coded<I4, bf16>>>("dequant_matmul_i4_bf16_bf16"),
    kernel::<Product<Float<f32>>>("grouped_matmul_f32_f32"),
    kernel::<Product<Float<f32>>>("grouped_matmul_f32_bf16"),
    kernel::<Product<Float<bf16>>>("grouped_matmul_bf16_f32"),
    kernel::<Product<Float<bf16>>>("grouped_matmul_bf16_bf16"),
    kernel::<Product<Compacted>>("grouped_matmul_compact_f32"),
    kernel::<Product<Compacted>>("grouped_matmul_compact_bf16"),
    kernel::<Product<Integer<I8>>>("grouped_quant_matmul_i8_f32"),
    kernel::<Product<Integer<I8>>>("grouped_quant_matmul_i8_bf16"),
    kernel::<Product<Integer<I4>>>("grouped_quant_matmul_i4_f32"),
    kernel::<Product<Integer<I4>>>("grouped_quant_matmul_i4_bf16"),
    kernel::<Product<Fp8Fp8>>("grouped_quant_matmul_fp8_f32"),
    kernel::<Product<Fp8Fp8>>("grouped_quant_matmul_fp8_bf16"),
    kernel::<Product<Integer<I8, ByRow<f32>>>>("grouped_quant_matmul_i8_f32_f32"),
    kernel::<Product<Integer<I8, ByRow<f32>>>>("grouped_quant_matmul_i8_f32_bf16"),
    kernel::<Product<Integer<I8, ByRow<bf16>>>>("grouped_quant_matmul_i8_bf16_f32"),
    kernel::<Product<Integer<I8, ByRow<bf16>>>>("grouped_quant_matmul_i8_bf16_bf16"),
    kernel::<Product<Integer<I4, ByRow<f32>>>>("grouped_quant_matmul_i4_f32_f32"),
    kernel::<Product<Integer<I4, ByRow<f32>>>>("grouped_quant_matmul_i4_f32_bf16"),
    kernel::<Product<Integer<I4, ByRow<bf16>>>>("grouped_quant_matmul_i4_bf16_f32"),
    kernel::<Product<Integer<I4, ByRow<bf16>>>>("grouped_quant_matmul_i4_bf16_bf16"),
    kernel::<Product<Fp8Fp8<InFp8<f32>>>>("grouped_quant_matmul_fp8_f32_f32"),
    kernel::<Product<Fp8Fp8<InFp8<f32>>>>("grouped_quant_matmul_fp8_f32_bf16"),
    kernel::<Product<Fp8Fp8<InFp8<bf16>>>>("grouped_quant_matmul_fp8_bf16_f32"),
    kernel::<Product<Fp8Fp8<InFp8<bf16>>>>("grouped_quant_matmul_fp8_bf16_bf16"),
    kernel::<Product<Coded<Fp8, f32>>>("grouped_dequant_matmul_fp8_f32_f32"),
    kernel::<Product<Coded<Fp8, f32>>>("grouped_dequant_matmul_fp8_f32_bf16"),
    kernel::<Product<Coded<Fp8, bf16>>>("grouped_dequant_matmul_fp8_bf16_f32"),
    kernel::<Product<Coded<Fp8, bf16>>>("grouped_dequant_matmul_fp8_bf16_bf16"),
    kernel::<Product<Coded<MxFp4, f32>>>("grouped_dequant_matmul_mxfp4_f32_f32"),
    kernel::<Product<Coded<MxFp4, f32>>>("grouped_dequant_matmul_mxfp4_f32_bf16"),
    kernel::<Product<Coded<MxFp4, bf16>>>("grouped_dequant_matmul_mxfp4_bf16_f32"),
    kernel::<Product<Coded<MxFp4, bf16>>>("grouped_dequant_matmul_mxfp4_bf16_bf16"),
    kernel::<Product<Coded<I8, f32>>>("grouped_dequant_matmul_i8_f32_f32"),
    kernel::<Product<Coded<I8, f32>>>("grouped_dequant_matmul_i8_f32_bf16"),
    kernel::<Product<CodedBytes>>("grouped_dequant_matmul_i8_bf16_f32"),
    kernel::<Product<CodedBytes>>("grouped_dequant_matmul_i8_bf16_bf16"),
    kernel::<Product<Coded<I4, f32>>>("grouped_dequant_matmul_i4_f32_f32"),
    kernel::<Product<Coded<I4, f32>>>("grouped_dequant_matmul_i4_f32_bf16"),
    kernel::<Product<Coded<I4, bf16>>>("grouped_dequant_matmul_i4_bf16_f32"),
    kernel::<Product<Coded<I4, bf16>>>("grouped_dequant_matmul_i4_bf16_bf16"),
];
