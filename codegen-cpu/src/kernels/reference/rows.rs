//! The definitions of kernels that move rows. An index outside its range gives zeros, or writes
//! nothing.

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

/// Writes rows of keys and values, `[T, heads, d]` each, into a state at their slots.
pub fn kv_write(k: &[f32], v: &[f32], slots: &[i32], kv: Kv, state: &mut [f32]) {
    let (width, blocks) = (kv.heads * kv.d, state.len() / kv.block_len());
    for ((k, v), &slot) in k.chunks(width).zip(v.chunks(width)).zip(slots) {
        let Some(slot) = usize::try_from(slot).ok().filter(|s| s / BLOCK_TOKENS < blocks) else {
            continue;
        };
        let (block, token) = (slot / BLOCK_TOKENS, slot % BLOCK_TOKENS);
        for head in 0..kv.heads {
            for i in 0..kv.d {
                state[kv.key(block, head, token, i)] = k[head * kv.d + i];
                state[kv.value(block, head, token, i)] = v[head * kv.d + i];
            }
        }
    }
}
