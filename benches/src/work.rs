//! The least that a step has to do: what it is measured against.

use crate::checkpoint::Shape;
use artifact::Manifest;
use tensor::layout::Layout;

/// Bytes read from memory and operations done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Every weight that is needed, once, and the keys and values of each context.
    pub bytes: f64,
    /// Two for each multiply-add of products.
    pub products: f64,
    /// The same of attention, whose numbers are floats whatever the weights are.
    pub attention: f64,
}

impl Work {
    /// Decodes one token for each of `batch` sequences that have `context` tokens.
    pub fn decode(shape: &Shape, m: &Manifest, batch: usize, context: f64) -> Self {
        let tokens = batch as f64;
        Self {
            bytes: weights(shape, m, tokens)
                + tokens * seen(shape, context) * m.kv.bytes_per_token as f64,
            products: tokens * (layers(shape) + head(shape)),
            attention: tokens * attention(shape, seen(shape, context)),
        }
    }

    /// Feeds a prompt of `tokens` and computes logits for the last: causal attention, the head once.
    pub fn prefill(shape: &Shape, m: &Manifest, tokens: usize) -> Self {
        let contexts = (1..=tokens).map(|context| seen(shape, context as f64)).sum();
        let tokens = tokens as f64;
        Self {
            bytes: weights(shape, m, tokens),
            products: tokens * layers(shape) + head(shape),
            attention: attention(shape, contexts),
        }
    }

    /// Seconds it takes where so many billions a second are read of bytes and done of operations of products and of
    /// attention, memory and arithmetic at the same time.
    pub fn seconds(&self, read: f64, products: f64, attention: f64) -> f64 {
        (self.bytes / read).max(self.products / products + self.attention / attention) / 1e9
    }
}

/// Bytes of the weights that `tokens` tokens need. Of the experts they need as many as a random choice
/// for each token hits, of an embedding table of its own no more than a few rows.
fn weights(s: &Shape, m: &Manifest, tokens: f64) -> f64 {
    let hit =
        s.experts.map_or(1.0, |e| 1.0 - (1.0 - e.per_token as f64 / e.count as f64).powf(tokens));
    let needed = m.weights.iter().map(|w| match w.dims[..] {
        [_, _, _] => hit * w.bytes as f64,
        [rows, width] if w.layout == Layout::Nd && (rows, width) == (s.vocab_size, s.hidden) => 0.0,
        _ => w.bytes as f64,
    });
    needed.sum()
}

/// Operations of the products of all layers for one token.
fn layers(s: &Shape) -> f64 {
    let (h, d) = (s.hidden as f64, s.head_dim as f64);
    let (q, kv) = (s.heads as f64 * d, s.kv_heads as f64 * d);
    let projections = h * (q + 2.0 * kv) + q * h;
    let feed_forward = match s.experts {
        None => 3.0 * h * s.intermediate as f64,
        Some(e) => h * e.count as f64 + e.per_token as f64 * 3.0 * h * e.width as f64,
    };
    2.0 * s.layers as f64 * (projections + feed_forward)
}

/// Of `context` tokens those that a layer sees, on average.
fn seen(s: &Shape, context: f64) -> f64 {
    s.window.map_or(context, |window| (context + context.min(window as f64)) / 2.0)
}

/// Operations of the attention of all layers for one token that sees `context`.
fn attention(s: &Shape, context: f64) -> f64 {
    2.0 * 2.0 * (s.layers * s.heads * s.head_dim) as f64 * context
}

fn head(s: &Shape) -> f64 {
    2.0 * (s.hidden * s.vocab_size) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_a_released_shape() {
        let s = Shape::qwen2_5_0_5b();
        // Parameters of the products, that is without biases, norms and the table.
        let products = 24 * (896 * (896 + 2 * 128) + 896 * 896 + 3 * 896 * 4864);
        assert_eq!(layers(&s), 2.0 * f64::from(products));
        assert_eq!(head(&s), 2.0 * 136_134_656.0);
        assert_eq!(attention(&s, 1.0), f64::from(4 * 24 * 896));
        let moe = Shape::qwen3_moe_small();
        let products = 12 * (768 * (768 + 2 * 256) + 768 * 768 + 768 * 32 + 4 * 3 * 768 * 512);
        assert_eq!(layers(&moe), 2.0 * f64::from(products));
    }

    #[test]
    fn every_other_layer_sees_a_window() {
        let s = Shape::gpt_oss_small();
        assert_eq!([100.0, 128.0, 512.0].map(|context| seen(&s, context)), [100.0, 128.0, 320.0]);
    }

    #[test]
    fn the_slower_of_memory_and_arithmetic_bounds_a_step() {
        let work = Work { bytes: 2e9, products: 30e9, attention: 5e9 };
        assert_eq!(work.seconds(1.0, 10.0, 5.0), 4.0);
        assert_eq!(work.seconds(0.4, 10.0, 5.0), 5.0);
    }
}
