//! Checksums: they find damage, they do not stop a forger.

use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZero, ops::Range, thread};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Bytes of a piece. Pieces are hashed apart, so that threads can share a large file.
const PIECE: usize = 8 << 20;

/// Up to so many bytes one processor is left to what a program does meanwhile: a tokenizer takes longer to
/// read than these to hash.
const BESIDE_OTHERS: usize = 2 << 30;

/// A 128-bit XXH3, in hexadecimal where people read it: of the bytes, or of the XXH3 (little-endian) of
/// each 8 MiB where there is more than that.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Checksum(String);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Checksum {
    fn new(hash: u128) -> Self {
        Self(format!("{hash:032x}"))
    }
}

/// The checksum of `bytes`, on as many threads as the system offers this one, less one for up to 2 GiB.
pub fn checksum(bytes: &[u8]) -> Checksum {
    checksum_in_pieces(bytes, |_| ())
}

/// The checksum of `bytes`; `done` is told of each piece that was read, by one thread or another.
pub(crate) fn checksum_in_pieces(bytes: &[u8], done: impl Fn(Range<usize>) + Sync) -> Checksum {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let left = usize::from(bytes.len() <= BESIDE_OTHERS);
    on_threads(bytes, processors.saturating_sub(left).max(1), done)
}

fn on_threads(bytes: &[u8], threads: usize, done: impl Fn(Range<usize>) + Sync) -> Checksum {
    if bytes.len() <= PIECE {
        let hash = xxh3_128(bytes);
        done(0..bytes.len());
        return Checksum::new(hash);
    }
    let mut hashes = vec![0; bytes.len().div_ceil(PIECE)];
    let share = hashes.len().div_ceil(threads);
    let done = &done;
    thread::scope(|scope| {
        for (i, hashes) in hashes.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                for (start, hash) in (i * share * PIECE..).step_by(PIECE).zip(hashes) {
                    let piece = start..bytes.len().min(start + PIECE);
                    *hash = xxh3_128(&bytes[piece.clone()]);
                    done(piece);
                }
            });
        }
    });
    let all: Vec<u8> = hashes.into_iter().flat_map(u128::to_le_bytes).collect();
    Checksum::new(xxh3_128(&all))
}

/// A checksum of what comes bit by bit.
#[derive(Default)]
pub struct Hasher {
    /// The hashes of whole pieces that something came after.
    pieces: Xxh3,
    has_pieces: bool,
    piece: Xxh3,
    len: usize,
}

impl Hasher {
    /// Adds `bytes`.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.len == PIECE {
                self.end_piece();
                (self.has_pieces, self.len) = (true, 0);
                self.piece.reset();
            }
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - self.len));
            self.piece.update(now);
            self.len += now.len();
            bytes = later;
        }
    }

    fn end_piece(&mut self) {
        self.pieces.update(&self.piece.digest128().to_le_bytes());
    }

    /// The checksum of everything added.
    pub fn finish(mut self) -> Checksum {
        if !self.has_pieces {
            return Checksum::new(self.piece.digest128());
        }
        self.end_piece();
        Checksum::new(self.pieces.digest128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn noise(len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    }

    #[test]
    fn all_at_once_and_bit_by_bit_agree() {
        for len in [0, 1, 1000, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE + 77] {
            let bytes = noise(len);
            for step in [777_777, PIECE, 3 * PIECE + 5] {
                let mut hasher = Hasher::default();
                bytes.chunks(step).for_each(|part| hasher.update(part));
                assert_eq!(hasher.finish(), checksum(&bytes), "{len} bytes by {step}");
            }
        }
    }

    #[test]
    fn threads_share_the_pieces() {
        for len in [9, PIECE, 2 * PIECE, 3 * PIECE + 5] {
            let bytes = noise(len);
            for threads in 1..=5 {
                let told = Mutex::new(Vec::new());
                let tell =
                    |piece: Range<usize>| told.lock().unwrap().push((piece.start, piece.end));
                let sum = on_threads(&bytes, threads, tell);
                assert_eq!(sum, checksum(&bytes), "{len} bytes, {threads} threads");
                let mut told = told.into_inner().unwrap();
                told.sort_unstable();
                let pieces = (0..len).step_by(PIECE).map(|start| (start, len.min(start + PIECE)));
                assert!(told.into_iter().eq(pieces), "{len} bytes, {threads} threads");
            }
        }
    }

    #[test]
    fn the_checksum_is_what_it_says() {
        let bytes = noise(2 * PIECE + 3);
        assert_eq!(checksum(&bytes[..9]).to_string(), format!("{:032x}", xxh3_128(&bytes[..9])));
        let hashes: Vec<u8> =
            bytes.chunks(PIECE).flat_map(|piece| xxh3_128(piece).to_le_bytes()).collect();
        assert_eq!(checksum(&bytes).to_string(), format!("{:032x}", xxh3_128(&hashes)));
    }

    #[test]
    fn one_bit_in_any_piece_changes_it() {
        let mut bytes = noise(2 * PIECE + 3);
        let whole = checksum(&bytes);
        for at in [0, PIECE - 1, PIECE, 2 * PIECE + 2] {
            bytes[at] ^= 1;
            assert_ne!(checksum(&bytes), whole);
            bytes[at] ^= 1;
        }
        // Pieces have their order.
        let (first, rest) = bytes.split_at_mut(PIECE);
        first.swap_with_slice(&mut rest[..PIECE]);
        assert_ne!(checksum(&bytes), whole);
    }
}
