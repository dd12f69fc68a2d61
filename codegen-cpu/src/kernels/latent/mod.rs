//! Attention over paged memories with one row for each place, shared by all heads, and what writes
//! and searches them. A memory is `[blocks, block tokens, n]`, row-major: see `KERNELS.md`.
//!
//! Prompts are computed from latents as well, so that a row has the same bits however a prompt is
//! cut. Keys and values expanded for each head (arXiv 2405.04434) would take 3.4 times fewer
//! multiply-adds of a pair of tokens and as many of a token: `benches/benches/latent.rs` prints how
//! much of a layer that could save at most.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod chunk;
mod pack;
mod places;
mod select;
mod tile;
mod write;

pub(crate) use attention::LatentAttention;
pub(crate) use places::{All, Selected};
pub(crate) use select::SelectKeys;
pub(crate) use write::PagedWrite;

use super::bind::{Binder, Rows, product};
use super::kv::BLOCK_TOKENS;

/// Elements of a block of rows of `n` elements of type `T`.
///
/// # Errors
/// When a block has not [`BLOCK_TOKENS`] tokens or does not fit.
fn block_len<T>(n: usize, block_tokens: usize) -> Result<usize, String> {
    if block_tokens != BLOCK_TOKENS {
        return Err(format!("blocks of {block_tokens} tokens, expected {BLOCK_TOKENS}"));
    }
    product(&[BLOCK_TOKENS, n, size_of::<T>()]).map(|bytes| bytes / size_of::<T>())
}

/// A paged memory that is read.
struct Paged<T> {
    n: usize,
    blocks: usize,
    state: Rows<T>,
}

impl<T> Paged<T> {
    /// The next buffer: blocks of rows of `n` elements.
    fn bind(b: &mut Binder<'_>, what: &str, n: usize, block_tokens: usize) -> Result<Self, String> {
        let (blocks, state) = b.blocks::<T>(what, block_len::<T>(n, block_tokens)?, false)?;
        Ok(Self { n, blocks, state })
    }

    /// The row in `slot`.
    ///
    /// # Safety
    /// One of `blocks` has the slot.
    #[inline(always)]
    unsafe fn row(&self, slot: usize) -> *const T {
        // SAFETY: as the caller's.
        unsafe { self.state.row(0).add(slot * self.n) }
    }
}

/// Where the places of each sequence lie and which of them each row sees. A position outside the
/// table counts as the nearest one inside, an entry of the table outside the memory as its last
/// block.
struct Tables {
    sequences: usize,
    /// Rows of each sequence.
    rows: usize,
    /// Blocks in a row of the table.
    width: usize,
    table: Rows<i32>,
    positions: Rows<i32>,
}

impl Tables {
    /// The next two buffers, for `t` rows of `s` sequences with `w` blocks each.
    fn bind(b: &mut Binder<'_>, t: usize, s: usize, w: usize) -> Result<Self, String> {
        if !t.is_multiple_of(s) {
            return Err(format!("{t} rows for {s} sequences"));
        }
        product(&[w, BLOCK_TOKENS])?;
        let table = b.input("table", s, w, w)?;
        let positions = b.input("positions", 1, t, t)?;
        Ok(Self { sequences: s, rows: t / s, width: w, table, positions })
    }

    /// Places that the table covers.
    #[inline(always)]
    fn places(&self) -> usize {
        self.width * BLOCK_TOKENS
    }

    /// Places that `row` sees.
    ///
    /// # Safety
    /// `row` was bound.
    #[inline(always)]
    unsafe fn context(&self, row: usize) -> usize {
        // SAFETY: as the caller's.
        let position = unsafe { *self.positions.row(0).add(row) };
        (position.max(0) as usize + 1).min(self.places())
    }

    /// Slot of a place of a sequence in a memory of `blocks` blocks.
    ///
    /// # Safety
    /// The sequence was bound; the table covers the place.
    #[inline(always)]
    unsafe fn slot(&self, sequence: usize, place: usize, blocks: usize) -> usize {
        // SAFETY: as the caller's.
        let entry = unsafe { *self.table.row(sequence).add(place / BLOCK_TOKENS) };
        let block = usize::try_from(entry).unwrap_or(usize::MAX).min(blocks - 1);
        block * BLOCK_TOKENS + place % BLOCK_TOKENS
    }
}
