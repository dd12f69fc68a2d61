//! The end of a matrix product: what is done to its sums on the way to where they go.
//!
//! One for all products. What it does is data, asked for each row and panel: compiling every
//! product for every end would cost more than asking. The steps are those of the kernels that do
//! the same apart, rounded alike, so that results have the same bits.

mod largest;
mod out;

pub(crate) use out::Out;

use super::bind::{Binder, Rows};
use super::element::Element;
use super::elementwise::{Binary, SiluMul, SwigluClamped};
use super::experts::expert;
use super::matmul::WIDTH;
use super::simd::{Dots, LANES, LINE_BYTES, Simd, Vectorised};
use super::worker::Worker;
use largest::Largest;

/// Gates of a panel, which come before as many ups.
const HALF: usize = WIDTH / 2;
/// Results of so many bytes go past the caches: nothing of them is left there when they are read, and
/// they would displace the inputs. Not on processors with AMX: their second-level cache is larger, and what went past the caches
/// took longer to write and to read again (a prompt of 512 of Qwen3-0.6B 315 ms instead of 363).
const STREAMED_BYTES: usize = 4 << 20;

/// Sizes of a product.
pub(crate) struct Sizes {
    /// Rows of the result.
    pub(crate) rows: usize,
    /// Outputs of the weight, before pairs of them become one.
    pub(crate) n: usize,
    /// Weights.
    pub(crate) experts: usize,
    /// Elements between rows of the result.
    pub(crate) out_stride: usize,
    /// Whether sums are integers, with a bias and a scale for each output after the weight.
    pub(crate) integers: bool,
}

/// The end of a product, as the scalars of a `linear_*` describe it; of others it is [`Plan::NONE`].
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    bias: usize,
    gate: usize,
    alpha: f32,
    limit: f32,
    residual: Option<usize>,
    argmax: bool,
    top_k: usize,
}

impl Plan {
    const NONE: Self =
        Self { bias: 0, gate: 0, alpha: 0.0, limit: 0.0, residual: None, argmax: false, top_k: 0 };

    /// Takes the scalars after the strides.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        if !b.is_linear() {
            return Ok(Self::NONE);
        }
        let mut kind = |what: &str, most: usize| match b.count(what)? {
            n if n <= most => Ok(n),
            n => Err(format!("`{what}` is {n}, expected 0 to {most}")),
        };
        let (bias, gate) = (kind("bias", 2)?, kind("gate", 2)?);
        let (residual, argmax) = (kind("residual", 1)?, kind("argmax", 1)? == 1);
        let top_k = b.count("top_k")?;
        let stride = b.count("residual stride")?;
        let (alpha, limit) = (b.factor("alpha")?, b.factor("limit")?);
        let grouped = b.name().starts_with("grouped_");
        let largest = argmax || top_k > 0;
        if bias == 2 && !grouped || largest && (grouped || gate > 0 || b.name().ends_with("_bf16"))
        {
            return Err("the end does not fit the product".to_owned());
        }
        let residual = (residual == 1).then_some(stride);
        Ok(Self { bias, gate, alpha, limit, residual, argmax, top_k })
    }

    /// Takes the buffers after the weight and its scales.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn end(self, b: &mut Binder<'_>, sizes: &Sizes) -> Result<End, String> {
        let Sizes { rows, n, experts, out_stride, integers } = *sizes;
        let integers = match integers {
            true => Some((b.input("bias", 1, n, n)?, b.input("scale", 1, n, n)?)),
            false => None,
        };
        let bias = match self.bias {
            0 => Bias::None,
            1 => Bias::Row(b.input("bias", 1, n, n)?),
            _ => Bias::Experts {
                ids: b.input("ids", 1, rows, rows)?,
                bias: b.input("bias", experts, n, n)?,
                experts,
            },
        };
        let gate = match self.gate {
            0 => Gate::None,
            1 => Gate::Silu,
            _ => Gate::Clamped(SwigluClamped::new(self.alpha, self.limit)),
        };
        if self.gate > 0 && !n.is_multiple_of(WIDTH) {
            return Err(format!("`N` is {n}, expected a multiple of {WIDTH}"));
        }
        let width = if self.gate > 0 { n / 2 } else { n };
        let residual = match self.residual {
            Some(stride) => Some(b.input("residual", rows, width, stride)?),
            None => None,
        };
        let out = Out::bind(b, rows, width, out_stride)?;
        let is_asked = self.argmax || self.top_k > 0;
        let largest = if is_asked { Some(Largest::bind(b, self, out, (rows, n))?) } else { None };
        let large = rows * width * out.element_bytes() >= STREAMED_BYTES;
        let streams = large && out.in_lines() && !b.has_tiles();
        Ok(End { n, integers, bias, gate, residual, out, streams, largest })
    }
}

enum Bias {
    None,
    /// One for all rows.
    Row(Rows<f32>),
    /// One for each expert; row `r` of the result is of expert `ids[r]`.
    Experts {
        ids: Rows<i32>,
        bias: Rows<f32>,
        experts: usize,
    },
}

impl Bias {
    /// The bias of a row of the result.
    ///
    /// # Safety
    /// The row exists, buffers are alive.
    #[inline(always)]
    unsafe fn of(&self, row: usize) -> Option<*const f32> {
        // SAFETY: as the caller's; experts are bounded.
        unsafe {
            match self {
                Self::None => None,
                Self::Row(bias) => Some(bias.row(0)),
                Self::Experts { ids, bias, experts } => {
                    Some(bias.row(expert(*ids.row(0).add(row), *experts)))
                }
            }
        }
    }
}

/// What becomes of pairs of outputs.
enum Gate {
    None,
    Silu,
    Clamped(SwigluClamped),
}

/// Rows of the result that sums belong to, in their order.
#[derive(Clone, Copy)]
pub(crate) enum ResultRows<'a> {
    /// So many from a row on.
    From(usize, usize),
    List(&'a [u32]),
}

impl<'a> ResultRows<'a> {
    /// Some of them.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn part(&self, part: std::ops::Range<usize>) -> ResultRows<'a> {
        match *self {
            Self::From(first, _) => Self::From(first + part.start, part.len()),
            Self::List(rows) => Self::List(&rows[part]),
        }
    }

    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::From(_, count) => *count,
            Self::List(rows) => rows.len(),
        }
    }

    #[inline(always)]
    fn at(&self, i: usize) -> usize {
        match self {
            Self::From(first, _) => first + i,
            Self::List(rows) => rows[i] as usize,
        }
    }
}

/// A row's values of a panel.
type Panel<S> = [<S as Simd>::V; WIDTH / LANES];

/// The sums of a panel, `[rows][64]`.
#[derive(Clone, Copy)]
pub(crate) struct PanelSums<'a> {
    pub(crate) panel: usize,
    pub(crate) sums: *mut f32,
    pub(crate) rows: ResultRows<'a>,
    /// Factors by row of the inputs, and the row of each of `rows`.
    pub(crate) factors: Option<(*const f32, &'a [u32])>,
}

/// The end of a product.
pub(crate) struct End {
    /// Outputs of the weight.
    n: usize,
    /// Bias and scale of sums that are integers.
    integers: Option<(Rows<i32>, Rows<f32>)>,
    bias: Bias,
    gate: Gate,
    residual: Option<Rows<f32>>,
    out: Out,
    /// Whether results go past the caches.
    streams: bool,
    largest: Option<Largest>,
}

impl End {
    /// Stores `n` sums of each row as they are.
    pub(crate) fn plain(n: usize, out: Out) -> Self {
        Self {
            n,
            integers: None,
            bias: Bias::None,
            gate: Gate::None,
            residual: None,
            out,
            streams: false,
            largest: None,
        }
    }

    /// Takes the sums of a panel.
    ///
    /// # Safety
    /// As [`Simd`]; rows and panel are among those bound, `sums` is valid for 64 of each row.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd>(&self, sums: PanelSums<'_>) {
        // SAFETY: as the caller's.
        unsafe { S::enter(Finish(self, sums)) }
    }

    /// Whether results are gates in bf16 and no more than that, of sums that are floats.
    pub(crate) fn only_gates(&self) -> bool {
        matches!((&self.gate, &self.bias, self.out), (Gate::Silu, Bias::None, Out::Bf16(_)))
            && self.integers.is_none()
            && self.residual.is_none()
    }

    /// Takes row `i` of the sums of a panel where [`End::only_gates`].
    ///
    /// # Safety
    /// As [`End::store`].
    #[inline(always)]
    pub(crate) unsafe fn gate<S: Simd>(&self, of: PanelSums<'_>, i: usize) {
        let PanelSums { panel, sums, rows, factors } = of;
        // SAFETY: as the caller's.
        unsafe {
            let mut values = load_panel::<S>(sums.add(i * WIDTH));
            if let Some((factors, sources)) = factors {
                let factor = S::splat(*factors.add(sources[i] as usize));
                for value in &mut values {
                    *value = S::mul(*value, factor);
                }
            }
            if let Out::Bf16(out) = self.out {
                let out = out.row(rows.at(i)).add(panel * HALF);
                out::store_bf16::<S, _>(out, HALF, gated::<S, _>(&SiluMul, values), self.streams);
            }
        }
    }

    /// Asks for the lines that the results of a panel go to: other threads have read them, and much else came since.
    ///
    /// # Safety
    /// As [`End::store`].
    #[inline(always)]
    pub(crate) unsafe fn ask<S: Simd>(&self, panel: usize, rows: ResultRows<'_>) {
        if self.streams {
            return;
        }
        let width = if matches!(self.gate, Gate::None) { WIDTH } else { HALF };
        let bytes = width * self.out.element_bytes();
        for i in 0..rows.count() {
            // SAFETY: the row exists; a prefetch may name any address.
            unsafe {
                let line = self.out.row(rows.at(i)).wrapping_add(panel * bytes);
                for at in (0..bytes).step_by(LINE_BYTES) {
                    S::prefetch_to_write(line.wrapping_add(at));
                }
            }
        }
    }

    /// Called by every thread after its last panel.
    ///
    /// # Safety
    /// Every thread calls it once; buffers are alive.
    #[inline(always)]
    pub(crate) unsafe fn finish<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's.
        unsafe {
            if self.streams {
                S::fence();
            }
            if let Some(largest) = &self.largest {
                largest.finish::<S>(worker)
            }
        }
    }
}

/// The sums of a panel at an end. A function of its own for each instruction set, whatever the
/// product.
struct Finish<'a>(&'a End, PanelSums<'a>);

impl Vectorised for Finish<'_> {
    type Output = ();
    const DOTS: Dots = Dots::NONE;

    /// As for [`End::store`].
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self(end, sums) = self;
        // SAFETY: as the caller's.
        unsafe {
            if end.integers.is_none() && end.n >= (sums.panel + 1) * WIDTH {
                end.rows::<S, true>(sums)
            } else {
                end.rows::<S, false>(sums)
            }
        }
    }
}

impl End {
    /// Finishes the rows of a panel, which is `WHOLE` when it has 64 outputs whose sums are floats: of
    /// such rows the values stay in registers.
    ///
    /// # Safety
    /// As [`End::store`].
    #[inline(always)]
    unsafe fn rows<S: Simd, const WHOLE: bool>(&self, of: PanelSums<'_>) {
        let PanelSums { panel, sums, rows, factors } = of;
        for i in 0..rows.count() {
            let row = rows.at(i);
            // SAFETY: as the caller's.
            unsafe {
                let factor = factors.map(|(factors, sources)| *factors.add(sources[i] as usize));
                self.row::<S, WHOLE>(row, panel, sums.add(i * WIDTH), factor);
            }
        }
    }

    /// Takes the 64 sums of a row.
    ///
    /// # Safety
    /// As [`End::store`].
    #[inline(always)]
    unsafe fn row<S: Simd, const WHOLE: bool>(
        &self,
        row: usize,
        panel: usize,
        sums: *const f32,
        factor: Option<f32>,
    ) {
        let first = panel * WIDTH;
        let width = if WHOLE { WIDTH } else { (self.n - first).min(WIDTH) };
        // SAFETY: `first + width <= n`, and half of both where pairs become one.
        unsafe {
            let mut values: Panel<S> = match &self.integers {
                Some((bias, scale)) if !WHOLE => {
                    let (bias, scale) = (bias.row(0).add(first), scale.row(0).add(first));
                    let mut floats = [0.0; WIDTH];
                    for (i, float) in floats.iter_mut().enumerate().take(width) {
                        let sum = (*sums.add(i)).to_bits() as i32;
                        *float = sum.wrapping_add(*bias.add(i)) as f32 * *scale.add(i);
                    }
                    load_panel::<S>(floats.as_ptr())
                }
                _ => load_panel::<S>(sums),
            };
            if let Some(factor) = factor {
                for value in &mut values {
                    *value = S::mul(*value, S::splat(factor));
                }
            }
            if let Some(bias) = self.bias.of(row) {
                add::<S, _>(&mut values, bias.add(first), width);
            }
            match &self.gate {
                Gate::None => self.put::<S, _>(row, panel, width, values),
                Gate::Silu => self.put::<S, _>(row, panel, HALF, gated::<S, _>(&SiluMul, values)),
                Gate::Clamped(gate) => {
                    self.put::<S, _>(row, panel, HALF, gated::<S, _>(gate, values))
                }
            }
        }
    }

    /// Adds the residual to the `width` results of a row and panel, and stores them.
    ///
    /// # Safety
    /// As [`End::store`].
    #[inline(always)]
    unsafe fn put<S: Simd, const N: usize>(
        &self,
        row: usize,
        panel: usize,
        width: usize,
        mut values: [S::V; N],
    ) {
        let first = panel * N * LANES;
        // SAFETY: as the caller's.
        unsafe {
            if let Some(residual) = &self.residual {
                add::<S, N>(&mut values, residual.row(row).add(first), width);
            }
            self.out.store::<S, N>(row, first, width, values, self.streams);
            if let Some(largest) = &self.largest {
                largest.store::<S, N>(row, panel, width, values);
            }
        }
    }
}

/// The 64 values at `from`.
///
/// # Safety
/// As [`Simd`]; they exist.
#[inline(always)]
unsafe fn load_panel<S: Simd>(from: *const f32) -> Panel<S> {
    // SAFETY: as the caller's.
    unsafe {
        let mut values = [S::splat(0.0); WIDTH / LANES];
        for (v, value) in values.iter_mut().enumerate() {
            *value = S::load(from.add(v * LANES));
        }
        values
    }
}

/// Adds the `width` values at `more`.
///
/// # Safety
/// As [`Simd`]; they exist.
#[inline(always)]
unsafe fn add<S: Simd, const N: usize>(values: &mut [S::V; N], more: *const f32, width: usize) {
    for (v, value) in values.iter_mut().enumerate() {
        if v * LANES < width {
            // SAFETY: as the caller's.
            unsafe {
                let more = f32::load_part::<S>(more.add(v * LANES), width - v * LANES);
                *value = S::add(*value, more);
            }
        }
    }
}

/// One value of each gate and its up.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
unsafe fn gated<S: Simd, F: Binary>(gate: &F, values: Panel<S>) -> [S::V; HALF / LANES] {
    // No `from_fn`: a closure around so much is not inlined, and gates then take four times as long.
    let mut results = [values[0]; HALF / LANES];
    for (v, result) in results.iter_mut().enumerate() {
        // SAFETY: as the caller's.
        *result = unsafe { gate.apply::<S>(values[v], values[HALF / LANES + v]) };
    }
    results
}
