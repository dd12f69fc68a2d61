//! What dense decoders are made of.

use super::{Call, cached, float, is, is_f32, rows_of, stride};
use crate::target::{GATE_UP_BLOCK, MOST_FOUND};
use compiler::{Arg, Lowered, Operand};
use ir::{DType, Layout, Op};

pub(super) fn lower(op: &Op, operands: &[Operand], results: &[Operand]) -> Option<Lowered> {
    let call = Call::new(operands.len(), results.len());
    let out = results.first()?;
    let (rows, n) = rows_of(out);
    match (op, operands) {
        (Op::Embed { .. }, [ids, table]) => {
            let layout = match table.ty.layout {
                Layout::Nd => "nd",
                Layout::Panels => "panels",
                Layout::Compact => "compact",
                Layout::Nz => return None,
            };
            let (w, o) = (float(table)?, float(out)?);
            call.ints(&[ids.dim(0), table.dim(0), table.dim(1), stride(out)])
                .named(format!("embed_{layout}_{w}_{o}"))
        }
        (Op::GatherRows {}, [x, _]) => call
            .ints(&[rows, x.dim(0), n, stride(x), stride(out)])
            .named(format!("gather_rows_{}", float(x)?)),
        (Op::StoreRows {}, [state, x]) => {
            let (rows, n) = rows_of(x);
            let args = Call { args: vec![Arg::Operand(1), Arg::Operand(0)], scalars: vec![] };
            args.ints(&[rows, n, stride(x)]).named(format!("store_rows_{}", float(state)?))
        }
        (Op::Cast { .. }, [x]) => call.ints(&[rows, n, stride(x), stride(out)]).named(format!(
            "cast_{}_{}",
            float(x)?,
            float(out)?
        )),
        // A reshape that reaches the target could not be expressed as a view.
        (Op::Reshape { .. }, _) => None,
        (Op::Add {} | Op::Mul {}, [a, b]) if is_f32(&[a, b]) => call
            .ints(&[rows, n, stride(a), stride(b), stride(out)])
            .named(format!("{}_f32", op.mnemonic())),
        (Op::Silu {}, [x]) if is_f32(&[x]) => {
            call.ints(&[rows, n, stride(x), stride(out)]).named("silu_f32")
        }
        (Op::Sigmoid {}, [x]) if is_f32(&[x]) => {
            call.ints(&[rows, n, stride(x), stride(out)]).named("sigmoid_f32")
        }
        (Op::AddScalar { value }, [x]) if is_f32(&[x]) => {
            call.ints(&[rows, n, stride(x), stride(out)]).float(*value).named("add_scalar_f32")
        }
        (Op::ScaleRows {}, [x, scale]) if is_f32(&[x, scale]) => {
            call.ints(&[rows, n, stride(x), stride(scale), stride(out)]).named("scale_rows_f32")
        }
        (Op::SwigluClamped { alpha, limit, .. }, [gate, up]) if is_f32(&[gate, up]) => call
            .ints(&[rows, n, stride(gate), stride(up), stride(out)])
            .float(*alpha)
            .float(*limit)
            .named(format!("swiglu_clamped_{}", float(out)?)),
        (Op::L2Norm { eps, scale }, [x]) if is_f32(&[x]) && x.ty.rank() > 1 => {
            let width = x.dim(x.ty.rank() - 1);
            call.ints(&[rows, n / width, width, stride(x), stride(out)])
                .float(*eps)
                .float(*scale)
                .named("l2_norm_f32")
        }
        (Op::Concat { axis }, parts) if *axis > 0 => {
            let (groups, _) = runs(out, *axis);
            let mut call = call.ints(&[rows, groups, stride(out), parts.len() as u64]);
            for part in parts {
                call = call.ints(&[runs(part, *axis).1, stride(part)]);
            }
            call.named(format!("concat_{}", float(out)?))
        }
        // Along the first two axes a slice is a view.
        (Op::Slice { axis, start, .. }, [x]) if *axis > 1 => {
            let ((groups, width), (_, n)) = (runs(x, *axis), runs(out, *axis));
            let start = start * (n / out.dim(*axis as usize));
            call.ints(&[rows, groups, width, start, n, stride(x), stride(out)])
                .named(format!("slice_{}", float(out)?))
        }
        // The rows of the kernel are the innermost ones.
        (Op::AddBias {}, [x, bias]) if is_f32(&[x, bias]) && stride(x) == n => {
            let width = bias.dim(0);
            call.ints(&[rows * (n / width), width, width, width]).named("add_bias_f32")
        }
        (Op::AddBias {}, [x, bias]) if is_f32(&[x, bias]) && x.ty.rank() == 2 => {
            call.ints(&[rows, n, stride(x), stride(out)]).named("add_bias_f32")
        }
        (Op::RmsNorm { eps, .. }, [x, weight]) if is(weight, DType::F32) => {
            let width = weight.dim(0);
            call.ints(&[rows, n / width, width, stride(x), stride(out)]).float(*eps).named(format!(
                "rms_norm_{}_{}",
                float(x)?,
                float(out)?
            ))
        }
        (Op::AddRmsNorm { eps, .. }, [a, b, weight])
            if is_f32(&[a, b, weight]) && a.ty.rank() == 2 =>
        {
            let normed = results.get(1)?;
            call.ints(&[rows, n, stride(a), stride(b), stride(out), stride(normed)])
                .float(*eps)
                .named(format!("add_rms_norm_{}", float(normed)?))
        }
        // Half a panel is what a product of pairs alternates by.
        (Op::SiluMulPairs { block: GATE_UP_BLOCK, .. }, [x]) if is_f32(&[x]) => call
            .ints(&[rows, n, stride(x), stride(out)])
            .named(format!("silu_mul_pairs_{}", float(out)?)),
        (Op::SwigluClampedPairs { block: GATE_UP_BLOCK, alpha, limit, .. }, [x])
            if is_f32(&[x]) =>
        {
            call.ints(&[rows, n, stride(x), stride(out)])
                .float(*alpha)
                .float(*limit)
                .named(format!("swiglu_clamped_pairs_{}", float(out)?))
        }
        (Op::SiluMul { .. }, [gate, up]) if is_f32(&[gate, up]) => call
            .ints(&[rows, n, stride(gate), stride(up), stride(out)])
            .named(format!("silu_mul_{}", float(out)?)),
        (Op::Argmax {}, [x]) if is_f32(&[x]) => {
            call.ints(&[x.dim(0), x.dim(1), stride(x)]).named("argmax_f32")
        }
        (Op::TopK { k }, [x]) if is_f32(&[x]) && *k <= MOST_FOUND => {
            call.ints(&[x.dim(0), x.dim(1), *k, stride(x)]).named("top_k_f32")
        }
        (Op::RopeTable { spec }, [positions]) => {
            let mut call = call.ints(&[positions.dim(0), spec.dim / 2]);
            call = call.float(spec.attention_factor());
            for f in spec.inverse_frequencies() {
                call = call.float(f as f32);
            }
            call.named("rope_table")
        }
        (Op::Rotary { interleaved }, [x, table]) if is_f32(&[x, table]) => call
            .ints(&[x.dim(0), x.dim(1), x.dim(2), table.dim(1), u64::from(*interleaved)])
            .ints(&[stride(x), stride(out)])
            .named("rotary_f32"),
        (Op::KvWrite {}, [state, k, v, _]) if is_f32(&[k, v]) => {
            let args = Call { args: [1, 2, 3, 0].map(Arg::Operand).to_vec(), scalars: vec![] };
            args.ints(&[k.dim(0), k.dim(1), k.dim(2), state.dim(3), stride(k), stride(v)])
                .named(format!("kv_write_{}", cached(state)?))
        }
        (Op::Attention { scale, .. }, [q, state, table, _]) if is_f32(&[q]) => call
            .ints(&[q.dim(0), table.dim(0), table.dim(1), q.dim(1), state.dim(2), q.dim(2)])
            .ints(&[state.dim(3)])
            .float(*scale)
            .ints(&[stride(q), stride(out)])
            .named(format!("attention_{}_{}", cached(state)?, float(out)?)),
        // One rank: a collective moves nothing, but its result is a buffer of its own.
        (Op::AllReduce { .. } | Op::AllGather { ranks: 1, .. }, [x]) => {
            call.ints(&[rows, n, stride(x), stride(out)]).named(format!("copy_{}", float(x)?))
        }
        _ => None,
    }
}

/// Runs in each row of `o` that are contiguous along `axis`, and their length.
fn runs(o: &Operand, axis: u64) -> (u64, u64) {
    let inside = |range: std::ops::Range<usize>| range.map(|i| o.dim(i)).product();
    (inside(1..axis as usize), inside(axis as usize..o.ty.rank()))
}
