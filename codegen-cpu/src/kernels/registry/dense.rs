//! What dense decoders are made of.

use super::{Table, kernel};
use crate::kernels::attention::Attention;
use crate::kernels::concat::{Concat, Slice};
use crate::kernels::elementwise::{
    Add, AddBias, AddScalar, Identity, Map, Mul, Pairs, ScaleRows, Sigmoid, Silu, SiluMul,
    SwigluClamped, Zip,
};
use crate::kernels::l2_norm::L2Norm;
use crate::kernels::norm::{AddRmsNorm, RmsNorm};
use crate::kernels::rope::{RopeTable, Rotary};
use crate::kernels::rows::{Compacted, Copy, Embed, GatherRows, Nd, Paneled, StoreRows};
use crate::kernels::{argmax, kv::KvWrite, top_k};
use half::bf16;

pub(super) const KERNELS: Table = &[
    kernel::<Embed<Nd, f32, f32>>("embed_nd_f32_f32"),
    kernel::<Embed<Nd, f32, bf16>>("embed_nd_f32_bf16"),
    kernel::<Embed<Nd, bf16, f32>>("embed_nd_bf16_f32"),
    kernel::<Embed<Nd, bf16, bf16>>("embed_nd_bf16_bf16"),
    kernel::<Embed<Paneled, f32, f32>>("embed_panels_f32_f32"),
    kernel::<Embed<Paneled, f32, bf16>>("embed_panels_f32_bf16"),
    kernel::<Embed<Paneled, bf16, f32>>("embed_panels_bf16_f32"),
    kernel::<Embed<Paneled, bf16, bf16>>("embed_panels_bf16_bf16"),
    kernel::<Embed<Compacted, bf16, f32>>("embed_compact_bf16_f32"),
    kernel::<Embed<Compacted, bf16, bf16>>("embed_compact_bf16_bf16"),
    kernel::<GatherRows<f32>>("gather_rows_f32"),
    kernel::<GatherRows<bf16>>("gather_rows_bf16"),
    kernel::<StoreRows<f32>>("store_rows_f32"),
    kernel::<StoreRows<bf16>>("store_rows_bf16"),
    kernel::<Copy<f32>>("copy_f32"),
    kernel::<Copy<bf16>>("copy_bf16"),
    kernel::<Concat<f32>>("concat_f32"),
    kernel::<Concat<bf16>>("concat_bf16"),
    kernel::<Slice<f32>>("slice_f32"),
    kernel::<Slice<bf16>>("slice_bf16"),
    kernel::<Map<f32, f32, Identity>>("cast_f32_f32"),
    kernel::<Map<f32, bf16, Identity>>("cast_f32_bf16"),
    kernel::<Map<bf16, f32, Identity>>("cast_bf16_f32"),
    kernel::<Map<bf16, bf16, Identity>>("cast_bf16_bf16"),
    kernel::<Zip<f32, Add>>("add_f32"),
    kernel::<Zip<f32, Mul>>("mul_f32"),
    kernel::<AddBias>("add_bias_f32"),
    kernel::<Map<f32, f32, Silu>>("silu_f32"),
    kernel::<Map<f32, f32, Sigmoid>>("sigmoid_f32"),
    kernel::<Map<f32, f32, AddScalar>>("add_scalar_f32"),
    kernel::<ScaleRows>("scale_rows_f32"),
    kernel::<Zip<f32, SiluMul>>("silu_mul_f32"),
    kernel::<Zip<bf16, SiluMul>>("silu_mul_bf16"),
    kernel::<Zip<f32, SwigluClamped>>("swiglu_clamped_f32"),
    kernel::<Zip<bf16, SwigluClamped>>("swiglu_clamped_bf16"),
    kernel::<Pairs<f32, SiluMul>>("silu_mul_pairs_f32"),
    kernel::<Pairs<bf16, SiluMul>>("silu_mul_pairs_bf16"),
    kernel::<Pairs<f32, SwigluClamped>>("swiglu_clamped_pairs_f32"),
    kernel::<Pairs<bf16, SwigluClamped>>("swiglu_clamped_pairs_bf16"),
    kernel::<L2Norm>("l2_norm_f32"),
    kernel::<RmsNorm<f32, f32>>("rms_norm_f32_f32"),
    kernel::<RmsNorm<f32, bf16>>("rms_norm_f32_bf16"),
    kernel::<RmsNorm<bf16, f32>>("rms_norm_bf16_f32"),
    kernel::<RmsNorm<bf16, bf16>>("rms_norm_bf16_bf16"),
    kernel::<AddRmsNorm<f32>>("add_rms_norm_f32"),
    kernel::<AddRmsNorm<bf16>>("add_rms_norm_bf16"),
    kernel::<argmax::Argmax>("argmax_f32"),
    kernel::<top_k::TopK>("top_k_f32"),
    kernel::<RopeTable>("rope_table"),
    kernel::<Rotary>("rotary_f32"),
    kernel::<KvWrite<f32>>("kv_write_f32"),
    kernel::<KvWrite<bf16>>("kv_write_bf16"),
    kernel::<KvWrite<i8>>("kv_write_i8"),
    kernel::<Attention<f32, f32>>("attention_f32_f32"),
    kernel::<Attention<f32, bf16>>("attention_f32_bf16"),
    kernel::<Attention<bf16, f32>>("attention_bf16_f32"),
    kernel::<Attention<bf16, bf16>>("attention_bf16_bf16"),
    kernel::<Attention<i8, f32>>("attention_i8_f32"),
    kernel::<Attention<i8, bf16>>("attention_i8_bf16"),
];
