//! Random numbers as a function of a seed and a count, so that a token depends on neither the batch
//! nor on what happened to the request in between.

/// A uniform number in `[0, 1)`: the `draw`-th of the stream `seed`.
pub(crate) fn uniform(seed: u64, draw: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(draw.wrapping_mul(STEP)));
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Odd, with well spread bits: the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of SplitMix64: every output bit depends on every input bit.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(STEP);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_and_streams_differ() {
        for seed in [0, 1, 2, u64::MAX] {
            let mut bins = [0u32; 16];
            for draw in 0..16_000 {
                let u = uniform(seed, draw);
                assert!((0.0..1.0).contains(&u));
                bins[(u * 16.0) as usize] += 1;
            }
            // 1000 expected, standard deviation 31.
            assert!(bins.iter().all(|n| (850..1150).contains(n)), "{seed}: {bins:?}");
        }
        assert_ne!(uniform(1, 0), uniform(2, 0));
        assert_ne!(uniform(1, 0), uniform(1, 1));
    }
}
