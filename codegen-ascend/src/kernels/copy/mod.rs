//! Copies of blocks inside a memory, such as those of a sequence that another one continues.

use super::{
    Declined,
    source::{Budget, Source, require},
};
use crate::chip::Chip;
use compiler::{Arg, Lowered, Operand};
use tensor::DType;

/// Most bytes that are copied at once.
const MOST_CHUNK: u64 = 32 << 10;

/// Block `pairs[i][1]` of `state [blocks,..]` becomes what block `pairs[i][0]` is, for every row of
/// `pairs i32[N,2]`, which the device reads; rows that begin with a negative number name none. No
/// block is written twice, or read and written.
///
/// # Errors
/// [`Declined`] when elements are no whole bytes, the memory or the pairs have gaps, or a block has
/// 4 GiB and more.
pub fn copy_blocks(
    state: &Operand,
    pairs: &Operand,
    [state_arg, pairs_arg]: [Arg; 2],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let elements: u64 = (1..state.ty.rank()).map(|axis| state.dim(axis)).product();
    let whole = !matches!(state.ty.dtype, DType::MxFp4 | DType::I4);
    require(whole && state.row_stride == elements, || {
        format!("blocks of {} with gaps or of no whole bytes", state.ty.dtype)
    })?;
    require(pairs.ty.dtype == DType::I32 && pairs.row_stride == 2, || {
        "pairs are i32[N,2] without gaps".to_owned()
    })?;
    let bytes = state.ty.dtype.bytes_for(elements);
    require(bytes <= u64::from(u32::MAX), || format!("blocks of {bytes} bytes"))?;
    let chunk = bytes.min(MOST_CHUNK);
    Budget::default().buffer("bytes", 2 * chunk.next_multiple_of(32)).fits(chip.ub_bytes)?;
    let kernel = Source::new(&format!("Copies of blocks of {bytes} bytes."))
        .size("BLOCK_BYTES", bytes, "bytes of a block")
        .size("CHUNK", chunk, "bytes that are copied at once")
        .part(include_str!("copy.cpp"))
        .kernel("copy_blocks");
    let items = pairs.dim(0) * bytes.div_ceil(chunk);
    let blocks = items.clamp(1, u64::from(chip.vector_cores)) as u32;
    let why = "one launch for all pairs, which the device reads";
    Ok(kernel.call(vec![state_arg, pairs_arg], &[pairs.dim(0)], blocks, why))
}
