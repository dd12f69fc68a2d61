//! Inputs on their way to the device and results on their way back.
//!
//! Inputs are written into pinned memory that mirrors the start of the arena. There are two such
//! blocks: while the device copies from one, the inputs of the next step are written into the other,
//! which first receives what was written since it was last in use. So each block holds the latest
//! inputs, and one copy brings a step's inputs over, from the first to the last byte that was written.

use super::{
    memory::Memory,
    result::AclError,
    safe::{Event, PinnedMemory, Stream},
    session::Session,
};
use acl::sys;
use std::{ops::Range, sync::Arc, time::Duration};

/// Bytes of the arena that have a mirror. Inputs lie at its start; the largest are block tables.
const MIRRORED: u64 = 4 << 20;
/// Bytes of results that come back at a time.
const READ_CHUNK: usize = 1 << 20;
/// Written ranges that are remembered, to answer reads of what was only written.
const WRITTEN: usize = 16;

#[derive(Debug)]
struct Block {
    pinned: PinnedMemory,
    /// Marks the end of the copy from it.
    copied: Event,
    /// Whether a copy from it may still run.
    in_flight: bool,
}

/// The mirrors, and memory for results.
#[derive(Debug)]
pub(crate) struct Transfer {
    blocks: [Block; 2],
    /// The block that is written now.
    current: usize,
    /// What the current block must take over from the other before it is written.
    behind: Range<usize>,
    /// What was written since the last submission.
    dirty: Range<usize>,
    /// The same, range by range, as far as there is room.
    written: [Range<usize>; WRITTEN],
    count: usize,
    results: PinnedMemory,
    session: Arc<Session>,
}

impl Transfer {
    pub(crate) fn new(session: &Arc<Session>, arena_bytes: u64) -> Result<Self, AclError> {
        let bytes = arena_bytes.min(MIRRORED) as usize;
        let block = || {
            let pinned = PinnedMemory::new(session, bytes)?;
            Ok(Block { pinned, copied: Event::new(session)?, in_flight: false })
        };
        Ok(Self {
            blocks: [block()?, block()?],
            current: 0,
            behind: 0..0,
            dirty: 0..0,
            written: [const { 0..0 }; WRITTEN],
            count: 0,
            results: PinnedMemory::new(session, READ_CHUNK)?,
            session: session.clone(),
        })
    }

    /// Whether the arena's `range` has a mirror.
    pub(crate) fn mirrors(&self, range: &Range<u64>) -> bool {
        range.end <= self.blocks[0].pinned.bytes().len() as u64
    }

    /// Writes to the mirror, at byte `offset` of the arena.
    pub(crate) fn write(
        &mut self,
        offset: usize,
        bytes: &[u8],
        timeout: Option<Duration>,
    ) -> Result<(), AclError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.catch_up(timeout)?;
        let range = offset..offset + bytes.len();
        self.blocks[self.current].pinned.bytes_mut()[range.clone()].copy_from_slice(bytes);
        if let Some(slot) = self.written.get_mut(self.count) {
            *slot = range.clone();
            self.count += 1;
        }
        self.dirty = join(&self.dirty, &range);
        Ok(())
    }

    /// Makes the current block ready to be written.
    fn catch_up(&mut self, timeout: Option<Duration>) -> Result<(), AclError> {
        let block = &mut self.blocks[self.current];
        if block.in_flight {
            block.copied.synchronize(timeout)?;
            block.in_flight = false;
        }
        let behind = std::mem::replace(&mut self.behind, 0..0);
        if !behind.is_empty() {
            let [first, second] = &mut self.blocks;
            let (to, from) = if self.current == 0 { (first, second) } else { (second, first) };
            to.pinned.bytes_mut()[behind.clone()].copy_from_slice(&from.pinned.bytes()[behind]);
        }
        Ok(())
    }

    /// Copies what was written to the device, in the order of `stream`, and goes on to the other block.
    pub(crate) fn submit(&mut self, memory: &Memory, stream: &Stream) -> Result<(), AclError> {
        if self.dirty.is_empty() {
            return Ok(());
        }
        let range = self.dirty.clone();
        let block = &mut self.blocks[self.current];
        // SAFETY: the range is inside the block and the arena; the block is not written again before
        // its event came, and both outlive the stream's work.
        unsafe {
            let from = block.pinned.at(range.start);
            let to = memory.arena.at(range.start as u64);
            stream.copy(to, from, range.len(), sys::ACL_MEMCPY_HOST_TO_DEVICE)?;
        }
        block.in_flight = true;
        self.current = 1 - self.current;
        self.behind = range;
        self.dirty = 0..0;
        self.count = 0;
        // Should it fail, the copy is waited for with all else: see `Transfer::landed`.
        self.blocks[1 - self.current].copied.record(stream)
    }

    /// All work of the stream is done.
    pub(crate) fn landed(&mut self) {
        self.blocks.iter_mut().for_each(|b| b.in_flight = false);
    }

    /// Answers a read of what was written and not submitted yet; `false` when it was not.
    pub(crate) fn read_written(&self, offset: u64, out: &mut [u8]) -> bool {
        let (start, end) = (offset as usize, offset as usize + out.len());
        let mut written = self.written[..self.count].iter();
        if !written.any(|r| r.start <= start && end <= r.end) {
            return false;
        }
        out.copy_from_slice(&self.blocks[self.current].pinned.bytes()[start..end]);
        true
    }

    /// Copies from the device and waits for it, and so for all work before.
    pub(crate) fn read(
        &mut self,
        from: *const core::ffi::c_void,
        out: &mut [u8],
        stream: &Stream,
        timeout: Option<Duration>,
    ) -> Result<(), AclError> {
        self.session.enter()?;
        for (i, part) in out.chunks_mut(READ_CHUNK).enumerate() {
            // SAFETY: the caller checked the range; the pinned memory is as long as the longest part,
            // and the copy is waited for before it is looked at.
            unsafe {
                let from = from.wrapping_byte_add(i * READ_CHUNK);
                stream.copy(
                    self.results.at(0),
                    from,
                    part.len(),
                    sys::ACL_MEMCPY_DEVICE_TO_HOST,
                )?;
            }
            stream.synchronize(timeout)?;
            part.copy_from_slice(&self.results.bytes()[..part.len()]);
        }
        self.landed();
        Ok(())
    }
}

fn join(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    if a.is_empty() { b.clone() } else { a.start.min(b.start)..a.end.max(b.end) }
}
