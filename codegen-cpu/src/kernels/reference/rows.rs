//! The definitions of kernels that move rows. An index outside its range gives zeros, or writes
//! nothing.

use super::quantize_rows;
use crate::kernels::kv::{BLOCK_TOKENS, Kv};

/// Rows `indices` of `x [R,n]`.
pub fn gather_rows(x: &[f32], indices: &[i32], n: usize) -> Vec<f32> {
    let row = |&i: &i32| x.chunks(n).nth(usize::try_from(i).ok()?);
    indices.iter().flat_map(|i| row(i).map_or_else(|| vec![0.0; n], <[f32]>::to_vec)).collect()
}

/// Rows `ids` of `table [V,H]`, which is what an embedding is.
pub fn embed(table: &[f32], ids: &[i32], n: usize) -> Vec<f32> {
    gather_rows(table, ids, n)
}

/// Adds `bias` to every row.
pub fn add_bias(x: &[f32], bias: &[f32]) -> Vec<f32> {
    x.chunks(bias.len()).flat_map(|row| row.iter().zip(bias).map(|(a, b)| a + b)).collect()
}

/// Rows of keys and values whose slot is inside a state of so many elements: the row of each, the block, and
/// the token in it.
fn placed<'a>(
    k: &'a [f32],
    v: &'a [f32],
    slots: &'a [i32],
    kv: Kv,
    elements: usize,
) -> impl Iterator<Item = (&'a [f32], &'a [f32], usize, usize)> {
    let (width, count) = (kv.heads * kv.d, elements / kv.block_len() * BLOCK_TOKENS);
    k.chunks(width).zip(v.chunks(width)).zip(slots).filter_map(move |((k, v), &slot)| {
        let slot = usize::try_from(slot).ok().filter(|&slot| slot < count)?;
        Some((k, v, slot / BLOCK_TOKENS, slot % BLOCK_TOKENS))
    })
}

/// [`kv_write`] into the bytes of a state of codes, as [`quantize_rows`] makes them of each head, with their
/// sign flipped, and scales.
pub fn kv_write_codes(k: &[f32], v: &[f32], slots: &[i32], kv: Kv, state: &mut [u8]) {
    for (k, v, block, token) in placed(k, v, slots, kv, state.len()) {
        for (head, (k, v)) in k.chunks(kv.d).zip(v.chunks(kv.d)).enumerate() {
            let (keys, key_scale) = quantize_rows(k);
            let (values, value_scale) = quantize_rows(v);
            for i in 0..kv.d {
                state[kv.key(block, head, token, i)] = keys[i] as u8 ^ 0x80;
                state[kv.value(block, head, token, i)] = values[i] as u8 ^ 0x80;
            }
            let tiles = [kv.keys(block, head), kv.values(block, head)];
            for (tile, scale) in tiles.into_iter().zip([key_scale, value_scale]) {
                let at = tile + kv.scales() + token * size_of::<f32>();
                state[at..at + size_of::<f32>()].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }
}

/// Writes rows of keys and values, `[T, heads, d]` each, into a state at their slots.
pub fn kv_write(k: &[f32], v: &[f32], slots: &[i32], kv: Kv, state: &mut [f32]) {
    for (k, v, block, token) in placed(k, v, slots, kv, state.len()) {
        for head in 0..kv.heads {
            for i in 0..kv.d {
                state[kv.key(block, head, token, i)] = k[head * kv.d + i];
                state[kv.value(block, head, token, i)] = v[head * kv.d + i];
            }
        }
    }
}
