//! A read-only mapped file.

use std::{fs::File, io, ops::Deref, path::Path};

/// The bytes of a file, mapped and never copied. The file must not be shortened while mapped.
#[derive(Debug)]
pub struct MappedFile(memmap2::Mmap);

impl MappedFile {
    /// Maps the whole file, in huge pages where the system keeps it in pieces that large: those that it reads
    /// for this mapping, and those that were written whole (see `artifact::Writer`).
    ///
    /// # Errors
    /// What the operating system says when the file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: artifacts and checkpoints are written once and then only read; truncating one
        // under a running server is outside what any engine can survive.
        let map = unsafe { memmap2::Mmap::map(&file) }?;
        // Only a hint: an error changes nothing that a caller could act on.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self(map))
    }

    /// Tells the system that few of the `len` bytes from `offset` on are needed, here and there: what is not read
    /// does not count towards this process then, as it would in huge pages. What lies past the end is left out.
    pub fn keep_small_pages(&self, offset: usize, len: usize) {
        let offset = offset.min(self.len());
        let len = len.min(self.len() - offset);
        if len == 0 {
            return;
        }
        #[cfg(target_os = "linux")]
        let _ = self.0.advise_range(memmap2::Advice::NoHugePage, offset, len);
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, len);
    }

    /// Tells the system that `len` bytes from `offset` on will not be needed soon, so that they stop
    /// counting towards this process. The bytes stay readable. What lies past the end is left out.
    pub fn release(&self, offset: usize, len: usize) {
        let offset = offset.min(self.len());
        let len = len.min(self.len() - offset);
        #[cfg(unix)]
        // SAFETY: the range is inside the mapping, which is of a file and read-only: dropped pages
        // are read again on access.
        unsafe {
            // Only a hint: an error changes nothing that a caller could act on.
            let _ = self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len);
        }
    }
}

impl Deref for MappedFile {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
