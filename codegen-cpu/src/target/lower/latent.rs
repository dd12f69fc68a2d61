//! Latent attention, the indexer, sinks, and per-head products.

use super::{Call, cached, float, is, is_f32, rows_of, stride};
use compiler::{Arg, Lowered, Operand};
use ir::{DType, Layout, Op};

pub(super) fn lower(op: &Op, operands: &[Operand], results: &[Operand]) -> Option<Lowered> {
    let call = Call::new(operands.len(), results.len());
    let out = results.first()?;
    match (op, operands) {
        (Op::LayerNorm { eps, .. }, [x, weight, _]) if is(weight, DType::F32) => {
            let ((rows, n), width) = (rows_of(out), weight.dim(0));
            call.ints(&[rows, n / width, width, stride(x), stride(out)]).float(*eps).named(format!(
                "layer_norm_{}_{}",
                float(x)?,
                float(out)?
            ))
        }
        (Op::HeadMatmul { .. }, [x, weight])
            if x.ty.dtype == weight.ty.dtype && weight.ty.layout == Layout::Panels =>
        {
            call.ints(&[x.dim(0), x.dim(1), weight.dim(1), x.dim(2), stride(x), stride(out)])
                .named(format!("head_matmul_{}_{}", float(weight)?, float(out)?))
        }
        (Op::SinkAttention { scale, window, .. }, [q, state, table, _, _]) if is_f32(&[q]) => call
            .ints(&[q.dim(0), table.dim(0), table.dim(1), q.dim(1), state.dim(2), q.dim(2)])
            .ints(&[state.dim(3)])
            .float(*scale)
            .ints(&[stride(q), stride(out), *window])
            .named(format!("sink_attention_{}_{}", cached(state)?, float(out)?)),
        (Op::LatentAttention { scale, .. }, [q_latent, q_rope, latent, rope, table, _])
            if is_f32(&[q_latent, q_rope]) && is(rope, latent.ty.dtype) =>
        {
            latent_attention(call, *scale, [q_latent, q_rope, latent, table, out]).named(format!(
                "latent_attention_{}_{}",
                float(latent)?,
                float(out)?
            ))
        }
        (
            Op::SparseLatentAttention { scale, .. },
            [q_latent, q_rope, latent, rope, table, _, selected],
        ) if is_f32(&[q_latent, q_rope]) && is(rope, latent.ty.dtype) => {
            latent_attention(call, *scale, [q_latent, q_rope, latent, table, out])
                .ints(&[selected.dim(1), stride(selected)])
                .named(format!("sparse_latent_attention_{}_{}", float(latent)?, float(out)?))
        }
        (Op::SelectKeys { keys, scale }, [q, weights, state, table, _])
            if is_f32(&[q, weights]) =>
        {
            call.ints(&[q.dim(0), table.dim(0), table.dim(1), q.dim(1), q.dim(2), state.dim(1)])
                .ints(&[*keys])
                .float(*scale)
                .ints(&[stride(q), stride(weights), stride(out)])
                .named(format!("select_keys_{}", float(state)?))
        }
        (Op::PagedWrite {}, [state, x, _]) if is_f32(&[x]) => {
            let args = Call { args: [1, 2, 0].map(Arg::Operand).to_vec(), scalars: vec![] };
            args.ints(&[x.dim(0), x.dim(1), state.dim(1), stride(x)])
                .named(format!("paged_write_{}", float(state)?))
        }
        _ => None,
    }
}

/// The scalars that latent attention has with and without a selection.
fn latent_attention(
    call: Call,
    scale: f32,
    [q_latent, q_rope, latent, table, out]: [&Operand; 5],
) -> Call {
    let (t, heads) = (q_latent.dim(0), q_latent.dim(1));
    call.ints(&[t, table.dim(0), table.dim(1), heads, q_latent.dim(2), q_rope.dim(2)])
        .ints(&[latent.dim(1)])
        .float(scale)
        .ints(&[stride(q_latent), stride(q_rope), stride(out)])
}
