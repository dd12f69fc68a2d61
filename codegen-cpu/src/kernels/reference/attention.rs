//! The definition of attention.

/// Sizes of attention.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values; query heads share them in equal groups.
    pub kv_heads: usize,
    /// Elements of a head.
    pub d: usize,
}

/// One row: `q [heads,d]` against `keys` and `values`, each `[context, kv heads, d]`.
pub fn attention(q: &[f32], keys: &[f32], values: &[f32], sizes: Heads, scale: f32) -> Vec<f64> {
    sink_attention(q, keys, values, sizes, scale, &vec![f32::NEG_INFINITY; sizes.heads], 0)
}

/// [`attention`] over the last `window` places (0: all), with a logit for each head that takes
/// probability and adds no value.
pub fn sink_attention(
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    sizes: Heads,
    scale: f32,
    sinks: &[f32],
    window: usize,
) -> Vec<f64> {
    let Heads { heads, kv_heads, d } = sizes;
    let width = kv_heads * d;
    let context = keys.len() / width;
    let skipped = if window == 0 { 0 } else { context.saturating_sub(window) };
    let mut out = vec![0.0; heads * d];
    for (h, out) in out.chunks_mut(d).enumerate() {
        let at = h / (heads / kv_heads) * d;
        let score = |key: &[f32]| dot(&q[h * d..][..d], &key[at..][..d]) * f64::from(scale);
        let scores: Vec<f64> = keys.chunks(width).skip(skipped).map(score).collect();
        let weights = softmax(&scores, f64::from(sinks[h]));
        for (row, weight) in values.chunks(width).skip(skipped).zip(&weights) {
            for (o, &v) in out.iter_mut().zip(&row[at..][..d]) {
                *o += f64::from(v) * weight;
            }
        }
    }
    out
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// Probabilities of `scores`, next to a further score `sink`.
pub(super) fn softmax(scores: &[f64], sink: f64) -> Vec<f64> {
    let largest = scores.iter().copied().fold(sink, f64::max);
    let total: f64 =
        scores.iter().map(|s| (s - largest).exp()).sum::<f64>() + (sink - largest).exp();
    scores.iter().map(|s| (s - largest).exp() / total).collect()
}
