//! Writing an artifact: everything into a temporary directory beside the target, then one rename.

use crate::{ArtifactError, FileEntry, Hasher, Manifest, Plan, codec};
use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
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
        let staging = parent.join(format!("{stem}{}", std::process::id()));
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
            out: BufWriter::with_capacity(1 << 20, file),
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
        let mut json = serde_json::to_vec_pretty(manifest).expect("a manifest is plain data");
        json.push(b'\n');
        self.file("manifest.json", &json).map(|_| ())
    }

    /// Writes the manifest and puts the artifact in place, replacing an older one.
    ///
    /// # Errors
    /// What the operating system says; nothing is left in place then.
    pub fn finish(mut self, manifest: &Manifest) -> Result<(), ArtifactError> {
        self.manifest(manifest)?;
        self.replace_target()
            .map_err(|source| ArtifactError::Io { path: self.target.clone(), source })?;
        self.finished = true;
        Ok(())
    }

    /// A directory cannot be renamed over a full one, so an older artifact steps aside first.
    fn replace_target(&self) -> io::Result<()> {
        let old = self.staging.with_extension("old");
        let had_old = self.target.exists();
        if had_old {
            fs::rename(&self.target, &old)?;
        }
        fs::rename(&self.staging, &self.target).inspect_err(|_| {
            if had_old {
                let _ = fs::rename(&old, &self.target);
            }
        })?;
        if had_old {
            fs::remove_dir_all(&old)?;
        }
        Ok(())
    }
}

/// Removes what killed processes left: a staging directory ends in the id of its process. Where the
/// system does not tell which processes live, nothing is removed.
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
    out: BufWriter<File>,
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
            .write_all(bytes)
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
    pub fn finish(mut self) -> Result<FileEntry, ArtifactError> {
        self.out
            .flush()
            .and_then(|()| self.out.get_ref().sync_data())
            .map_err(|source| ArtifactError::Io { path: self.full.clone(), source })?;
        Ok(FileEntry { path: self.path, bytes: self.bytes, checksum: self.hasher.finish() })
    }
}
