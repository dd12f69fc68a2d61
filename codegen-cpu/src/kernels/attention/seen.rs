//! What the rows of an item see of a chunk, and how their queries are cut into tiles.

use super::tile::{CHUNK_BLOCKS, KvElement, good_queries, most_queries};
use crate::kernels::kv::BLOCK_TOKENS;
use crate::kernels::simd::Simd;
use std::ops::Range;

/// The blocks of a chunk between the first and the last of which a row sees tokens, where each sees its part.
#[inline(always)]
pub(super) fn blocks_seen(parts: impl Iterator<Item = (usize, usize)>) -> Range<usize> {
    let seen = parts.filter(|(from, to)| from < to);
    let (first, end) = seen.fold((CHUNK_BLOCKS, 0), |(first, end), (from, to)| {
        (first.min(from / BLOCK_TOKENS), end.max(to.div_ceil(BLOCK_TOKENS)))
    });
    first.min(end)..end
}

/// What the rows of an item see of a chunk.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    /// The first and past-the-last token that each row sees, counted from the chunk's first.
    pub(super) parts: &'a [(usize, usize)],
    pub(super) cut: Cut,
}

/// Queries of a KV head that meet keys and values together, and what their rows see.
pub(super) struct Tile<'a> {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) parts: &'a [(usize, usize)],
}

impl<'a> Seen<'a> {
    /// The tiles of a KV head.
    #[inline(always)]
    pub(super) fn tiles(self) -> impl Iterator<Item = Tile<'a>> {
        let Self { parts: mut rest, cut: Cut { group, rows, most, .. } } = self;
        let (mut first, mut left, mut parts) = (0, 0, &rest[..0]);
        std::iter::from_fn(move || {
            if left == 0 {
                (parts, rest) = rest.split_at(rows.min(rest.len()));
                left = parts.len() * group;
            }
            let tile = Tile { first, count: most.min(left), parts };
            (first, left) = (first + tile.count, left - tile.count);
            (tile.count > 0).then_some(tile)
        })
    }
}

/// How queries are cut into tiles: those of some rows together, or some of a row's, as evenly as they come.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Queries of a row and KV head.
    pub(super) group: usize,
    /// Rows of a tile.
    rows: usize,
    /// The most queries of a tile.
    most: usize,
    /// Blocks that are multiplied together, a power of two.
    blocks: usize,
}

impl Cut {
    /// All queries of `rows` rows of `group` each together, with so many blocks at once.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn together(group: usize, rows: usize, blocks: usize) -> Self {
        Self { group, rows, most: rows * group, blocks }
    }

    /// The blocks that are multiplied for rows of which each sees its part of a chunk.
    #[inline(always)]
    pub(super) fn blocks_seen(self, parts: &[(usize, usize)]) -> Range<usize> {
        let (seen, rest) = (blocks_seen(parts.iter().copied()), self.blocks - 1);
        seen.start & !rest..(seen.end + rest) & !rest
    }

    /// The cut of `group` queries for each row.
    #[inline(always)]
    pub(super) fn new<S: Simd, T: KvElement>(group: usize) -> Self {
        let most = most_queries::<S, T>();
        match group <= most {
            true => Self { group, rows: most / group, most, blocks: 1 },
            false => {
                let tiles = group.div_ceil(most.min(good_queries::<S, T>()));
                Self { group, rows: 1, most: group.div_ceil(tiles), blocks: 1 }
            }
        }
    }
}
