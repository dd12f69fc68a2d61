//! Weights of a chunk of codes become whole numbers.

use super::ahead::Pace;
use super::item::Room;
use super::numbers;
use super::seen::{Seen, Tile};
use super::tile::{CHUNK_BLOCKS, CHUNK_TOKENS};
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};

/// Makes whole numbers of the weights of a chunk of codes and takes the scales of its values into them; asks for memory
/// meanwhile where that is `PACED`.
pub(super) struct WholeWeights<'a, const PACED: bool> {
    /// The scales of the first head's values in each block.
    pub(super) scales: [*const f32; CHUNK_BLOCKS],
    /// How far behind them those of the next head are.
    pub(super) step: usize,
    pub(super) heads: usize,
    /// What each row sees.
    pub(super) seen: Seen<'a>,
    pub(super) pace: Pace<'a>,
    /// That of the item.
    pub(super) room: Room,
}

impl<const PACED: bool> Vectorised for WholeWeights<'_, PACED> {
    type Output = ();
    const DOTS: Dots = Dots::BYTES;

    /// # Safety
    /// The pointers are valid for what rows see.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { scales, step, heads, seen, pace, room } = self;
        let pace = Pace { ahead: if PACED { pace.ahead } else { None }, ..pace };
        let group = seen.cut.group;
        let queries = seen.parts.len() * group;
        // SAFETY: as the caller's.
        unsafe {
            for k in 0..heads {
                let scales = scales.map(|block| block.wrapping_add(k * step));
                for Tile { first, count, parts } in seen.tiles() {
                    let seen = seen.cut.blocks_seen(parts);
                    let (scales, of_row) = (&scales[seen.clone()], group.min(count));
                    for (r, &part) in parts.iter().enumerate() {
                        let first = k * queries + first + r * of_row;
                        for i in first..first + of_row {
                            let weights = room.scores.add(i * CHUNK_TOKENS);
                            let most = room.largest.add(i * LANES);
                            numbers::scale::<S>(weights, scales, seen.start, part, most, pace);
                        }
                    }
                }
            }
            for i in 0..heads * queries {
                *room.factors.add(i) = numbers::weight_factors::<S>(room.largest.add(i * LANES));
            }
            for k in 0..heads {
                for Tile { first, count, parts } in seen.tiles() {
                    let seen = seen.cut.blocks_seen(parts);
                    let first = k * queries + first;
                    for i in first..first + count {
                        let (weights, by) =
                            (room.scores.add(i * CHUNK_TOKENS), *room.largest.add(i * LANES));
                        let to = room.rounded.add(i * CHUNK_TOKENS).cast();
                        let offset = numbers::weights::<S>(weights, seen.clone(), by, to, pace);
                        (*room.factors.add(i)).offset = offset;
                    }
                }
            }
        }
    }
}
