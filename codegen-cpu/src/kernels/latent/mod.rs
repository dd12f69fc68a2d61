//! Attention over paged memories with one row for each place, shared by all heads, and what writes
//! and searches them. A memory is `[blocks, block tokens, n]`, row-major: see `KERNELS.md`.

mod write;

pub(crate) use write::PagedWrite;

use super::bind::product;
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
