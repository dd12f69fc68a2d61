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
    let Heads { heads, kv_heads, d } = sizes;
    let width = kv_heads * d;
    let mut out = vec![0.0; heads * d];
    for (h, out) in out.chunks_mut(d).enumerate() {
        let at = h / (heads / kv_heads) * d;
        let score = |key: &[f32]| {
            let q = &q[h * d..][..d];
            let dot: f64 = q.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
            dot * f64::from(scale)
        };
        let scores: Vec<f64> = keys.chunks(width).map(|row| score(&row[at..][..d])).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        for (row, weight) in values.chunks(width).zip(&weights) {
            for (o, &v) in out.iter_mut().zip(&row[at..][..d]) {
                *o += f64::from(v) * weight / total;
            }
        }
    }
    out
}
