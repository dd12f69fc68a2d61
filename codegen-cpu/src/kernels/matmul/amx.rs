//! AMX tiles: eight registers of up to 16 rows of 64 bytes, and instructions that multiply two of them as matrices
//! of bf16 pairs or of four bytes (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2).
//!
//! `tdpbf16ps` sums the first and the second products of 16 pairs apart, each in order, and adds
//! both to the accumulator, with denormals as zeros. No row of a tile sees another, so a row's
//! sums are the same bits in every tile as long as steps of 16 pairs begin at the same places.
//! `tdpbsud` multiplies signed bytes of inputs by unsigned ones of weights and sums them exactly.
//!
//! Loops are whole `asm!` blocks. Sums stay in tiles between them, as the configuration of the tiles does: compiled code uses
//! none.

use super::tile::{Ahead, GROUP_BYTES, STEP_GROUPS, TILE_ROWS, WIDTH};
use crate::device::has_amx;
use crate::kernels::simd::LINE_BYTES;
use half::bf16;
use std::arch::asm;

/// Bytes of a step of a row of inputs: a row of a tile.
pub(crate) const ROW_BYTES: usize = STEP_GROUPS * size_of::<u32>();
/// Bytes of a tile of inputs of a step.
pub(super) const TILE_BYTES: usize = TILE_ROWS * ROW_BYTES;
/// Bytes of a panel's weights for a step.
pub(crate) const STEP_BYTES: usize = STEP_GROUPS * GROUP_BYTES;
/// Cache lines of that.
pub(super) const STEP_LINES: usize = STEP_BYTES / LINE_BYTES;
/// Outputs of half a panel.
pub(super) const HALF: usize = WIDTH / 2;

/// The memory operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// This thread's tiles while it is alive: for products, 0 to 3 for sums, 4 and 5 for inputs, 6 and 7 for weights.
pub(crate) struct Tiles {
    pub(crate) rows: usize,
}

impl Tiles {
    /// Tiles for `rows` rows of inputs, 1 to 16.
    ///
    /// # Safety
    /// This thread has no other `Tiles`.
    pub(crate) unsafe fn new(rows: usize) -> Self {
        let shape = |tile| (if tile < 6 { rows } else { STEP_GROUPS }, ROW_BYTES);
        // SAFETY: the caller's promise.
        unsafe { Self::with(rows, shape) }
    }

    /// Tiles of which each has the rows and the bytes of a row that `shape` says, `rows` of them where it is of as
    /// many inputs.
    ///
    /// # Safety
    /// This thread has no other `Tiles`.
    pub(crate) unsafe fn with(rows: usize, shape: impl Fn(usize) -> (usize, usize)) -> Self {
        assert!((1..=TILE_ROWS).contains(&rows), "tiles have 1 to 16 rows");
        if !has_amx() {
            return Self { rows };
        }
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for tile in 0..8 {
            let (rows, row_bytes) = shape(tile);
            (config.rows[tile], config.row_bytes[tile]) = (rows as u8, row_bytes as u16);
        }
        // SAFETY: the configuration is valid, and there is the instruction.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                config = in(reg) &config,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        Self { rows }
    }

    /// Stores a tile of inputs for nothing, as [`Squares::awake`] says.
    ///
    /// # Safety
    /// `to` is valid for a tile; one of inputs was loaded.
    #[inline(always)]
    pub(super) unsafe fn stay_awake(&self, to: *mut u8) {
        if !has_amx() {
            return;
        }
        // SAFETY: as the caller's.
        unsafe {
            asm!(
                "tilestored [{to} + {line}*1], tmm4",
                to = in(reg) to,
                line = in(reg) ROW_BYTES,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        if !has_amx() {
            return;
        }
        // SAFETY: there are tiles, as `new` was called. Nothing is kept in them.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem, preserves_flags),
            );
        }
    }
}

/// Sums of 32 bits, rows 64 apart: the four tiles of sums by two, each 16 of them wide. They are kept in the tiles from
/// [`Sums::zero`] or [`Sums::load`] to [`Sums::store`], without AMX in memory.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    low: *mut u32,
    high: *mut u32,
}

impl Sums {
    /// A tile of rows by the 64 outputs of a panel.
    #[inline(always)]
    pub(crate) fn row(at: *mut u32) -> Self {
        Self { low: at, high: at.wrapping_add(HALF) }
    }

    /// Two tiles of `rows` rows, one after the other, by 32 outputs.
    #[inline(always)]
    pub(super) fn square(at: *mut u32, rows: usize) -> Self {
        Self { low: at, high: at.wrapping_add(rows * WIDTH) }
    }

    /// Begins with zeros.
    ///
    /// # Safety
    /// `tiles` is this thread's; this memory is valid for its rows.
    #[inline(always)]
    pub(crate) unsafe fn zero(self, tiles: &Tiles) {
        // SAFETY: as the caller's.
        unsafe {
            if has_amx() {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, nomem, preserves_flags),
                );
                return;
            }
            for row in 0..tiles.rows {
                self.low.add(row * WIDTH).write_bytes(0, HALF);
                self.high.add(row * WIDTH).write_bytes(0, HALF);
            }
        }
    }

    /// Begins with what is in memory.
    ///
    /// # Safety
    /// As [`Sums::zero`].
    #[inline(always)]
    pub(crate) unsafe fn load(self) {
        if !has_amx() {
            return;
        }
        // SAFETY: as the caller's.
        unsafe {
            asm!(
                "tileloadd tmm0, [{low} + {stride}*1]",
                "tileloadd tmm1, [{low} + {stride}*1 + 64]",
                "tileloadd tmm2, [{high} + {stride}*1]",
                "tileloadd tmm3, [{high} + {stride}*1 + 64]",
                low = in(reg) self.low,
                high = in(reg) self.high,
                stride = in(reg) GROUP_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    /// Ends in memory.
    ///
    /// # Safety
    /// As [`Sums::zero`].
    #[inline(always)]
    pub(crate) unsafe fn store(self) {
        if !has_amx() {
            return;
        }
        // SAFETY: as the caller's.
        unsafe {
            asm!(
                "tilestored [{low} + {stride}*1], tmm0",
                "tilestored [{low} + {stride}*1 + 64], tmm1",
                "tilestored [{high} + {stride}*1], tmm2",
                "tilestored [{high} + {stride}*1 + 64], tmm3",
                low = in(reg) self.low,
                high = in(reg) self.high,
                stride = in(reg) GROUP_BYTES,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Some steps of a panel and the inputs that meet them.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    /// The first weights.
    pub(crate) weights: *const u8,
    /// How many steps, at least one.
    pub(crate) count: usize,
    /// The first row of inputs, the bytes between rows, and those between what steps meet.
    pub(crate) x: *const u8,
    pub(crate) stride: usize,
    pub(crate) x_step: usize,
    /// Memory to ask for meanwhile: so many lines with each step.
    pub(crate) ahead: Ahead,
}

/// Asks for a quarter of the lines of a step, rounded down after `$more`, 0 to 3, were added: four of these ask for all.
macro_rules! ask {
    ($more:literal) => {
        concat!(
            "lea {n}, [{lines} + ",
            $more,
            "]
            shr {n}, 2
            jz 5f
            4:
            prefetcht1 [{ahead}]
            add {ahead}, 64
            dec {n}
            jnz 4b
            5:"
        )
    };
}

/// A tile of rows by all 64 outputs, with the instruction `$dot`. Requests are spread, since a burst of them keeps loads
/// waiting. Every other step a tile of sums is stored for nothing: a processor that has stored none for about 2,000 cycles
/// takes 900 for the next.
macro_rules! multiply_row {
    ($dot:literal, $steps:expr, $sums:expr) => {
        asm!(
            "3:",
            "tileloadd tmm4, [{x} + {stride}*1]",
            "tileloadd tmm6, [{w} + {panel}*1]",
            ask!(3),
            concat!($dot, " tmm0, tmm4, tmm6"),
            "tileloadd tmm7, [{w} + {panel}*1 + 64]",
            ask!(2),
            concat!($dot, " tmm1, tmm4, tmm7"),
            "tileloadd tmm6, [{w} + {panel}*1 + 128]",
            ask!(1),
            concat!($dot, " tmm2, tmm4, tmm6"),
            "tileloadd tmm7, [{w} + {panel}*1 + 192]",
            ask!(0),
            concat!($dot, " tmm3, tmm4, tmm7"),
            "test {count}, 1",
            "jz 6f",
            "tilestored [{low} + {panel}*1], tmm0",
            "6:",
            "add {w}, {step_bytes}",
            "add {x}, {x_step}",
            "dec {count}",
            "jnz 3b",
            low = in(reg) $sums.low,
            n = out(reg) _,
            panel = in(reg) GROUP_BYTES,
            lines = in(reg) $steps.ahead.lines,
            ahead = inout(reg) $steps.ahead.from => _,
            x = inout(reg) $steps.x => _,
            stride = in(reg) $steps.stride,
            x_step = in(reg) $steps.x_step,
            w = inout(reg) $steps.weights => _,
            count = inout(reg) $steps.count => _,
            step_bytes = const STEP_BYTES,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

impl Steps {
    /// Adds the products of pairs of bf16 to `sums`, a tile of rows by 64 outputs.
    ///
    /// # Safety
    /// `tiles` is this thread's; weights and inputs are valid for all steps, `sums` is [`Sums::row`] and was begun.
    #[inline(always)]
    pub(crate) unsafe fn pairs(&self, tiles: &Tiles, sums: Sums) {
        // SAFETY: as the caller's; a prefetch may name any address.
        unsafe {
            if has_amx() {
                multiply_row!("tdpbf16ps", self, sums);
            } else {
                self.model(tiles, sums, pairs);
            }
        }
    }

    /// Adds the products of signed bytes of inputs and unsigned ones of weights to `sums`, as [`Steps::pairs`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn bytes(&self, tiles: &Tiles, sums: Sums) {
        // SAFETY: as the caller's; a prefetch may name any address.
        unsafe {
            if has_amx() {
                multiply_row!("tdpbsud", self, sums);
            } else {
                self.model(tiles, sums, bytes);
            }
        }
    }

    /// What the instructions do, in plain Rust.
    ///
    /// # Safety
    /// As [`Steps::pairs`].
    #[inline(never)]
    unsafe fn model<X, W: Copy, T: Copy>(
        &self,
        tiles: &Tiles,
        sums: Sums,
        dot: impl Fn(T, &X, &[W; STEP_GROUPS]) -> T,
    ) {
        let &Self { weights, count, x, stride, x_step, .. } = self;
        let of = Model { weights, count, x, stride, x_step };
        // SAFETY: the caller's promise.
        unsafe { of.tile((tiles.rows, WIDTH), sums.low, &dot) }
    }
}

/// Some steps of half a panel and two tiles of inputs that meet them. Steps of inputs lie one behind the other, both tiles of
/// a step together.
#[derive(Clone, Copy)]
pub(super) struct Squares {
    /// The first weights.
    pub(super) weights: *const u8,
    /// How many steps, at least one.
    pub(super) count: usize,
    pub(super) x: *const u8,
    /// Memory to ask for meanwhile: so many lines with each step.
    pub(super) ahead: Ahead,
    /// Valid for a tile, which is stored for nothing: a processor that has stored none for about 2,000 cycles takes 900
    /// for the next, so one is stored every eight steps (measured on a Xeon of model 167: 123 cycles a step without, of 32
    /// steps, 95 with it).
    pub(super) awake: *mut u8,
}

/// Two tiles of rows by 32 outputs, with the instruction `$dot`.
macro_rules! multiply_square {
    ($dot:literal, $steps:expr) => {
        asm!(
            "3:",
            "tileloadd tmm4, [{x} + {line}*1]",
            "tileloadd tmm6, [{w} + {panel}*1]",
            ask!(3),
            "tileloadd tmm7, [{w} + {panel}*1 + 64]",
            ask!(2),
            "tileloadd tmm5, [{x} + {line}*1 + {tile_bytes}]",
            concat!($dot, " tmm0, tmm4, tmm6"),
            ask!(1),
            concat!($dot, " tmm1, tmm4, tmm7"),
            ask!(0),
            concat!($dot, " tmm2, tmm5, tmm6"),
            concat!($dot, " tmm3, tmm5, tmm7"),
            "test {count}, 7",
            "jnz 6f",
            "tilestored [{awake} + {line}*1], tmm4",
            "6:",
            "add {w}, {step_bytes}",
            "add {x}, {x_step}",
            "dec {count}",
            "jnz 3b",
            n = out(reg) _,
            lines = in(reg) $steps.ahead.lines,
            ahead = inout(reg) $steps.ahead.from => _,
            x = inout(reg) $steps.x => _,
            line = in(reg) ROW_BYTES,
            tile_bytes = const TILE_BYTES,
            x_step = const 2 * TILE_BYTES,
            w = inout(reg) $steps.weights => _,
            panel = in(reg) GROUP_BYTES,
            step_bytes = const STEP_BYTES,
            count = inout(reg) $steps.count => _,
            awake = in(reg) $steps.awake,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

impl Squares {
    /// Adds the products of pairs of bf16 to `sums`, two tiles of rows by 32 outputs.
    ///
    /// # Safety
    /// `tiles` is this thread's; weights and inputs are valid for all steps, `sums` is [`Sums::square`] and was begun.
    #[inline(always)]
    pub(super) unsafe fn pairs(&self, tiles: &Tiles, sums: Sums) {
        // SAFETY: as the caller's; a prefetch may name any address.
        unsafe {
            if has_amx() {
                multiply_square!("tdpbf16ps", self);
            } else {
                self.model(tiles, sums, pairs);
            }
        }
    }

    /// Adds the products of signed bytes of inputs and unsigned ones of weights to `sums`, as [`Squares::pairs`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn bytes(&self, tiles: &Tiles, sums: Sums) {
        // SAFETY: as the caller's; a prefetch may name any address.
        unsafe {
            if has_amx() {
                multiply_square!("tdpbsud", self);
            } else {
                self.model(tiles, sums, bytes);
            }
        }
    }

    /// What the instructions do, in plain Rust.
    ///
    /// # Safety
    /// As [`Squares::pairs`].
    #[inline(never)]
    unsafe fn model<X, W: Copy, T: Copy>(
        &self,
        tiles: &Tiles,
        sums: Sums,
        dot: impl Fn(T, &X, &[W; STEP_GROUPS]) -> T,
    ) {
        for (tile, sums) in [sums.low, sums.high].into_iter().enumerate() {
            let of = Model {
                weights: self.weights,
                count: self.count,
                x: self.x.wrapping_add(tile * TILE_BYTES),
                stride: ROW_BYTES,
                x_step: 2 * TILE_BYTES,
            };
            // SAFETY: the caller's promise.
            unsafe { of.tile((tiles.rows, HALF), sums, &dot) }
        }
    }
}

/// A tile of inputs and some outputs, which plain Rust multiplies.
struct Model {
    weights: *const u8,
    count: usize,
    x: *const u8,
    stride: usize,
    x_step: usize,
}

impl Model {
    /// Adds the products of so many rows and outputs to `sums`: `dot` adds those of a step of a row of inputs and of a column
    /// of weights to a sum.
    ///
    /// # Safety
    /// All is valid for as many; `X` and 16 words `W` are as large as a row of a tile.
    unsafe fn tile<X, W: Copy, T: Copy>(
        &self,
        (rows, outputs): (usize, usize),
        sums: *mut u32,
        dot: &impl Fn(T, &X, &[W; STEP_GROUPS]) -> T,
    ) {
        const {
            assert!(size_of::<X>() == ROW_BYTES && size_of::<W>() == size_of::<u32>());
            assert!(size_of::<T>() == size_of::<u32>());
        }
        for (row, output) in (0..rows).flat_map(|row| (0..outputs).map(move |o| (row, o))) {
            // SAFETY: inside what the caller vouches for.
            unsafe {
                let to = sums.add(row * WIDTH + output).cast::<T>();
                let mut sum = to.read();
                for step in 0..self.count {
                    let x = self.x.add(row * self.stride + step * self.x_step);
                    let words: *const W = self.weights.add(step * STEP_BYTES).cast();
                    let words = words.add(output);
                    let w = std::array::from_fn(|g| words.add(g * WIDTH).read_unaligned());
                    sum = dot(sum, &x.cast::<X>().read_unaligned(), &w);
                }
                to.write(sum);
            }
        }
    }
}

/// What `tdpbf16ps` adds to a sum for a row of a tile and a column.
fn pairs(sum: f32, x: &[[bf16; 2]; 16], w: &[[bf16; 2]; 16]) -> f32 {
    dot_pairs(sum, x.iter().copied().zip(w.iter().copied()))
}

/// What `tdpbsud` does.
fn bytes(sum: i32, x: &[i8; 64], w: &[[u8; 4]; 16]) -> i32 {
    let products = x.iter().zip(w.as_flattened());
    products.fold(sum, |sum, (&x, &w)| sum.wrapping_add(i32::from(x) * i32::from(w)))
}

/// What `tdpbf16ps` adds to a sum, in plain Rust: the products of pairs, of which denormals are not taken as zeros.
pub(crate) fn dot_pairs(
    sum: f32,
    pairs: impl Iterator<Item = ([bf16; 2], [bf16; 2])> + Clone,
) -> f32 {
    let of = |i: usize| {
        let products = pairs.clone();
        products.fold(0.0, |sum: f32, (x, w)| w[i].to_f32().mul_add(x[i].to_f32(), sum))
    };
    sum + (of(0) + of(1))
}

/// Sums of a row and weights of a group take as many bytes, so tiles of both have one stride.
const _: () = assert!(GROUP_BYTES == WIDTH * size_of::<f32>());
