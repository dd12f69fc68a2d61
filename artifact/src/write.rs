//! Writing an artifact: everything into a temporary directory beside the target, then one rename.

use crate::{ArtifactError, FileEntry, Hasher, Manifest, Plan, codec, seal_manifest};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// An artifact being written. Dropped before [`Writer::finish`], it removes what it wrote.
pub struct Writer {
    target: PathBuf,
    staging: PathBuf,
    finished: bool,
}

impl Writer {
    /// Starts an artifact that will appear at `target`.
    ///
    /// # Errors
    /// When `target` exists and is no artifact, or the directory beside it cannot be written.
    pub fn create(target: &Path) -> Result<Self, ArtifactError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| ArtifactError::Io { path, source }
        };
        let occupied = target.exists()
            && !target.join("manifest.json").is_file()
            && fs::read_dir(target).map_err(io(target))?.next().is_some();
        if occupied {
            return Err(ArtifactError::NotAnArtifact {
                path: target.into(),
                why: "the output directory holds other files".into(),
            });
        }
        let name = target.file_name().map_or("artifact".into(), |n| n.to_string_lossy());
        let parent = match target.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).map_err(io(parent))?;
        let stem = format!(".{name}.partial-");
        remove_abandoned(parent, &stem);
        // Two writers of one process may have the same target.
        static WRITERS: AtomicU32 = AtomicU32::new(0);
        let number = WRITERS.fetch_add(1, Ordering::Relaxed);
        let staging = parent.join(format!("{stem}{}.{number}", std::process::id()));
        let _ = fs::remove_dir_all(&staging);
        fs::create_dir_all(&staging).map_err(io(&staging))?;
        Ok(Self { target: target.into(), staging, finished: false })
    }

    /// Where files are written until [`Writer::finish`].
    pub fn staging(&self) -> &Path {
        &self.staging
    }

    /// Writes a file whole.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn file(&self, path: &str, bytes: &[u8]) -> Result<FileEntry, ArtifactError> {
        let mut stream = self.stream(path)?;
        stream.write(bytes)?;
        stream.finish()
    }

    /// Starts a file that is written in pieces.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn stream(&self, path: &str) -> Result<FileStream, ArtifactError> {
        let full = self.staging.join(path);
        let file = fs::create_dir_all(full.parent().unwrap_or(&self.staging))
            .and_then(|()| File::create(&full))
            .map_err(|source| ArtifactError::Io { path: full.clone(), source })?;
        Ok(FileStream {
            path: path.to_owned(),
            full,
            out: Pieces::new(file),
            hasher: Hasher::default(),
            bytes: 0,
        })
    }

    /// Writes a plan into `plans/`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn plan(&self, plan: &Plan) -> Result<FileEntry, ArtifactError> {
        self.file(&format!("plans/{}.plan", plan.name), &codec::encode(plan))
    }

    /// Writes the manifest, so that the unpublished artifact can be opened.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn manifest(&self, manifest: &Manifest) -> Result<(), ArtifactError> {
        let json = serde_json::to_string_pretty(manifest).expect("a manifest is plain data");
        let json = seal_manifest(&(json + "\n"));
        self.file("manifest.json", json.as_bytes()).map(|_| ())
    }

    /// Writes the manifest and puts the artifact in place, replacing an older one.
    ///
    /// # Errors
    /// What the operating system says; an older artifact is still in place then.
    pub fn finish(mut self, manifest: &Manifest) -> Result<(), ArtifactError> {
        self.manifest(manifest)?;
        self.replace_target()
            .map_err(|source| ArtifactError::Io { path: self.target.clone(), source })?;
        self.finished = true;
        Ok(())
    }

    /// An older artifact changes places with the new one at once where the system can do that.
    /// Elsewhere it steps aside first, since a directory cannot be renamed over a full one; killed
    /// between the two renames, the process leaves it under the name that ends in `.old`.
    fn replace_target(&self) -> io::Result<()> {
        if !self.target.exists() {
            return fs::rename(&self.staging, &self.target);
        }
        // What cannot be removed now goes when the next artifact is written here.
        if exchange(&self.staging, &self.target).is_ok() {
            let _ = fs::remove_dir_all(&self.staging);
            return Ok(());
        }
        let mut old = self.staging.clone().into_os_string();
        old.push(".old");
        fs::rename(&self.target, &old)?;
        fs::rename(&self.staging, &self.target).inspect_err(|_| {
            let _ = fs::rename(&old, &self.target);
        })?;
        let _ = fs::remove_dir_all(&old);
        Ok(())
    }
}

/// Swaps two directories of one file system, which either happens or does not.
#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use std::{ffi::CString, os::unix::ffi::OsStrExt};
    let a = CString::new(a.as_os_str().as_bytes())?;
    let b = CString::new(b.as_os_str().as_bytes())?;
    // SAFETY: both are strings that end in a zero and live through the call.
    let result = unsafe {
        let here = libc::AT_FDCWD;
        libc::renameat2(here, a.as_ptr(), here, b.as_ptr(), libc::RENAME_EXCHANGE)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// This system has no such call.
#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Removes what killed processes left: the name of a staging directory has the id of its process
/// after `stem`. Where the system does not tell which processes live, nothing is removed.
fn remove_abandoned(parent: &Path, stem: &str) {
    let proc = Path::new("/proc");
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|n| n.strip_prefix(stem)) else { continue };
        let process = rest.split('.').next().unwrap_or(rest);
        let dead = process.parse::<u32>().is_ok() && !proc.join(process).exists();
        if proc.join("self").exists() && dead {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.finished {
            let _ = fs::remove_dir_all(&self.staging);
        }
    }
}

/// A file being written in pieces.
pub struct FileStream {
    path: String,
    full: PathBuf,
    out: Pieces<File>,
    hasher: Hasher,
    bytes: u64,
}

impl FileStream {
    /// Appends `bytes`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ArtifactError> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out
            .write(bytes)
            .map_err(|source| ArtifactError::Io { path: self.full.clone(), source })
    }

    /// Appends zeros up to a multiple of `align` and returns the position.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn align(&mut self, align: u64) -> Result<u64, ArtifactError> {
        let padding = self.bytes.next_multiple_of(align) - self.bytes;
        self.write(&vec![0; padding as usize])?;
        Ok(self.bytes)
    }

    /// Flushes and closes.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn finish(self) -> Result<FileEntry, ArtifactError> {
        self.out
            .finish()
            .and_then(|file| file.sync_data())
            .map_err(|source| ArtifactError::Io { path: self.full, source })?;
        Ok(FileEntry { path: self.path, bytes: self.bytes, checksum: self.hasher.finish() })
    }
}

/// The size of a huge page. Linux keeps what is written at once together in memory, and maps it as one page where
/// it is one.
const PIECE: usize = 2 << 20;

/// Writes pieces of [`PIECE`] bytes, whatever it is given at once.
struct Pieces<W> {
    out: W,
    /// What is not written yet, less than a piece.
    waiting: Vec<u8>,
}

impl<W: Write> Pieces<W> {
    fn new(out: W) -> Self {
        Self { out, waiting: Vec::new() }
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while self.waiting.len() + bytes.len() >= PIECE {
            let (now, later) = bytes.split_at(PIECE - self.waiting.len());
            if self.waiting.is_empty() {
                self.out.write_all(now)?;
            } else {
                self.waiting.extend_from_slice(now);
                self.out.write_all(&self.waiting)?;
                self.waiting.clear();
            }
            bytes = later;
        }
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes the last, shorter piece.
    fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&self.waiting)?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is removed in the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let id = std::process::id();
            let dir = std::env::temp_dir().join(format!("precast-write-{name}-{id}"));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).expect("temporary directories are writable");
            Self(dir)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).expect("the directory exists");
            let mut names: Vec<String> = entries
                .map(|e| e.expect("readable").file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Puts an artifact in place that holds `text`, without a real manifest.
    fn publish(writer: &Writer, text: &str) {
        writer.file("manifest.json", text.as_bytes()).expect("staging is writable");
        writer.replace_target().expect("the target can be replaced");
    }

    /// Notes the length of each write, and what was written.
    #[derive(Default)]
    struct Noted(Vec<usize>, Vec<u8>);

    impl Write for Noted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.len());
            self.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn whole_pieces_are_written_however_they_come() {
        let bytes: Vec<u8> = (0..3 * PIECE + 5).map(|i| (i / 7) as u8).collect();
        for at_once in [1_000_003, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 3, bytes.len()] {
            let mut pieces = Pieces::new(Noted::default());
            for part in bytes.chunks(at_once) {
                pieces.write(part).unwrap();
            }
            let Noted(lengths, written) = pieces.finish().unwrap();
            assert_eq!(lengths, [PIECE, PIECE, PIECE, 5], "{at_once} at once");
            assert!(written == bytes, "{at_once} at once");
        }
    }

    #[test]
    fn the_last_of_two_writers_stays_and_nothing_else() {
        let dir = Scratch::new("two");
        let target = dir.0.join("out");
        let create = || Writer::create(&target).expect("the directory is writable");
        let (first, second) = (create(), create());
        publish(&second, "second");
        publish(&first, "first");
        drop((first, second));
        assert_eq!(fs::read_to_string(target.join("manifest.json")).unwrap(), "first");
        assert_eq!(dir.names(), ["out"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_dead_processes_left_goes_and_what_living_ones_write_stays() {
        let dir = Scratch::new("left");
        // No process has the largest id there is.
        let mine = format!(".out.partial-{}.7", std::process::id());
        for name in [".out.partial-4294967295.0", ".out.partial-4294967295.0.old", &mine] {
            fs::create_dir(dir.0.join(name)).unwrap();
        }
        drop(Writer::create(&dir.0.join("out")).unwrap());
        assert_eq!(dir.names(), [mine]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn directories_change_places() {
        let dir = Scratch::new("exchange");
        let (a, b) = (dir.0.join("a"), dir.0.join("b"));
        for path in [&a, &b] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("name"), path.as_os_str().as_encoded_bytes()).unwrap();
        }
        exchange(&a, &b).unwrap();
        assert_eq!(fs::read_to_string(a.join("name")).unwrap(), b.to_str().unwrap());
        assert_eq!(fs::read_to_string(b.join("name")).unwrap(), a.to_str().unwrap());
        assert!(exchange(&a, &dir.0.join("absent")).is_err());
    }
}
