//! Latent attention, the indexer, sinks, and per-head products.

#[cfg(target_arch = "x86_64")]
use super::compiled;
use super::{Table, choose};
use crate::device::InstructionSet;
use crate::kernels::attention::SinkAttention;
use crate::kernels::bind::{Binder, Run};
use crate::kernels::head_matmul::HeadMatmul;
use crate::kernels::latent::{All, LatentAttention, PagedWrite, SelectKeys, Selected};
use crate::kernels::layer_norm::LayerNorm;
use crate::kernels::matmul::Matmul;
#[cfg(target_arch = "x86_64")]
use crate::kernels::matmul::Tiled;
#[cfg(target_arch = "x86_64")]
use crate::kernels::simd::Avx512Bf16;
use half::bf16;

type HeadProduct<W> = HeadMatmul<W, Matmul<W>>;

/// Per-head products with bf16 weights, which AMX tiles multiply in an order of their own.
fn bf16_head_matmul(set: InstructionSet, b: &mut Binder<'_>) -> Result<Box<dyn Run>, String> {
    #[cfg(target_arch = "x86_64")]
    if set == InstructionSet::Avx512Amx {
        return compiled::<HeadMatmul<bf16, Tiled>, Avx512Bf16>(b);
    }
    choose::<HeadProduct<bf16>>(set, b)
}

pub(super) const KERNELS: Table = &[
    ("layer_norm_f32_f32", choose::<LayerNorm<f32, f32>>),
    ("layer_norm_f32_bf16", choose::<LayerNorm<f32, bf16>>),
    ("layer_norm_bf16_f32", choose::<LayerNorm<bf16, f32>>),
    ("layer_norm_bf16_bf16", choose::<LayerNorm<bf16, bf16>>),
    ("head_matmul_f32_f32", choose::<HeadProduct<f32>>),
    ("head_matmul_f32_bf16", choose::<HeadProduct<f32>>),
    ("head_matmul_bf16_f32", bf16_head_matmul),
    ("head_matmul_bf16_bf16", bf16_head_matmul),
    ("sink_attention_f32_f32", choose::<SinkAttention<f32, f32>>),
    ("sink_attention_f32_bf16", choose::<SinkAttention<f32, bf16>>),
    ("sink_attention_bf16_f32", choose::<SinkAttention<bf16, f32>>),
    ("sink_attention_bf16_bf16", choose::<SinkAttention<bf16, bf16>>),
    ("sink_attention_i8_f32", choose::<SinkAttention<i8, f32>>),
    ("sink_attention_i8_bf16", choose::<SinkAttention<i8, bf16>>),
    ("latent_attention_f32_f32", choose::<LatentAttention<f32, f32, All>>),
    ("latent_attention_f32_bf16", choose::<LatentAttention<f32, bf16, All>>),
    ("latent_attention_bf16_f32", choose::<LatentAttention<bf16, f32, All>>),
    ("latent_attention_bf16_bf16", choose::<LatentAttention<bf16, bf16, All>>),
    ("sparse_latent_attention_f32_f32", choose::<LatentAttention<f32, f32, Selected>>),
    ("sparse_latent_attention_f32_bf16", choose::<LatentAttention<f32, bf16, Selected>>),
    ("sparse_latent_attention_bf16_f32", choose::<LatentAttention<bf16, f32, Selected>>),
    ("sparse_latent_attention_bf16_bf16", choose::<LatentAttention<bf16, bf16, Selected>>),
    ("select_keys_f32", choose::<SelectKeys<f32>>),
    ("select_keys_bf16", choose::<SelectKeys<bf16>>),
    ("paged_write_f32", choose::<PagedWrite<f32>>),
    ("paged_write_bf16", choose::<PagedWrite<bf16>>),
];
