//! Ops that move elements.

use super::{Failure, Tensor};
use crate::op::Op;

/// `embed ids, table` and `gather_rows x, rows`: rows of a matrix by index.
pub(super) fn rows_of(op: &Op, args: &[&Tensor]) -> Result<Vec<f64>, Failure> {
    let (indices, table) = match op {
        Op::Embed { .. } => (args[0], args[1]),
        _ => (args[1], args[0]),
    };
    let columns = table.columns();
    let rows = indices.indices(table.dims()[0], "row")?;
    Ok(rows
        .into_iter()
        .flat_map(|r| &table.data()[r * columns..(r + 1) * columns])
        .copied()
        .collect())
}

pub(super) fn store_rows(state: &Tensor, x: &Tensor) -> Result<Vec<f64>, Failure> {
    let mut data = state.data().to_vec();
    let written = x.data().len();
    if written > data.len() {
        return Err(format!("{} rows do not fit {}", x.dims()[0], state.dims()[0]));
    }
    data[..written].copy_from_slice(x.data());
    Ok(data)
}

/// Elements per index of `axis`, and how many indices there are of the axes before it.
fn around(dims: &[usize], axis: usize) -> (usize, usize) {
    (dims[axis + 1..].iter().product(), dims[..axis].iter().product())
}

pub(super) fn slice(x: &Tensor, axis: usize, start: u64, dims: &[usize]) -> Vec<f64> {
    let (inner, outer) = around(dims, axis);
    let (stride, from, len) = (x.dims()[axis] * inner, start as usize * inner, dims[axis] * inner);
    (0..outer)
        .flat_map(|o| &x.data()[o * stride + from..o * stride + from + len])
        .copied()
        .collect()
}

pub(super) fn concat(parts: &[&Tensor], axis: usize) -> Vec<f64> {
    let outer = around(parts[0].dims(), axis).1;
    let run = |p: &Tensor| p.dims()[axis..].iter().product::<usize>();
    (0..outer)
        .flat_map(|o| parts.iter().flat_map(move |p| &p.data()[o * run(p)..(o + 1) * run(p)]))
        .copied()
        .collect()
}

pub(super) fn interleave(a: &Tensor, b: &Tensor, block: usize) -> Vec<f64> {
    let run = (block * a.columns()).max(1);
    let pairs = a.data().chunks_exact(run).zip(b.data().chunks_exact(run));
    pairs.flat_map(|(a, b)| a.iter().chain(b)).copied().collect()
}
