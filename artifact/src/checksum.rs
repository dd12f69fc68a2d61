//! Checksums: they find damage, they do not stop a forger.

use serde::{Deserialize, Serialize};
use std::fmt;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// A 128-bit XXH3, in hexadecimal where people read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Checksum(String);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The checksum of `bytes`.
pub fn checksum(bytes: &[u8]) -> Checksum {
    Checksum(format!("{:032x}", xxh3_128(bytes)))
}

/// A checksum over pieces.
#[derive(Default)]
pub struct Hasher(Xxh3);

impl Hasher {
    /// Adds a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    /// The checksum of everything added.
    pub fn finish(&self) -> Checksum {
        Checksum(format!("{:032x}", self.0.digest128()))
    }
}
