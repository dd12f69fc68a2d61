//! Which files of a directory hold the weights, and what they store.

use crate::{
    error::ModelError,
    fields::Fields,
    header::{self, Stored},
    quant::DESCRIPTION,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// How the files of a described checkpoint begin, with or without the recipe behind it.
const QUANTIZED: &str = "quant_model_weight";

/// Everything the weight files of a directory hold, by name, before anyone says what is needed.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) files: Arc<Vec<(PathBuf, File)>>,
    pub(crate) stored: BTreeMap<String, (usize, Stored)>,
}

/// Where the weights are.
enum Found {
    Single(PathBuf),
    Index(PathBuf),
}

impl Opened {
    /// Reads the headers of the weight files in `dir`. Where the checkpoint is `described`, these
    /// are the `quant_model_weight*` files, one or those that their index names; else, or where
    /// there are none, `model.safetensors` or the files that its index names. Other safetensors
    /// files of the directory are not the model's.
    pub(crate) fn read(dir: &Path, described: bool) -> Result<Self, ModelError> {
        let mut opening = Opening::default();
        match find(dir, described)? {
            Found::Single(file) => opening.add(file)?,
            Found::Index(index) => opening.read_shards(dir, &index)?,
        }
        Ok(Self { files: Arc::new(opening.files), stored: opening.stored })
    }
}

fn find(dir: &Path, described: bool) -> Result<Found, ModelError> {
    if described && let Some(found) = quantized(dir)? {
        return Ok(found);
    }
    let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
    if single.exists() {
        Ok(Found::Single(single))
    } else if index.exists() {
        Ok(Found::Index(index))
    } else if quantized(dir)?.is_some() {
        Err(ModelError::Undescribed { path: dir.join(DESCRIPTION) })
    } else {
        Err(ModelError::NoWeights { dir: dir.to_owned() })
    }
}

/// The index or the only file of quantised weights.
fn quantized(dir: &Path) -> Result<Option<Found>, ModelError> {
    let io = |source| ModelError::Io { path: dir.to_owned(), source };
    let (mut files, mut indices) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        match name.strip_prefix(QUANTIZED) {
            Some(rest) if rest.ends_with(".safetensors") => files.push(name),
            Some(rest) if rest.ends_with(".safetensors.index.json") => indices.push(name),
            _ => {}
        }
    }
    let only = |names: &[String]| match names {
        [] => Ok(None),
        [name] => Ok(Some(dir.join(name))),
        [a, b, ..] => {
            let (first, second) = if a < b { (a, b) } else { (b, a) };
            Err(ModelError::ManyWeights {
                dir: dir.to_owned(),
                first: first.clone(),
                second: second.clone(),
            })
        }
    };
    match only(&indices)? {
        Some(index) => Ok(Some(Found::Index(index))),
        None => Ok(only(&files)?.map(Found::Single)),
    }
}

#[derive(Default)]
struct Opening {
    files: Vec<(PathBuf, File)>,
    stored: BTreeMap<String, (usize, Stored)>,
}

impl Opening {
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
}

/// Whether `text` names a file in a directory and no other place.
fn is_file_name(text: &str) -> bool {
    Path::new(text).file_name().is_some_and(|f| f == text)
}
