//! Rotary embedding and attention over a paged cache.

use super::{Failure, Tensor};
use crate::attr::RopeSpec;

pub(super) fn rope_table(positions: &Tensor, spec: &RopeSpec) -> Vec<f64> {
    let (frequencies, factor) = (spec.inverse_frequencies(), f64::from(spec.attention_factor()));
    let row = |&position: &f64| {
        let angles = frequencies.iter().map(move |f| position * f);
        let cosines = angles.clone().map(move |a| a.cos() * factor);
        cosines.chain(angles.map(move |a| a.sin() * factor))
    };
    positions.data().iter().flat_map(row).collect()
}

pub(super) fn rotary(x: &Tensor, table: &Tensor, interleaved: bool) -> Vec<f64> {
    let (heads, half) = (x.dims()[1], table.columns() / 2);
    let mut data = x.data().to_vec();
    for (h, head) in data.chunks_exact_mut(x.columns().max(1)).enumerate() {
        let angles = &table.data()[h / heads * 2 * half..][..2 * half];
        for i in 0..half {
            let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
            let (cos, sin) = (angles[i], angles[half + i]);
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
        }
    }
    data
}

/// A cache `[blocks, 2, heads, block, d]`.
struct Cache<'a>(&'a [usize]);

impl Cache<'_> {
    /// Where the `d` elements of a head begin at `place` of `block`: keys for `side` 0, values for 1.
    fn offset(&self, block: usize, side: usize, head: usize, place: usize) -> usize {
        let &[_, _, heads, tokens, d] = self.0 else { unreachable!("a cache has five axes") };
        (((block * 2 + side) * heads + head) * tokens + place) * d
    }
}

pub(super) fn kv_write(args: &[&Tensor]) -> Result<Vec<f64>, Failure> {
    let (state, k, v, slots) = (args[0], args[1], args[2], args[3]);
    let cache = Cache(state.dims());
    let (tokens, heads, d) = (state.dims()[3], state.dims()[2], state.dims()[4]);
    let mut data = state.data().to_vec();
    for (t, slot) in slots.indices(state.dims()[0] * tokens, "slot")?.into_iter().enumerate() {
        for h in 0..heads {
            for (side, rows) in [(0, k), (1, v)] {
                let to = cache.offset(slot / tokens, side, h, slot % tokens);
                let from = (t * heads + h) * d;
                data[to..to + d].copy_from_slice(&rows.data()[from..from + d]);
            }
        }
    }
    Ok(data)
}

pub(super) fn attention(args: &[&Tensor], scale: f64) -> Result<Vec<f64>, Failure> {
    let (q, state, table, positions) = (args[0], args[1], args[2], args[3]);
    let (cache, tokens) = (Cache(state.dims()), state.dims()[3]);
    let (rows, heads, d) = (q.dims()[0], q.dims()[1], q.columns());
    let (sequences, width) = (table.dims()[0], table.columns());
    if sequences == 0 || !rows.is_multiple_of(sequences) {
        return Err(format!("{rows} tokens are no multiple of {sequences} sequences"));
    }
    let blocks = table.indices(state.dims()[0], "block")?;
    let positions = positions.indices(width * tokens, "position")?;
    let group = heads / state.dims()[2];

    let mut data = Vec::with_capacity(q.data().len());
    for (t, &position) in positions.iter().enumerate() {
        let pages = &blocks[t / (rows / sequences) * width..][..width];
        for h in 0..heads {
            let query = &q.data()[(t * heads + h) * d..][..d];
            let at = |side: usize, place: usize| {
                let offset = cache.offset(pages[place / tokens], side, h / group, place % tokens);
                &state.data()[offset..offset + d]
            };
            let score = |place: usize| {
                scale * query.iter().zip(at(0, place)).map(|(q, k)| q * k).sum::<f64>()
            };
            let scores: Vec<f64> = (0..=position).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mixed = |i: usize| {
                let sum: f64 = weights.iter().enumerate().map(|(p, w)| w * at(1, p)[i]).sum();
                sum / total
            };
            data.extend((0..d).map(mixed));
        }
    }
    Ok(data)
}
