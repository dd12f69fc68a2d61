//! Typing rules that several operations share.

use crate::{
    op::TypeError,
    types::{Dim, Storage, Symbol, TensorType},
};
use tensor::DType;

/// Bytes of the scale behind the codes of a head in a cache of codes, an `f32`.
pub const SCALE_BYTES: u64 = 4;

/// `rule`, or the type that breaks it.
pub(crate) fn ensure(holds: bool, rule: &'static str, found: &TensorType) -> Result<(), TypeError> {
    if holds { Ok(()) } else { Err(TypeError::Rule { rule, found: found.to_string() }) }
}

pub(crate) fn one(t: TensorType) -> Result<Vec<TensorType>, TypeError> {
    Ok(vec![t])
}

/// Product of the numbers and the sorted symbols of `dims`; `None` past 64 bits.
pub(crate) fn element_count(dims: &[Dim]) -> Option<(u64, Vec<&Symbol>)> {
    let (mut number, mut symbols) = (1u64, Vec::new());
    for d in dims {
        match d {
            Dim::Const(n) => number = number.checked_mul(*n)?,
            Dim::Sym(s) => symbols.push(s),
        }
    }
    symbols.sort();
    Some((number, symbols))
}

/// A paged cache of keys and values.
pub(crate) fn check_cache(state: &TensorType) -> Result<(), TypeError> {
    let fits =
        state.storage == Storage::State && state.rank() == 5 && state.dims[1] == Dim::Const(2);
    ensure(fits, "state must be a cache [blocks,2,heads,block,d]", state)
}

/// Whether the rows of the cache `state` hold heads of `d` elements, with a scale behind them where they
/// are codes.
pub(crate) fn holds_heads(state: &TensorType, d: &Dim) -> bool {
    let row = &state.dims[state.rank() - 1];
    match state.dtype {
        DType::I8 => {
            let elements = row.as_const().and_then(|row| row.checked_sub(SCALE_BYTES));
            elements.is_some() && elements == d.as_const()
        }
        _ => row == d,
    }
}

/// The scales of quantised `codes [..,N,K]`, one for each row and `group` of `K`.
pub(crate) fn check_scale(
    codes: &TensorType,
    scale: &TensorType,
    group: u64,
) -> Result<(), TypeError> {
    let quantized = matches!(codes.dtype, DType::I8 | DType::I4 | DType::F8E4M3 | DType::MxFp4);
    ensure(quantized && codes.rank() >= 2, "codes must be a quantised matrix", codes)?;
    let (rows, k) = (codes.rank() - 1, codes.dims[codes.rank() - 1].as_const());
    let groups = k.filter(|_| group > 0).map(|k| k.div_ceil(group));
    ensure(groups.is_some(), "group must be positive and the last axis a number", codes)?;
    let of_codes = scale.rank() == codes.rank()
        && scale.dims[..rows] == codes.dims[..rows]
        && scale.dims[rows].as_const() == groups;
    ensure(of_codes, "scale must have one element for each row and group", scale)?;
    let exponents = codes.dtype == DType::MxFp4;
    let dtype = if exponents { DType::U8 } else { DType::F32 };
    ensure(scale.dtype == dtype, "scale must be f32, or u8 exponents of mxfp4 codes", scale)
}

/// Quantised inputs that meet the weight `[..,N,K]`.
pub(crate) fn check_quantized(
    x: &TensorType,
    x_scale: &TensorType,
    weight: &TensorType,
    group: u64,
) -> Result<(), TypeError> {
    let pair = matches!(
        (x.dtype, weight.dtype),
        (DType::I8, DType::I8 | DType::I4) | (DType::F8E4M3, DType::F8E4M3)
    );
    ensure(x.rank() > 0 && weight.rank() >= 2, "x and weight must have rows", x)?;
    ensure(pair, "x and weight must be i8 and i8, i8 and i4, or fp8", weight)?;
    let last = &x.dims[x.rank() - 1];
    ensure(
        weight.dims[weight.rank() - 1] == *last,
        "weight must match the last axis of x",
        weight,
    )?;
    let groups = last.as_const().filter(|_| group > 0).map(|k| k.div_ceil(group));
    let rows = x.rank() - 1;
    let of_x = x_scale.dtype == DType::F32
        && x_scale.rank() == x.rank()
        && x_scale.dims[..rows] == x.dims[..rows]
        && x_scale.dims[rows].as_const().is_some_and(|n| n == 1 || Some(n) == groups);
    ensure(
        of_x,
        "x_scale must be f32 with one element for each row, or each row and group",
        x_scale,
    )
}

/// The result of a product of pairs with the weights of their experts.
pub(crate) fn grouped(
    x: &TensorType,
    order: &TensorType,
    starts: &TensorType,
    weight: &TensorType,
    out: DType,
) -> Result<TensorType, TypeError> {
    ensure(order.rank() == 2 && order.dtype == DType::I32, "order must be i32[T,k]", order)?;
    ensure(weight.rank() == 3, "weight must be [E,N,K]", weight)?;
    let fits = match x.rank() {
        2 => x.dims[0] == order.dims[0],
        3 => x.dims[..2] == order.dims[..],
        _ => false,
    };
    ensure(fits, "x must be [T,K] or [T,k,K]", x)?;
    ensure(weight.dims[2] == x.dims[x.rank() - 1], "weight must match the last axis of x", weight)?;
    let one_more = weight.dims[0].as_const().and_then(|e| e.checked_add(1));
    let of_experts = starts.dtype == DType::I32
        && starts.rank() == 1
        && one_more.is_some()
        && starts.dims[0].as_const() == one_more;
    ensure(of_experts, "starts must be i32[E+1]", starts)?;
    let dims = [order.dims[0].clone(), order.dims[1].clone(), weight.dims[1].clone()];
    Ok(TensorType::new(out, dims))
}

pub(crate) fn check_latent(
    q_latent: &TensorType,
    q_rope: &TensorType,
    latent: &TensorType,
    rope: &TensorType,
    table: &TensorType,
    positions: &TensorType,
) -> Result<(), TypeError> {
    ensure(
        q_latent.rank() == 3 && q_latent.dtype.is_float(),
        "q_latent must be [T,heads,C]",
        q_latent,
    )?;
    ensure(
        q_rope.rank() == 3
            && q_rope.dtype == q_latent.dtype
            && q_rope.dims[..2] == q_latent.dims[..2],
        "q_rope must be [T,heads,R]",
        q_rope,
    )?;
    for (state, q) in [(latent, q_latent), (rope, q_rope)] {
        let paged = state.storage == Storage::State && state.rank() == 3;
        ensure(
            paged && state.dims[2] == q.dims[2],
            "state must be a paged memory with the width of q",
            state,
        )?;
    }
    ensure(
        rope.dtype == latent.dtype && rope.dims[..2] == latent.dims[..2],
        "latent and rope must have the same blocks",
        rope,
    )?;
    ensure(table.dtype == DType::I32 && table.rank() == 2, "table must be i32[S,W]", table)?;
    let of_rows = positions.dtype == DType::I32 && positions.dims[..] == q_latent.dims[..1];
    ensure(of_rows, "positions must be i32[T]", positions)
}

/// Queries and what expands the memory for each of their heads.
pub(crate) fn check_expanded(
    q_nope: &TensorType,
    q_rope: &TensorType,
    [keys, values]: [&TensorType; 2],
    latent: &TensorType,
    rope: &TensorType,
    table: &TensorType,
    positions: &TensorType,
) -> Result<(), TypeError> {
    ensure(q_nope.rank() == 3 && q_nope.dtype.is_float(), "q_nope must be [T,heads,N]", q_nope)?;
    let of_heads =
        |w: &TensorType| w.rank() == 3 && w.dtype.is_float() && w.dims[0] == q_nope.dims[1];
    ensure(
        of_heads(keys) && keys.dims[1] == q_nope.dims[2],
        "keys must be float [heads,N,C]",
        keys,
    )?;
    ensure(
        of_heads(values) && values.dims[2] == keys.dims[2],
        "values must be float [heads,V,C]",
        values,
    )?;
    let dims = [q_nope.dims[0].clone(), q_nope.dims[1].clone(), keys.dims[2].clone()];
    let q_latent = TensorType::new(q_rope.dtype, dims);
    check_latent(&q_latent, q_rope, latent, rope, table, positions)
}

/// The places that each row of `q` attends to.
pub(crate) fn check_selected(selected: &TensorType, q: &TensorType) -> Result<(), TypeError> {
    let of_rows = selected.rank() == 2 && selected.dims[0] == q.dims[0];
    ensure(of_rows && selected.dtype == DType::I32, "selected must be i32[T,S]", selected)
}

/// Slots and positions of the rows of `x`.
pub(crate) fn check_sequences(
    sequences: &TensorType,
    positions: &TensorType,
    x: &TensorType,
) -> Result<(), TypeError> {
    let of_rows = |t: &TensorType| t.dtype == DType::I32 && t.dims[..] == x.dims[..1];
    ensure(of_rows(sequences), "sequences must be i32[T]", sequences)?;
    ensure(of_rows(positions), "positions must be i32[T]", positions)
}
