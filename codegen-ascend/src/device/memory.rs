//! The memory of an artifact on the device.

use super::{
    AscendOptions,
    result::AclError,
    safe::{DeviceMemory, Event, PinnedMemory, Stream},
    session::Session,
};
use acl::sys;
use artifact::{BufferRef, Space};
use hal::{DeviceError, MemoryRequest};
use std::{sync::Arc, time::Duration};

/// Bytes of weights that are copied at a time.
const CHUNK: usize = 16 << 20;

/// Arena, weights and persistent memory, each one allocation.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) arena: DeviceMemory,
    pub(crate) weights: DeviceMemory,
    pub(crate) state: DeviceMemory,
}

impl Memory {
    /// Allocates all, copies the weights and makes the rest zero.
    pub(crate) fn load(
        session: &Arc<Session>,
        stream: &Stream,
        request: &MemoryRequest,
        options: &AscendOptions,
    ) -> Result<Self, DeviceError> {
        let allocate = |bytes: u64, what| {
            DeviceMemory::new(session, bytes).map_err(|e| DeviceError::OutOfMemory {
                bytes,
                what,
                why: e.to_string(),
            })
        };
        let memory = Self {
            weights: allocate(request.weights.len() as u64, "the weights on the device")?,
            state: allocate(request.state_bytes, "the states on the device")?,
            arena: allocate(request.arena_bytes, "the arena on the device")?,
        };
        let filled = (|| {
            memory.arena.zero()?;
            memory.state.zero()?;
            match options.copy_weights {
                true => memory.copy_weights(session, stream, request, options.timeout),
                false => Ok(()),
            }
        })();
        filled.map_err(|e| failed(session, &e))?;
        Ok(memory)
    }

    /// Copies through pinned memory, one chunk while the next is read from the file.
    fn copy_weights(
        &self,
        session: &Arc<Session>,
        stream: &Stream,
        request: &MemoryRequest,
        timeout: Option<Duration>,
    ) -> Result<(), AclError> {
        let weights = &request.weights;
        if weights.is_empty() {
            return Ok(());
        }
        let size = CHUNK.min(weights.len());
        let buffer = || Ok((PinnedMemory::new(session, size)?, Event::new(session)?));
        let mut buffers = [buffer()?, buffer()?];
        let copied = (|| {
            for (i, chunk) in weights.chunks(size).enumerate() {
                let (pinned, copied) = &mut buffers[i % 2];
                if i >= 2 {
                    copied.synchronize(timeout)?;
                }
                pinned.bytes_mut()[..chunk.len()].copy_from_slice(chunk);
                let offset = i * size;
                weights.release(offset, chunk.len());
                // SAFETY: the pinned memory lives until the stream is waited for below, and is not
                // written before its event came.
                unsafe {
                    let kind = sys::ACL_MEMCPY_HOST_TO_DEVICE;
                    stream.copy(self.weights.at(offset as u64), pinned.at(0), chunk.len(), kind)?;
                }
                copied.record(stream)?;
            }
            Ok(())
        })();
        // Copies that were put on the stream read the pinned memory, also when a later one failed.
        let waited = stream.synchronize(timeout);
        if waited.is_err() && !stream.drain(timeout) {
            std::mem::forget(buffers);
        }
        copied.and(waited)
    }

    /// The memory of a space; `None` where the device has no such.
    pub(crate) fn space(&self, space: Space) -> Option<&DeviceMemory> {
        match space {
            Space::Arena => Some(&self.arena),
            Space::Weights => Some(&self.weights),
            Space::State => Some(&self.state),
            Space::Private => None,
        }
    }

    /// Where a buffer lies.
    ///
    /// # Errors
    /// What is wrong with it, when it leaves its space.
    pub(crate) fn address(&self, at: BufferRef) -> Result<u64, String> {
        let Some(memory) = self.space(at.space) else {
            return Err(format!("a buffer is in the {} memory of a chain", at.space.name()));
        };
        match at.offset.checked_add(at.bytes) {
            Some(end) if end <= memory.bytes() => Ok(memory.address() + at.offset),
            _ => Err(format!(
                "a buffer of {} bytes at {} leaves the {} of {} bytes",
                at.bytes,
                at.offset,
                at.space.name(),
                memory.bytes()
            )),
        }
    }
}

/// A failed call as the device reports it.
pub(crate) fn failed(session: &Session, error: &AclError) -> DeviceError {
    DeviceError::Failed { device: session.name(), why: error.to_string() }
}
