//! What dense decoders are made of.

use super::{Table, choose};
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
    ("embed_nd_f32_f32", choose::<Embed<Nd, f32, f32>>),
    ("embed_nd_f32_bf16", choose::<Embed<Nd, f32, bf16>>),
    ("embed_nd_bf16_f32", choose::<Embed<Nd, bf16, f32>>),
    ("embed_nd_bf16_bf16", choose::<Embed<Nd, bf16, bf16>>),
    ("embed_panels_f32_f32", choose::<Embed<Paneled, f32, f32>>),
    ("embed_panels_f32_bf16", choose::<Embed<Paneled, f32, bf16>>),
    ("embed_panels_bf16_f32", choose::<Embed<Paneled, bf16, f32>>),
    ("embed_panels_bf16_bf16", choose::<Embed<Paneled, bf16, bf16>>),
    ("embed_compact_bf16_f32", choose::<Embed<Compacted, bf16, f32>>),
    ("embed_compact_bf16_bf16", choose::<Embed<Compacted, bf16, bf16>>),
    ("gather_rows_f32", choose::<GatherRows<f32>>),
    ("gather_rows_bf16", choose::<GatherRows<bf16>>),
    ("store_rows_f32", choose::<StoreRows<f32>>),
    ("store_rows_bf16", choose::<StoreRows<bf16>>),
    ("copy_f32", choose::<Copy<f32>>),
    ("copy_bf16", choose::<Copy<bf16>>),
    ("concat_f32", choose::<Concat<f32>>),
    ("concat_bf16", choose::<Concat<bf16>>),
    ("slice_f32", choose::<Slice<f32>>),
    ("slice_bf16", choose::<Slice<bf16>>),
    ("cast_f32_f32", choose::<Map<f32, f32, Identity>>),
    ("cast_f32_bf16", choose::<Map<f32, bf16, Identity>>),
    ("cast_bf16_f32", choose::<Map<bf16, f32, Identity>>),
    ("cast_bf16_bf16", choose::<Map<bf16, bf16, Identity>>),
    ("add_f32", choose::<Zip<f32, Add>>),
    ("mul_f32", choose::<Zip<f32, Mul>>),
    ("add_bias_f32", choose::<AddBias>),
    ("silu_f32", choose::<Map<f32, f32, Silu>>),
    ("sigmoid_f32", choose::<Map<f32, f32, Sigmoid>>),
    ("add_scalar_f32", choose::<Map<f32, f32, AddScalar>>),
    ("scale_rows_f32", choose::<ScaleRows>),
    ("silu_mul_f32", choose::<Zip<f32, SiluMul>>),
    ("silu_mul_bf16", choose::<Zip<bf16, SiluMul>>),
    ("swiglu_clamped_f32", choose::<Zip<f32, SwigluClamped>>),
    ("swiglu_clamped_bf16", choose::<Zip<bf16, SwigluClamped>>),
    ("silu_mul_pairs_f32", choose::<Pairs<f32, SiluMul>>),
    ("silu_mul_pairs_bf16", choose::<Pairs<bf16, SiluMul>>),
    ("swiglu_clamped_pairs_f32", choose::<Pairs<f32, SwigluClamped>>),
    ("swiglu_clamped_pairs_bf16", choose::<Pairs<bf16, SwigluClamped>>),
    ("l2_norm_f32", choose::<L2Norm>),
    ("rms_norm_f32_f32", choose::<RmsNorm<f32, f32>>),
    ("rms_norm_f32_bf16", choose::<RmsNorm<f32, bf16>>),
    ("rms_norm_bf16_f32", choose::<RmsNorm<bf16, f32>>),
    ("rms_norm_bf16_bf16", choose::<RmsNorm<bf16, bf16>>),
    ("add_rms_norm_f32", choose::<AddRmsNorm<f32>>),
    ("add_rms_norm_bf16", choose::<AddRmsNorm<bf16>>),
    ("argmax_f32", choose::<argmax::Argmax>),
    ("top_k_f32", choose::<top_k::TopK>),
    ("rope_table", choose::<RopeTable>),
    ("rotary_f32", choose::<Rotary>),
    ("kv_write_f32", choose::<KvWrite<f32>>),
    ("kv_write_bf16", choose::<KvWrite<bf16>>),
    ("kv_write_i8", choose::<KvWrite<i8>>),
    ("attention_f32_f32", choose::<Attention<f32, f32>>),
    ("attention_f32_bf16", choose::<Attention<f32, bf16>>),
    ("attention_bf16_f32", choose::<Attention<bf16, f32>>),
    ("attention_bf16_bf16", choose::<Attention<bf16, bf16>>),
    ("attention_i8_f32", choose::<Attention<i8, f32>>),
    ("attention_i8_bf16", choose::<Attention<i8, bf16>>),
];
