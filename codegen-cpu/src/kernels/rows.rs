//! Kernels that move whole rows: embedding look-up, gather, store, copy.

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::matmul::CompactWeight;
use super::simd::{LANES, Simd};
use super::worker::Worker;
use half::bf16;
use std::marker::PhantomData;
use tensor::{DType, Layout, layout::Panels};

/// `copy_{t}`.
pub(crate) struct Copy<T> {
    rows: usize,
    n: usize,
    x: Rows<T>,
    out: Rows<T>,
}

impl<T: Element> Kernel for Copy<T> {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n) = (b.count("rows")?, b.count("n")?);
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        Ok(Self {
            rows,
            n,
            x: b.input("x", rows, n, x_stride)?,
            out: b.output("out", rows, n, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let (rows, columns) = worker.share_matrix(self.rows, self.n);
        for r in rows {
            // SAFETY: rows and columns are inside what was bound; `copy` allows equal buffers.
            unsafe {
                let (x, out) = (self.x.row(r), self.out.row(r));
                x.add(columns.start).copy_to(out.add(columns.start), columns.len());
            }
        }
    }
}

/// `store_rows_{t}`: rows into the first rows of a state.
pub(crate) struct StoreRows<T>(Copy<T>);

impl<T: Element> Kernel for StoreRows<T> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n, x_stride) = (b.count("T")?, b.count("H")?, b.count("x stride")?);
        Ok(Self(Copy {
            rows,
            n,
            x: b.input("x", rows, n, x_stride)?,
            out: b.output("state", rows, n, n)?,
        }))
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's.
        unsafe { self.0.run::<S>(worker) }
    }
}

/// `gather_rows_{t}`: an index outside `0..R` gives a row of zeros.
pub(crate) struct GatherRows<T> {
    count: usize,
    limit: usize,
    n: usize,
    x: Rows<T>,
    indices: Rows<i32>,
    out: Rows<T>,
}

impl<T: Element> Kernel for GatherRows<T> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (count, limit, n) = (b.count("M")?, b.count("R")?, b.count("H")?);
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        Ok(Self {
            count,
            limit,
            n,
            x: b.table("x", limit, n, x_stride)?,
            indices: b.column("rows", count)?,
            out: b.output("out", count, n, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for r in worker.share(self.count) {
            // SAFETY: the index is checked against the bound rows before it is used.
            unsafe {
                let out = self.out.row(r);
                match index(*self.indices.row(0).add(r), self.limit) {
                    Some(i) => self.x.row(i).copy_to(out, self.n),
                    None => out.write_bytes(0, self.n),
                }
            }
        }
    }
}

/// `i` as an index below `limit`.
#[inline(always)]
fn index(i: i32, limit: usize) -> Option<usize> {
    usize::try_from(i).ok().filter(|&i| i < limit)
}

/// How a table of embeddings lies in memory.
pub(crate) trait Table: Send + Sync + 'static {
    /// Its layout.
    const LAYOUT: Layout;
}

/// Rows after rows.
pub(crate) struct Nd;
/// [`Panels`].
pub(crate) struct Paneled;
/// [`tensor::Compact`].
pub(crate) struct Compacted;

impl Table for Nd {
    const LAYOUT: Layout = Layout::Nd;
}
impl Table for Paneled {
    const LAYOUT: Layout = Layout::Panels;
}
impl Table for Compacted {
    const LAYOUT: Layout = Layout::Compact;
}

/// `embed_{nd,panels,compact}_{w}_{out}`: an id outside `0..V` gives a row of zeros.
pub(crate) struct Embed<L, W, O> {
    rows: usize,
    vocab: usize,
    n: usize,
    ids: Rows<i32>,
    table: Rows<W>,
    out: Rows<O>,
    layout: PhantomData<L>,
}

impl<L: Table, W: Element, O: Element> Embed<L, W, O> {
    const GROUP: usize = 4 / size_of::<W>();

    /// Elements of a panel.
    #[inline(always)]
    fn panel_len(&self) -> usize {
        self.n.next_multiple_of(Self::GROUP) * Panels::WIDTH as usize
    }
}

impl<L: Table, W: Element, O: Element> Kernel for Embed<L, W, O> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, vocab, n) = (b.count("T")?, b.count("V")?, b.positive("H")?);
        let out_stride = b.count("out stride")?;
        product(&[vocab.next_multiple_of(64), n.next_multiple_of(2), size_of::<W>()])?;
        let ids = b.column("ids", rows)?;
        let table = if L::LAYOUT == Layout::Nd {
            b.table("table", vocab, n, n)?
        } else {
            let bytes = match L::LAYOUT {
                Layout::Compact => tensor::Compact::new(vocab as u64, n as u64).least_bytes(),
                layout => {
                    let dtype = if size_of::<W>() == 2 { DType::BF16 } else { DType::F32 };
                    layout.bytes(vocab as u64, n as u64, dtype)
                }
            };
            b.whole("table", bytes as usize / size_of::<W>())?
        };
        let out = b.output("out", rows, n, out_stride)?;
        Ok(Self { rows, vocab, n, ids, table, out, layout: PhantomData })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for r in worker.share(self.rows) {
            // SAFETY: the id is checked against the bound rows before it is used.
            unsafe {
                let out = self.out.row(r);
                let Some(id) = index(*self.ids.row(0).add(r), self.vocab) else {
                    out.write_bytes(0, self.n);
                    continue;
                };
                if L::LAYOUT == Layout::Nd {
                    let row = self.table.row(id);
                    for i in (0..self.n).step_by(LANES) {
                        let v = W::load_part::<S>(row.add(i), self.n - i);
                        O::store_part::<S>(out.add(i), v, self.n - i);
                    }
                    continue;
                }
                let width = Panels::WIDTH as usize;
                if L::LAYOUT == Layout::Compact {
                    let panels = self.vocab.div_ceil(width);
                    let table = CompactWeight::bound(&self.table, panels, self.n);
                    let panel = table.panel(id / width);
                    for i in (0..self.n).step_by(LANES) {
                        let part = table.part(&panel, id % width, i);
                        O::store_part::<S>(out.add(i), bf16::load::<S>(part.as_ptr()), self.n - i);
                    }
                    continue;
                }
                let panel = self.table.row(0).add(id / width * self.panel_len());
                let row = panel.add(id % width * Self::GROUP);
                for i in (0..self.n).step_by(LANES) {
                    let left = (self.n - i).min(LANES);
                    let mut lanes = [W::ZERO; LANES];
                    for (j, lane) in lanes.iter_mut().enumerate().take(left) {
                        let c = i + j;
                        *lane = *row.add(c / Self::GROUP * width * Self::GROUP + c % Self::GROUP);
                    }
                    O::store_part::<S>(out.add(i), W::load::<S>(lanes.as_ptr()), left);
                }
            }
        }
    }
}
