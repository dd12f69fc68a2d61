//! A matrix product for each head. A thread takes whole heads and multiplies each with the tiles of
//! [`Matmul`], so a row's sums are those of a product of that head alone.

use super::barrier::Barrier;
use super::bind::{Binder, Kernel, Rows, product};
use super::epilogue::{End, Out};
use super::matmul::{Matmul, Weight};
use super::simd::{Dots, Simd};
use super::worker::{Scratch, Worker};
use std::marker::PhantomData;
use tensor::layout::Panels;

/// `head_matmul_{w}_{out}`; `M` is the kernel that multiplies one head.
pub(crate) struct HeadMatmul<W, M> {
    rows: usize,
    heads: usize,
    n: usize,
    k: usize,
    /// Elements of the weight of a head.
    weight_len: usize,
    x: Rows<W>,
    weight: Rows<W>,
    out: Out,
    product: PhantomData<fn() -> M>,
}

impl<W, M> HeadMatmul<W, M>
where
    W: Weight,
    M: Kernel + From<Matmul<W>>,
{
    /// The product of a head.
    ///
    /// # Safety
    /// `head` is one of those bound.
    #[inline(always)]
    unsafe fn head(&self, head: usize) -> M {
        // SAFETY: rows of x and out hold `heads` parts, the weight as many slices.
        unsafe {
            let x = self.x.skip(head * self.k);
            let weight = self.weight.skip(head * self.weight_len);
            let out = self.out.skip(head * self.n);
            Matmul::of(self.rows, (self.n, self.k), x, weight, End::plain(self.n, out)).into()
        }
    }
}

impl<W, M> Kernel for HeadMatmul<W, M>
where
    W: Weight,
    M: Kernel + From<Matmul<W>>,
{
    const DOTS: Dots = M::DOTS;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, heads) = (b.count("T")?, b.positive("heads")?);
        let (n, k) = (b.positive("N")?, b.positive("K")?);
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        let width = Panels::WIDTH as usize;
        let padded = k.checked_next_multiple_of(W::GROUP).ok_or("`K` is too large")?;
        let weight_len = product(&[n.div_ceil(width), width, padded])?;
        let len = product(&[heads, weight_len])?;
        // What the scratch memory of a head will be.
        product(&[rows, padded + width, size_of::<f32>()])?;
        Ok(Self {
            rows,
            heads,
            n,
            k,
            weight_len,
            x: b.input("x", rows, product(&[heads, k])?, x_stride)?,
            weight: b.input("weight", 1, len, len)?,
            out: Out::bind(b, rows, product(&[heads, n])?, out_stride)?,
            product: PhantomData,
        })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        // SAFETY: there is a head; sizes do not depend on which.
        let Scratch { private, shared } = unsafe { self.head(0) }.scratch::<S>();
        Scratch { private: private.next_multiple_of(64) + shared, shared: 0 }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let alone = Barrier::new(1);
        for head in worker.share(self.heads) {
            // SAFETY: as the caller's; scratch memory holds both parts of a head's.
            unsafe {
                let product = self.head(head);
                let private = product.scratch::<S>().private.next_multiple_of(64);
                product.run::<S>(&Worker {
                    index: 0,
                    count: 1,
                    barrier: &alone,
                    private: worker.private,
                    shared: worker.private.add(private),
                    upcoming: std::ptr::null(),
                });
            }
        }
    }
}
