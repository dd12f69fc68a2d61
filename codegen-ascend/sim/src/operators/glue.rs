//! Elementwise operators, copies and reductions.

use super::arithmetic::{largest, sigmoid, silu, softmax};
use super::call::axis;
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, Bool, F16, F32, I8, I16, I32, I64, U8};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[
    ("Cast", cast),
    ("Add", add),
    ("Mul", |call| binary(call, 1.0, |a, b| a * b)),
    ("Muls", muls),
    ("Embedding", |call| gather(call, "weight", "indices", Some(0))),
    ("IndexSelect", |call| gather(call, "input", "index", None)),
    ("GatherV2", |call| gather(call, "input", "index", None)),
    ("Softmax", soft_max),
    ("Topk", topk),
    ("ArgMax", argmax),
    ("Sigmoid", |call| unary(call, sigmoid)),
    ("Silu", |call| unary(call, silu)),
    ("Cat", cat),
    ("Permute", permute),
    ("InplaceCopy", inplace_copy),
    ("ApplyTopKTopP", top_k_top_p),
    ("ReduceSum", reduce_sum),
];

const FLOATS: &[Element] = &[F32, F16, BF16];
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

fn unary(call: &Call, f: fn(f32) -> f32) -> Outcome<'_> {
    let (x, out) = (call.tensor("input")?, call.tensor("out")?);
    x.of(FLOATS)?.nd()?;
    out.of(&[x.element])?.shaped(&x.dims)?;
    Prepared::done(move || {
        out.put(&x.reals().into_iter().map(f).collect::<Vec<_>>());
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

/// Parts of a dimension of `source` in the order of an index.
fn gather<'a>(call: &'a Call, source: &str, index: &str, dim: Option<usize>) -> Outcome<'a> {
    let (x, index, out) = (call.tensor(source)?, call.tensor(index)?, call.tensor("out")?);
    x.of(NUMBERS)?.nd()?.ranked(1, 8)?;
    index.of(&[I32, I64])?.nd()?;
    let dim = match dim {
        Some(dim) => dim,
        None => call.axis("dim", x.dims.len())?,
    };
    index.rule(call.name != "IndexSelect" || index.dims.len() <= 1, "one dimension")?;
    let parts = index.len();
    out.of(&[x.element])?.contiguous()?;
    out.shaped(&[&x.dims[..dim], &index.dims, &x.dims[dim + 1..]].concat())?;
    let flat = out.reshaped(&[&x.dims[..dim], &[parts], &x.dims[dim + 1..]].concat());
    Prepared::done(move || {
        for (i, at) in index.integers().into_iter().enumerate() {
            let Some(at) = usize::try_from(at).ok().filter(|&at| at < x.dims[dim]) else {
                let message = format!("{}: {at} of {}", index.name, x.dims[dim]);
                return Err(Fault::exception(message));
            };
            flat.narrow(dim, i, 1).copy(&x.narrow(dim, at, 1));
        }
        Ok(())
    })
}

fn soft_max(call: &Call) -> Outcome<'_> {
    let (x, out) = (call.tensor("input")?, call.tensor("out")?);
    x.of(FLOATS)?.nd()?.ranked(1, 8)?;
    out.of(FLOATS)?.shaped(&x.dims)?;
    let dim = call.axis("dim", x.dims.len())?;
    Prepared::done(move || {
        let width = x.dims[dim].max(1);
        out.along(dim)
            .put(&x.along(dim).reals().chunks(width).flat_map(softmax).collect::<Vec<_>>());
        Ok(())
    })
}

fn topk(call: &Call) -> Outcome<'_> {
    let x = call.tensor("input")?;
    let (values, indices) = (call.tensor("values_out")?, call.tensor("indices_out")?);
    x.of(NUMBERS)?.nd()?.ranked(1, 8)?;
    let dim = call.axis("dim", x.dims.len())?;
    let k = call.int_in("k", 0..=x.dims[dim] as i64)? as usize;
    let mut dims = x.dims.clone();
    dims[dim] = k;
    values.of(&[x.element])?.shaped(&dims)?;
    indices.of(&[I64])?.shaped(&dims)?;
    let most = call.flag("largest")?;
    call.flag("sorted")?;
    Ok(Prepared::new(x.len() as u64 * 8, move || {
        let (mut found, mut places) = (Vec::new(), Vec::new());
        for row in x.along(dim).reals().chunks(x.dims[dim].max(1)) {
            let keys: Vec<f32> = row.iter().map(|v| if most { *v } else { -v }).collect();
            for i in largest(&keys, k) {
                found.push(row[i]);
                places.push(i as i64);
            }
        }
        values.along(dim).put(&found);
        indices.along(dim).put_integers(&places);
        Ok(())
    }))
}

fn argmax(call: &Call) -> Outcome<'_> {
    let (x, out) = (call.tensor("input")?, call.tensor("out")?);
    x.of(NUMBERS)?.nd()?.ranked(1, 8)?;
    let dim = call.axis("dim", x.dims.len())?;
    let mut dims = x.dims.clone();
    if call.flag("keepdim")? {
        dims[dim] = 1;
    } else {
        dims.remove(dim);
    }
    out.of(&[I64, I32])?.contiguous()?.shaped(&dims)?;
    x.rule(x.dims[dim] > 0, "elements along the dimension")?;
    Prepared::done(move || {
        let rows = x.along(dim).reals();
        let best = rows.chunks(x.dims[dim]).map(|row| {
            let first = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
            (0..row.len()).fold(0, first) as i64
        });
        out.put_integers(&best.collect::<Vec<_>>());
        Ok(())
    })
}

fn cat(call: &Call) -> Outcome<'_> {
    let (parts, out) = (call.list("tensors")?, call.tensor("out")?);
    let Some(first) = parts.first() else {
        return Err(Fault::invalid("tensors: has none"));
    };
    first.ranked(1, 8)?;
    let dim = call.axis("dim", first.dims.len())?;
    let mut dims = first.dims.clone();
    dims[dim] = 0;
    for part in parts {
        part.of(NUMBERS)?.of(&[first.element])?.nd()?.ranked(dims.len(), dims.len())?;
        let mut own = part.dims.clone();
        dims[dim] += own[dim];
        own[dim] = dims[dim];
        part.rule(own == dims, "other dimensions as those of the first")?;
    }
    out.of(&[first.element])?.shaped(&dims)?;
    Prepared::done(move || {
        let mut start = 0;
        for part in parts {
            out.narrow(dim, start, part.dims[dim]).copy(part);
            start += part.dims[dim];
        }
        Ok(())
    })
}

fn permute(call: &Call) -> Outcome<'_> {
    let (x, out) = (call.tensor("input")?, call.tensor("out")?);
    x.of(NUMBERS)?.nd()?;
    let rank = x.dims.len();
    let dims = call.ints("dims")?.unwrap_or(&[]);
    let axes: Vec<usize> = dims.iter().map(|&d| axis("dims", d, rank)).collect::<Result<_, _>>()?;
    if axes.len() != rank || (0..rank).any(|a| !axes.contains(&a)) {
        return Err(Fault::invalid(format!("dims: {dims:?} is no order of {rank} dimensions")));
    }
    let seen = x.permuted(&axes);
    out.of(&[x.element])?.shaped(&seen.dims)?;
    Prepared::done(move || {
        out.copy(&seen);
        Ok(())
    })
}

fn inplace_copy(call: &Call) -> Outcome<'_> {
    let (to, from) = (call.tensor("input_ref")?, call.tensor("src")?);
    to.of(NUMBERS)?.nd()?;
    from.of(NUMBERS)?.nd()?;
    let seen = from.broadcast(&to.dims)?;
    Prepared::done(move || {
        to.copy(&seen);
        Ok(())
    })
}

/// Logits, those that a row's choice leaves out set to negative infinity.
fn top_k_top_p(call: &Call) -> Outcome<'_> {
    let (logits, out) = (call.tensor("logits")?, call.tensor("out")?);
    let (p, k) = (call.optional("p")?, call.optional("k")?);
    logits.of(FLOATS)?.nd()?.ranked(2, 2)?;
    let (rows, width) = (logits.dims[0], logits.dims[1]);
    out.of(&[logits.element])?.shaped(&logits.dims)?;
    if let Some(p) = p {
        p.of(&[logits.element])?.shaped(&[rows])?;
    }
    if let Some(k) = k {
        k.of(&[I32])?.shaped(&[rows])?;
    }
    if p.is_none() && k.is_none() {
        return Err(Fault::invalid("p and k: one of them is needed"));
    }
    Ok(Prepared::new(logits.len() as u64 * 8, move || {
        let (p, k) = (p.map(Tensor::reals), k.map(Tensor::integers));
        let mut values = logits.reals();
        for (r, row) in values.chunks_mut(width).enumerate() {
            // Ascending, of equal ones the later first, so that what is kept is a tail.
            let mut order = largest(row, width);
            order.reverse();
            if let Some(k) = &k {
                let kept = k[r].clamp(1, width as i64) as usize;
                let least = row[order[width - kept]];
                row.iter_mut().filter(|v| **v < least).for_each(|v| *v = f32::NEG_INFINITY);
            }
            if let Some(p) = &p {
                let chances = softmax(&order.iter().map(|&i| row[i]).collect::<Vec<_>>());
                let mut sum = 0.0;
                for (place, &i) in order.iter().enumerate() {
                    sum += chances[place];
                    if sum <= 1.0 - p[r] && place + 1 < width {
                        row[i] = f32::NEG_INFINITY;
                    }
                }
            }
        }
        out.put(&values);
        Ok(())
    }))
}

fn reduce_sum(call: &Call) -> Outcome<'_> {
    let (x, out) = (call.tensor("input")?, call.tensor("out")?);
    x.of(NUMBERS)?.nd()?;
    let rank = x.dims.len();
    let listed = call.ints("dims")?.unwrap_or(&[]);
    let mut reduced: Vec<usize> =
        listed.iter().map(|&d| axis("dims", d, rank)).collect::<Result<_, _>>()?;
    if reduced.is_empty() {
        reduced = (0..rank).collect();
    }
    let kept: Vec<usize> = (0..rank).filter(|a| !reduced.contains(a)).collect();
    let dims: Vec<usize> = match call.flag("keep_dims")? {
        true => (0..rank).map(|a| if reduced.contains(&a) { 1 } else { x.dims[a] }).collect(),
        false => kept.iter().map(|&a| x.dims[a]).collect(),
    };
    out.of(&[call.element("dtype")?])?.contiguous()?.shaped(&dims)?;
    reduced.sort_unstable();
    let seen = x.permuted(&[kept, reduced.clone()].concat());
    let width: usize = reduced.iter().map(|&a| x.dims[a]).product();
    Prepared::done(move || {
        let width = width.max(1);
        if x.element.is_float() {
            let rows = seen.reals();
            out.put(&rows.chunks(width).map(|row| row.iter().sum()).collect::<Vec<_>>());
        } else {
            let rows = seen.integers();
            out.put_integers(&rows.chunks(width).map(|row| row.iter().sum()).collect::<Vec<_>>());
        }
        Ok(())
    })
}
