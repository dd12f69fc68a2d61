//! Rotary position embedding: the table of a step's angles, and the rotation.

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::simd::{LANES, Simd};
use super::worker::Worker;

/// `rope_table`: for each row the cosines, then the sines, of position times inverse frequency,
/// all times a factor. A negative position counts as 0.
pub(crate) struct RopeTable {
    rows: usize,
    factor: f32,
    frequencies: Vec<f32>,
    positions: Rows<i32>,
    out: Rows<f32>,
}

impl Kernel for RopeTable {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, half) = (b.count("T")?, b.count("r/2")?);
        let factor = b.factor("factor")?;
        let frequencies = b.remaining_factors("inverse frequency", half)?;
        Ok(Self {
            rows,
            factor,
            frequencies,
            positions: b.column("positions", rows)?,
            out: b.output("out", rows, 2 * half, 2 * half)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let half = self.frequencies.len();
        for r in worker.share(self.rows) {
            // SAFETY: the row is inside what was bound.
            unsafe {
                let position = f64::from((*self.positions.row(0).add(r)).max(0));
                let out = self.out.row(r);
                for (i, &frequency) in self.frequencies.iter().enumerate() {
                    let (sin, cos) = sin_cos(position * f64::from(frequency));
                    *out.add(i) = cos as f32 * self.factor;
                    *out.add(half + i) = sin as f32 * self.factor;
                }
            }
        }
    }
}

/// Sine and cosine of `x`, `|x| <= 2^31`, to about 1e-11; the same on every machine.
#[inline(always)]
fn sin_cos(x: f64) -> (f64, f64) {
    use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};
    /// `FRAC_PI_2` with its low 33 bits cleared, so that small multiples are exact, and the rest.
    const HIGH: f64 = f64::from_bits(FRAC_PI_2.to_bits() & !0x1_ffff_ffff);
    const LOW: f64 = FRAC_PI_2 - HIGH;
    /// What `FRAC_PI_2` itself lacks.
    const LOWEST: f64 = 6.123_233_995_736_766e-17;
    /// Adding and subtracting it rounds to an integer.
    const ROUND: f64 = 6_755_399_441_055_744.0;

    let quarters = (x * FRAC_2_PI + ROUND) - ROUND;
    let r = ((x - quarters * HIGH) - quarters * LOW) - quarters * LOWEST;
    let s = r * r;
    let mut sin = -2.505_210_838_544_172e-8;
    for c in [2.755_731_922_398_589e-6, -1.984_126_984_126_984e-4, 8.333_333_333_333_333e-3] {
        sin = sin * s + c;
    }
    let sin = r + r * s * (sin * s - 1.0 / 6.0);
    let mut cos = 2.087_675_698_786_81e-9;
    for c in [-2.755_731_922_398_589e-7, 2.480_158_730_158_73e-5, -1.388_888_888_888_889e-3] {
        cos = cos * s + c;
    }
    let cos = 1.0 - s / 2.0 + s * s * (cos * s + 1.0 / 24.0);
    match quarters as i64 & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// `rotary_f32`: rotates the first `r` of the `d` elements of each head, the rest is copied. Pairs
/// are `(2i, 2i + 1)` when interleaved, else `(i, i + r/2)`. The output may be the input's buffer.
pub(crate) struct Rotary {
    rows: usize,
    heads: usize,
    d: usize,
    r: usize,
    interleaved: bool,
    x: Rows<f32>,
    table: Rows<f32>,
    out: Rows<f32>,
}

impl Kernel for Rotary {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, heads) = (b.count("T")?, b.positive("heads")?);
        let (d, r) = (b.positive("d")?, b.count("r")?);
        let interleaved = b.count("interleaved")?;
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        if r > d || r % 2 != 0 {
            return Err(format!("`r` is {r}, expected an even number up to {d}"));
        }
        if interleaved > 1 {
            return Err(format!("`interleaved` is {interleaved}, expected 0 or 1"));
        }
        let width = product(&[heads, d])?;
        Ok(Self {
            rows,
            heads,
            d,
            r,
            interleaved: interleaved == 1,
            x: b.input("x", rows, width, x_stride)?,
            table: b.input("table", rows, r, r)?,
            out: b.output("out", rows, width, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for item in worker.share(self.rows * self.heads) {
            let (row, head) = (item / self.heads, item % self.heads);
            // SAFETY: row and head are inside what was bound.
            unsafe {
                let x = self.x.row(row).add(head * self.d);
                let out = self.out.row(row).add(head * self.d);
                let table = self.table.row(row);
                if self.interleaved {
                    pairs(x, table, out, self.r / 2);
                } else {
                    halves::<S>(x, table, out, self.r / 2);
                }
                if self.r < self.d {
                    x.add(self.r).copy_to(out.add(self.r), self.d - self.r);
                }
            }
        }
    }
}

/// # Safety
/// All pointers are valid for `2 * half` elements.
#[inline(always)]
unsafe fn pairs(x: *const f32, table: *const f32, out: *mut f32, half: usize) {
    for i in 0..half {
        // SAFETY: every access is below `2 * half`.
        unsafe {
            let (cos, sin) = (*table.add(i), *table.add(half + i));
            let (a, b) = (*x.add(2 * i), *x.add(2 * i + 1));
            *out.add(2 * i) = a * cos - b * sin;
            *out.add(2 * i + 1) = b * cos + a * sin;
        }
    }
}

/// # Safety
/// As [`Simd`]; all pointers are valid for `2 * half` elements.
#[inline(always)]
unsafe fn halves<S: Simd>(x: *const f32, table: *const f32, out: *mut f32, half: usize) {
    for i in (0..half).step_by(LANES) {
        let left = half - i;
        // SAFETY: every access is below `2 * half`.
        unsafe {
            let cos = f32::load_part::<S>(table.add(i), left);
            let sin = f32::load_part::<S>(table.add(half + i), left);
            let a = f32::load_part::<S>(x.add(i), left);
            let b = f32::load_part::<S>(x.add(half + i), left);
            let first = S::sub(S::mul(a, cos), S::mul(b, sin));
            let second = S::add(S::mul(b, cos), S::mul(a, sin));
            f32::store_part::<S>(out.add(i), first, left);
            f32::store_part::<S>(out.add(half + i), second, left);
        }
    }
}
