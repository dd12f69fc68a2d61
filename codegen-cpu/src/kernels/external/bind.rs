//! A call of an external kernel, bound to its buffers.

use super::{ExternalKernel, MOST_ARGS, Row, RowMut};
use crate::kernels::bind::{Binder, Rows, Run};
use crate::kernels::worker::{Scratch, Worker};
use artifact::Scalar;
use half::bf16;
use std::{slice, sync::Arc};

/// Rows of one of the types that kernels from outside see.
enum Typed {
    F32(Rows<f32>),
    Bf16(Rows<bf16>),
    I8(Rows<i8>),
    I32(Rows<i32>),
}

/// A buffer of the call: rows of `n` elements.
struct Buffer {
    rows: Typed,
    n: usize,
}

struct External {
    kernel: Arc<dyn ExternalKernel>,
    rows: usize,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    scalars: Vec<Scalar>,
}

/// Binds the call of `kernel` that `binder` holds.
///
/// # Errors
/// What is wrong with its buffers or scalars.
pub(crate) fn bind(
    kernel: Arc<dyn ExternalKernel>,
    binder: &mut Binder<'_>,
) -> Result<Box<dyn Run>, String> {
    let rows = binder.count("rows")?;
    let counts = [binder.count("operands")?, binder.count("results")?];
    if counts.iter().any(|&n| n > MOST_ARGS) {
        return Err(format!("{counts:?} operands and results, at most {MOST_ARGS} are possible"));
    }
    let inputs = buffers(binder, rows, counts[0], false)?;
    let outputs = buffers(binder, rows, counts[1], true)?;
    let scalars = binder.remaining_scalars();
    binder.finish(false)?;
    Ok(Box::new(External { kernel, rows, inputs, outputs, scalars }))
}

fn buffers(
    binder: &mut Binder<'_>,
    rows: usize,
    count: usize,
    written: bool,
) -> Result<Vec<Buffer>, String> {
    (0..count).map(|_| buffer(binder, rows, written)).collect()
}

fn buffer(binder: &mut Binder<'_>, rows: usize, written: bool) -> Result<Buffer, String> {
    let (dtype, n) = (binder.count("type")?, binder.count("elements")?);
    let stride = binder.count("stride")?;
    let rows = match dtype {
        0 => Typed::F32(typed(binder, [rows, n, stride], written)?),
        1 => Typed::Bf16(typed(binder, [rows, n, stride], written)?),
        2 => Typed::I8(typed(binder, [rows, n, stride], written)?),
        3 => Typed::I32(typed(binder, [rows, n, stride], written)?),
        other => return Err(format!("there is no element type {other}")),
    };
    Ok(Buffer { rows, n })
}

/// A stride of 0 says that every row is the same one.
fn typed<T>(
    binder: &mut Binder<'_>,
    [rows, n, stride]: [usize; 3],
    written: bool,
) -> Result<Rows<T>, String> {
    let bind = if written { Binder::output } else { Binder::input };
    match stride {
        0 => Ok(bind(binder, "buffer", rows.min(1), n, n)?.repeated()),
        _ => bind(binder, "buffer", rows, n, stride),
    }
}

impl Buffer {
    /// # Safety
    /// `r` is one of the rows, and no one writes to it while the slice lives.
    unsafe fn row(&self, r: usize) -> Row<'_> {
        // SAFETY: `n` elements from the start of a bound row, which lie in the buffer and are
        // initialised: every bit pattern is a value of these types.
        unsafe {
            match &self.rows {
                Typed::F32(x) => Row::F32(slice::from_raw_parts(x.row(r), self.n)),
                Typed::Bf16(x) => Row::Bf16(slice::from_raw_parts(x.row(r), self.n)),
                Typed::I8(x) => Row::I8(slice::from_raw_parts(x.row(r), self.n)),
                Typed::I32(x) => Row::I32(slice::from_raw_parts(x.row(r), self.n)),
            }
        }
    }

    /// # Safety
    /// `r` is one of the rows, and no one else uses it while the slice lives.
    unsafe fn row_mut(&self, r: usize) -> RowMut<'_> {
        // SAFETY: as in `row`.
        unsafe {
            match &self.rows {
                Typed::F32(x) => RowMut::F32(slice::from_raw_parts_mut(x.row(r), self.n)),
                Typed::Bf16(x) => RowMut::Bf16(slice::from_raw_parts_mut(x.row(r), self.n)),
                Typed::I8(x) => RowMut::I8(slice::from_raw_parts_mut(x.row(r), self.n)),
                Typed::I32(x) => RowMut::I32(slice::from_raw_parts_mut(x.row(r), self.n)),
            }
        }
    }
}

impl Run for External {
    fn scratch(&self) -> Scratch {
        Scratch::default()
    }

    unsafe fn run(&self, worker: &Worker<'_>) {
        for r in worker.share(self.rows) {
            let mut inputs = [Row::F32(&[]); MOST_ARGS];
            let mut outputs: [RowMut<'_>; MOST_ARGS] =
                std::array::from_fn(|_| RowMut::F32(&mut []));
            // SAFETY: no output overlaps another buffer, which was checked when the call was bound,
            // and this thread alone has the rows of its share.
            unsafe {
                for (to, from) in inputs.iter_mut().zip(&self.inputs) {
                    *to = from.row(r);
                }
                for (to, from) in outputs.iter_mut().zip(&self.outputs) {
                    *to = from.row_mut(r);
                }
            }
            let (inputs, outputs) =
                (&inputs[..self.inputs.len()], &mut outputs[..self.outputs.len()]);
            self.kernel.run(&self.scalars, inputs, outputs);
        }
    }
}
