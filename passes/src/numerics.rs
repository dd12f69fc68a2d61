//! Does a graph still compute what it computed? Both are interpreted on random inputs.

use ir::{
    Bindings, DType, Dim, EntityId, Func, NodeId, Op, Storage, TensorType, ValueDef, ValueId,
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
    let (signature, other) = (signature(before, bindings), signature(after, bindings));
    if signature != other {
        return Err(NumericError::Signature { before: signature, after: other });
    }
    let mut report = NumericReport { runs: 0, elements: 0 };
    for &seed in seeds {
        let inputs: Vec<Tensor> = before
            .params
            .iter()
            .map(|&p| draw(before, p, bindings, seed))
            .collect::<Result<_, _>>()?;
        let run = |func: &Func| {
            let weights = weights(func, bindings, seed)?;
            let find = |name: &str| {
                let found = weights.iter().find(|(n, _)| n == name);
                found.map(|(_, t)| t.clone()).expect("every weight of the function is drawn")
            };
            interp::run(func, &inputs, &find, bindings)
        };
        let (expected, found) = (run(before)?, run(after)?);
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

/// Small values for every symbol of `func`: 4 for `T`, 8 for the rows of a matrix state, which hold
/// the rows of a step, and 2 for the others.
pub fn sample_bindings(func: &Func) -> Bindings {
    let mut bindings = Bindings::new();
    for ty in (0..func.values.len()).map(|i| &func.values[ValueId::from_index(i)].ty) {
        for symbol in ty.symbols() {
            let is_rows = ty.storage == Storage::State
                && ty.rank() == 2
                && ty.dims[0] == Dim::Sym(symbol.clone());
            let value = match symbol.name() {
                "T" => 4,
                _ if is_rows => 8,
                _ => 2,
            };
            let known = bindings.entry(symbol.clone()).or_insert(value);
            *known = value.max(*known);
        }
    }
    bindings
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

fn weights(
    func: &Func,
    bindings: &Bindings,
    seed: u64,
) -> Result<Vec<(String, Tensor)>, InterpError> {
    let tensor_of = |&w: &ValueId| match &func.values[w].def {
        ValueDef::Weight(tensor) => {
            let drawn = draw_named(func, w, tensor, bindings, seed);
            Some(drawn.map(|t| (tensor.clone(), t)))
        }
        _ => None,
    };
    func.weights.iter().filter_map(tensor_of).collect()
}

fn draw(
    func: &Func,
    param: ValueId,
    bindings: &Bindings,
    seed: u64,
) -> Result<Tensor, InterpError> {
    draw_named(func, param, &func.values[param].name, bindings, seed)
}

/// A tensor of the type of `value` whose content depends on `name` and `seed` only.
fn draw_named(
    func: &Func,
    value: ValueId,
    name: &str,
    bindings: &Bindings,
    seed: u64,
) -> Result<Tensor, InterpError> {
    let ty = func.values[value].ty.bind(bindings);
    let fail = |what: String| InterpError {
        func: func.name.clone(),
        at: format!("%{}", func.values[value].name),
        what,
    };
    let dims = ty.const_dims().ok_or_else(|| fail(format!("{ty} has an unbound symbol")))?;
    let mut random = Random::new(name, seed);
    let limit = index_limit(func, value, bindings);
    // Codes fill their range; bytes are the exponents of scales near 1.
    let mut element = |_| match (random.unit(), ty.dtype) {
        (u, DType::MxFp4) => u * 16.0 - 8.0,
        (u, DType::I4) => (u * 16.0).floor() - 8.0,
        (u, DType::I8) => (u * 256.0).floor() - 128.0,
        (u, DType::U8) => (u * 16.0).floor() + 119.0,
        (u, dtype) if dtype.is_float() => u * 2.0 - 1.0,
        (u, _) => (u * limit as f64).floor(),
    };
    let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).filter(|&n| n <= 1 << 28);
    let count = count.ok_or_else(|| fail(format!("{ty} is too large to draw")))?;
    let data = (0..count).map(&mut element).collect();
    Ok(Tensor::new(ty.dtype, dims.into_iter().map(|d| d as usize).collect(), data))
}

/// The smallest bound that a reader puts on the elements of an index tensor.
fn index_limit(func: &Func, value: ValueId, bindings: &Bindings) -> u64 {
    /// Positions and plain integers without another bound.
    const UNBOUNDED: u64 = 16;
    let limits = func.users(value).filter_map(|n| reader_limit(func, n, value, bindings));
    limits.min().unwrap_or(UNBOUNDED)
}

fn reader_limit(func: &Func, reader: NodeId, value: ValueId, bindings: &Bindings) -> Option<u64> {
    let node = &func.nodes[reader];
    let dim = |operand: usize, axis: usize| {
        let dims = &func.values[*node.args.get(operand)?].ty.dims;
        dims.get(axis)?.bind(bindings).as_const()
    };
    let place = node.args.iter().position(|&a| a == value)?;
    match (&node.op, place) {
        (Op::Embed { .. }, 0) => dim(1, 0),
        (Op::GatherRows {}, 1) => dim(0, 0),
        (Op::KvWrite {}, 3) => dim(0, 0)?.checked_mul(dim(0, 3)?),
        (Op::PagedWrite {}, 2) => dim(0, 0)?.checked_mul(dim(0, 1)?),
        (Op::Attention { .. } | Op::SinkAttention { .. }, 2) => dim(1, 0),
        (Op::Attention { .. } | Op::SinkAttention { .. }, 3) => dim(2, 1)?.checked_mul(dim(1, 3)?),
        (Op::LatentAttention { .. } | Op::SparseLatentAttention { .. }, 4) => dim(2, 0),
        (Op::LatentAttention { .. } | Op::SparseLatentAttention { .. }, 5) => {
            dim(4, 1)?.checked_mul(dim(2, 1)?)
        }
        // The first place is one that every position sees.
        (Op::SparseLatentAttention { .. }, 6) => Some(1),
        (Op::SelectKeys { .. }, 3) => dim(2, 0),
        (Op::SelectKeys { .. }, 4) => dim(3, 1)?.checked_mul(dim(2, 1)?),
        (Op::CausalConv {}, 3) | (Op::GatedDelta {}, 6) => dim(0, 0),
        // Sequences begin and go on.
        (Op::CausalConv {}, 4) | (Op::GatedDelta {}, 7) => Some(2),
        (Op::ExpertGroups { experts }, 0) => Some(*experts),
        (Op::ExpertBias {}, 1) => dim(2, 0),
        _ => None,
    }
}

/// SplitMix64, seeded by a name and a number.
struct Random(u64);

impl Random {
    fn new(name: &str, seed: u64) -> Self {
        // FNV-1a, so that each tensor has its own sequence.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Uniform in `0 .. 1`.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn another_signature_is_not_compared() {
        let before = func("return %x");
        let after = func("return %x, %g");
        let error = check_numerics(&before, &after, &[1], &sample_bindings(&before));
        assert!(matches!(error, Err(NumericError::Signature { .. })));
    }
}
