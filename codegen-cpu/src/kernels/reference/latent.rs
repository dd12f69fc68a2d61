//! The definitions of what models with latent attention are made of.

use super::attention::{dot, softmax};

/// One run of elements less its mean, divided by its standard deviation, times `weight` plus `bias`.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let scale = (variance + f64::from(eps)).sqrt().recip();
    let affine = weight.iter().zip(bias).map(|(&w, &b)| (f64::from(w), f64::from(b)));
    x.iter().zip(affine).map(|(&v, (w, b))| (f64::from(v) - mean) * scale * w + b).collect()
}

/// `x [T,heads,K]` times the transpose of each head's `w [heads,N,K]`: `[T,heads,N]`.
pub fn head_matmul(x: &[f32], w: &[f32], heads: usize, n: usize, k: usize) -> Vec<f64> {
    let head = |(i, x)| super::matmul(x, &w[i % heads * n * k..][..n * k], n, k);
    x.chunks(k).enumerate().flat_map(head).collect()
}

/// Writes rows of `n` elements into a paged memory at their slots; others write nothing.
pub fn paged_write(x: &[f32], slots: &[i32], n: usize, state: &mut [f32]) {
    for (row, &slot) in x.chunks(n).zip(slots) {
        let place = usize::try_from(slot).ok().and_then(|slot| state.chunks_mut(n).nth(slot));
        if let Some(place) = place {
            place.copy_from_slice(row);
        }
    }
}

/// One row of the indexer: the `count` places of `keys [context,D]` with the largest sum over
/// heads of `weights[h] * relu(scale * q_h . key)` for `q [heads,D]`, the smaller place among
/// equals; ascending, then -1.
pub fn select_keys(
    q: &[f32],
    weights: &[f32],
    keys: &[f32],
    d: usize,
    scale: f32,
    count: usize,
) -> Vec<i32> {
    let score = |key: &[f32]| -> f64 {
        let heads = q.chunks(d).zip(weights);
        let scaled = |q| (dot(q, key) * f64::from(scale)).max(0.0);
        heads.map(|(q, &weight)| f64::from(weight) * scaled(q)).sum()
    };
    let scores: Vec<f64> = keys.chunks(d).map(score).collect();
    let mut places: Vec<usize> = (0..scores.len()).collect();
    places.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap_or(std::cmp::Ordering::Equal));
    places.truncate(count);
    places.sort_unstable();
    let places = places.into_iter().map(|place| place as i32);
    places.chain(std::iter::repeat(-1)).take(count).collect()
}

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug)]
pub struct LatentHeads {
    /// Query heads.
    pub heads: usize,
    /// Elements of a latent.
    pub c: usize,
    /// Elements of a rotated key.
    pub r: usize,
}

/// One row: `q_latent [heads,C]` and `q_rope [heads,R]` against the places it attends to, `latents
/// [places,C]` and `ropes [places,R]`.
pub fn latent_attention(
    q_latent: &[f32],
    q_rope: &[f32],
    latents: &[f32],
    ropes: &[f32],
    sizes: LatentHeads,
    scale: f32,
) -> Vec<f64> {
    let LatentHeads { heads, c, r } = sizes;
    let mut out = vec![0.0; heads * c];
    for (h, out) in out.chunks_mut(c).enumerate() {
        let (q_latent, q_rope) = (&q_latent[h * c..][..c], &q_rope[h * r..][..r]);
        let places = latents.chunks(c).zip(ropes.chunks(r));
        let score = |(latent, rope)| (dot(q_latent, latent) + dot(q_rope, rope)) * f64::from(scale);
        let scores: Vec<f64> = places.map(score).collect();
        for (latent, weight) in latents.chunks(c).zip(softmax(&scores, f64::NEG_INFINITY)) {
            for (o, &v) in out.iter_mut().zip(latent) {
                *o += f64::from(v) * weight;
            }
        }
    }
    out
}
