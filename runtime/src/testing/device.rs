//! The device of a fake model: hashes instead of attention, with the same memory traffic.

use super::{FakeModel, plans::Places};
use artifact::{BufferRef, Scalar, Space};
use hal::{Device, DeviceError, MemoryRequest};
use std::{ops::Range, time::Duration};

/// Bytes of a KV slot and of a hidden state: one hash.
pub(super) const ENTRY_BYTES: u64 = 8;
/// The hash of no tokens.
pub(super) const START: u64 = 0x5EED;

/// How and when a fake device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The replay after this many returns an error.
    Error {
        /// Replays that succeed.
        after: u64,
    },
    /// The replay after this many panics.
    Panic {
        /// Replays that succeed.
        after: u64,
    },
}

/// What the KV slot of `token` at `position` holds.
pub(super) fn entry(token: u32, position: u32) -> u64 {
    mix(u64::from(token) << 32 | u64::from(position))
}

/// The hidden state after one more slot.
pub(super) fn fold(hidden: u64, entry: u64) -> u64 {
    mix(hidden.rotate_left(5) ^ entry)
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

/// A device that runs the plans of a [`FakeModel`]. A replay allocates nothing.
pub struct FakeDevice {
    arena: Vec<u8>,
    state: Vec<u8>,
    vocab_size: u32,
    block_tokens: u32,
    spare_block: u32,
    replay_time: Duration,
    failure: Option<Failure>,
    replays: u64,
    capture: Option<Option<FakeGraph>>,
}

/// A captured plan of a fake model.
#[derive(Clone, Debug)]
pub struct FakeGraph {
    kernel: Kernel,
    args: Vec<BufferRef>,
    rows: usize,
    table_width: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Decode,
    Prefill,
    Head,
}

impl FakeDevice {
    pub(super) fn new(model: &FakeModel) -> Self {
        let places = Places::new(model);
        Self {
            arena: vec![0xFF; places.arena_bytes as usize],
            state: vec![0; places.state_bytes as usize],
            vocab_size: model.vocab_size,
            block_tokens: model.block_tokens,
            spare_block: model.blocks,
            replay_time: model.replay_time,
            failure: model.failure,
            replays: 0,
            capture: None,
        }
    }

    fn space(&mut self, space: Space) -> &mut [u8] {
        match space {
            Space::Arena => &mut self.arena,
            Space::State => &mut self.state,
            Space::Weights => &mut [],
        }
    }

    fn int(&self, at: BufferRef, index: usize) -> u32 {
        let start = at.offset as usize + index * 4;
        u32::from_le_bytes(self.arena[start..start + 4].try_into().expect("four bytes"))
    }

    fn entry_range(at: BufferRef, index: usize) -> Range<usize> {
        let start = at.offset as usize + index * ENTRY_BYTES as usize;
        start..start + ENTRY_BYTES as usize
    }

    fn load_entry(&self, at: BufferRef, index: usize) -> u64 {
        let bytes = &self.state[Self::entry_range(at, index)];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn store_entry(&mut self, at: BufferRef, index: usize, value: u64) {
        self.state[Self::entry_range(at, index)].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes the KV slots of every row, then hashes what each row attends to.
    fn feed(&mut self, graph: &FakeGraph) -> Result<(), &'static str> {
        let &[token_ids, positions, slots, table, kv, ..] = &graph.args[..] else {
            return Err("too few arguments");
        };
        for row in 0..graph.rows {
            let (token, position) = (self.int(token_ids, row), self.int(positions, row));
            let slot = self.int(slots, row);
            self.check_row(graph, row, (token, position, slot))?;
            self.store_entry(kv, slot as usize, entry(token, position));
        }
        for row in 0..graph.rows {
            let position = self.int(positions, row) as usize;
            let table_row = if graph.kernel == Kernel::Decode { row } else { 0 };
            let mut hidden = START;
            for p in 0..=position {
                let in_table = table_row * graph.table_width + p / self.block_tokens as usize;
                let block = self.int(table, in_table) as usize;
                let bt = self.block_tokens as usize;
                hidden = fold(hidden, self.load_entry(kv, block * bt + p % bt));
            }
            match graph.kernel {
                Kernel::Decode => self.output(graph, 5, row, hidden),
                _ => self.store_entry(graph.args[5], row, hidden),
            }
        }
        Ok(())
    }

    /// What a kernel takes for granted.
    fn check_row(
        &self,
        graph: &FakeGraph,
        row: usize,
        (token, position, slot): (u32, u32, u32),
    ) -> Result<(), &'static str> {
        let (slots, table) = (graph.args[2], graph.args[3]);
        if token >= self.vocab_size {
            return Err("a token id is out of range");
        }
        if position as usize >= graph.table_width * self.block_tokens as usize {
            return Err("a position is past the block table");
        }
        if slot >= (self.spare_block + 1) * self.block_tokens {
            return Err("a slot is out of range");
        }
        let decodes = graph.kernel == Kernel::Decode;
        let table_row = if decodes { row } else { 0 };
        let width = graph.table_width;
        let mut blocks = (0..width).map(|i| self.int(table, table_row * width + i));
        if blocks.clone().any(|block| block > self.spare_block) {
            return Err("a block table names no block");
        }
        if slot / self.block_tokens == self.spare_block {
            let spare_table = !decodes || blocks.all(|block| block == self.spare_block);
            let padding = token == 0 && position == 0 && spare_table;
            return if padding { Ok(()) } else { Err("a live row writes to the spare block") };
        }
        if (0..row).any(|other| self.int(slots, other) == slot) {
            return Err("two rows write to one slot");
        }
        if !decodes && row > 0 && position != self.int(graph.args[1], row - 1) + 1 {
            return Err("positions of a chunk do not follow each other");
        }
        Ok(())
    }

    fn head(&mut self, graph: &FakeGraph) {
        let prefilled = (graph.args[1].bytes / ENTRY_BYTES) as usize;
        for row in 0..graph.rows {
            let source = self.int(graph.args[0], row) as usize;
            assert!(source < prefilled, "the head reads a row that no prefill has");
            let hidden = self.load_entry(graph.args[1], source);
            self.output(graph, 2, row, hidden);
        }
    }

    /// Writes one row of the outputs, which are the arguments from `first` on.
    fn output(&mut self, graph: &FakeGraph, first: usize, row: usize, hidden: u64) {
        let (logits, argmax) = (graph.args[first], graph.args[first + 1]);
        let vocab = self.vocab_size as usize;
        let start = logits.offset as usize + row * vocab * 4;
        let (values, _) = self.arena[start..start + vocab * 4].as_chunks_mut::<4>();
        for (value, token) in values.iter_mut().zip(0..) {
            *value = logit(hidden, token).to_le_bytes();
        }
        let best = first_largest((0..self.vocab_size).map(|token| logit(hidden, token)));
        let at = argmax.offset as usize + row * 4;
        self.arena[at..at + 4].copy_from_slice(&best.to_le_bytes());
    }

    /// Plans share the arena, so inputs do not survive a replay.
    fn spoil_inputs(&mut self, graph: &FakeGraph) {
        let inputs = if graph.kernel == Kernel::Head { 1 } else { 4 };
        for at in &graph.args[..inputs] {
            self.arena[at.offset as usize..(at.offset + at.bytes) as usize].fill(0xFF);
        }
    }

    fn failed(why: &str) -> DeviceError {
        DeviceError::Failed { device: "fake".into(), why: why.into() }
    }
}

impl Device for FakeDevice {
    type Graph = FakeGraph;

    fn name(&self) -> String {
        "fake".into()
    }

    fn load(&mut self, request: MemoryRequest) -> Result<(), DeviceError> {
        self.arena = vec![0xFF; request.arena_bytes as usize];
        self.state = vec![0; request.state_bytes as usize];
        Ok(())
    }

    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        if self.capture.is_some() {
            return Err(DeviceError::Misuse("a capture is already open"));
        }
        self.capture = Some(None);
        Ok(())
    }

    fn launch(
        &mut self,
        kernel: &str,
        args: &[BufferRef],
        scalars: &[Scalar],
    ) -> Result<(), DeviceError> {
        let bad = |why: &str| DeviceError::BadCall { kernel: kernel.into(), why: why.into() };
        let (kernel_id, count) = match kernel {
            "fake_decode" => (Kernel::Decode, 7),
            "fake_prefill" => (Kernel::Prefill, 6),
            "fake_head" => (Kernel::Head, 4),
            _ => {
                let (device, kernel) = (self.name(), kernel.into());
                return Err(DeviceError::UnknownKernel { device, kernel });
            }
        };
        let &[Scalar::Int(rows), Scalar::Int(width)] = scalars else {
            return Err(bad("expected rows and table width"));
        };
        if args.len() != count {
            return Err(bad("wrong number of arguments"));
        }
        let graph = FakeGraph {
            kernel: kernel_id,
            args: args.to_vec(),
            rows: rows as usize,
            table_width: width as usize,
        };
        match &mut self.capture {
            Some(open) => *open = Some(graph),
            None => return Err(DeviceError::Misuse("launch outside a capture")),
        }
        Ok(())
    }

    fn end_capture(&mut self) -> Result<FakeGraph, DeviceError> {
        let captured = self.capture.take().ok_or(DeviceError::Misuse("no capture is open"))?;
        captured.ok_or(DeviceError::Misuse("a fake plan has one call"))
    }

    fn abort_capture(&mut self) {
        self.capture = None;
    }

    fn write(&mut self, at: BufferRef, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= at.bytes, "write past the end of a buffer");
        self.space(at.space)[at.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn read(&mut self, at: BufferRef, out: &mut [u8]) {
        assert!(out.len() as u64 <= at.bytes, "read past the end of a buffer");
        out.copy_from_slice(&self.space(at.space)[at.offset as usize..][..out.len()]);
    }

    fn replay(&mut self, graph: &FakeGraph) -> Result<(), DeviceError> {
        match self.failure {
            Some(Failure::Error { after }) if self.replays >= after => {
                return Err(Self::failed("it was told to"));
            }
            Some(Failure::Panic { after }) if self.replays >= after => {
                panic!("the fake device was told to panic");
            }
            _ => self.replays += 1,
        }
        if !self.replay_time.is_zero() {
            std::thread::sleep(self.replay_time);
        }
        match graph.kernel {
            Kernel::Head => self.head(graph),
            Kernel::Decode | Kernel::Prefill => self.feed(graph).map_err(Self::failed)?,
        }
        self.spoil_inputs(graph);
        Ok(())
    }
}
