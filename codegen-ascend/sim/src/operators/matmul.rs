//! Products of floating-point matrices.

use super::arithmetic::product;
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[
    ("Mm", |call| plain(call, 2, 2, Weight::Nd)),
    ("Matmul", |call| plain(call, 2, 6, Weight::Nd)),
    ("MatmulWeightNz", |call| plain(call, 2, 2, Weight::Nz)),
    ("BatchMatMul", |call| plain(call, 3, 3, Weight::Nd)),
    ("BatchMatMulWeightNz", |call| plain(call, 3, 3, Weight::Nz)),
    ("TransposeBatchMatMul", transpose_batch),
    ("MatmulAllReduce", all_reduce),
];

#[derive(Clone, Copy, PartialEq)]
enum Weight {
    Nd,
    Nz,
}

/// Workspace of a matrix product: what the unit takes to split K over cores.
const SPLIT_WORKSPACE: u64 = 512;

/// Rows, common side and columns of `x` times `w`.
pub(super) fn sides(x: &Tensor, w: &Tensor) -> Result<(usize, usize, usize), Fault> {
    let ([.., m, k], [.., wk, n]) = (&x.dims[..], &w.dims[..]) else {
        return Err(Fault::invalid(format!("{} and {} are no matrices", x.name, w.name)));
    };
    if k != wk {
        return Err(Fault::invalid(format!(
            "{}: {:?} has {k} columns, {} {:?} has {wk} rows",
            x.name, x.dims, w.name, w.dims
        )));
    }
    Ok((*m, *k, *n))
}

/// The matrices of a tensor one by one; one matrix serves all where there is only one.
pub(super) fn matrix_of(t: &Tensor, batch: usize) -> Tensor {
    let mut part = t.clone();
    let mut rest = batch;
    while part.dims.len() > 2 {
        let inner: usize = part.dims[1..part.dims.len() - 2].iter().product();
        let index = if part.dims[0] == 1 { 0 } else { rest / inner.max(1) % part.dims[0] };
        rest %= inner.max(1);
        part = part.at(index);
    }
    part
}

/// Writes `x` times `w`, matrix by matrix.
pub(super) fn multiply(x: &Tensor, w: &Tensor, out: &Tensor) -> Result<(), Fault> {
    let (_, k, n) = sides(x, w)?;
    let batches: usize = out.dims[..out.dims.len() - 2].iter().product();
    for b in 0..batches {
        let (x, w) = (matrix_of(x, b).reals(), matrix_of(w, b).right_reals());
        matrix_of(out, b).put(&product(&x, &w, k, n));
    }
    Ok(())
}

fn math_type(call: &Call, element: Element) -> Result<(), Fault> {
    let kind = call.int_in("cube_math_type", 0..=3)?;
    if kind == 2 && element == Element::BF16 {
        return Err(Fault::invalid("cube_math_type: USE_FP16 does not take BFLOAT16"));
    }
    Ok(())
}

fn plain(call: &Call, least: usize, most: usize, weight: Weight) -> Outcome<'_> {
    let (x, w, out) = (call.tensor("input")?, call.tensor("mat2")?, call.tensor("out")?);
    let floats = [Element::F32, Element::F16, Element::BF16];
    let floats = if weight == Weight::Nz { &floats[1..] } else { &floats[..] };
    x.of(floats)?.nd()?.ranked(least, most)?;
    w.of(&[x.element])?.ranked(least, most)?;
    match weight {
        Weight::Nd => w.nd()?,
        Weight::Nz => w.nz()?,
    };
    math_type(call, x.element)?;
    let (m, _, n) = sides(x, w)?;
    let batch = &x.dims[..x.dims.len() - 2];
    let weights = &w.dims[..w.dims.len() - 2];
    let one_serves_all = weights.iter().product::<usize>() == 1;
    w.rule(weights == batch || one_serves_all, "as many matrices as the left side, or one")?;
    let expected = [batch, &[m, n]].concat();
    out.of(&[x.element])?.nd()?.shaped(&expected)?;
    Ok(Prepared::new(SPLIT_WORKSPACE, || multiply(x, w, out)))
}

/// `out [M,B,N]` from `x1 [M,B,K]` or `[B,M,K]` and `x2 [B,K,N]`.
fn transpose_batch(call: &Call) -> Outcome<'_> {
    let (x1, x2, out) = (call.tensor("x1")?, call.tensor("x2")?, call.tensor("out")?);
    call.unsupported(&["bias", "scale"])?;
    x1.of(&[Element::F16, Element::BF16, Element::F32])?.nd()?.ranked(3, 3)?;
    x2.of(&[x1.element])?.ranked(3, 3)?;
    math_type(call, x1.element)?;
    call.int_in("batch_split_factor", 1..=1)?;
    let permuted = |t: &Tensor, name: &str, allowed: &[[i64; 3]]| {
        let perm = call.ints(name)?.unwrap_or(&[]);
        if !allowed.iter().any(|a| a == perm) {
            return Err(Fault::invalid(format!("{name}: {perm:?} is not one of {allowed:?}")));
        }
        let mut t = t.clone();
        if perm == [1, 0, 2] {
            t.dims.swap(0, 1);
            t.strides.swap(0, 1);
        }
        Ok(t)
    };
    let left = permuted(x1, "perm_x1", &[[0, 1, 2], [1, 0, 2]])?;
    let right = permuted(x2, "perm_x2", &[[0, 1, 2]])?;
    let result = permuted(out, "perm_y", &[[1, 0, 2]])?;
    let (m, _, n) = sides(&left, &right)?;
    right.rule(right.dims[0] == left.dims[0], "as many matrices as x1")?;
    out.of(&[x1.element])?.nd()?;
    result.shaped(&[left.dims[0], m, n])?;
    Ok(Prepared::new(SPLIT_WORKSPACE, move || multiply(&left, &right, &result)))
}

/// A product whose sum over the ranks of a group is that of one rank: there is one device.
fn all_reduce(call: &Call) -> Outcome<'_> {
    let (x1, x2, out) = (call.tensor("x1")?, call.tensor("x2")?, call.tensor("output")?);
    x1.of(&[Element::F16, Element::BF16])?.nd()?.ranked(2, 3)?;
    x2.of(&[x1.element])?.ranked(2, 2)?;
    if call.text("reduce_op")? != Some("sum") {
        return Err(Fault::invalid("reduce_op: only sum is taken"));
    }
    if call.text("group")?.is_none_or(str::is_empty) {
        return Err(Fault::invalid("group: has no name"));
    }
    call.int_in("stream_mode", 1..=1)?;
    let (m, _, n) = sides(x1, x2)?;
    out.of(&[x1.element])?.shaped(&[&x1.dims[..x1.dims.len() - 2], &[m, n]].concat())?;
    let bias = call.optional("bias")?;
    if let Some(bias) = bias {
        bias.of(&[x1.element])?.shaped(&[n])?;
    }
    Ok(Prepared::new(SPLIT_WORKSPACE, move || {
        let (x, w) = (x1.reals(), x2.right_reals());
        let mut y = product(&x, &w, x2.dims[0], n);
        if let Some(bias) = bias.map(Tensor::reals) {
            y.chunks_mut(n).for_each(|row| row.iter_mut().zip(&bias).for_each(|(v, b)| *v += b));
        }
        out.put(&y);
        Ok(())
    }))
}
