//! Products of floating-point matrices.

use super::arithmetic::product;
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[
    ("Mm", |call| plain(call, 2, 2, Weight::Nd)),
    ("MatmulWeightNz", |call| plain(call, 2, 2, Weight::Nz)),
    ("BatchMatMul", |call| plain(call, 3, 3, Weight::Nd)),
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
