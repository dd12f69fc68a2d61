//! Weight bytes from safetensors files by positioned reads.

use crate::{
    error::ModelError,
    fields::Fields,
    header::{self, Stored},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use tensor::{TensorInfo, WeightError, WeightSource};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The tensors that a model uses, read from their files on demand and never mapped: compiling
/// needs memory for the ranges it asks for, not for the model.
#[derive(Debug)]
pub struct SafetensorsSource {
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, Place>,
}

#[derive(Debug)]
struct Place {
    info: TensorInfo,
    file: usize,
    offset: u64,
}

/// Everything the weight files of a directory hold, by name, before anyone says what is needed.
pub(crate) struct Opened {
    files: Vec<(PathBuf, File)>,
    pub(crate) stored: BTreeMap<String, (usize, Stored)>,
}

impl Opened {
    /// Reads the headers of `model.safetensors`, or of the files that its index names. Other
    /// safetensors files of the directory are not the model's.
    pub(crate) fn read(dir: &Path) -> Result<Self, ModelError> {
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        let mut opened = Self { files: Vec::new(), stored: BTreeMap::new() };
        if single.exists() {
            opened.add(single)?;
        } else if index.exists() {
            opened.read_shards(dir, &index)?;
        } else {
            return Err(ModelError::NoWeights { dir: dir.to_owned() });
        }
        Ok(opened)
    }

    fn read_shards(&mut self, dir: &Path, index: &Path) -> Result<(), ModelError> {
        let mut map = Fields::read(index)?;
        let damaged = |reason: String| ModelError::Damaged { path: index.to_owned(), reason };
        let Some(Value::Object(places)) = map.take("weight_map") else {
            return Err(damaged("`weight_map` is not an object of file names".to_owned()));
        };
        let mut shards: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, file) in &places {
            let plain = file.as_str().filter(|f| is_file_name(f));
            let Some(file) = plain else {
                return Err(damaged(format!("`{name}` lies in {file}, which is no file name")));
            };
            if !shards.contains_key(file) {
                shards.insert(file, self.files.len());
                self.add(dir.join(file))?;
            }
            if self.stored.get(name).is_none_or(|(at, _)| *at != shards[file]) {
                return Err(damaged(format!("`{name}` is not in {file}")));
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf) -> Result<(), ModelError> {
        let file =
            File::open(&path).map_err(|source| ModelError::Io { path: path.clone(), source })?;
        let at = self.files.len();
        for tensor in header::read(&file, &path)? {
            let name = tensor.name.clone();
            if let Some((other, _)) = self.stored.insert(name.clone(), (at, tensor)) {
                let reason = format!("`{name}` is also in {}", self.files[other].0.display());
                return Err(ModelError::Damaged { path, reason });
            }
        }
        self.files.push((path, file));
        Ok(())
    }

    /// The source of those tensors that `used` picks.
    pub(crate) fn into_source(self, used: impl Fn(&str) -> bool) -> SafetensorsSource {
        let place = |(name, (file, stored)): (String, (usize, Stored))| {
            let dtype = stored.dtype.ok()?;
            let info = TensorInfo { name: name.clone(), dtype, dims: stored.dims };
            Some((name, Place { info, file, offset: stored.offset }))
        };
        SafetensorsSource {
            files: self.files,
            tensors: self.stored.into_iter().filter(|(n, _)| used(n)).filter_map(place).collect(),
        }
    }
}

/// Whether `text` names a file in a directory and no other place.
fn is_file_name(text: &str) -> bool {
    Path::new(text).file_name().is_some_and(|f| f == text)
}

impl SafetensorsSource {
    /// Every tensor the model uses, in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values().map(|p| &p.info)
    }

    /// Hands the bytes of tensor `name` to `sink` in order, a piece at a time.
    ///
    /// # Errors
    /// As [`WeightSource::read`].
    pub fn stream(&self, name: &str, mut sink: impl FnMut(&[u8])) -> Result<(), WeightError> {
        const PIECE: u64 = 1 << 20;
        let place = self.place(name)?;
        let bytes = place.info.bytes();
        let mut piece = vec![0; bytes.min(PIECE) as usize];
        let mut start = 0;
        while start < bytes {
            let piece = &mut piece[..(bytes - start).min(PIECE) as usize];
            self.read(name, start, piece)?;
            sink(piece);
            start += piece.len() as u64;
        }
        Ok(())
    }

    fn place(&self, name: &str) -> Result<&Place, WeightError> {
        self.tensors.get(name).ok_or_else(|| WeightError::Missing { name: name.to_owned() })
    }
}

impl WeightSource for SafetensorsSource {
    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).map(|p| &p.info)
    }

    fn read(&self, name: &str, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
        let place = self.place(name)?;
        let end = start.checked_add(out.len() as u64);
        assert!(
            end.is_some_and(|end| end <= place.info.bytes()),
            "reading {} bytes from {start} leaves `{name}`",
            out.len()
        );
        let (path, file) = &self.files[place.file];
        file.read_exact_at(out, place.offset + start).map_err(|source| WeightError::Io {
            name: name.to_owned(),
            file: path.display().to_string(),
            source,
        })
    }
}
