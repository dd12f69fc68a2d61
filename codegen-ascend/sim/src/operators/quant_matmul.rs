//! Products of quantised matrices.

use super::arithmetic::{unit_scale, whole_product};
use super::matmul::{matrix_of, sides};
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I8, I32, I64, U64};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[("QuantMatmulWeightNz", weight_nz)];

/// Workspace of a quantised product: the block that cores meet at.
const WORKSPACE: u64 = 2048;
/// Elements in the last dimension of an operand.
const MAX_SIDE: usize = 65535;

/// The operands of a quantised product by what they do.
struct Operands<'a> {
    x: &'a Tensor,
    weight: &'a Tensor,
    token_scale: Option<&'a Tensor>,
    scale: &'a Tensor,
    offset: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
    out: &'a Tensor,
}

fn weight_nz(call: &Call) -> Outcome<'_> {
    call.unsupported(&["y_scale", "x1_offset", "y_offset"])?;
    call.int_in("group_size", 0..=0)?;
    let weight = call.tensor("x2")?;
    weight.nz()?;
    let o = Operands {
        x: call.tensor("x1")?,
        weight,
        token_scale: call.optional("x1_scale")?,
        scale: call.tensor("x2_scale")?,
        offset: call.optional("x2_offset")?,
        bias: call.optional("bias")?,
        out: call.tensor("out")?,
    };
    let (transpose_x, transpose_w) = (call.flag("transpose_x1")?, call.flag("transpose_x2")?);
    let x = o.x.of(&[I8])?.nd()?.ranked(2, 6)?;
    let weight = o.weight.of(&[I8])?.ranked(2, 6)?;
    for t in [x, weight] {
        t.rule(t.width() <= MAX_SIDE, "the last dimension is at most 65535")?;
        t.rule(!t.is_empty(), "it has elements")?;
    }
    let x = if transpose_x { x.transposed() } else { x.clone() };
    let w = if transpose_w { weight.transposed() } else { weight.clone() };
    let (m, k, n) = sides(&x, &w)?;
    let batch = &x.dims[..x.dims.len() - 2];
    let weights = &w.dims[..w.dims.len() - 2];
    w.rule(weights == batch || weights.is_empty(), "as many matrices as x1, or one")?;
    o.out.nd()?.shaped(&[batch, &[m, n]].concat())?;
    if let Some(t) = o.token_scale {
        t.shaped(&[m])?;
    }
    if let Some(t) = o.offset {
        per_column(t, n)?;
    }
    if let Some(t) = o.bias {
        t.rule(t.dims == [n] || t.dims[..] == [batch, &[1, n]].concat(), "one for every column")?;
    }
    per_column(o.scale, n)?;
    combination(&o)?;
    Ok(Prepared::new(WORKSPACE, move || {
        let epilogue = Epilogue::read(&o);
        let batches: usize = o.out.dims[..o.out.dims.len() - 2].iter().product();
        for b in 0..batches {
            let x = matrix_of(&x, b).words();
            let w = matrix_of(&w, b);
            let out = matrix_of(o.out, b);
            epilogue.write(&whole_product(&x, &w.right_words(), k, n), n, &out);
        }
        Ok(())
    }))
}

/// A documented combination of element types.
struct Combination {
    token_scale: &'static [Option<Element>],
    scale: &'static [Element],
    offset: &'static [Option<Element>],
    bias: &'static [Option<Element>],
    out: Element,
}

const NONE: &[Option<Element>] = &[None];
const MAYBE_F32: &[Option<Element>] = &[None, Some(F32)];

/// What INT8 with INT8 takes on A2 and A3.
const INT8: &[Combination] = &[
    Combination {
        token_scale: NONE,
        scale: &[U64, I64],
        offset: NONE,
        bias: &[None, Some(I32)],
        out: F16,
    },
    Combination {
        token_scale: NONE,
        scale: &[U64, I64],
        offset: MAYBE_F32,
        bias: &[None, Some(I32)],
        out: I8,
    },
    Combination {
        token_scale: MAYBE_F32,
        scale: &[F32, BF16],
        offset: NONE,
        bias: &[None, Some(I32), Some(BF16), Some(F32)],
        out: BF16,
    },
    Combination {
        token_scale: &[Some(F32)],
        scale: &[F32],
        offset: NONE,
        bias: &[None, Some(I32), Some(F16), Some(F32)],
        out: F16,
    },
    Combination {
        token_scale: NONE,
        scale: &[F32, BF16],
        offset: NONE,
        bias: &[None, Some(I32)],
        out: I32,
    },
];

fn combination(o: &Operands<'_>) -> Result<(), Fault> {
    let element = |t: Option<&Tensor>| t.map(|t| t.element);
    let fits = |c: &Combination| {
        c.out == o.out.element
            && c.scale.contains(&o.scale.element)
            && c.token_scale.contains(&element(o.token_scale))
            && c.offset.contains(&element(o.offset))
            && c.bias.contains(&element(o.bias))
    };
    if INT8.iter().any(fits) {
        return Ok(());
    }
    let name = |t: Option<&Tensor>| t.map_or("null", |t| t.element.name());
    Err(Fault::invalid(format!(
        "no combination has {} {}, {} {}, scale of the rows {}, {} {}, offset {}, bias {} and {} {}",
        o.x.name,
        o.x.element.name(),
        o.weight.name,
        o.weight.element.name(),
        name(o.token_scale),
        o.scale.name,
        o.scale.element.name(),
        name(o.offset),
        name(o.bias),
        o.out.name,
        o.out.element.name(),
    )))
}

/// That `t` has one element or `n`, in one dimension.
fn per_column(t: &Tensor, n: usize) -> Result<(), Fault> {
    t.rule(t.dims == [1] || t.dims == [n], "one element, or one for every column")?;
    Ok(())
}

/// What follows the exact product.
struct Epilogue {
    tokens: Option<Vec<f32>>,
    scale: Vec<(f32, f32)>,
    offset: Vec<f32>,
    whole_bias: Vec<i64>,
    bias: Vec<f32>,
}

/// Element `i` of a vector with one element or one for every column; zero when there is none.
fn column<T: Copy + Default>(values: &[T], i: usize) -> T {
    if values.len() == 1 { values[0] } else { values.get(i).copied().unwrap_or_default() }
}

impl Epilogue {
    fn read(o: &Operands<'_>) -> Self {
        let unit = matches!(o.scale.element, U64 | I64);
        let scale = match unit {
            true => o.scale.integers().into_iter().map(unit_scale).collect(),
            false => o.scale.reals().into_iter().map(|s| (s, 0.0)).collect(),
        };
        let whole = o.bias.filter(|b| b.element == I32);
        let real = o.bias.filter(|b| b.element != I32);
        Self {
            tokens: o.token_scale.map(Tensor::reals),
            scale,
            offset: o.offset.map(Tensor::reals).unwrap_or_default(),
            whole_bias: whole.map(Tensor::integers).unwrap_or_default(),
            bias: real.map(Tensor::reals).unwrap_or_default(),
        }
    }

    fn write(&self, sums: &[i32], n: usize, out: &Tensor) {
        let biased = |(i, v): (usize, &i32)| v.wrapping_add(column(&self.whole_bias, i % n) as i32);
        if out.element == I32 {
            let sums: Vec<i64> = sums.iter().enumerate().map(|e| i64::from(biased(e))).collect();
            return out.put_integers(&sums);
        }
        let scaled = sums.iter().enumerate().map(|(i, v)| {
            let (scale, offset) = column(&self.scale, i % n);
            let mut y = biased((i, v)) as f32 * scale;
            if let Some(tokens) = &self.tokens {
                y *= tokens[i / n];
            }
            y + offset + column(&self.offset, i % n) + column(&self.bias, i % n)
        });
        out.put(&scaled.collect::<Vec<f32>>());
    }
}
