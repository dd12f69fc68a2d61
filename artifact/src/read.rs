//! Opening an artifact: nothing is trusted before its length and checksum agree.

use crate::{
    ArtifactError, Checksum, FileEntry, Manifest, Plan, WeightEntry, checksum,
    checksum::checksum_in_pieces, codec::FORMAT_VERSION, seal::is_sealed,
};
use std::{
    fs,
    ops::Range,
    path::{Component, Path, PathBuf},
};
use tensor::MappedFile;

/// An artifact on disk whose manifest was read and whose files have their lengths.
pub struct Artifact {
    root: PathBuf,
    manifest: Manifest,
}

impl Artifact {
    /// Reads the manifest and checks that every file is there with its length.
    ///
    /// # Errors
    /// [`ArtifactError`] when it is no artifact, of another version, or incomplete.
    pub fn open(root: &Path) -> Result<Self, ArtifactError> {
        let not = |why: &str| ArtifactError::NotAnArtifact { path: root.into(), why: why.into() };
        if !root.is_dir() {
            return Err(not("no such directory"));
        }
        let path = root.join("manifest.json");
        let json = fs::read(&path).map_err(|_| not("it has no manifest.json"))?;
        let value: serde_json::Value = serde_json::from_slice(&json).map_err(|e| {
            ArtifactError::Damaged { path: path.clone(), why: format!("is not JSON: {e}") }
        })?;
        let found = value["format_version"]
            .as_u64()
            .ok_or_else(|| not("manifest.json has no format_version"))?;
        if found != u64::from(FORMAT_VERSION) {
            let found = u32::try_from(found).unwrap_or(u32::MAX);
            return Err(ArtifactError::Format { path, found });
        }
        if !is_sealed(&json) {
            return Err(damaged(&path, "was altered: its checksum differs".into()));
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|e| damaged(&path, e.to_string()))?;
        let artifact = Self { root: root.into(), manifest };
        for entry in artifact.entries() {
            if !is_inside(&entry.path) {
                return Err(damaged(&path, format!("names `{}`, a path elsewhere", entry.path)));
            }
            let path = artifact.path(entry);
            // Anything but a file may have no end, whatever length it shows.
            let file = fs::metadata(&path).ok().filter(fs::Metadata::is_file);
            let len = file.ok_or_else(|| damaged(&path, "is missing".into()))?.len();
            if len != entry.bytes {
                return Err(damaged(&path, format!("has {len} bytes, expected {}", entry.bytes)));
            }
        }
        Ok(artifact)
    }

    fn entries(&self) -> impl Iterator<Item = &FileEntry> {
        let m = &self.manifest;
        m.plans.iter().map(|p| &p.file).chain([&m.weights_file]).chain(&m.files)
    }

    fn path(&self, entry: &FileEntry) -> PathBuf {
        self.root.join(&entry.path)
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads every plan, in manifest order.
    ///
    /// # Errors
    /// [`ArtifactError`] when one is damaged, of another version, or would corrupt memory.
    pub fn plans(&self) -> Result<Vec<Plan>, ArtifactError> {
        self.manifest.plans.iter().map(|entry| self.plan(&entry.file)).collect()
    }

    fn plan(&self, entry: &FileEntry) -> Result<Plan, ArtifactError> {
        let path = self.path(entry);
        let bytes = self.read(entry)?;
        let plan = crate::codec::decode(&path, &bytes)?;
        crate::check_plan(&plan)
            .map_err(|source| ArtifactError::Plan { plan: plan.name.clone(), source })?;
        Ok(plan)
    }

    fn read(&self, entry: &FileEntry) -> Result<Vec<u8>, ArtifactError> {
        let path = self.path(entry);
        let bytes =
            fs::read(&path).map_err(|source| ArtifactError::Io { path: path.clone(), source })?;
        verify(&path, entry, &bytes)?;
        Ok(bytes)
    }

    /// The contents of the copied file `path`, such as `tokenizer.json`; `None` when the
    /// checkpoint had none.
    ///
    /// # Errors
    /// [`ArtifactError`] when it is damaged.
    pub fn file(&self, path: &str) -> Result<Option<Vec<u8>>, ArtifactError> {
        self.manifest.files.iter().find(|f| f.path == path).map(|f| self.read(f)).transpose()
    }

    /// Maps the weights without reading them; see [`Artifact::check_weights`]. What steps read whole may lie in huge
    /// pages.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn map_weights(&self) -> Result<MappedFile, ArtifactError> {
        let path = self.path(&self.manifest.weights_file);
        let weights =
            MappedFile::open(&path).map_err(|source| ArtifactError::Io { path, source })?;
        for table in self.tables() {
            weights.keep_small_pages(table.start, table.len());
        }
        Ok(weights)
    }

    /// Where tables are in the weights.
    fn tables(&self) -> impl Iterator<Item = Range<usize>> {
        self.manifest.weights.iter().filter(|w| w.is_table()).map(WeightEntry::range)
    }

    /// Compares mapped weights with their checksum. Reads every byte; those of tables are given back to the system at
    /// once.
    ///
    /// # Errors
    /// [`ArtifactError::Damaged`] when they differ.
    pub fn check_weights(&self, weights: &MappedFile) -> Result<(), ArtifactError> {
        let entry = &self.manifest.weights_file;
        let checksum = checksum_in_pieces(weights, |piece| {
            for table in self.tables() {
                let (start, end) = (piece.start.max(table.start), piece.end.min(table.end));
                if start < end {
                    weights.release(start, end - start);
                }
            }
        });
        compare(&self.path(entry), entry, weights, &checksum)
    }
}

/// Whether `path` stays inside the directory it is joined to.
fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn damaged(path: &Path, why: String) -> ArtifactError {
    ArtifactError::Damaged { path: path.into(), why }
}

fn verify(path: &Path, entry: &FileEntry, bytes: &[u8]) -> Result<(), ArtifactError> {
    compare(path, entry, bytes, &checksum(bytes))
}

fn compare(
    path: &Path,
    entry: &FileEntry,
    bytes: &[u8],
    checksum: &Checksum,
) -> Result<(), ArtifactError> {
    if bytes.len() as u64 != entry.bytes || *checksum != entry.checksum {
        return Err(damaged(path, "was altered: its checksum differs".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_inside_the_artifact() {
        assert!(is_inside("weights/weights.bin") && is_inside("tokenizer.json"));
        for path in ["", "/dev/zero", "../other", "plans/../../other", "."] {
            assert!(!is_inside(path), "{path}");
        }
    }
}
