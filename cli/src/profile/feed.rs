//! What a plan is fed: sequences of a context that fill its rows, and memories that hold something.

use artifact::{BufferRef, Manifest, Phase, Plan, Space};
use codegen_cpu::CpuDevice;
use hal::Device;

/// Rows of a step: how many tokens each sees, itself included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Feed {
    /// Of each row, in the order of the sequences.
    contexts: Vec<u64>,
    /// Rows of a sequence.
    rows_of_one: usize,
}

/// Tokens that attention looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
    /// Once for each row.
    pub(super) by_rows: f64,
    /// Once for the rows of a sequence together.
    pub(super) by_sequences: f64,
}

impl Feed {
    /// Full rows for `plan`, each with a context of `context` tokens at the end of the step, as far
    /// as tables and KV memory allow.
    pub(super) fn new(plan: &Plan, manifest: &Manifest, context: u32) -> Self {
        let (rows, kv) = (plan.rows as usize, &manifest.kv);
        let sequences = if plan.phase == Phase::Decode { plan.rows } else { 1 };
        let of_one = (kv.blocks / sequences.max(1)).max(1) * kv.block_tokens;
        let room = plan.context_tokens.min(of_one);
        match plan.phase {
            Phase::Decode => {
                let context = u64::from(context.min(room).max(1));
                Self { contexts: vec![context; rows], rows_of_one: 1 }
            }
            Phase::Prefill => {
                let end = u64::from(context.max(plan.rows).min(room));
                let first = end.saturating_sub(rows as u64);
                // Rows past the memory that there is are padding at the last place.
                let contexts = (1..=rows as u64).map(|i| (first + i).min(end)).collect();
                Self { contexts, rows_of_one: rows }
            }
            Phase::Head => {
                // The last rows of a prompt, if they see any of it.
                let end = u64::from(context.min(room));
                let contexts = (1..=rows as u64).map(|i| (end + i).saturating_sub(rows as u64));
                Self { contexts: contexts.collect(), rows_of_one: rows }
            }
        }
    }

    /// Rows with these contexts, so many of a sequence.
    #[cfg(test)]
    pub(super) fn of(contexts: &[u64], rows_of_one: usize) -> Self {
        Self { contexts: contexts.to_vec(), rows_of_one }
    }

    /// The longest context.
    pub(super) fn context(&self) -> u64 {
        self.contexts.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn sequences(&self) -> usize {
        self.contexts.len() / self.rows_of_one.max(1)
    }

    /// Tokens that rows see through a window of so many tokens; 0 is none.
    pub(super) fn seen(&self, window: u64) -> Seen {
        let window = if window == 0 { u64::MAX } else { window };
        let by_rows: u64 = self.contexts.iter().map(|&c| c.min(window)).sum();
        let of_one = |rows: &[u64]| {
            let first = rows.first().map_or(0, |&c| c.saturating_sub(window));
            rows.last().map_or(0, |&c| c - first)
        };
        let by_sequences: u64 = self.contexts.chunks(self.rows_of_one.max(1)).map(of_one).sum();
        Seen { by_rows: by_rows as f64, by_sequences: by_sequences as f64 }
    }

    /// The same for rows that choose so many tokens each.
    pub(super) fn chosen(&self, most: u64) -> Seen {
        let by_rows: u64 = self.contexts.iter().map(|&c| c.min(most)).sum();
        let Seen { by_sequences, .. } = self.seen(0);
        Seen { by_rows: by_rows as f64, by_sequences: by_sequences.min(by_rows as f64) }
    }

    /// KV blocks that its sequences have.
    fn blocks(&self, block_tokens: u64) -> u64 {
        self.sequences() as u64 * self.context().div_ceil(block_tokens)
    }

    /// Writes the inputs of `plan`.
    pub(super) fn write(&self, device: &mut CpuDevice, manifest: &Manifest, plan: &Plan) {
        let bt = u64::from(manifest.kv.block_tokens);
        let of_one = self.context().div_ceil(bt);
        let window = manifest.window;
        let (kv_blocks, vocab) =
            (u64::from(manifest.kv.blocks), u64::from(manifest.model.vocab_size));
        // The block of a sequence that holds a place, and the one of its window memory.
        let block = |sequence: u64, i: u64| (sequence * of_one + i) % kv_blocks.max(1);
        let window_block = |sequence: u64, i: u64| {
            window.map_or(0, |w| block(sequence, i) % u64::from(w.blocks).max(1))
        };
        let last_place = |row: usize| self.contexts[row].saturating_sub(1);
        let sequence = |row: usize| (row / self.rows_of_one) as u64;
        for port in &plan.inputs {
            let count = port.dims.iter().product::<u64>() as usize;
            let width = port.dims.last().map_or(1, |&w| w.max(1) as usize);
            let value = |i: usize| match port.name.as_str() {
                "token_ids" => (i as u64 * 7919 + 104_729) % vocab.max(1),
                "positions" => last_place(i),
                "slots" => block(sequence(i), last_place(i) / bt) * bt + last_place(i) % bt,
                "window_slots" => {
                    window_block(sequence(i), last_place(i) / bt) * bt + last_place(i) % bt
                }
                "block_table" => self.entry(i, width, of_one, kv_blocks, block),
                "window_table" => {
                    let spare = window.map_or(0, |w| u64::from(w.blocks));
                    self.entry(i, width, of_one, spare, window_block)
                }
                "sequences" => {
                    let slots = manifest.sequences.map_or(1, |s| u64::from(s.slots));
                    sequence(i) % slots.max(1)
                }
                "rows" => i as u64,
                _ => 0,
            };
            let bytes: Vec<u8> = (0..count).flat_map(|i| (value(i) as i32).to_le_bytes()).collect();
            device.write(port.at, &bytes[..bytes.len().min(port.at.bytes as usize)]);
        }
    }

    /// Entry `i` of a block table that is `width` wide.
    fn entry(
        &self,
        i: usize,
        width: usize,
        used: u64,
        spare: u64,
        block: impl Fn(u64, u64) -> u64,
    ) -> u64 {
        let (sequence, entry) = ((i / width) as u64, (i % width) as u64);
        if entry < used { block(sequence, entry) } else { spare }
    }
}

/// Bytes that are written at once.
const PIECE: usize = 1 << 20;

/// Fills the parts of persistent memory that `feeds` use: reading memory that was never written
/// costs nothing.
pub(super) fn fill_states(device: &mut CpuDevice, manifest: &Manifest, feeds: &[Feed]) {
    let bt = u64::from(manifest.kv.block_tokens);
    let used = feeds.iter().map(|f| f.blocks(bt).max(f.contexts.len() as u64)).max().unwrap_or(0);
    let piece = finite(PIECE);
    for state in &manifest.states {
        let parts = state.dims.first().copied().unwrap_or(1).max(1);
        let bytes = state.bytes / parts * parts.min(used);
        let mut at = 0;
        while at < bytes {
            let part = (bytes - at).min(PIECE as u64);
            let to = BufferRef { space: Space::State, offset: state.offset + at, bytes: part };
            device.write(to, &piece[..part as usize]);
            at += part;
        }
    }
}

/// Numbers that are finite, and neither tiny nor large, whether they are read as f32, bf16 or smaller: scales of codes
/// too, which must not make scores whose exponentials vanish.
fn finite(bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut out = Vec::with_capacity(bytes);
    for _ in 0..bytes / 2 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Sign, the exponent of 2^-7 and the mantissa.
        out.extend(((state >> 16) as u16 & 0x807f | 0x3c00).to_le_bytes());
    }
    out
}
