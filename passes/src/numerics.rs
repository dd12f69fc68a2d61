//! Does a graph still compute what it computed? Both are interpreted on random inputs.

use crate::draw;
use ir::{
    Bindings, Func, TensorType, ValueId,
    interp::{self, InterpError, Tensor},
};

/// What was compared and found equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumericReport {
    /// Times both functions ran, each on other inputs.
    pub runs: usize,
    /// Result elements compared in all runs.
    pub elements: usize,
}

/// Functions that could not be compared, or that differ.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NumericError {
    /// A function could not be interpreted.
    #[error(transparent)]
    Interp(#[from] InterpError),
    /// The functions are not called alike.
    #[error("parameters or results differ in number or type: {before} before, {after} after")]
    Signature {
        /// Types of parameters and results.
        before: String,
        /// Types of parameters and results.
        after: String,
    },
    /// The first value that differs.
    #[error(
        "result {result} (%{name}) differs at element {index:?}: {before} before, {after} after \
         (seed {seed})"
    )]
    Differs {
        /// Seed of the inputs.
        seed: u64,
        /// Which result.
        result: usize,
        /// Its name before.
        name: String,
        /// Indices of the element.
        index: Vec<usize>,
        /// Its value before.
        before: f64,
        /// Its value after.
        after: f64,
    },
}

/// Interprets both functions on inputs drawn to the types, once per seed, and compares every
/// element of every result.
///
/// The bound is equality: the interpreter rounds where the IR says, so a rewrite that keeps the
/// meaning keeps every bit. `i32` parameters get values that their readers accept.
///
/// # Errors
/// [`NumericError`], naming the first element that differs.
pub fn check_numerics(
    before: &Func,
    after: &Func,
    seeds: &[u64],
    bindings: &Bindings,
) -> Result<NumericReport, NumericError> {
    let mut report = NumericReport { runs: 0, elements: 0 };
    for &seed in seeds {
        let (expected, found) = both(before, after, seed, bindings)?;
        for (result, (a, b)) in expected.iter().zip(&found).enumerate() {
            report.elements += a.data().len();
            let differs = |(x, y): (&f64, &f64)| x != y && !(x.is_nan() && y.is_nan());
            if let Some(at) = a.data().iter().zip(b.data()).position(differs) {
                return Err(NumericError::Differs {
                    seed,
                    result,
                    name: before.values[before.results[result]].name.clone(),
                    index: indices(at, a.dims()),
                    before: a.data()[at],
                    after: b.data()[at],
                });
            }
        }
        report.runs += 1;
    }
    Ok(report)
}

/// How far the results of `after` are from those of `before`, on inputs as in [`check_numerics`]:
/// the largest `|found - expected| / |expected|` of any result, in Euclidean norms.
///
/// # Errors
/// [`NumericError`] when a function cannot be interpreted or they are not called alike.
pub fn numeric_distance(
    before: &Func,
    after: &Func,
    seeds: &[u64],
    bindings: &Bindings,
) -> Result<f64, NumericError> {
    let mut largest = 0.0f64;
    for &seed in seeds {
        let (expected, found) = both(before, after, seed, bindings)?;
        for (a, b) in expected.iter().zip(&found) {
            largest = largest.max(distance(a, b));
        }
    }
    Ok(largest)
}

/// `|found - expected| / |expected|`; elements that are equal, or no numbers in both, are not apart.
pub(crate) fn distance(expected: &Tensor, found: &Tensor) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
    let pairs = || expected.data().iter().zip(found.data());
    let differ = |(a, b): &(&f64, &f64)| a != b && !(a.is_nan() && b.is_nan());
    let off = norm(&mut pairs().filter(differ).map(|(a, b)| a - b));
    match off {
        0.0 => 0.0,
        off => (off / norm(&mut expected.data().iter().copied())).sqrt(),
    }
}

/// The results of both functions on the inputs of `seed`.
fn both(
    before: &Func,
    after: &Func,
    seed: u64,
    bindings: &Bindings,
) -> Result<(Vec<Tensor>, Vec<Tensor>), NumericError> {
    let (signature, other) = (signature(before, bindings), signature(after, bindings));
    if signature != other {
        return Err(NumericError::Signature { before: signature, after: other });
    }
    let inputs = draw::draw_inputs(before, bindings, seed)?;
    let run = |func: &Func| run(func, &inputs, seed, bindings);
    Ok((run(before)?, run(after)?))
}

/// The results of `func` on the inputs of `seed`.
pub(crate) fn results(
    func: &Func,
    seed: u64,
    bindings: &Bindings,
) -> Result<Vec<Tensor>, NumericError> {
    Ok(run(func, &draw::draw_inputs(func, bindings, seed)?, seed, bindings)?)
}

fn run(
    func: &Func,
    inputs: &[Tensor],
    seed: u64,
    bindings: &Bindings,
) -> Result<Vec<Tensor>, InterpError> {
    let weights = draw::weights(func, bindings, seed)?;
    let find = |name: &str| {
        let found = weights.iter().find(|(n, _)| n == name);
        found.map(|(_, t)| t.clone()).expect("every weight of the function is drawn")
    };
    interp::run(func, inputs, &find, bindings)
}

fn signature(func: &Func, bindings: &Bindings) -> String {
    let types = |values: &[ValueId]| -> Vec<TensorType> {
        values.iter().map(|&v| func.values[v].ty.bind(bindings)).collect()
    };
    format!("{:?} -> {:?}", types(&func.params), types(&func.results))
}

fn indices(mut at: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (i, &d) in index.iter_mut().zip(dims).rev() {
        (*i, at) = (at % d, at / d);
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_bindings;
    use ir::text;

    fn func(body: &str) -> Func {
        let text = format!("func @f(%x: f32[T,4], %g: f32[T,4]) {{\n{body}\n}}\n");
        text::parse("test.ir", &text).unwrap().funcs.remove(0)
    }

    #[test]
    fn a_wrong_rewrite_is_found_with_its_first_element() {
        let before = func("%r = silu_mul %x, %g {out = f32} : f32[T,4]\nreturn %r");
        let after = func("%r = silu_mul %g, %x {out = f32} : f32[T,4]\nreturn %r");
        let bindings = sample_bindings(&before);
        let same = check_numerics(&before, &before, &[1, 2], &bindings);
        assert_eq!(same, Ok(NumericReport { runs: 2, elements: 32 }));
        let error = check_numerics(&before, &after, &[1], &bindings).unwrap_err();
        assert!(
            matches!(&error, NumericError::Differs { result: 0, index, .. } if *index == [0, 0])
        );
    }

    #[test]
    fn one_rounding_too_many_is_found() {
        let before = func("%r = add %x, %g : f32[T,4]\nreturn %r");
        let after = func(
            "%s = add %x, %g : f32[T,4]\n%h = cast %s {to = bf16} : bf16[T,4]\n\
             %r = cast %h {to = f32} : f32[T,4]\nreturn %r",
        );
        let error = check_numerics(&before, &after, &[1], &sample_bindings(&before));
        assert!(matches!(error, Err(NumericError::Differs { .. })));
    }

    #[test]
    fn a_distance_is_relative_to_what_was_expected() {
        let before = func("%r = add %x, %x : f32[T,4]\nreturn %r");
        let third = func("%d = add %x, %x : f32[T,4]\n%r = add %d, %x : f32[T,4]\nreturn %r");
        let bindings = sample_bindings(&before);
        let distance = |after| numeric_distance(&before, after, &[1], &bindings).unwrap();
        assert!((distance(&third) - 0.5).abs() < 1e-6);
        assert_eq!(distance(&before), 0.0);
    }

    #[test]
    fn another_signature_is_not_compared() {
        let before = func("return %x");
        let after = func("return %x, %g");
        let error = check_numerics(&before, &after, &[1], &sample_bindings(&before));
        assert!(matches!(error, Err(NumericError::Signature { .. })));
    }
}
