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

pub(super) fn store_rows(state: &mut Tensor, x: &Tensor) -> Result<(), Failure> {
    if x.data().len() > state.data().len() {
        return Err(format!("{} rows do not fit {}", x.dims()[0], state.dims()[0]));
    }
    state.write(0, x.data());
    Ok(())
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

pub(super) fn transpose(x: &Tensor) -> Vec<f64> {
    let [.., rows, columns] = *x.dims() else { unreachable!("a transposed tensor has two axes") };
    let matrices = x.data().chunks_exact((rows * columns).max(1));
    matrices
        .flat_map(|m| (0..columns).flat_map(move |c| (0..rows).map(move |r| m[r * columns + c])))
        .collect()
}

pub(super) fn repeat_rows(x: &Tensor, times: u64, rows: u64) -> Vec<f64> {
    let repeated = x.rows().flat_map(|row| std::iter::repeat_n(row, times as usize));
    repeated.take(rows as usize).flatten().copied().collect()
}
