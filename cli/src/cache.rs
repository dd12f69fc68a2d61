//! Where `run` keeps what it compiled: one artifact for each content of a checkpoint and options.

use crate::Precast;
use anyhow::Context;
use artifact::Hasher;
use std::path::{Path, PathBuf};
use tensor::MappedFile;

/// Where the artifact of `checkpoint` compiled with `options` belongs. The key covers every file
/// that compiling reads, the options and the version of the compiler.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn location(
    precast: &Precast,
    checkpoint: &Path,
    options: &str,
) -> anyhow::Result<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(checkpoint)
        .with_context(|| checkpoint.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|p| {
            p.extension().is_some_and(|e| e == "json" || e == "safetensors" || e == "jinja")
        })
        .collect();
    files.sort();
    let mut hasher = Hasher::default();
    hasher.update(compiler_identity(precast).as_bytes());
    hasher.update(options.as_bytes());
    for path in files {
        hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        let bytes = MappedFile::open(&path).with_context(|| path.display().to_string())?;
        hasher.update(&bytes);
    }
    let key = hasher.finish().to_string();
    let path = checkpoint.canonicalize().unwrap_or_else(|_| checkpoint.into());
    let name = path.file_name().map_or("model".into(), |n| n.to_string_lossy().into_owned());
    let root = artifact::cache_folder().context("no cache directory: set PRECAST_CACHE")?;
    Ok(root.join(format!("{name}-{}", &key[..16])))
}

/// Changes whenever the same checkpoint may compile to another artifact.
fn compiler_identity(precast: &Precast) -> String {
    let mut hasher = Hasher::default();
    for (name, source) in precast.catalog.sources() {
        hasher.update(name.as_bytes());
        hasher.update(source.as_bytes());
    }
    for source in compiler::Target::sources(&precast.target) {
        hasher.update(source.as_bytes());
    }
    format!("{} {} {}", env!("CARGO_PKG_VERSION"), artifact::FORMAT_VERSION, hasher.finish())
}
