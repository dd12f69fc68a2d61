//! Where keys and values lie in the KV state, and the kernel that writes them.

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::quantize::quantize_row;
use super::simd::{LANES, LINE_BYTES, Simd};
use super::worker::Worker;
use std::mem::MaybeUninit;

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 16;

/// Codes that lie together, of a key or of a channel's values.
pub(crate) const CODE_GROUP: usize = 4;

/// The most elements of a head of codes.
const MOST_CODES: usize = 1024;

/// Whether heads of `d` elements can be kept as codes.
pub const fn holds_codes(d: u64) -> bool {
    d > 0 && d.is_multiple_of(4) && d <= MOST_CODES as u64
}

/// The layout `[blocks, 2, heads, 16, d]`, of codes with their scales: see `KERNELS.md`. Positions are in
/// elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv {
    /// KV heads.
    pub heads: usize,
    /// Elements of a head.
    pub d: usize,
    /// Elements of a key, or values of consecutive tokens, that lie together: those that fill 32
    /// bits. Four are codes.
    pub group: usize,
}

impl Kv {
    /// Elements of the keys, or of the values, of one head in a block, and the scales behind codes.
    #[inline(always)]
    pub const fn tile_len(&self) -> usize {
        let scales = if self.group == 4 { BLOCK_TOKENS * size_of::<f32>() } else { 0 };
        self.scales() + scales
    }

    /// Where the scales of codes begin in the keys, or the values, of a head: an `f32` for each token.
    #[inline(always)]
    pub const fn scales(&self) -> usize {
        BLOCK_TOKENS * self.d
    }

    /// Elements of a block.
    #[inline(always)]
    pub const fn block_len(&self) -> usize {
        2 * self.heads * self.tile_len()
    }

    /// Where the keys of a head begin in a block.
    #[inline(always)]
    pub const fn keys(&self, block: usize, head: usize) -> usize {
        block * self.block_len() + head * self.tile_len()
    }

    /// Where the values of a head begin in a block.
    #[inline(always)]
    pub const fn values(&self, block: usize, head: usize) -> usize {
        block * self.block_len() + (self.heads + head) * self.tile_len()
    }

    /// Position of element `i` of the key of `token` (in its block).
    #[inline(always)]
    pub const fn key(&self, block: usize, head: usize, token: usize, i: usize) -> usize {
        self.keys(block, head) + self.key_in_tile(token, i)
    }

    /// The same from where the keys of the head begin.
    #[inline(always)]
    const fn key_in_tile(&self, token: usize, i: usize) -> usize {
        (i / self.group * BLOCK_TOKENS + token) * self.group + i % self.group
    }

    /// Position of element `i` of the value of `token` (in its block).
    #[inline(always)]
    pub const fn value(&self, block: usize, head: usize, token: usize, i: usize) -> usize {
        self.values(block, head) + self.value_in_tile(token, i)
    }

    /// The same from where the values of the head begin.
    #[inline(always)]
    const fn value_in_tile(&self, token: usize, i: usize) -> usize {
        (token / self.group * self.d + i) * self.group + token % self.group
    }

    /// The layout for a head of `d` elements of type `T`.
    ///
    /// # Errors
    /// When `d` is no whole number of groups, or a block has not [`BLOCK_TOKENS`] tokens.
    pub(crate) fn bind<T>(heads: usize, d: usize, block_tokens: usize) -> Result<Self, String> {
        let group = 4 / size_of::<T>();
        if block_tokens != BLOCK_TOKENS {
            return Err(format!("blocks of {block_tokens} tokens, expected {BLOCK_TOKENS}"));
        }
        if d == 0 || !d.is_multiple_of(group) || heads == 0 {
            return Err(format!("{heads} heads of {d} elements, expected a multiple of {group}"));
        }
        if group == 4 && !holds_codes(d as u64) {
            return Err(format!("heads of {d} codes, at most {MOST_CODES} are possible"));
        }
        product(&[2, heads, BLOCK_TOKENS, d + size_of::<f32>(), size_of::<T>()])?;
        Ok(Self { heads, d, group })
    }
}

/// The slots that rows write.
pub(crate) struct Slots {
    rows: usize,
    count: usize,
    slots: Rows<i32>,
}

impl Slots {
    /// The next buffer, a slot for each of `rows` rows, of a memory whose size is not known yet.
    pub(crate) fn bind(b: &mut Binder<'_>, rows: usize) -> Result<Self, String> {
        Ok(Self { rows, count: 0, slots: b.table("slots", 1, rows, rows)? })
    }

    /// The same for a memory of `count` slots.
    pub(crate) fn below(self, count: usize) -> Self {
        Self { count, ..self }
    }

    /// `slot`, if it is inside the memory.
    #[inline(always)]
    fn within(&self, slot: i32) -> Option<usize> {
        usize::try_from(slot).ok().filter(|&s| s < self.count)
    }

    /// The slot of `row`, inside the memory, whether it writes it or not.
    ///
    /// # Safety
    /// As [`Slots::of`].
    #[inline(always)]
    unsafe fn named(&self, row: usize) -> Option<usize> {
        // SAFETY: the caller's promise.
        self.within(unsafe { *self.slots.row(0).add(row) })
    }

    /// The slot that `row` writes: none outside the memory, and none that a later row writes too.
    /// So no two rows write the same place, and which thread has which row does not matter.
    ///
    /// # Safety
    /// The buffer is alive and `row` is one of the rows.
    #[inline(always)]
    pub(crate) unsafe fn of(&self, row: usize) -> Option<usize> {
        /// Slots that are compared before looking at the result.
        const AT_ONCE: usize = 64;
        // SAFETY: the caller's promise.
        let slots = unsafe { std::slice::from_raw_parts(self.slots.row(0), self.rows) };
        let slot = slots[row];
        let found = self.within(slot)?;
        let same = |part: &[i32]| part.iter().fold(false, |any, &s| any | (s == slot));
        (!slots[row + 1..].chunks(AT_ONCE).any(same)).then_some(found)
    }
}

/// `kv_write_{kv}`: a slot outside the state writes nothing. When rows share a slot, as padding
/// rows do, the last one alone writes it.
pub(crate) struct KvWrite<T> {
    rows: usize,
    kv: Kv,
    k: Rows<f32>,
    v: Rows<f32>,
    slots: Slots,
    state: Rows<T>,
}

impl<T: Cached> Kernel for KvWrite<T> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, heads, d) = (b.count("T")?, b.count("heads")?, b.count("d")?);
        let kv = Kv::bind::<T>(heads, d, b.count("block tokens")?)?;
        let (k_stride, v_stride) = (b.count("k stride")?, b.count("v stride")?);
        let k = b.input("k", rows, heads * d, k_stride)?;
        let v = b.input("v", rows, heads * d, v_stride)?;
        let slots = Slots::bind(b, rows)?;
        let (blocks, state) = b.blocks::<T>("state", kv.block_len(), true)?;
        Ok(Self { rows, kv, k, v, slots: slots.below(blocks * BLOCK_TOKENS), state })
    }

    /// Nothing for rows that write to the block of the row before.
    #[inline(always)]
    unsafe fn ask<S: Simd>(&self, worker: &Worker<'_>) {
        let ask = |from: usize, elements: usize| {
            // SAFETY: a prefetch may name any address.
            unsafe {
                let from: *const u8 = self.state.row(0).wrapping_add(from).cast();
                for line in (0..elements * size_of::<T>()).step_by(LINE_BYTES) {
                    S::prefetch_to_write(from.wrapping_add(line));
                }
            }
        };
        // SAFETY: rows below `self.rows`.
        let block = |row| unsafe { self.slots.named(row) }.map(|slot| slot / BLOCK_TOKENS);
        let Kv { heads, d, group } = self.kv;
        for row in worker.share(self.rows) {
            // SAFETY: as above.
            let Some(slot) = (unsafe { self.slots.named(row) }) else { continue };
            let (at, token) = (slot / BLOCK_TOKENS, slot % BLOCK_TOKENS);
            if row > 0 && block(row - 1) == Some(at) {
                continue;
            }
            for head in 0..heads {
                ask(self.kv.keys(at, head), self.kv.tile_len());
                ask(self.kv.value(at, head, token / group * group, 0), d * group);
                if group == CODE_GROUP {
                    ask(self.kv.values(at, head) + self.kv.scales(), 1);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // Keys and values of each head apart: a row has many items.
        let items = 2 * self.kv.heads;
        let share = worker.share(self.rows * items);
        let rows = share.start / items..share.end.div_ceil(items);
        for row in rows {
            // SAFETY: the row is one of those bound.
            let Some(slot) = (unsafe { self.slots.of(row) }) else { continue };
            let (block, token) = (slot / BLOCK_TOKENS, slot % BLOCK_TOKENS);
            let first = share.start.max(row * items) - row * items;
            let end = share.end.min((row + 1) * items) - row * items;
            for item in first..end {
                let head = item / 2;
                // SAFETY: the slot is inside the state and of this row alone.
                unsafe {
                    let (kv, state, at) = (&self.kv, self.state.row(0), head * self.kv.d);
                    if item % 2 == 1 {
                        // Keys come from the call before, values of a long prompt from no near cache.
                        self.v.ask::<S>(row + 1, at, kv.d);
                        let tile = state.add(kv.values(block, head));
                        T::write_value::<S>(kv, tile, token, self.v.row(row).add(at));
                    } else {
                        let tile = state.add(kv.keys(block, head));
                        T::write_key::<S>(kv, tile, token, self.k.row(row).add(at));
                    }
                }
            }
        }
    }
}

/// What keys and values are kept as.
pub(crate) trait Cached: Copy + Send + Sync + 'static {
    /// Writes the key of `token` among the keys of a head in a block, which begin at `tile`.
    ///
    /// # Safety
    /// As [`Simd`]; `tile` is valid for the keys of a head, `k` for `kv.d` elements.
    unsafe fn write_key<S: Simd>(kv: &Kv, tile: *mut Self, token: usize, k: *const f32);

    /// Writes the value of `token` among the values of a head in a block, which begin at `tile`.
    ///
    /// # Safety
    /// As for [`Cached::write_key`].
    unsafe fn write_value<S: Simd>(kv: &Kv, tile: *mut Self, token: usize, v: *const f32);
}

impl<T: Element> Cached for T {
    #[inline(always)]
    unsafe fn write_key<S: Simd>(kv: &Kv, tile: *mut Self, token: usize, k: *const f32) {
        let &Kv { d, group, .. } = kv;
        // SAFETY: as the caller's.
        unsafe {
            let to = tile.add(kv.key_in_tile(token, 0));
            for i in (0..d).step_by(LANES) {
                let mut lanes = [T::ZERO; LANES];
                T::store::<S>(lanes.as_mut_ptr(), f32::load_part::<S>(k.add(i), d - i));
                let groups = (d - i).min(LANES) / group;
                for g in 0..groups {
                    // A group is 32 bits.
                    let from = lanes.as_ptr().cast::<u32>().add(g);
                    let group_to = to.cast::<u32>().add((i / group + g) * BLOCK_TOKENS);
                    group_to.write_unaligned(from.read_unaligned());
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn write_value<S: Simd>(kv: &Kv, tile: *mut Self, token: usize, v: *const f32) {
        let &Kv { d, group, .. } = kv;
        // SAFETY: as the caller's.
        unsafe {
            let to = tile.add(kv.value_in_tile(token, 0));
            for i in (0..d).step_by(LANES) {
                let x = f32::load_part::<S>(v.add(i), d - i);
                if group == 1 {
                    T::store_part::<S>(to.add(i), x, d - i);
                    continue;
                }
                // A group of two is of bf16; what lies between is another row's.
                if i + LANES <= d {
                    S::store_bf16_apart(to.add(i * group).cast(), x);
                    continue;
                }
                let mut lanes = [T::ZERO; LANES];
                T::store::<S>(lanes.as_mut_ptr(), x);
                for (j, &x) in lanes.iter().enumerate().take(d - i) {
                    *to.add((i + j) * group) = x;
                }
            }
        }
    }
}

/// Codes, with the sign flipped since the dot product of bytes takes them unsigned, by a scale for each
/// token.
impl Cached for i8 {
    #[inline(always)]
    unsafe fn write_key<S: Simd>(kv: &Kv, tile: *mut Self, token: usize, k: *const f32) {
        // SAFETY: as the caller's.
        unsafe {
            let mut room = [MaybeUninit::uninit(); MOST_CODES];
            let codes = kv.codes::<S>(tile, token, k, &mut room);
            let to: *mut [i8; CODE_GROUP] = tile.add(kv.key_in_tile(token, 0)).cast();
            for (g, &codes) in codes.as_chunks().0.iter().enumerate() {
                to.add(g * BLOCK_TOKENS).write_unaligned(codes);
            }
        }
    }

    #[inline(always)]
    unsafe fn write_value<S: Simd>(kv: &Kv, tile: *mut Self, token: usize, v: *const f32) {
        // SAFETY: as the caller's.
        unsafe {
            let mut room = [MaybeUninit::uninit(); MOST_CODES];
            let codes = kv.codes::<S>(tile, token, v, &mut room);
            let to = tile.add(kv.value_in_tile(token, 0));
            let (vectors, rest) = codes.as_chunks();
            for (i, codes) in vectors.iter().enumerate() {
                S::store_bytes_apart(to.add(i * LANES * CODE_GROUP), codes);
            }
            for (i, &code) in (vectors.len() * LANES..).zip(rest) {
                *to.add(i * CODE_GROUP) = code;
            }
        }
    }
}

impl Kv {
    /// The codes of a head's elements `x`, as they are kept; writes their scale to the tile.
    ///
    /// # Safety
    /// As for [`Cached::write_key`].
    #[inline(always)]
    unsafe fn codes<'a, S: Simd>(
        &self,
        tile: *mut i8,
        token: usize,
        x: *const f32,
        room: &'a mut [MaybeUninit<i8>; MOST_CODES],
    ) -> &'a [i8] {
        // SAFETY: as the caller's; no head has more codes, and all of them are written.
        unsafe {
            let codes: *mut i8 = room.as_mut_ptr().cast();
            let scale = quantize_row::<S, f32>(x, self.d, codes);
            tile.add(self.scales()).cast::<f32>().add(token).write_unaligned(scale);
            let codes = std::slice::from_raw_parts_mut(codes, self.d);
            for code in &mut *codes {
                *code ^= i8::MIN;
            }
            codes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_element_has_its_own_place() {
        for group in [1, 2, 4] {
            let kv = Kv { heads: 3, d: 8, group };
            let mut seen = HashSet::new();
            for block in 0..2 {
                for head in 0..3 {
                    for token in 0..BLOCK_TOKENS {
                        for i in 0..8 {
                            assert!(seen.insert(kv.key(block, head, token, i)));
                            assert!(seen.insert(kv.value(block, head, token, i)));
                        }
                    }
                }
            }
            let scales = if group == 4 { 2 * 2 * 3 * BLOCK_TOKENS * size_of::<f32>() } else { 0 };
            assert_eq!(seen.len() + scales, 2 * kv.block_len());
            let behind = scales / (2 * 2 * 3);
            assert_eq!(seen.iter().max(), Some(&(2 * kv.block_len() - behind - 1)));
        }
    }

    #[test]
    fn pairs_of_elements_of_keys_and_pairs_of_values_lie_together() {
        let kv = Kv { heads: 2, d: 64, group: 2 };
        assert_eq!(kv.key(0, 0, 0, 1), 1);
        assert_eq!(kv.key(0, 0, 1, 0), 2);
        assert_eq!(kv.key(0, 0, 0, 2), 32);
        let values = 2 * 16 * 64;
        assert_eq!(kv.value(0, 0, 0, 1), values + 2);
        assert_eq!(kv.value(0, 0, 1, 0), values + 1);
        assert_eq!(kv.value(0, 0, 2, 0), values + 2 * 64);
    }
}
