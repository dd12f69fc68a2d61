//! Joining and cutting along an inner axis, where a view cannot.

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::simd::Simd;
use super::worker::Worker;

/// One part of [`Concat`].
struct Part<T> {
    /// Elements in each group.
    n: usize,
    rows: Rows<T>,
}

/// `concat_{t}`: rows of `groups` runs of elements; each run of the output is those of all parts.
pub(crate) struct Concat<T> {
    rows: usize,
    groups: usize,
    /// Elements of a run of the output.
    width: usize,
    parts: Vec<Part<T>>,
    out: Rows<T>,
}

impl<T: Element> Kernel for Concat<T> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, groups) = (b.count("rows")?, b.count("groups")?);
        let (out_stride, count) = (b.count("out stride")?, b.positive("parts")?);
        let (mut parts, mut width) = (Vec::new(), 0usize);
        for _ in 0..count {
            let (n, stride) = (b.count("n")?, b.count("part stride")?);
            let rows = b.input("part", rows, product(&[groups, n])?, stride)?;
            width = width.checked_add(n).ok_or("the parts together are too large")?;
            parts.push(Part { n, rows });
        }
        let out = b.output("out", rows, product(&[groups, width])?, out_stride)?;
        Ok(Self { rows, groups, width, parts, out })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for item in worker.share(self.rows * self.groups) {
            let (row, group) = (item / self.groups, item % self.groups);
            // SAFETY: row and group are inside what was bound; the parts fill the run.
            unsafe {
                let mut out = self.out.row(row).add(group * self.width);
                for part in &self.parts {
                    let x = part.rows.row(row).add(group * part.n);
                    x.copy_to_nonoverlapping(out, part.n);
                    out = out.add(part.n);
                }
            }
        }
    }
}

/// `slice_{t}`: elements `start .. start + n` of each of the `groups` runs of a row.
pub(crate) struct Slice<T> {
    rows: usize,
    groups: usize,
    /// Elements of a run of the input.
    width: usize,
    start: usize,
    n: usize,
    x: Rows<T>,
    out: Rows<T>,
}

impl<T: Element> Kernel for Slice<T> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, groups, width) = (b.count("rows")?, b.count("groups")?, b.count("width")?);
        let (start, n) = (b.count("start")?, b.count("n")?);
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        if start.checked_add(n).is_none_or(|end| end > width) {
            return Err(format!("{n} elements from {start} are not inside runs of {width}"));
        }
        Ok(Self {
            rows,
            groups,
            width,
            start,
            n,
            x: b.input("x", rows, product(&[groups, width])?, x_stride)?,
            out: b.output("out", rows, product(&[groups, n])?, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for item in worker.share(self.rows * self.groups) {
            let (row, group) = (item / self.groups, item % self.groups);
            // SAFETY: row and group are inside what was bound, and so is the slice of a run.
            unsafe {
                let x = self.x.row(row).add(group * self.width + self.start);
                x.copy_to_nonoverlapping(self.out.row(row).add(group * self.n), self.n);
            }
        }
    }
}
