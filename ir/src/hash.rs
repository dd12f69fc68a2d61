//! Quick hashing of names, of which a model with many experts has a hundred thousand.

use std::hash::{BuildHasherDefault, Hasher};

/// For tables of names: a few instructions for eight bytes. Whoever can choose the names can make a
/// table slow, so it is for programs that their owner compiles.
pub(crate) type NameHash = BuildHasherDefault<NameHasher>;

#[derive(Default)]
pub(crate) struct NameHasher(u64);

/// Odd, and half of its bits are set.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl NameHasher {
    fn word(&mut self, word: u64) {
        let mixed = u128::from(self.0 ^ word) * u128::from(FACTOR);
        self.0 = (mixed as u64) ^ (mixed >> 64) as u64;
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for &word in words {
            self.word(u64::from_le_bytes(word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        // The length, so that zero bytes at the end count.
        self.word(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, hash::BuildHasher};

    #[test]
    fn names_of_layers_and_experts_do_not_collide() {
        let hash = NameHash::default();
        let names = (0..61).flat_map(|layer| {
            (0..256).map(move |e| format!("model.layers.{layer}.mlp.experts.{e}.up_proj.weight"))
        });
        let hashes: HashSet<u64> = names.map(|n| hash.hash_one(n)).collect();
        assert_eq!(hashes.len(), 61 * 256);
        // Tables use the low bits to choose a place and the high ones to tell entries apart.
        let low: HashSet<u64> = hashes.iter().map(|h| h & 0x3fff).collect();
        let high: HashSet<u64> = hashes.iter().map(|h| h >> 57).collect();
        assert!(low.len() > 9000 && high.len() == 128, "{} {}", low.len(), high.len());
    }

    #[test]
    fn zeros_at_the_end_count() {
        let hash = |bytes: &[u8]| {
            let mut hasher = NameHasher::default();
            hasher.write(bytes);
            hasher.finish()
        };
        assert_ne!(hash(b"a"), hash(b"a\0"));
        assert_ne!(hash(b""), hash(b"\0"));
    }
}
