//! AMX tiles: eight registers of up to 16 rows of 64 bytes, and an instruction that multiplies two
//! of them as matrices of bf16 pairs.
//!
//! `tdpbf16ps` sums the first and the second products of 16 pairs apart, each in order, and adds
//! both to the accumulator, with denormals as zeros. No row of a tile sees another, so a row's
//! sums are the same bits in every tile as long as steps of 16 pairs begin at the same places.
//!
//! Loops are whole `asm!` blocks: the compiler keeps nothing in tiles between them.

use super::tile::{Ahead, GROUP_BYTES, WIDTH};
use half::bf16;
use std::arch::asm;

/// Rows of a tile of inputs or sums.
pub(super) const TILE_ROWS: usize = 16;
/// Pairs along `K` of a step: rows of a tile of weights.
pub(super) const STEP_GROUPS: usize = 16;
/// Inputs of a step.
pub(super) const STEP: usize = 2 * STEP_GROUPS;
/// Bytes of a panel's weights for a step.
pub(super) const STEP_BYTES: usize = STEP_GROUPS * GROUP_BYTES;
/// Cache lines of that.
pub(super) const STEP_LINES: usize = STEP_BYTES / 64;
/// Bytes of a row of a tile.
const TILE_BYTES: u16 = 64;

/// The memory operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// This thread's tiles while it is alive: 0 to 3 for sums, 4 and 5 for inputs, 6 and 7 for weights.
pub(super) struct Tiles(());

impl Tiles {
    /// Tiles for `rows` rows of inputs, 1 to 16.
    ///
    /// # Safety
    /// The machine has AMX and the process may use it; this thread has no other `Tiles`.
    pub(super) unsafe fn new(rows: usize) -> Self {
        assert!((1..=TILE_ROWS).contains(&rows), "tiles have 1 to 16 rows");
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.row_bytes[..8].fill(TILE_BYTES);
        config.rows[..6].fill(rows as u8);
        config.rows[6..8].fill(STEP_GROUPS as u8);
        // SAFETY: the configuration is valid; the instruction is the caller's promise.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                config = in(reg) &config,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
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

/// Some steps of a panel and where their sums go.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    /// The first weights.
    pub(super) weights: *const u8,
    /// How many steps, at least one.
    pub(super) count: usize,
    /// Bytes between rows of inputs.
    pub(super) x_stride: usize,
    /// Whether the sums begin at zero rather than at what is there.
    pub(super) fresh: bool,
    /// Memory to ask for meanwhile.
    pub(super) ahead: Ahead,
}

impl Steps {
    /// One tile of rows at `x` by all 64 outputs, into `sums`.
    ///
    /// # Safety
    /// `tiles` is this thread's; weights and inputs are valid for all steps, `sums` for 64 sums of
    /// each row of a tile, rows 64 apart.
    #[inline(always)]
    pub(super) unsafe fn one_by_four(&self, _: &Tiles, x: *const bf16, sums: *mut f32) {
        // SAFETY: as the caller's; a prefetch may name any address.
        unsafe {
            asm!(
                "test {n}, {n}",
                "jnz 2f",
                "tileloadd tmm0, [{sums} + {stride}*1]",
                "tileloadd tmm1, [{sums} + {stride}*1 + 64]",
                "tileloadd tmm2, [{sums} + {stride}*1 + 128]",
                "tileloadd tmm3, [{sums} + {stride}*1 + 192]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "mov {n}, {lines}",
                "test {n}, {n}",
                "jz 5f",
                "4:",
                "prefetcht0 [{ahead}]",
                "add {ahead}, 64",
                "dec {n}",
                "jnz 4b",
                "5:",
                "tileloadd tmm4, [{x} + {x_stride}*1]",
                "tileloadd tmm6, [{w} + {stride}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {stride}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm6, [{w} + {stride}*1 + 128]",
                "tdpbf16ps tmm2, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {stride}*1 + 192]",
                "tdpbf16ps tmm3, tmm4, tmm7",
                "add {w}, {step_bytes}",
                "add {x}, 64",
                "dec {count}",
                "jnz 3b",
                "tilestored [{sums} + {stride}*1], tmm0",
                "tilestored [{sums} + {stride}*1 + 64], tmm1",
                "tilestored [{sums} + {stride}*1 + 128], tmm2",
                "tilestored [{sums} + {stride}*1 + 192], tmm3",
                n = inout(reg) usize::from(self.fresh) => _,
                sums = in(reg) sums,
                stride = in(reg) GROUP_BYTES,
                lines = in(reg) self.ahead.lines,
                ahead = inout(reg) self.ahead.from => _,
                x = inout(reg) x => _,
                x_stride = in(reg) self.x_stride,
                w = inout(reg) self.weights => _,
                count = inout(reg) self.count => _,
                step_bytes = const STEP_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Two tiles of rows, at `x.0` and `x.1`, by 32 outputs, into the sums of each.
    ///
    /// # Safety
    /// As [`Steps::one_by_four`], with 32 sums of each row.
    #[inline(always)]
    pub(super) unsafe fn two_by_two(
        &self,
        _: &Tiles,
        x: (*const bf16, *const bf16),
        sums: (*mut f32, *mut f32),
    ) {
        // SAFETY: as the caller's; a prefetch may name any address.
        unsafe {
            asm!(
                "test {n}, {n}",
                "jnz 2f",
                "tileloadd tmm0, [{sums0} + {stride}*1]",
                "tileloadd tmm1, [{sums0} + {stride}*1 + 64]",
                "tileloadd tmm2, [{sums1} + {stride}*1]",
                "tileloadd tmm3, [{sums1} + {stride}*1 + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "tileloadd tmm4, [{x0} + {x_stride}*1]",
                "tileloadd tmm6, [{w} + {stride}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {stride}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{x1} + {x_stride}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "mov {n}, {lines}",
                "test {n}, {n}",
                "jz 5f",
                "4:",
                "prefetcht1 [{ahead}]",
                "add {ahead}, 64",
                "dec {n}",
                "jnz 4b",
                "5:",
                "add {w}, {step_bytes}",
                "add {x0}, 64",
                "add {x1}, 64",
                "dec {count}",
                "jnz 3b",
                "tilestored [{sums0} + {stride}*1], tmm0",
                "tilestored [{sums0} + {stride}*1 + 64], tmm1",
                "tilestored [{sums1} + {stride}*1], tmm2",
                "tilestored [{sums1} + {stride}*1 + 64], tmm3",
                n = inout(reg) usize::from(self.fresh) => _,
                sums0 = in(reg) sums.0,
                sums1 = in(reg) sums.1,
                stride = in(reg) GROUP_BYTES,
                lines = in(reg) self.ahead.lines,
                ahead = inout(reg) self.ahead.from => _,
                x0 = inout(reg) x.0 => _,
                x1 = inout(reg) x.1 => _,
                x_stride = in(reg) self.x_stride,
                w = inout(reg) self.weights => _,
                count = inout(reg) self.count => _,
                step_bytes = const STEP_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Sums of a row and weights of a group take as many bytes, so tiles of both have one stride.
const _: () = assert!(GROUP_BYTES == WIDTH * size_of::<f32>());
