//! Codes in E4M3.

use super::{codes::store_fp8, magnitude};
use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::worker::Worker;

/// The largest number of the format.
const LARGEST: f32 = 448.0;
/// The smallest magnitude that decides a scale.
const LEAST: f32 = 1e-4;

/// `quantize_fp8_{in}`: groups of `group` elements, the last of a run may be shorter, each by its
/// own scale.
pub(crate) struct QuantizeFp8<T> {
    rows: usize,
    runs: usize,
    n: usize,
    made: Fp8Scales,
    x: Rows<T>,
    codes: Rows<u8>,
    scales: Rows<f32>,
}

/// The smallest power of two that is not below the positive number `x`.
#[inline(always)]
fn power_of_two_above(x: f32) -> f32 {
    const MANTISSA: u32 = (1 << 23) - 1;
    f32::from_bits((x.to_bits() + MANTISSA) & !MANTISSA)
}

/// Which elements share a scale, and what scales are.
#[derive(Clone, Copy)]
pub(crate) struct Fp8Scales {
    /// Elements of a run that share one.
    pub(crate) group: usize,
    power_of_two: bool,
}

impl Fp8Scales {
    /// Takes the scalars.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (group, power_of_two) = (b.positive("group")?, b.count("power of two")?);
        if power_of_two > 1 {
            return Err(format!("`power of two` is {power_of_two}, expected 0 or 1"));
        }
        Ok(Self { group, power_of_two: power_of_two == 1 })
    }

    /// The scale of a group of `n` elements.
    ///
    /// # Safety
    /// As [`Simd`]; `x` is valid for `n` elements.
    #[inline(always)]
    pub(crate) unsafe fn of<S: Simd, T: Element>(self, x: *const T, n: usize) -> f32 {
        // SAFETY: as the caller's.
        let magnitude = unsafe { magnitude::<S, T>(x, n) };
        // A group with numbers that are not finite has the scale NaN.
        let bounded = if magnitude < LEAST { LEAST } else { magnitude };
        let scale = bounded / LARGEST;
        if self.power_of_two && scale.is_finite() { power_of_two_above(scale) } else { scale }
    }
}

impl<T: Element> Kernel for QuantizeFp8<T> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, runs, n) = (b.count("rows")?, b.positive("runs")?, b.positive("n")?);
        let (made, x_stride) = (Fp8Scales::bind(b)?, b.count("x stride")?);
        let (width, groups) = (product(&[runs, n])?, product(&[runs, n.div_ceil(made.group)])?);
        Ok(Self {
            rows,
            runs,
            n,
            made,
            x: b.input("x", rows, width, x_stride)?,
            codes: b.output("codes", rows, width, width)?,
            scales: b.output("scales", rows, groups, groups)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let group = self.made.group;
        let groups = self.n.div_ceil(group);
        let per_row = self.runs * groups;
        for item in worker.share(self.rows * per_row) {
            let (row, place) = (item / per_row, item % per_row);
            let start = place % groups * group;
            let (at, n) = (place / groups * self.n + start, group.min(self.n - start));
            // SAFETY: row and group are inside what was bound.
            unsafe {
                let (x, codes) = (self.x.row(row).add(at), self.codes.row(row).add(at));
                let scale = self.made.of::<S, T>(x, n);
                *self.scales.row(row).add(place) = scale;
                let divisor = S::splat(scale);
                for i in (0..n).step_by(LANES) {
                    let v = S::div(T::load_part::<S>(x.add(i), n - i), divisor);
                    store_fp8::<S>(codes.add(i), v, n - i);
                }
            }
        }
    }
}
