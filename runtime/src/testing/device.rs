//! The device of a fake model: hashes instead of attention, with the same memory traffic.

use super::{
    FakeModel,
    feed::Written,
    graph::{Call, FakeGraph, Head, Outputs},
    hash::{first_largest, logit},
    plans::Places,
};
use artifact::{BufferRef, Space};
use hal::{Device, DeviceError, Launch, MemoryRequest};
use std::{ops::Range, time::Duration};

/// Bytes of a place of a paged memory, a slot of recurrent memory and a hidden state: one hash.
pub(super) const ENTRY_BYTES: u64 = 8;

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
    /// The replay after this many takes long.
    Stall {
        /// Replays before it.
        after: u64,
        /// How long it takes.
        time: Duration,
    },
}

/// A device that runs the plans of a [`FakeModel`]. A replay allocates nothing.
pub struct FakeDevice {
    pub(super) model: FakeModel,
    arena: Vec<u8>,
    state: Vec<u8>,
    pub(super) vocab_size: u32,
    pub(super) block_tokens: u32,
    pub(super) spare_block: u32,
    pub(super) window_tokens: u32,
    pub(super) spare_window_block: u32,
    pub(super) spare_slot: u32,
    /// For each place of KV memory, of the window, and each slot: what was written last.
    pub(super) written: Written,
    pub(super) window_written: Written,
    pub(super) slot_written: Written,
    replays: u64,
    /// The most likely tokens of a row so far, in order.
    best: Vec<(f32, u32)>,
    capture: Option<Option<FakeGraph>>,
}

impl FakeDevice {
    pub(super) fn new(model: &FakeModel) -> Self {
        let places = Places::new(model);
        let (window, slots) = (model.window_memory(), model.sequence_slots.unwrap_or(0));
        let places_of =
            |blocks: u32| vec![None; (blocks + 1) as usize * model.block_tokens as usize];
        let spare_window_block = window.map_or(0, |window| window.blocks);
        Self {
            model: model.clone(),
            arena: vec![0xFF; places.arena_bytes as usize],
            state: vec![0; places.state_bytes as usize],
            vocab_size: model.vocab_size,
            block_tokens: model.block_tokens,
            spare_block: model.blocks,
            window_tokens: window.map_or(0, |window| window.tokens),
            spare_window_block,
            spare_slot: slots,
            written: places_of(model.blocks),
            window_written: places_of(spare_window_block),
            slot_written: vec![None; slots as usize + 1],
            replays: 0,
            best: Vec::with_capacity(model.found() as usize + 1),
            capture: None,
        }
    }

    fn space(&mut self, space: Space) -> &mut [u8] {
        match space {
            Space::Arena => &mut self.arena,
            Space::State => &mut self.state,
            Space::Weights | Space::Private => &mut [],
        }
    }

    pub(super) fn int(&self, at: BufferRef, index: usize) -> u32 {
        let start = at.offset as usize + index * 4;
        u32::from_le_bytes(self.arena[start..start + 4].try_into().expect("four bytes"))
    }

    fn entry_range(at: BufferRef, index: usize) -> Range<usize> {
        let start = at.offset as usize + index * ENTRY_BYTES as usize;
        start..start + ENTRY_BYTES as usize
    }

    pub(super) fn load_entry(&self, at: BufferRef, index: usize) -> u64 {
        let bytes = &self.state[Self::entry_range(at, index)];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    pub(super) fn store_entry(&mut self, at: BufferRef, index: usize, value: u64) {
        self.state[Self::entry_range(at, index)].copy_from_slice(&value.to_le_bytes());
    }

    fn head(&mut self, head: &Head) -> Result<(), &'static str> {
        let prefilled = (head.hidden.bytes / ENTRY_BYTES) as usize;
        for row in 0..head.count {
            let source = self.int(head.rows, row) as usize;
            assert!(source < prefilled, "the head reads a row that no prefill has");
            let mut hidden = self.load_entry(head.hidden, source);
            if let Some(past) = &head.past {
                hidden = self.look_back(past, row, hidden)?;
            }
            self.output(head.outputs, row, hidden);
        }
        Ok(())
    }

    /// Writes one row of the outputs.
    pub(super) fn output(&mut self, outputs: Outputs, row: usize, hidden: u64) {
        let Outputs { logits, argmax, top } = outputs;
        let vocab = self.vocab_size as usize;
        let start = logits.offset as usize + row * vocab * 4;
        let (values, _) = self.arena[start..start + vocab * 4].as_chunks_mut::<4>();
        for (value, token) in values.iter_mut().zip(0..) {
            let seen = if self.model.hides_logits { f32::NAN } else { logit(hidden, token) };
            *value = seen.to_le_bytes();
        }
        let best = first_largest((0..self.vocab_size).map(|token| logit(hidden, token)));
        let at = argmax.offset as usize + row * 4;
        self.arena[at..at + 4].copy_from_slice(&best.to_le_bytes());
        if let Some(top) = top {
            self.top(top, row, hidden);
        }
    }

    fn top(&mut self, (logits, ids): (BufferRef, BufferRef), row: usize, hidden: u64) {
        let count = self.model.found() as usize;
        self.best.clear();
        for token in 0..self.vocab_size {
            let logit = logit(hidden, token);
            let is_full = self.best.len() == count;
            if !is_full || self.best.last().is_some_and(|last| logit > last.0) {
                let place = self.best.partition_point(|better| better.0 >= logit);
                self.best.insert(place, (logit, token));
                self.best.truncate(count);
            }
        }
        for (i, (logit, token)) in self.best.iter().enumerate() {
            let skipped = (row * count + i) * 4;
            for (port, bytes) in [(logits, logit.to_le_bytes()), (ids, token.to_le_bytes())] {
                let at = port.offset as usize + skipped;
                self.arena[at..at + 4].copy_from_slice(&bytes);
            }
        }
    }

    /// Plans share the arena, so inputs do not survive a replay.
    fn spoil_inputs(&mut self, graph: &FakeGraph) {
        for at in &graph.inputs {
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

    fn runs_beside_host(&self) -> bool {
        self.model.runs_beside_host
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

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let Launch { kernel, args, scalars, .. } = *launch;
        let Some(graph) = FakeGraph::new(&self.model, kernel, args, scalars) else {
            let (device, kernel) = (self.name(), kernel.into());
            return Err(DeviceError::UnknownKernel { device, kernel });
        };
        let graph =
            graph.map_err(|why| DeviceError::BadCall { kernel: kernel.into(), why: why.into() })?;
        match &mut self.capture {
            Some(open) => *open = Some(graph),
            None => return Err(DeviceError::Misuse("launch outside a capture")),
        }
        Ok(())
    }

    fn begin_chain(&mut self, _: u32, _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::Misuse("a fake plan has no chains"))
    }

    fn end_chain(&mut self) -> Result<(), DeviceError> {
        Err(DeviceError::Misuse("a fake plan has no chains"))
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

    fn read(&mut self, at: BufferRef, out: &mut [u8]) -> Result<(), DeviceError> {
        assert!(out.len() as u64 <= at.bytes, "read past the end of a buffer");
        out.copy_from_slice(&self.space(at.space)[at.offset as usize..][..out.len()]);
        Ok(())
    }

    fn replay(&mut self, graph: &FakeGraph) -> Result<(), DeviceError> {
        match self.model.failure {
            Some(Failure::Error { after }) if self.replays >= after => {
                return Err(Self::failed("it was told to"));
            }
            Some(Failure::Panic { after }) if self.replays >= after => {
                panic!("the fake device was told to panic");
            }
            Some(Failure::Stall { after, time }) if self.replays == after => {
                std::thread::sleep(time);
                self.replays += 1;
            }
            _ => self.replays += 1,
        }
        if !self.model.replay_time.is_zero() {
            std::thread::sleep(self.model.replay_time);
        }
        match &graph.call {
            Call::Head(head) => self.head(head),
            Call::Feed(feed) => self.feed(feed),
        }
        .map_err(Self::failed)?;
        self.spoil_inputs(graph);
        Ok(())
    }
}
