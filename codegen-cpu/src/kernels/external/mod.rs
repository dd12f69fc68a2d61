//! Kernels from outside: what they are, and how a plan calls them.
//!
//! The engine reads and checks buffers, splits rows between threads and keeps the contract of
//! results; a kernel sees slices, one row at a time.

mod bind;
mod check;
mod row;

pub use artifact::Scalar;
pub(crate) use bind::bind;
pub use check::distance;
pub use compiler::Operand;
pub use half::bf16;
pub use row::{Row, RowMut};

use compiler::{Arg, KernelCall, Lowered};
use ir::{DType, Func, Layout, Storage};
use std::{fmt, sync::Arc};

/// What names of external kernels in plans begin with; the kind of the composite follows.
pub const PREFIX: &str = "ext.";

/// Operands or results that a call may have.
pub const MOST_ARGS: usize = 16;

/// A kernel for the composites of one kind.
///
/// It computes each row of its results from the same row of its operands and from operands that it
/// takes whole. Rows are the indices of the first dimension, `T`; what comes after is one slice.
pub trait ExternalKernel: Send + Sync {
    /// The kind of composites that it computes. Plans call it `ext.` and this.
    fn kind(&self) -> &str;

    /// How to call it for `body` with these operands and results; every dimension is a number.
    /// `None` when it cannot compute them: the ops of the body then run one by one.
    fn lower(&self, body: &Func, operands: &[Operand], results: &[Operand])
    -> Option<ExternalCall>;

    /// Computes a row of every result. `inputs` and `outputs` have the number, types and lengths of
    /// the operands and results that [`ExternalKernel::lower`] accepted; `scalars` are its own.
    /// Outputs hold anything before and must be written whole. It runs on several threads at once,
    /// must give the same row for the same inputs, should not allocate, and must not panic, which
    /// ends the process.
    fn run(&self, scalars: &[Scalar], inputs: &[Row<'_>], outputs: &mut [RowMut<'_>]);
}

/// How an external kernel is called.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExternalCall {
    /// Handed to every [`ExternalKernel::run`].
    pub scalars: Vec<Scalar>,
    /// Operands, by index, that every row gets whole, such as weights; of the others each row gets
    /// its own.
    pub whole: Vec<usize>,
}

/// External kernels, each for a kind of its own.
#[derive(Clone, Default)]
pub struct ExternalKernels(Vec<Arc<dyn ExternalKernel>>);

impl ExternalKernels {
    /// Adds `kernel`.
    ///
    /// # Errors
    /// The kind, when another kernel has it.
    pub fn add(&mut self, kernel: Arc<dyn ExternalKernel>) -> Result<(), String> {
        if self.get(kernel.kind()).is_some() {
            return Err(kernel.kind().to_owned());
        }
        self.0.push(kernel);
        Ok(())
    }

    /// The kernel for composites of `kind`.
    pub fn get(&self, kind: &str) -> Option<&Arc<dyn ExternalKernel>> {
        self.0.iter().find(|k| k.kind() == kind)
    }

    /// Every kind.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|k| k.kind())
    }
}

impl fmt::Debug for ExternalKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.kinds()).finish()
    }
}

/// Element types that rows have, in the order of their numbers in plans.
const TYPES: [DType; 4] = [DType::F32, DType::BF16, DType::I8, DType::I32];

/// The call of `kernel` for `body`, with the scalars of `KERNELS.md`.
///
/// # Errors
/// Why there is none.
pub(crate) fn lower(
    kernel: &dyn ExternalKernel,
    body: &Func,
    operands: &[Operand],
    results: &[Operand],
) -> Result<Lowered, String> {
    let call = kernel.lower(body, operands, results);
    let ExternalCall { scalars, whole } = call.ok_or("it does not take these operands")?;
    if operands.len() > MOST_ARGS || results.len() > MOST_ARGS {
        return Err(format!("a call has at most {MOST_ARGS} operands and as many results"));
    }
    if let Some(i) = whole.iter().find(|&&i| i >= operands.len()) {
        return Err(format!("operand {i}, which it takes whole, does not exist"));
    }
    let rows = results.first().filter(|r| r.ty.rank() > 0).map(|r| r.dim(0));
    let rows = rows.ok_or("its first result has no rows")?;
    let mut header = vec![rows, operands.len() as u64, results.len() as u64];
    let args =
        operands.iter().enumerate().map(|(i, o)| (format!("operand {i}"), o, whole.contains(&i)));
    let args =
        args.chain(results.iter().enumerate().map(|(i, r)| (format!("result {i}"), r, false)));
    for (what, arg, whole) in args {
        let dtype = TYPES.iter().position(|&t| t == arg.ty.dtype);
        let dtype =
            dtype.ok_or_else(|| format!("{what} is {}; rows are f32, bf16, i8 or i32", arg.ty))?;
        if arg.ty.storage == Storage::State || arg.ty.layout != Layout::Nd {
            return Err(format!("{what} is {}; rows are of nd tensors", arg.ty));
        }
        let by_row = arg.ty.rank() > 0 && arg.dim(0) == rows;
        if !whole && !by_row {
            return Err(format!("{what} is {} and has not {rows} rows; take it whole", arg.ty));
        }
        let inner: u64 = (1..arg.ty.rank()).map(|i| arg.dim(i)).product();
        let n = match (whole, arg.ty.rank()) {
            (false, _) => inner,
            (true, 0) => 1,
            (true, _) if arg.row_stride == inner => arg.dim(0) * inner,
            (true, _) => return Err(format!("{what} is taken whole and its rows lie apart")),
        };
        header.extend([dtype as u64, n, if whole { 0 } else { arg.row_stride }]);
    }
    let scalars = header.into_iter().map(Scalar::Int).chain(scalars).collect();
    let args = (0..operands.len()).map(Arg::Operand).chain((0..results.len()).map(Arg::Result));
    let call = KernelCall {
        kernel: format!("{PREFIX}{}", kernel.kind()),
        args: args.collect(),
        scalars,
        ..KernelCall::default()
    };
    Ok(Lowered { calls: vec![call], ..Lowered::default() })
}
