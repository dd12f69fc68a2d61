//! Rotary embedding and attention over a paged cache.

use super::{Failure, Tensor, arith::dot, quant::quantize};
use crate::attr::RopeSpec;
use std::borrow::Cow;
use tensor::DType;

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

/// A cache `[blocks, 2, heads, block, row]`.
struct Cache<'a>(&'a [usize]);

impl Cache<'_> {
    /// Where the row of a head begins at `place` of `block`: keys for `side` 0, values for 1.
    fn offset(&self, block: usize, side: usize, head: usize, place: usize) -> usize {
        let &[_, _, heads, tokens, row] = self.0 else { unreachable!("a cache has five axes") };
        (((block * 2 + side) * heads + head) * tokens + place) * row
    }
}

/// What a cache of type `dtype` keeps of a head's elements.
fn kept(dtype: DType, x: &[f64]) -> Cow<'_, [f64]> {
    if dtype != DType::I8 {
        return Cow::Borrowed(x);
    }
    let (mut codes, scales) = quantize(x, x.len(), |largest| (largest / 127.0) as f32);
    let scale = scales.first().map_or(0.0, |&scale| scale as f32);
    codes.extend(scale.to_le_bytes().map(|byte| f64::from(byte as i8)));
    Cow::Owned(codes)
}

/// The `d` elements that `row` of a cache of type `dtype` stands for.
fn elements(dtype: DType, row: &[f64], d: usize) -> Cow<'_, [f64]> {
    if dtype != DType::I8 {
        return Cow::Borrowed(row);
    }
    let bytes = std::array::from_fn(|i| row[d + i] as i8 as u8);
    let scale = f64::from(f32::from_le_bytes(bytes));
    Cow::Owned(row[..d].iter().map(|code| code * scale).collect())
}

pub(super) fn kv_write(state: &mut Tensor, args: &[&Tensor]) -> Result<(), Failure> {
    let (k, v, slots) = (args[0], args[1], args[2]);
    let dims = state.dims().to_vec();
    let (cache, heads, tokens, d) = (Cache(&dims), dims[2], dims[3], k.columns());
    let dtype = state.dtype();
    for (t, slot) in slots.indices(dims[0] * tokens, "slot")?.into_iter().enumerate() {
        for h in 0..heads {
            for (side, rows) in [(0, k), (1, v)] {
                let to = cache.offset(slot / tokens, side, h, slot % tokens);
                state.write(to, &kept(dtype, &rows.data()[(t * heads + h) * d..][..d]));
            }
        }
    }
    Ok(())
}

/// What each row may attend to.
pub(super) struct Pages {
    /// Tokens of a block.
    tokens: usize,
    /// Entries of a row of the table.
    width: usize,
    /// Rows of each sequence.
    per_sequence: usize,
    blocks: Vec<usize>,
    /// Of each row.
    pub(super) positions: Vec<usize>,
}

impl Pages {
    /// Of a memory of `blocks` blocks of `tokens` places.
    pub(super) fn new(
        table: &Tensor,
        positions: &Tensor,
        blocks: usize,
        tokens: usize,
    ) -> Result<Self, Failure> {
        let (rows, sequences, width) = (positions.dims()[0], table.dims()[0], table.columns());
        if sequences == 0 || !rows.is_multiple_of(sequences) {
            return Err(format!("{rows} tokens are no multiple of {sequences} sequences"));
        }
        Ok(Self {
            tokens,
            width,
            per_sequence: rows / sequences,
            blocks: table.indices(blocks, "block")?,
            positions: positions.indices(width * tokens, "position")?,
        })
    }

    /// Block, and place in it, of place `place` of the sequence of row `t`.
    pub(super) fn at(&self, t: usize, place: usize) -> (usize, usize) {
        let row = t / self.per_sequence * self.width;
        (self.blocks[row + place / self.tokens], place % self.tokens)
    }
}

/// `exp` of each score over the sum of them all, `extra` among them.
pub(super) fn softmax(scores: &[f64], extra: Option<f64>) -> Vec<f64> {
    let largest = scores.iter().copied().chain(extra).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
    let total = weights.iter().sum::<f64>() + extra.map_or(0.0, |s| (s - largest).exp());
    weights.into_iter().map(|w| w / total).collect()
}

/// `sinks` is a logit for each head and the number of places that a row sees, 0 for all.
pub(super) fn attention(
    args: &[&Tensor],
    scale: f64,
    sinks: Option<(&Tensor, u64)>,
) -> Result<Vec<f64>, Failure> {
    let (q, state, table, positions) = (args[0], args[1], args[2], args[3]);
    let (cache, heads, d) = (Cache(state.dims()), q.dims()[1], q.columns());
    let pages = Pages::new(table, positions, state.dims()[0], state.dims()[3])?;
    let group = heads / state.dims()[2];
    let window = sinks.map_or(0, |(_, window)| window as usize);

    let mut data = vec![0.0; q.data().len()];
    for (row, mixed) in data.chunks_exact_mut(d.max(1)).enumerate() {
        let (t, h) = (row / heads, row % heads);
        let query = &q.data()[row * d..][..d];
        let end = pages.positions[t] + 1;
        let places = if window == 0 { 0..end } else { end.saturating_sub(window)..end };
        let at = |side: usize, place: usize| {
            let (block, place) = pages.at(t, place);
            let row = &state.data()[cache.offset(block, side, h / group, place)..];
            elements(state.dtype(), &row[..state.columns()], d)
        };
        let scores: Vec<f64> =
            places.clone().map(|place| scale * dot(query, &at(0, place))).collect();
        let sink = sinks.map(|(sinks, _)| sinks.data()[h]);
        for (place, weight) in places.zip(softmax(&scores, sink)) {
            add_scaled(mixed, &at(1, place), weight);
        }
    }
    Ok(data)
}

pub(super) fn add_scaled(sum: &mut [f64], row: &[f64], weight: f64) {
    for (sum, x) in sum.iter_mut().zip(row) {
        *sum += weight * x;
    }
}
