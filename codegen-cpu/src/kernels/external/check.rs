//! A kernel against the bodies that it stands for.

use super::{ExternalKernel, Row, RowMut};
use compiler::Operand;
use half::bf16;
use ir::{
    Body, Module, Op, TensorType, ValueId,
    interp::{self, Tensor},
};
use tensor::DType;

/// How far `kernel` is from the interpreter on random rows, for every composite of its kind in
/// `module`: the largest `|found - expected| / max(|expected|, 1)` of any element. `seed` chooses the
/// inputs; symbols have the values of [`passes::sample_bindings`].
///
/// # Errors
/// Why they cannot be compared: there is no such composite, or the kernel does not take one.
pub fn distance(kernel: &dyn ExternalKernel, module: &Module, seed: u64) -> Result<f64, String> {
    let ops = module.funcs.iter().flat_map(|f| f.order.iter().map(|&n| &f.nodes[n].op));
    let bodies = ops.filter_map(|op| match op {
        Op::Fused { body } if body.kind() == kernel.kind() => Some(body),
        _ => None,
    });
    let mut distances = bodies.map(|body| distance_of(kernel, body, seed)).peekable();
    if distances.peek().is_none() {
        return Err(format!("there is no composite of kind {}", kernel.kind()));
    }
    distances.try_fold(0.0, |worst, one| one.map(|one| f64::max(worst, one)))
}

fn distance_of(kernel: &dyn ExternalKernel, body: &Body, seed: u64) -> Result<f64, String> {
    let bindings = passes::sample_bindings(body.func());
    let body = passes::specialise(body.func(), &bindings).map_err(|e| e.to_string())?;
    let types = |values: &[ValueId]| -> Vec<Operand> {
        values.iter().map(|&v| Operand::dense(body.values[v].ty.clone())).collect()
    };
    let (operands, results) = (types(&body.params), types(&body.results));
    super::lower(kernel, &body, &operands, &results)?;
    let call = kernel.lower(&body, &operands, &results).ok_or("it does not take these operands")?;
    let rows = results[0].dim(0) as usize;

    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let inputs: Vec<Tensor> = operands.iter().map(|o| random.tensor(&o.ty)).collect();
    let none = |name: &str| -> Tensor { unreachable!("bodies name no weight {name}") };
    let expected = interp::run(&body, &inputs, &none, &bindings).map_err(|e| e.to_string())?;

    let buffers: Vec<Buffer> = inputs.iter().map(Buffer::of).collect();
    let mut made: Vec<Buffer> = expected.iter().map(|t| Buffer::unwritten(t, rows)).collect();
    let mut worst = 0.0f64;
    for r in 0..rows {
        let row = |(i, buffer): (usize, &Buffer)| {
            let n = buffer.len() / rows;
            if call.whole.contains(&i) { 0..buffer.len() } else { r * n..(r + 1) * n }
        };
        let places: Vec<_> = buffers.iter().enumerate().map(row).collect();
        let given: Vec<Row<'_>> = buffers.iter().zip(places).map(|(b, at)| b.row(at)).collect();
        let mut outputs: Vec<RowMut<'_>> = made.iter_mut().map(Buffer::row_mut).collect();
        kernel.run(&call.scalars, &given, &mut outputs);
        for (made, expected) in made.iter().zip(&expected) {
            let expected = &expected.data()[r * made.len()..];
            for (found, &expected) in made.values().into_iter().zip(expected) {
                let error = (found - expected).abs() / expected.abs().max(1.0);
                worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
            }
        }
    }
    Ok(worst)
}

/// Elements of one type that rows have.
enum Buffer {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    I8(Vec<i8>),
    I32(Vec<i32>),
}

impl Buffer {
    fn new(dtype: DType, values: impl Iterator<Item = f64>) -> Self {
        match dtype {
            DType::BF16 => Buffer::Bf16(values.map(bf16::from_f64).collect()),
            DType::I8 => Buffer::I8(values.map(|x| x as i8).collect()),
            DType::I32 => Buffer::I32(values.map(|x| x as i32).collect()),
            // Lowering refused all others.
            _ => Buffer::F32(values.map(|x| x as f32).collect()),
        }
    }

    fn of(tensor: &Tensor) -> Self {
        Self::new(tensor.dtype(), tensor.data().iter().copied())
    }

    /// A row of a result before it is computed; whatever is not written is told from what is.
    fn unwritten(tensor: &Tensor, rows: usize) -> Self {
        let n = tensor.data().len() / rows.max(1);
        Self::new(tensor.dtype(), std::iter::repeat_n(f64::NAN, n))
    }

    fn len(&self) -> usize {
        match self {
            Buffer::F32(x) => x.len(),
            Buffer::Bf16(x) => x.len(),
            Buffer::I8(x) => x.len(),
            Buffer::I32(x) => x.len(),
        }
    }

    fn row(&self, at: std::ops::Range<usize>) -> Row<'_> {
        match self {
            Buffer::F32(x) => Row::F32(&x[at]),
            Buffer::Bf16(x) => Row::Bf16(&x[at]),
            Buffer::I8(x) => Row::I8(&x[at]),
            Buffer::I32(x) => Row::I32(&x[at]),
        }
    }

    fn row_mut(&mut self) -> RowMut<'_> {
        match self {
            Buffer::F32(x) => RowMut::F32(x),
            Buffer::Bf16(x) => RowMut::Bf16(x),
            Buffer::I8(x) => RowMut::I8(x),
            Buffer::I32(x) => RowMut::I32(x),
        }
    }

    fn values(&self) -> Vec<f64> {
        match self {
            Buffer::F32(x) => x.iter().map(|&x| f64::from(x)).collect(),
            Buffer::Bf16(x) => x.iter().map(|x| x.to_f64()).collect(),
            Buffer::I8(x) => x.iter().map(|&x| f64::from(x)).collect(),
            Buffer::I32(x) => x.iter().map(|&x| f64::from(x)).collect(),
        }
    }
}

/// Xorshift.
struct Random(u64);

impl Random {
    /// Floats in `-4 .. 4`, codes of 8 bits, small indices.
    fn tensor(&mut self, ty: &TensorType) -> Tensor {
        let dims: Vec<usize> =
            ty.const_dims().unwrap_or_default().into_iter().map(|d| d as usize).collect();
        let mut unit = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        };
        let (scale, from) = match ty.dtype {
            DType::I8 => (256.0, -128.0),
            DType::I32 => (4.0, 0.0),
            _ => (8.0, -4.0),
        };
        let is_integer = !ty.dtype.is_float();
        let mut element = || {
            let x = unit() * scale + from;
            if is_integer { x.floor() } else { x }
        };
        let data = (0..dims.iter().product()).map(|_| element()).collect();
        Tensor::new(ty.dtype, dims, data)
    }
}
