//! Where the results of a product go.

use crate::kernels::bind::{Binder, Rows};
use crate::kernels::element::Element;
use crate::kernels::simd::{LANES, LINE_BYTES, Simd};
use half::bf16;

/// Where results go.
#[derive(Clone, Copy)]
pub(crate) enum Out {
    F32(Rows<f32>),
    Bf16(Rows<bf16>),
}

impl Out {
    /// Takes the next buffer; the last word of the kernel's name is its type.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn bind(
        b: &mut Binder<'_>,
        rows: usize,
        n: usize,
        stride: usize,
    ) -> Result<Self, String> {
        if b.name().ends_with("_bf16") {
            Ok(Self::Bf16(b.output("out", rows, n, stride)?))
        } else {
            Ok(Self::F32(b.output("out", rows, n, stride)?))
        }
    }

    pub(super) fn element_bytes(&self) -> usize {
        match self {
            Self::F32(_) => size_of::<f32>(),
            Self::Bf16(_) => size_of::<bf16>(),
        }
    }

    /// Whether every row begins with a cache line.
    pub(super) fn in_lines(&self) -> bool {
        let stride = match self {
            Self::F32(rows) => rows.stride(),
            Self::Bf16(rows) => rows.stride(),
        };
        // SAFETY: the first row's address.
        let first = unsafe { self.row(0) };
        first.addr().is_multiple_of(LINE_BYTES)
            && (stride * self.element_bytes()).is_multiple_of(LINE_BYTES)
    }

    /// Where a row begins.
    ///
    /// # Safety
    /// It exists.
    #[inline(always)]
    pub(super) unsafe fn row(&self, row: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(rows) => rows.row(row).cast_const().cast(),
                Self::Bf16(rows) => rows.row(row).cast_const().cast(),
            }
        }
    }

    /// As [`Rows::skip`].
    ///
    /// # Safety
    /// As [`Rows::skip`].
    #[inline(always)]
    pub(crate) unsafe fn skip(self, n: usize) -> Self {
        // SAFETY: as the caller's.
        unsafe {
            match self {
                Self::F32(rows) => Self::F32(rows.skip(n)),
                Self::Bf16(rows) => Self::Bf16(rows.skip(n)),
            }
        }
    }

    /// Stores `width` values from column `first` of `row` on; past the caches if `streams`, which
    /// whole lines of [`Out::in_lines`] may.
    ///
    /// # Safety
    /// As [`Simd`]; row and columns were bound.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd, const N: usize>(
        &self,
        row: usize,
        first: usize,
        width: usize,
        values: [S::V; N],
        streams: bool,
    ) {
        // SAFETY: as the caller's.
        unsafe {
            match self {
                Self::F32(out) if streams && width.is_multiple_of(LANES) => {
                    let out = out.row(row).add(first);
                    for (v, value) in values.into_iter().enumerate() {
                        if v * LANES < width {
                            S::stream(out.add(v * LANES), value);
                        }
                    }
                }
                Self::F32(out) => parts::<S, f32, N>(out.row(row).add(first), width, values),
                Self::Bf16(out) => {
                    store_bf16::<S, N>(out.row(row).add(first), width, values, streams)
                }
            }
        }
    }
}

/// Stores `width` values as bf16, as [`Out::store`] does.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn store_bf16<S: Simd, const N: usize>(
    out: *mut bf16,
    width: usize,
    values: [S::V; N],
    streams: bool,
) {
    // SAFETY: as the caller's.
    unsafe {
        if streams && width.is_multiple_of(2 * LANES) {
            let mut line = [bf16::ZERO; 2 * LANES];
            for (i, pair) in (0..width).step_by(2 * LANES).zip(values.as_chunks::<2>().0) {
                S::store_bf16(line.as_mut_ptr(), pair[0]);
                S::store_bf16(line.as_mut_ptr().add(LANES), pair[1]);
                S::stream(out.add(i).cast(), S::load(line.as_ptr().cast()));
            }
        } else {
            parts::<S, bf16, N>(out, width, values);
        }
    }
}

#[inline(always)]
unsafe fn parts<S: Simd, O: Element, const N: usize>(out: *mut O, width: usize, values: [S::V; N]) {
    for (v, value) in values.into_iter().enumerate() {
        if v * LANES < width {
            // SAFETY: as the caller's.
            unsafe { O::store_part::<S>(out.add(v * LANES), value, width - v * LANES) }
        }
    }
}
