//! Elementwise operators.

use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Tensor};
use Element::{BF16, Bool, F16, F32, I8, I16, I32, I64, U8};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[
    ("Cast", cast),
    ("Add", add),
    ("Mul", |call| binary(call, 1.0, |a, b| a * b)),
    ("Muls", muls),
];

const NUMBERS: &[Element] = &[F32, F16, BF16, I8, I16, I32, I64, U8, Bool];

fn cast(call: &Call) -> Outcome<'_> {
    let (x, out) = (call.tensor("input")?, call.tensor("out")?);
    x.of(NUMBERS)?.nd()?;
    let element = call.element("dtype")?;
    out.of(NUMBERS)?.of(&[element])?.nd()?.shaped(&x.dims)?;
    Prepared::done(move || {
        out.copy(x);
        Ok(())
    })
}

fn add(call: &Call) -> Outcome<'_> {
    let alpha = call.scalar("alpha")? as f32;
    binary(call, alpha, |a, b| a + b)
}

fn binary(call: &Call, alpha: f32, f: fn(f32, f32) -> f32) -> Outcome<'_> {
    let (a, b, out) = (call.tensor("input")?, call.tensor("other")?, call.tensor("out")?);
    a.of(NUMBERS)?.nd()?;
    b.of(&[a.element])?.nd()?;
    out.of(&[a.element])?;
    let rank = a.dims.len().max(b.dims.len());
    let side = |t: &Tensor, i: usize| match (i + t.dims.len()).checked_sub(rank) {
        Some(own) => t.dims[own],
        None => 1,
    };
    let dims: Vec<usize> =
        (0..rank).map(|i| if side(a, i) == 1 { side(b, i) } else { side(a, i) }).collect();
    out.shaped(&dims)?;
    let (left, right) = (a.broadcast(&dims)?, b.broadcast(&dims)?);
    Prepared::done(move || {
        if left.element.is_float() {
            let pairs = left.reals().into_iter().zip(right.reals());
            out.put(&pairs.map(|(a, b)| f(a, alpha * b)).collect::<Vec<_>>());
        } else {
            let pairs = left.integers().into_iter().zip(right.integers());
            let sum = f(1.0, 1.0) == 2.0;
            let whole = |(a, b): (i64, i64)| match sum {
                true => a.wrapping_add(b.wrapping_mul(alpha as i64)),
                false => a.wrapping_mul(b),
            };
            out.put_integers(&pairs.map(whole).collect::<Vec<_>>());
        }
        Ok(())
    })
}

fn muls(call: &Call) -> Outcome<'_> {
    let (x, out) = (call.tensor("input")?, call.tensor("out")?);
    x.of(NUMBERS)?.nd()?;
    out.of(&[x.element])?.shaped(&x.dims)?;
    let factor = call.scalar("other")? as f32;
    Prepared::done(move || {
        out.put(&x.reals().iter().map(|v| v * factor).collect::<Vec<_>>());
        Ok(())
    })
}
