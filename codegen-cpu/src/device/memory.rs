//! Memory at fixed addresses: anonymous mappings and the mapped weight file.

use artifact::{BufferRef, Space};
use hal::{DeviceError, MemoryRequest};
use std::sync::Arc;
use tensor::MappedFile;

use crate::kernels::Buffer;

/// An anonymous mapping: zeroed, page-aligned, given back when dropped.
pub(super) struct Mapping {
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its memory; who may touch it when is the owner's concern.
unsafe impl Send for Mapping {}
// SAFETY: as above: shared references only give out the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of zeros, in huge pages if the system has them. No memory is used before it
    /// is written.
    pub(super) fn new(bytes: u64, what: &'static str) -> Result<Self, DeviceError> {
        let mapping = Self::small_pages(bytes, what)?;
        #[cfg(target_os = "linux")]
        // SAFETY: the range was just mapped. Only a hint, so its result does not matter.
        unsafe {
            libc::madvise(mapping.ptr.cast(), mapping.bytes, libc::MADV_HUGEPAGE);
        }
        Ok(mapping)
    }

    /// As [`Mapping::new`], in pages as the system makes them unasked.
    pub(super) fn small_pages(bytes: u64, what: &'static str) -> Result<Self, DeviceError> {
        let out_of_memory = |why: String| DeviceError::OutOfMemory { bytes, what, why };
        let len = usize::try_from(bytes).map_err(|_| out_of_memory("no such address".into()))?;
        if len == 0 {
            return Ok(Self { ptr: std::ptr::dangling_mut::<u64>().cast(), bytes: 0 });
        }
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let ptr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if ptr == libc::MAP_FAILED {
            return Err(out_of_memory(std::io::Error::last_os_error().to_string()));
        }
        Ok(Self { ptr: ptr.cast(), bytes: len })
    }

    pub(super) fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: mapped in `new` with this length, unmapped once.
            unsafe { libc::munmap(self.ptr.cast(), self.bytes) };
        }
    }
}

/// Offset and length of `at`; `None` when it leaves a space of `len` bytes.
fn range(at: BufferRef, len: usize) -> Option<(usize, usize)> {
    let end = at.offset.checked_add(at.bytes)?;
    (end <= len as u64).then_some((at.offset as usize, at.bytes as usize))
}

/// The address of `at` in a thread's private memory of `len` bytes; `None` when it leaves it.
pub(super) fn private(start: *mut u8, len: usize, at: BufferRef) -> Option<Buffer> {
    let (offset, bytes) = range(at, len)?;
    Some(Buffer { ptr: start.wrapping_add(offset), bytes, writable: true, private: true })
}

/// So large a state is in huge pages. Each layer has its KV blocks apart, so the first token takes a huge
/// page in every layer: little of a memory for many sequences, much of one for a single sequence.
const LARGE_STATE: u64 = 128 << 20;

/// The three spaces of an artifact. Addresses stay the same as long as it lives.
pub(super) struct Memory {
    weights: Arc<MappedFile>,
    arena: Mapping,
    state: Mapping,
}

impl Memory {
    pub(super) fn new(request: MemoryRequest) -> Result<Self, DeviceError> {
        Ok(Self {
            arena: Mapping::new(request.arena_bytes, "the arena")?,
            state: Self::state(request.state_bytes)?,
            weights: request.weights,
        })
    }

    fn state(bytes: u64) -> Result<Mapping, DeviceError> {
        let what = "the KV blocks and other state";
        if bytes < LARGE_STATE {
            Mapping::small_pages(bytes, what)
        } else {
            Mapping::new(bytes, what)
        }
    }

    fn space(&self, space: Space) -> (*mut u8, usize, bool) {
        match space {
            Space::Arena => (self.arena.ptr(), self.arena.bytes(), true),
            Space::State => (self.state.ptr(), self.state.bytes(), true),
            Space::Weights => (self.weights.as_ptr().cast_mut(), self.weights.len(), false),
            // Each thread has its own, none of them here.
            Space::Private => (std::ptr::null_mut(), 0, false),
        }
    }

    /// The address of `at`; `None` when it leaves its space.
    pub(super) fn resolve(&self, at: BufferRef) -> Option<Buffer> {
        let (ptr, len, writable) = self.space(at.space);
        let (offset, bytes) = range(at, len)?;
        Some(Buffer { ptr: ptr.wrapping_add(offset), bytes, writable, private: false })
    }

    /// Bytes in a space.
    pub(super) fn bytes(&self, space: Space) -> usize {
        self.space(space).1
    }

    /// Lets the system take back the pages of a range of the weights; they can be read again.
    pub(super) fn release_weights(&self, offset: u64, bytes: u64) {
        self.weights.release(offset as usize, bytes as usize);
    }
}

// Emulators of other processors take the hint and forget it.
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Whether huge pages were asked for where `mapping` lies: the flag `hg` in `/proc/self/smaps`.
    fn asks_for_huge_pages(mapping: &Mapping) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let at = |hex| usize::from_str_radix(hex, 16).expect("an address");
        let mut inside = false;
        for line in maps.lines() {
            let first = line.split(' ').next().expect("a word");
            if let Some((from, to)) = first.split_once('-') {
                inside = (at(from)..at(to)).contains(&mapping.ptr().addr());
            } else if inside && first == "VmFlags:" {
                return line.split(' ').any(|flag| flag == "hg");
            }
        }
        panic!("no such mapping");
    }

    #[test]
    fn a_large_state_is_in_huge_pages() {
        if !std::fs::exists("/sys/kernel/mm/transparent_hugepage").expect("sysfs") {
            eprintln!("left out: this system has no huge pages");
            return;
        }
        for (bytes, huge) in [(LARGE_STATE - 1, false), (LARGE_STATE, true)] {
            let state = Memory::state(bytes).expect("address space");
            assert_eq!(asks_for_huge_pages(&state), huge, "{bytes} bytes");
        }
    }
}
