//! Where element `(row, column)` of a matrix lies in memory, one pure function per layout.

use crate::{Compact, DType};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// How the elements of a tensor are arranged.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum Layout {
    /// Row-major, dense.
    #[default]
    #[serde(rename = "nd")]
    Nd,
    /// Fractals for the Ascend cube unit, see [`Nz`].
    #[serde(rename = "nz")]
    Nz,
    /// Column panels for the CPU matrix kernels, see [`Panels`].
    #[serde(rename = "panels")]
    Panels,
    /// [`Panels`] of bf16 in 12 bits an element, see [`Compact`].
    #[serde(rename = "compact")]
    Compact,
}

impl Layout {
    /// Spelling in the text IR and in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::Nd => "nd",
            Layout::Nz => "nz",
            Layout::Panels => "panels",
            Layout::Compact => "compact",
        }
    }

    /// Bytes a `rows x cols` matrix takes, padding included; of [`Layout::Compact`] the most it may take.
    pub const fn bytes(self, rows: u64, cols: u64, dtype: DType) -> u64 {
        match self {
            Layout::Nd => dtype.bytes_for(rows * cols),
            Layout::Nz => dtype.bytes_for(Nz::new(rows, cols, dtype).padded_len()),
            Layout::Panels => dtype.bytes_for(Panels::new(rows, cols, dtype).padded_len()),
            Layout::Compact => Compact::new(rows, cols).most_bytes(),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Layout {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        [Layout::Nd, Layout::Nz, Layout::Panels, Layout::Compact]
            .into_iter()
            .find(|l| l.name() == s)
            .ok_or_else(|| format!("`{s}` is not a layout; use nd, nz, panels or compact"))
    }
}

/// The NZ layout: fractals of `M0` rows by 32 bytes, stored column of fractals by column of
/// fractals, each fractal row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nz {
    rows: u64,
    cols: u64,
    n0: u64,
}

/// Rows of a fractal.
const M0: u64 = 16;
const FRACTAL_ROW_BITS: u64 = 256;

impl Nz {
    /// The layout of a `rows x cols` matrix.
    pub const fn new(rows: u64, cols: u64, dtype: DType) -> Self {
        Self { rows, cols, n0: FRACTAL_ROW_BITS / dtype.bits() }
    }

    /// Elements in the buffer, both dimensions padded to whole fractals.
    pub const fn padded_len(&self) -> u64 {
        self.cols.next_multiple_of(self.n0) * self.rows.next_multiple_of(M0)
    }

    /// Position of element `(r, c)`.
    pub const fn offset(&self, r: u64, c: u64) -> u64 {
        let fractal_rows = self.rows.div_ceil(M0);
        let fractal = (c / self.n0) * fractal_rows + r / M0;
        (fractal * M0 + r % M0) * self.n0 + c % self.n0
    }
}

/// Column panels of a weight `[N, K]` for the CPU kernels.
///
/// A panel holds [`Panels::WIDTH`] outputs (rows of the stored weight). Inside, `K` runs in groups
/// of as many elements as fill 32 bits, and each group is stored for all outputs of the panel next
/// to each other: `[N / 64][K / g][64][g]` with `g` = 1 for f32, 2 for bf16, 4 for 8-bit types.
/// One 64-byte vector is then one group of 16 outputs, which is what the dot-product instructions
/// (`vdpbf16ps`, `vpdpbusd`) and matrix tiles take as an operand. `N` is padded to a whole panel
/// and `K` to a whole group, both with zeros.
///
/// A group of eight 4-bit elements is four bytes: byte `b` has element `b` in its low and element
/// `b + 4` in its high nibble, so that one mask gives four neighbours in the order of `K`.
///
/// Integers of 8 and 4 bits have their sign bit flipped, see [`Panels::flipped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    rows: u64,
    cols: u64,
    group: u64,
}

impl Panels {
    /// Outputs of one panel.
    pub const WIDTH: u64 = 64;

    /// The layout of a weight with `rows` outputs (`N`) and `cols` inputs (`K`).
    pub const fn new(rows: u64, cols: u64, dtype: DType) -> Self {
        Self { rows, cols, group: 32 / dtype.bits() }
    }

    /// The bits of a byte that differ from those of the codes: the sign bits of integers. What is
    /// stored is then the code plus 128, or plus 8, as an unsigned number, which is how `vpdpbusd`
    /// takes its first operand.
    pub const fn flipped(dtype: DType) -> u8 {
        match dtype {
            DType::I8 => 0x80,
            DType::I4 => 0x88,
            _ => 0,
        }
    }

    /// Elements of `K` that lie next to each other.
    pub const fn group(&self) -> u64 {
        self.group
    }

    /// How many panels there are.
    pub const fn count(&self) -> u64 {
        self.rows.div_ceil(Self::WIDTH)
    }

    /// Elements in one panel.
    pub const fn panel_len(&self) -> u64 {
        self.cols.next_multiple_of(self.group) * Self::WIDTH
    }

    /// Elements in the buffer.
    pub const fn padded_len(&self) -> u64 {
        self.count() * self.panel_len()
    }

    /// Position of input `c` of output `r`, in elements: of two nibbles of a byte the low one comes
    /// first.
    pub const fn offset(&self, r: u64, c: u64) -> u64 {
        let inside = c % self.group;
        let inside = if self.group == 8 { inside % 4 * 2 + inside / 4 } else { inside };
        (r / Self::WIDTH) * self.panel_len()
            + ((c / self.group) * Self::WIDTH + r % Self::WIDTH) * self.group
            + inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn int8_fractal_is_16_by_32() {
        let nz = Nz::new(32, 64, DType::I8);
        assert_eq!(nz.offset(0, 31), 31);
        assert_eq!(nz.offset(1, 0), 32);
        assert_eq!(nz.offset(16, 0), 16 * 32, "next fractal down");
        assert_eq!(nz.offset(0, 32), 2 * 16 * 32, "next column of fractals");
    }

    #[test]
    fn bf16_panel_keeps_pairs_together() {
        let p = Panels::new(128, 6, DType::BF16);
        assert_eq!(p.offset(0, 1), 1, "second of the pair");
        assert_eq!(p.offset(1, 0), 2, "next output");
        assert_eq!(p.offset(0, 2), 128, "next pair");
        assert_eq!(p.offset(64, 0), 6 * 64, "next panel");
    }

    #[test]
    fn nibbles_four_apart_share_a_byte() {
        let p = Panels::new(64, 16, DType::I4);
        assert_eq!((p.offset(0, 0), p.offset(0, 4)), (0, 1), "low and high nibble of byte 0");
        assert_eq!((p.offset(0, 1), p.offset(0, 7)), (2, 7));
        assert_eq!(p.offset(1, 0), 8, "next output");
        assert_eq!(p.offset(0, 8), 512, "next group");
    }

    #[test]
    fn every_element_has_its_own_place() {
        for dtype in [DType::F32, DType::BF16, DType::I8, DType::I4] {
            for (rows, cols) in [(1, 1), (5, 7), (64, 32), (65, 33), (130, 9)] {
                let nz = Nz::new(rows, cols, dtype);
                let panels = Panels::new(rows, cols, dtype);
                let (mut in_nz, mut in_panels) = (HashSet::new(), HashSet::new());
                for r in 0..rows {
                    for c in 0..cols {
                        assert!(nz.offset(r, c) < nz.padded_len());
                        assert!(panels.offset(r, c) < panels.padded_len());
                        assert!(in_nz.insert(nz.offset(r, c)));
                        assert!(in_panels.insert(panels.offset(r, c)));
                    }
                }
            }
        }
    }
}
