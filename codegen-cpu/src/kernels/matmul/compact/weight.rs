//! Where panels of a compact weight are, and what escaped from them.

use super::super::WIDTH;
use super::octets::Unpack;
#[cfg(target_arch = "x86_64")]
use super::{
    HALF_WORDS,
    octets::{UnpackAhead, UnpackHalf},
};
use super::{OCTET_PAIRS, OCTET_WORDS, PAIR_LINES};
use crate::kernels::bind::Rows;
use crate::kernels::simd::{LANES, LINE_BYTES, Simd};
use half::bf16;
use tensor::Entry;

/// The most lines of escapes that are asked for ahead.
const ESCAPE_LINES: usize = 4;

/// How far ahead of its unpacking a panel is asked for.
pub(super) const AHEAD_BYTES: usize = 16 * OCTET_WORDS * size_of::<u32>();

/// A compact weight in memory.
pub(crate) struct CompactWeight {
    base: *const u32,
    /// Bytes of the panels.
    room: u64,
    layout: tensor::Compact,
}

/// A panel of a compact weight.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    /// Its octets, or its pairs where it is plain.
    pub(in crate::kernels::matmul) octets: *const u32,
    pub(super) plain: bool,
    /// `output | input << 6` and the bits as `f32`.
    pub(super) escapes: &'static [[u8; 8]],
    /// The exponent that a nibble of 0 stands for in the bits of a pair of bf16.
    pub(super) lowest: u32,
}

impl Panel {
    /// Cache lines of a pair of all outputs.
    pub(crate) const PAIR_LINES: usize = PAIR_LINES;

    /// Its pairs, where it is plain.
    #[inline(always)]
    pub(crate) fn pairs(&self) -> Option<*const u32> {
        self.plain.then_some(self.octets)
    }

    /// No panel: nothing to unpack.
    pub(super) const NONE: Self =
        Self { octets: std::ptr::null(), plain: true, escapes: &[], lowest: 0 };

    /// The octets of `count` pairs from `first` on, a multiple of those of an octet; none of a plain panel.
    #[inline(always)]
    pub(crate) fn octets_of(&self, (first, count): (usize, usize), to: *mut u32) -> Unpack {
        let from = self.octets.wrapping_add(first / OCTET_PAIRS * OCTET_WORDS);
        let octets = if self.plain { 0 } else { count.div_ceil(OCTET_PAIRS) };
        Unpack { from, to, octets, lowest: self.lowest }
    }

    /// Bytes from the octets `from` of a panel of `pairs` pairs to what is asked for while they are unpacked: octets of the
    /// panel, or where these end what is at `next`.
    #[inline(always)]
    pub(super) fn ahead(&self, from: *const u32, pairs: usize, next: *const u8) -> usize {
        let end = self.octets.wrapping_add(pairs.div_ceil(OCTET_PAIRS) * OCTET_WORDS);
        if from.wrapping_byte_add(AHEAD_BYTES) < end {
            return AHEAD_BYTES;
        }
        AHEAD_BYTES.wrapping_add(next.addr().wrapping_sub(end.addr()))
    }

    /// Asks for its first escapes, long before it is unpacked: they lie behind its octets, where nothing else reads ahead.
    #[inline(always)]
    pub(crate) fn ask<S: Simd>(&self) {
        let lines = self.escapes.as_ptr_range();
        let mut line: *const u8 = lines.start.cast();
        for _ in 0..ESCAPE_LINES {
            if line >= lines.end.cast() {
                break;
            }
            // SAFETY: a prefetch may name any address.
            unsafe { S::prefetch_far(line) };
            line = line.wrapping_add(LINE_BYTES);
        }
    }

    /// Unpacks those octets, and writes the escapes from `escape` on that are among them. Returns the next one.
    ///
    /// # Safety
    /// As [`Simd`]; `to` is valid for as many octets of pairs.
    #[inline(always)]
    pub(crate) unsafe fn unpack_pairs<S: Simd>(
        &self,
        (first, count): (usize, usize),
        to: *mut u32,
        escape: usize,
    ) -> usize {
        // SAFETY: as the caller's.
        unsafe {
            S::enter(self.octets_of((first, count), to));
            patch(self.escapes, escape, (first, count), to)
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Panel {
    /// [`Panel::unpack_pairs`] of a panel of `pairs` pairs, while what follows is asked for: octets of the panel, or where
    /// these end what is at `next`.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn unpack_ahead<S: Simd>(
        &self,
        (first, count): (usize, usize),
        to: *mut u32,
        escape: usize,
        (pairs, next): (usize, *const u8),
    ) -> usize {
        let unpack = self.octets_of((first, count), to);
        let ahead = self.ahead(unpack.from, pairs, next);
        // SAFETY: as the caller's.
        unsafe {
            S::enter(UnpackAhead { unpack, ahead });
            patch(self.escapes, escape, (first, count), to)
        }
    }

    /// [`Panel::unpack_pairs`] of the outputs of half `half` alone, while as many bytes as it reads are asked for: they begin
    /// `first` pairs of a half after `ahead`. What becomes of the other half of `to` is not said.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn unpack_half<S: Simd>(
        &self,
        (first, count): (usize, usize),
        half: usize,
        to: *mut u32,
        escape: usize,
        ahead: *const u8,
    ) -> usize {
        let unpack = self.octets_of((first, count), to);
        let ahead = ahead.cast::<u32>().wrapping_add(first / OCTET_PAIRS * HALF_WORDS);
        // SAFETY: as the caller's.
        unsafe {
            S::enter(UnpackHalf { unpack, half, ahead });
            patch(self.escapes, escape, (first, count), to)
        }
    }

    /// What [`Panel::unpack_half`] takes for `ahead`, so that the two halves of `count` pairs from `first` on ask for what
    /// begins at `next`, the second where the first ends.
    #[inline(always)]
    pub(crate) fn ahead_of_half(
        &self,
        half: usize,
        (first, count): (usize, usize),
        next: *const u8,
    ) -> *const u8 {
        let (before, octets) = (first / OCTET_PAIRS, count.div_ceil(OCTET_PAIRS));
        let words = (half * octets).wrapping_sub(before).wrapping_mul(HALF_WORDS);
        next.cast::<u32>().wrapping_add(words).cast()
    }
}

impl CompactWeight {
    /// The matrix that [`Binder::whole`](crate::kernels::bind::Binder::whole) found, with so many panels of `k` inputs.
    #[inline(always)]
    pub(crate) fn bound<T>(weight: &Rows<T>, panels: usize, k: usize) -> Self {
        let layout = tensor::Compact::new((panels * WIDTH) as u64, k as u64);
        // SAFETY: it was bound.
        let base = unsafe { weight.row(0) };
        Self::new(base.cast_const().cast(), weight.stride() * size_of::<T>(), layout)
    }

    /// The weight of so many bytes at `base`, at least [`tensor::Compact::least_bytes`].
    #[inline(always)]
    pub(crate) fn new(base: *const u32, bytes: usize, layout: tensor::Compact) -> Self {
        Self { base, room: bytes as u64 - layout.table_bytes(), layout }
    }

    /// What the table says of a panel.
    #[inline(always)]
    fn entry(&self, panel: usize) -> *const Entry {
        self.base.wrapping_byte_add(self.room as usize).cast::<Entry>().wrapping_add(panel)
    }

    /// Which of all panels is panel `panel` of a matrix.
    #[inline(always)]
    pub(crate) fn index(&self, (matrix, panel): (usize, usize)) -> usize {
        matrix * self.layout.panels() as usize + panel
    }

    /// A panel. Whatever the table says, it stays inside the weight.
    ///
    /// # Safety
    /// The weight is as long as [`CompactWeight::new`] was told and outlives what is returned.
    #[inline(always)]
    pub(crate) unsafe fn panel(&self, panel: usize) -> Panel {
        // SAFETY: the table has an entry for each panel.
        let Entry { start, escapes, lowest, .. } = unsafe { self.entry(panel).read_unaligned() };
        // Octets are shorter than pairs wherever there are some, and have room wherever pairs have none.
        let (octet_bytes, plain_bytes) = (self.layout.octet_bytes(), self.layout.plain_bytes());
        let stays = escapes == Entry::PLAIN && plain_bytes <= self.room;
        let plain = stays || octet_bytes >= plain_bytes;
        let bytes = if plain { plain_bytes } else { octet_bytes };
        let escapes = if plain { 0 } else { u64::from(escapes) };
        let last = (self.room - bytes) / tensor::Compact::UNIT;
        let start = u64::from(start).min(last) * tensor::Compact::UNIT;
        let left = (self.room - start - bytes) / tensor::Compact::ESCAPE_BYTES;
        let octets = self.base.wrapping_add(start as usize / size_of::<u32>());
        let list = octets.wrapping_add(bytes as usize / size_of::<u32>());
        // SAFETY: as many are between the panel and the table.
        let escapes = unsafe {
            std::slice::from_raw_parts(list.cast::<[u8; 8]>(), escapes.min(left) as usize)
        };
        // No carry into a neighbour, whatever the table says.
        let lowest = lowest.min(256 - tensor::Compact::WINDOW) * 0x0080_0080;
        Panel { octets, plain, escapes, lowest }
    }

    /// The panel after `panel` of those up to `end` that a thread goes through, whose escapes, and the place of the one after
    /// it, are asked for.
    ///
    /// # Safety
    /// As [`CompactWeight::panel`].
    #[inline(always)]
    pub(in crate::kernels::matmul) unsafe fn after<S: Simd>(
        &self,
        panel: usize,
        end: usize,
    ) -> Panel {
        if panel + 1 >= end {
            return Panel::NONE;
        }
        self.ask::<S>(panel + 2);
        // SAFETY: as the caller's.
        let panel = unsafe { self.panel(panel + 1) };
        panel.ask::<S>();
        panel
    }

    /// Asks for what [`CompactWeight::panel`] reads.
    #[inline(always)]
    pub(crate) fn ask<S: Simd>(&self, panel: usize) {
        // SAFETY: a prefetch may name any address.
        unsafe { S::prefetch_far(self.entry(panel).cast()) }
    }

    /// Inputs `first..` of output `lane` of `panel`, at most 16; `first` is a multiple of that.
    ///
    /// # Safety
    /// The weight is as for [`CompactWeight::panel`], `first` is below `K`.
    #[inline(always)]
    pub(crate) unsafe fn part(&self, panel: &Panel, lane: usize, first: usize) -> [bf16; LANES] {
        let mut out = [bf16::ZERO; LANES];
        let count = LANES.min(self.layout.cols() as usize - first);
        for (input, out) in (first..).zip(&mut out[..count]) {
            // SAFETY: the input is inside the panel.
            let bits = unsafe {
                if panel.plain {
                    let pair = panel.octets.add(input / 2 * WIDTH + lane).read_unaligned();
                    pair >> (input % 2 * 16)
                } else {
                    let (octet, i) = (panel.octets.add(input / 8 * OCTET_WORDS), input % 8);
                    let word = |word| octet.add(tensor::Compact::word(lane, word)).read_unaligned();
                    let (word, nibbles) = (word(i / 4), word(2));
                    let mantissa = word >> (8 * tensor::Compact::mantissa_byte(i % 4)) & 0x7f;
                    let sign = word >> (8 * tensor::Compact::sign_byte(i % 4)) & 0x80;
                    let nibble = nibbles >> (i % 2 * 16 + i / 2 * 4) & 15;
                    sign << 8 | mantissa | ((panel.lowest & 0x7f80) + (nibble << 7))
                }
            };
            *out = bf16::from_bits(bits as u16);
        }
        // They are in the order of their octets.
        let (begin, end) = (first / 8, (first + count).div_ceil(8));
        let begin = panel.escapes.partition_point(|escape| octet(escape) < begin);
        for escape in panel.escapes[begin..].iter().take_while(|escape| octet(escape) < end) {
            let (output, input, bits) = escaped(*escape);
            if output == lane && (first..first + count).contains(&input) {
                out[input - first] = bf16::from_bits(bits);
            }
        }
        out
    }
}

/// Output of the panel, input and bits of an escape.
#[inline(always)]
fn escaped([a, b, c, d, .., low, high]: [u8; 8]) -> (usize, usize, u16) {
    let place = u32::from_le_bytes([a, b, c, d]) as usize;
    (place % WIDTH, place / WIDTH, u16::from_le_bytes([low, high]))
}

/// Writes the escapes from `next` on that are among `count` pairs from `first` on to `pairs`, `[count][64]`.
/// Returns the next one.
///
/// # Safety
/// `pairs` is valid for as many.
#[inline(always)]
pub(super) unsafe fn patch(
    escapes: &[[u8; 8]],
    mut next: usize,
    (first, count): (usize, usize),
    pairs: *mut u32,
) -> usize {
    while let Some(&escape) = escapes.get(next) {
        let (output, input, bits) = escaped(escape);
        let pair = (input / 2).wrapping_sub(first);
        if pair >= count && input / 2 >= first {
            break;
        }
        if pair < count {
            // SAFETY: the pair is among them.
            unsafe { *pairs.cast::<u16>().add((pair * WIDTH + output) * 2 + input % 2) = bits }
        }
        next += 1;
    }
    next
}

/// The octet of an escape.
#[inline(always)]
fn octet(escape: &[u8; 8]) -> usize {
    escaped(*escape).1 / tensor::Compact::OCTET as usize
}

/// The first pair of the octet that has escape `next`.
#[inline(always)]
pub(super) fn first_pair(escapes: &[[u8; 8]], next: usize) -> usize {
    escapes.get(next).map_or(usize::MAX, |escape| octet(escape) * OCTET_PAIRS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_stay_inside_the_weight_whatever_the_table_says() {
        let shapes = [(64, 1), (128, 2), (64, 4), (64, 9), (130, 200), (1, 8)];
        for ((n, k), matrices) in shapes.into_iter().flat_map(|shape| [(shape, 1), (shape, 3)]) {
            let layout = tensor::Compact::stack(matrices, n, k);
            let (least, most) = (layout.least_bytes() as usize, layout.most_bytes() as usize);
            let words = [0, 1, 5000, u32::MAX - 1, u32::MAX];
            for (word, bytes) in words.into_iter().flat_map(|word| [(word, least), (word, most)]) {
                let weight = vec![word; bytes / 4];
                let weight = weight.as_ptr_range();
                let compact = CompactWeight::new(weight.start, bytes, layout);
                for panel in 0..layout.count() as usize {
                    // SAFETY: the weight has its length.
                    let Panel { octets, plain, escapes, .. } = unsafe { compact.panel(panel) };
                    let length = if plain { layout.plain_bytes() } else { layout.octet_bytes() };
                    let end = octets.wrapping_byte_add(length as usize);
                    assert!(weight.start <= octets && end <= weight.end, "{n} {k} {word}");
                    assert!(plain || escapes.as_ptr_range().end.cast() <= weight.end);
                }
            }
        }
    }
}
