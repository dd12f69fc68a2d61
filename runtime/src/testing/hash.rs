//! What a fake model computes: hashes instead of attention.

use super::FakeModel;

/// The hash of no tokens.
pub(super) const START: u64 = 0x5EED;

/// What the memories hold for `token` at `position`.
pub(super) fn entry(token: u32, position: u32) -> u64 {
    mix(u64::from(token) << 32 | u64::from(position))
}

/// The hash after one more entry.
pub(super) fn fold(hidden: u64, entry: u64) -> u64 {
    mix(hidden.rotate_left(5) ^ entry)
}

/// Recurrent memory after one more entry.
pub(super) fn recur(memory: u64, entry: u64) -> u64 {
    mix(memory.rotate_left(11).wrapping_add(entry))
}

/// The hidden state of a row: its whole context, what it sees of the window, recurrent memory.
pub(super) fn join(context: u64, window: Option<u64>, recurrent: Option<u64>) -> u64 {
    let hidden = window.map_or(context, |hash| fold(context, hash));
    recurrent.map_or(hidden, |memory| fold(hidden, !memory))
}

/// The hidden state after `tokens`, by the definition.
pub(super) fn hidden(model: &FakeModel, tokens: &[u32]) -> u64 {
    let entries = || tokens.iter().zip(0..).map(|(&t, p)| entry(t, p));
    let seen = |n: u32| tokens.len().saturating_sub(n as usize);
    join(
        entries().fold(START, fold),
        model.sliding_window.map(|n| entries().skip(seen(n)).fold(START, fold)),
        model.sequence_slots.map(|_| entries().fold(START, recur)),
    )
}

/// The logit of `token` after `hidden`, in `[0, 10)`.
pub(super) fn logit(hidden: u64, token: u32) -> f32 {
    let bits = mix(hidden ^ (u64::from(token) + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93));
    (bits >> 40) as f32 * (10.0 / (1u64 << 24) as f32)
}

/// The index of the first largest value.
pub(super) fn first_largest(values: impl Iterator<Item = f32>) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, value) in (0..).zip(values) {
        if value > best.1 {
            best = (index, value);
        }
    }
    best.0
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0xE703_7ED1_A0B4_28DB);
    let x = (x ^ (x >> 29)).wrapping_mul(0x8EBC_6AF0_9C88_C6E3);
    x ^ (x >> 32)
}
