//! Sparse latent attention with the operators of the library, which read lengths in device memory.

use super::{
    library::{Library, Sequence, Tensor, decline, dims, ensure},
    quant::dense,
};
use crate::{
    chip::Chip,
    kernels::{Declined, Kernel},
};
use artifact::Element;
use compiler::{Arg, Lowered, Operand};
use ir::{DType, Op};

/// The value of the limits on places before and behind that means none.
const NO_LIMIT: i64 = i64::MAX;
/// Each row sees the places up to its own.
const CAUSAL: i64 = 3;

/// `select_keys` of one row for each sequence.
pub(super) fn select_keys(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let Op::SelectKeys { keys, scale } = *op else { return decline("it selects no keys") };
    let [q, weights, state, table, positions] = operands else {
        return decline("it has other operands");
    };
    let (rows, heads, width) = (q.dim(0), q.dim(1), q.dim(2));
    one_row_each(rows, table)?;
    ensure(width == 128, || format!("keys have 128 channels, not {width}"))?;
    // Newer releases take fewer heads and more keys; these are what all of them take.
    ensure(heads == 64, || format!("it has 64 heads, not {heads}"))?;
    ensure((1..=2048).contains(&keys), || format!("it selects up to 2048 keys, not {keys}"))?;
    ensure(scale > 0.0, || "a factor that is not positive changes the order".to_owned())?;
    paged([q, state])?;
    let mut calls = Sequence::default();
    let (ends, lengths) = lists(&mut calls, Arg::Operand(4), positions)?;
    // The operator wants dense weights, and has no factor of its own.
    let scaled = calls.temporary(DType::F32, &[rows, heads]);
    calls.call(
        Library::new("Muls")
            .tensor(Tensor::of(Arg::Operand(1), weights))
            .scalar(Element::Of(DType::F32), f64::from(scale))
            .tensor(Tensor::dense(scaled, DType::F32, &[rows, heads])),
    );
    let values = calls.temporary(q.ty.dtype, &[rows, 1, keys]);
    calls.call(
        Library::new("LightningIndexer")
            .tensor(Tensor::of(Arg::Operand(0), q))
            .tensor(cache(Arg::Operand(2), state))
            .tensor(Tensor::dense(scaled, DType::F32, &[rows, heads]))
            .tensor(Tensor::dense(ends, DType::I32, &[rows]))
            .tensor(Tensor::dense(lengths, DType::I32, &[rows]))
            .tensor(Tensor::of(Arg::Operand(3), table))
            .text("TND")
            .text("PA_BSND")
            .ints([keys as i64, CAUSAL, NO_LIMIT, NO_LIMIT])
            .flag(false)
            .tensor(Tensor::shaped(Arg::Result(0), &results[0], &[rows, 1, keys]))
            .tensor(Tensor::dense(values, q.ty.dtype, &[rows, 1, keys])),
    );
    Ok(calls.finish("keys of one score come in an order of the operator's own"))
}

/// `sparse_latent_attention` of one row for each sequence.
pub(super) fn sparse_attention(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let Op::SparseLatentAttention { scale, out } = *op else {
        return decline("it is no sparse attention");
    };
    let [q, q_rope, latent, rope, table, positions, selected] = operands else {
        return decline("it has other operands");
    };
    let (rows, heads) = (q.dim(0), q.dim(1));
    one_row_each(rows, table)?;
    let (width, rotated) = (q.dim(2), q_rope.dim(2));
    ensure((width, rotated) == (512, 64), || {
        format!("latents have 512 channels and 64 rotated ones, not {width} and {rotated}")
    })?;
    ensure(heads.is_power_of_two() && heads <= 128, || {
        format!("heads are a power of two up to 128, not {heads}")
    })?;
    paged([q, latent])?;
    paged([q_rope, rope])?;
    ensure(out == q.ty.dtype && q_rope.ty.dtype == q.ty.dtype, || {
        "queries and results have one type".to_owned()
    })?;
    let mut calls = Sequence::default();
    let (ends, lengths) = lists(&mut calls, Arg::Operand(5), positions)?;
    let unread = [(); 2].map(|()| calls.temporary(DType::F32, &[1, rows, heads]));
    let [largest, sum] = unread.map(|arg| Tensor::dense(arg, DType::F32, &[1, rows, heads]));
    let keys = selected.dim(1);
    calls.call(
        Library::new("SparseFlashAttention")
            .tensor(Tensor::of(Arg::Operand(0), q))
            .tensor(cache(Arg::Operand(2), latent))
            .tensor(cache(Arg::Operand(2), latent))
            .tensor(Tensor::shaped(Arg::Operand(6), selected, &[rows, 1, keys]))
            .tensor(Tensor::of(Arg::Operand(4), table))
            .tensor(Tensor::dense(ends, DType::I32, &[rows]))
            .tensor(Tensor::dense(lengths, DType::I32, &[rows]))
            .tensor(Tensor::of(Arg::Operand(1), q_rope))
            .tensor(cache(Arg::Operand(3), rope))
            .float(f64::from(scale))
            .ints([1])
            .text("TND")
            .text("PA_BSND")
            .ints([CAUSAL, NO_LIMIT, NO_LIMIT, ABSORBED])
            .flag(false)
            .tensor(Tensor::of(Arg::Result(0), &results[0]))
            .tensor(largest)
            .tensor(sum),
    );
    Ok(calls.finish(""))
}

/// The only mode: queries and results are in the space of the latents.
const ABSORBED: i64 = 2;

/// In a chunk of a prompt the last rows may be padding, of which the operator is not told.
fn one_row_each(rows: u64, table: &Operand) -> Result<(), Declined> {
    let sequences = table.dim(0);
    ensure(rows == sequences, || format!("{rows} rows of {sequences} sequences may hold padding"))?;
    ensure(dense(table), || "the table has gaps".to_owned())
}

/// Dense queries in the type of a paged memory.
fn paged([q, state]: [&Operand; 2]) -> Result<(), Declined> {
    let (dtype, stored) = (q.ty.dtype, state.ty.dtype);
    ensure(dtype == DType::BF16 && stored == dtype, || {
        format!("queries and memory are bf16, not {dtype} and {stored}")
    })?;
    ensure(dense(q), || "queries have gaps".to_owned())?;
    let block = state.dim(1);
    ensure(block.is_multiple_of(16) && block <= 1024, || format!("blocks of {block} tokens"))
}

/// A paged memory `[blocks,block,C]` as one with a single head.
pub(super) fn cache(arg: Arg, state: &Operand) -> Tensor {
    let shape = dims(state);
    Tensor::dense(arg, state.ty.dtype, &[shape[0], shape[1], 1, shape[2]])
}

/// Where the rows of each sequence end, and how many keys it has: `i32[rows]` each.
fn lists(calls: &mut Sequence, positions: Arg, operand: &Operand) -> Result<(Arg, Arg), Declined> {
    let rows = operand.dim(0);
    let [ends, lengths] = [(); 2].map(|()| calls.temporary(DType::I32, &[rows]));
    calls.append(self::lengths([positions, ends, lengths], rows));
    Ok((ends, lengths))
}

/// The kernel that writes `ends` and `lengths` from `positions`.
pub(super) fn lengths(args: [Arg; 3], rows: u64) -> Lowered {
    let kernel = Kernel::new("lengths", include_str!("lengths.cpp"));
    kernel.call(args.to_vec(), &[rows], 1, "")
}
