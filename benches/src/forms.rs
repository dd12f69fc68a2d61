//! Multiply-adds of forms of attention that the kernels do not use, for lower bounds of their time.

/// Sizes of multi-head latent attention (arXiv 2405.04434).
#[derive(Clone, Copy, Debug)]
pub struct Latent {
    /// Heads of queries.
    pub heads: u64,
    /// Channels of a latent vector.
    pub latent: u64,
    /// Channels of a rotated key.
    pub rope: u64,
    /// Channels of a key without position, of one head.
    pub nope: u64,
    /// Channels of a value, of one head.
    pub value: u64,
}

impl Latent {
    /// Queries into the space of latent vectors and results out of it, for one row. Keys and values
    /// of one place, expanded from its latent vector, take as many.
    pub const fn maps(&self) -> u64 {
        self.heads * (self.nope + self.value) * self.latent
    }

    /// A query of each head against a latent vector, and its share of the result.
    pub const fn absorbed_pair(&self) -> u64 {
        self.heads * (self.latent + self.rope + self.latent)
    }

    /// A query of each head against its own key, and its share of the result.
    pub const fn expanded_pair(&self) -> u64 {
        self.heads * (self.nope + self.rope + self.value)
    }

    /// A prompt of `rows` tokens in the form that costs `pair`: each row sees itself and those
    /// before it.
    pub const fn prompt(&self, rows: u64, pair: u64) -> u64 {
        rows * self.maps() + rows * (rows + 1) / 2 * pair
    }
}

/// The gated delta rule for one head.
#[derive(Clone, Copy, Debug)]
pub struct Delta {
    /// Channels of a key.
    pub key: u64,
    /// Channels of a value.
    pub value: u64,
}

impl Delta {
    /// One token after another, for each token: the memory decays, takes up `k u^T`, and is
    /// multiplied by a key and by a query. A multiplication without an addition counts as one.
    pub const fn by_token(&self) -> u64 {
        4 * self.key * self.value
    }

    /// In chunks of `rows` tokens (arXiv 2406.06484, 2412.06464), for a whole chunk, with no more
    /// than the lower triangles of what is triangular and without the factors of decay:
    ///
    /// - `K K^T` below its diagonal, and the system with it solved for the values to write;
    /// - `Q K^T` with its diagonal, and its product with those values;
    /// - `K`, `Q` and `K^T` with the memory or what is written to it.
    ///
    /// The publications do more: [`Delta::published_chunk`].
    pub const fn chunk(&self, rows: u64) -> u64 {
        let below = rows * (rows - 1) / 2;
        let both = self.key + self.value;
        below * both + (below + rows) * both + 3 * rows * self.key * self.value
    }

    /// [`Delta::chunk`] as published: the triangle is inverted, and multiplied by `K` too, instead of
    /// a system solved for `V - K S`.
    pub const fn published_chunk(&self, rows: u64) -> u64 {
        let below = rows * (rows - 1) / 2;
        let inverse = below * rows.saturating_sub(2) / 3;
        self.chunk(rows) + inverse + below * self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENT: Latent = Latent { heads: 128, latent: 512, rope: 64, nope: 128, value: 128 };

    #[test]
    fn pairs_are_those_of_deepseek_v3() {
        assert_eq!(LATENT.absorbed_pair(), 128 * 1088);
        assert_eq!(LATENT.expanded_pair(), 128 * (192 + 128));
        assert_eq!(LATENT.prompt(3, 10), 3 * 128 * 256 * 512 + (1 + 2 + 3) * 10);
    }

    /// Every multiply-add of a chunk, counted one by one.
    #[test]
    fn chunks_are_counted_whole() {
        let delta = Delta { key: 3, value: 5 };
        for rows in 1..9u64 {
            let mut count = 0;
            for t in 0..rows {
                for _ in 0..t {
                    count += delta.key; // k_t against an earlier k.
                    count += delta.value; // An earlier row of the solution.
                }
                for _ in 0..=t {
                    count += delta.key; // q_t against k.
                    count += delta.value; // What was written.
                }
                count += 3 * delta.key * delta.value;
            }
            assert_eq!(delta.chunk(rows), count);
            let mut more = 0;
            for row in 0..rows {
                for column in 0..row {
                    more += row - column - 1; // An element of the inverse, ones on its diagonal.
                    more += delta.key;
                }
            }
            assert_eq!(delta.published_chunk(rows), count + more);
        }
    }

    #[test]
    fn a_chunk_of_64_takes_as_many_as_64_tokens() {
        let delta = Delta { key: 128, value: 128 };
        assert_eq!(delta.chunk(64), 64 * delta.by_token());
        assert!(delta.published_chunk(64) > 64 * delta.by_token());
    }
}
