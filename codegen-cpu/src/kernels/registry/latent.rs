//! Latent attention, the indexer, sinks, and per-head products.

#[cfg(target_arch = "x86_64")]
use super::compiled;
use super::{Table, by_machine, choose, kernel};
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
    kernel::<LayerNorm<f32, f32>>("layer_norm_f32_f32"),
    kernel::<LayerNorm<f32, bf16>>("layer_norm_f32_bf16"),
    kernel::<LayerNorm<bf16, f32>>("layer_norm_bf16_f32"),
    kernel::<LayerNorm<bf16, bf16>>("layer_norm_bf16_bf16"),
    kernel::<HeadProduct<f32>>("head_matmul_f32_f32"),
    kernel::<HeadProduct<f32>>("head_matmul_f32_bf16"),
    by_machine("head_matmul_bf16_f32", bf16_head_matmul),
    by_machine("head_matmul_bf16_bf16", bf16_head_matmul),
    kernel::<SinkAttention<f32, f32>>("sink_attention_f32_f32"),
    kernel::<SinkAttention<f32, bf16>>("sink_attention_f32_bf16"),
    kernel::<SinkAttention<bf16, f32>>("sink_attention_bf16_f32"),
    kernel::<SinkAttention<bf16, bf16>>("sink_attention_bf16_bf16"),
    kernel::<SinkAttention<i8, f32>>("sink_attention_i8_f32"),
    kernel::<SinkAttention<i8, bf16>>("sink_attention_i8_bf16"),
    kernel::<LatentAttention<f32, f32, All>>("latent_attention_f32_f32"),
    kernel::<LatentAttention<f32, bf16, All>>("latent_attention_f32_bf16"),
    kernel::<LatentAttention<bf16, f32, All>>("latent_attention_bf16_f32"),
    kernel::<LatentAttention<bf16, bf16, All>>("latent_attention_bf16_bf16"),
    kernel::<LatentAttention<f32, f32, Selected>>("sparse_latent_attention_f32_f32"),
    kernel::<LatentAttention<f32, bf16, Selected>>("sparse_latent_attention_f32_bf16"),
    kernel::<LatentAttention<bf16, f32, Selected>>("sparse_latent_attention_bf16_f32"),
    kernel::<LatentAttention<bf16, bf16, Selected>>("sparse_latent_attention_bf16_bf16"),
    kernel::<SelectKeys<f32>>("select_keys_f32"),
    kernel::<SelectKeys<bf16>>("select_keys_bf16"),
    kernel::<PagedWrite<f32>>("paged_write_f32"),
    kernel::<PagedWrite<bf16>>("paged_write_bf16"),
];
