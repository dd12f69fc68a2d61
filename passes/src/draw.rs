//! Inputs to try a function on.

use ir::{
    Bindings, DType, Dim, EntityId, Func, NodeId, Op, Storage, ValueDef, ValueId,
    interp::{InterpError, Tensor},
};

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

/// The tensor of each weight of `func`, by name.
pub(crate) fn weights(
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

/// Inputs to try `func` on, one for each parameter in order. `i32` parameters get values that their
/// readers accept; the same seed gives the same values.
///
/// # Errors
/// [`InterpError`] when a symbol is not bound or a tensor is too large to draw.
pub fn draw_inputs(
    func: &Func,
    bindings: &Bindings,
    seed: u64,
) -> Result<Vec<Tensor>, InterpError> {
    func.params.iter().map(|&p| param(func, p, bindings, seed)).collect()
}

/// A tensor for a parameter.
fn param(
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
    let has_bits = has_bits(func, value);
    // Codes fill their range; bytes are the exponents of scales near 1.
    let mut element = |_| match (random.unit(), ty.dtype) {
        (u, DType::I64) if has_bits => f64::from((u as f32).to_bits()),
        (u, DType::MxFp4) => u * 16.0 - 8.0,
        (u, DType::I4) => (u * 16.0).floor() - 8.0,
        (u, DType::I8) => (u * 256.0).floor() - 128.0,
        (u, DType::U8) => (u * 16.0).floor() + 119.0,
        (u, dtype) if dtype.is_float() => u * 2.0 - 1.0,
        (u, _) => (u * limit as f64).floor(),
    };
    let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).filter(|&n| n <= 1 << 28);
    let count = count.ok_or_else(|| fail(format!("{ty} is too large to draw")))?;
    let mut data: Vec<f64> = (0..count).map(&mut element).collect();
    // Rows of a cache of codes end with their scale.
    if ty.dtype == DType::I8 && ty.storage == Storage::State {
        let row = dims.last().map_or(1, |&n| n.max(1) as usize);
        for row in data.chunks_exact_mut(row) {
            let scale = ((0.5 + row[0].abs()) / 16384.0) as f32;
            for (place, byte) in row.iter_mut().rev().zip(scale.to_be_bytes()) {
                *place = f64::from(byte as i8);
            }
        }
    }
    Ok(Tensor::new(ty.dtype, dims.into_iter().map(|d| d as usize).collect(), data))
}

/// Whether the elements of `value` are read as the bits of f32.
fn has_bits(func: &Func, value: ValueId) -> bool {
    func.users(value).any(|reader| {
        let node = &func.nodes[reader];
        let mut places = node.args.iter().enumerate().filter(|&(_, &arg)| arg == value);
        places.any(|(place, _)| match &node.op {
            Op::GroupedMixedMatmul { .. } => place == 5,
            Op::Fused { body } => has_bits(body.func(), body.func().params[place]),
            _ => false,
        })
    })
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
        (Op::ExpandedLatentAttention { .. } | Op::SparseExpandedLatentAttention { .. }, 6) => {
            dim(4, 0)
        }
        (Op::ExpandedLatentAttention { .. } | Op::SparseExpandedLatentAttention { .. }, 7) => {
            dim(6, 1)?.checked_mul(dim(4, 1)?)
        }
        // The first place is one that every position sees.
        (Op::SparseLatentAttention { .. }, 6) | (Op::SparseExpandedLatentAttention { .. }, 8) => {
            Some(1)
        }
        (Op::SelectKeys { .. }, 3) => dim(2, 0),
        (Op::SelectKeys { .. }, 4) => dim(3, 1)?.checked_mul(dim(2, 1)?),
        (Op::CausalConv {}, 3) | (Op::GatedDelta {}, 6) => dim(0, 0),
        // Sequences begin and go on.
        (Op::CausalConv {}, 4) | (Op::GatedDelta {}, 7) => Some(2),
        (Op::ExpertGroups { experts }, 0) => Some(*experts),
        (Op::ExpertBias {}, 1) => dim(2, 0),
        (Op::Fused { body }, operand) => {
            let func = body.func();
            let param = func.params[operand];
            let limits = func.users(param).filter_map(|n| reader_limit(func, n, param, bindings));
            limits.min()
        }
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

    #[test]
    fn caches_of_codes_have_scales_that_are_numbers() {
        let text = "func @f(%q: f32[1,1,8], %t: i32[1,2], %p: i32[1], %kv: state i8[4,2,1,16,12]) {
  %y = attention %q, %kv, %t, %p {scale = 1, out = f32} : f32[1,1,8]
  return %y
}
";
        let func = &ir::text::parse("test.ir", text).unwrap_or_else(|e| panic!("{e}")).funcs[0];
        let inputs =
            draw_inputs(func, &Bindings::new(), 1).unwrap_or_else(|e| panic!("{}", e.what));
        for row in inputs[3].data().chunks_exact(12) {
            let bytes = std::array::from_fn(|i| row[8 + i] as i8 as u8);
            let scale = f32::from_le_bytes(bytes);
            assert!((1e-5..1e-2).contains(&scale), "{scale}");
        }
    }
}
