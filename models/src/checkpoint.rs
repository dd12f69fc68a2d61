//! A checkpoint directory, checked before anything long begins.

use crate::{
    config::{Config, shared::take_eos},
    error::{ModelError, STORED, TensorProblem},
    fields::Fields,
    info::ModelInfo,
    source::{Opened, SafetensorsSource},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};
use tensor::{DType, TensorInfo};

/// A model that can be built: its configuration, and every tensor it needs in the right shape.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: Config,
    info: ModelInfo,
    source: SafetensorsSource,
    ignored: Vec<Ignored>,
}

/// A stored tensor that the model does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// Its name.
    pub name: String,
    /// Why that is no error.
    pub reason: &'static str,
}

impl Checkpoint {
    /// Reads `config.json`, `generation_config.json` where there is one, and the headers of the
    /// weights in `dir`: `model.safetensors`, or the files that `model.safetensors.index.json`
    /// names. No weight is read.
    ///
    /// # Errors
    /// [`ModelError`] when a file is missing or damaged, the model or a setting is not supported, or
    /// the stored tensors are not exactly those of the configured model.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, ModelError> {
        let dir = dir.as_ref();
        let config = Config::read(&dir.join("config.json"))?;
        let eos_token_ids = match eos_of_generation(dir, &config)? {
            Some(ids) => ids,
            None => config.eos_token_ids.clone(),
        };
        let opened = Opened::read(dir)?;
        let ignored = check(dir, &config, &opened)?;
        let source = opened.into_source(|name| !ignored.iter().any(|i| i.name == name));
        let info = ModelInfo {
            name: name_of(dir),
            model_type: config.model_type.to_owned(),
            architecture: config.architecture.to_owned(),
            vocab_size: config.vocab_size,
            max_context: config.max_context,
            eos_token_ids,
            hidden: config.hidden,
            layers: config.layers.len() as u64,
            parameters: source.tensors().map(elements).sum(),
            dtype: commonest_type(&source),
        };
        Ok(Self { dir: dir.to_owned(), config, info, source, ignored })
    }

    /// The directory it was read from.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the model computes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What a manifest says about it.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Where its weights come from.
    pub fn source(&self) -> &SafetensorsSource {
        &self.source
    }

    /// Stored tensors that the model does not use, in the order of their names.
    pub fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }
}

/// The ids that `generation_config.json` ends texts with. Its other settings are defaults of
/// sampling, which is not the model's business.
fn eos_of_generation(dir: &Path, config: &Config) -> Result<Option<Vec<u32>>, ModelError> {
    let path = dir.join("generation_config.json");
    if !path.exists() {
        return Ok(None);
    }
    take_eos(&mut Fields::read(&path)?, config.vocab_size)
}

/// Compares what is stored with what the configuration calls for. Returns what may be passed over.
fn check(dir: &Path, config: &Config, opened: &Opened) -> Result<Vec<Ignored>, ModelError> {
    let mut problems = Vec::new();
    let mut used = BTreeSet::new();
    let mut expected = config.tensors();
    expected.sort();
    for (name, expected) in expected {
        match opened.stored.get(&name) {
            None => problems.push(TensorProblem::Missing { name: name.clone(), expected }),
            Some((_, stored)) if stored.dims != expected => problems.push(TensorProblem::Shape {
                name: name.clone(),
                expected,
                found: stored.dims.clone(),
            }),
            Some((_, stored)) => {
                let found = match &stored.dtype {
                    Ok(dtype) if STORED.contains(dtype) => None,
                    Ok(dtype) => Some(dtype.to_string()),
                    Err(spelling) => Some(spelling.clone()),
                };
                if let Some(found) = found {
                    problems.push(TensorProblem::DType { name: name.clone(), found });
                }
            }
        }
        used.insert(name);
    }
    let mut ignored = Vec::new();
    for name in opened.stored.keys().filter(|&n| !used.contains(n)).cloned() {
        match config.ignorable(&name) {
            Some(reason) => ignored.push(Ignored { name, reason }),
            None => problems.push(TensorProblem::Unused { name }),
        }
    }
    if problems.is_empty() {
        Ok(ignored)
    } else {
        Err(ModelError::Tensors { dir: dir.to_owned(), problems })
    }
}

fn name_of(dir: &Path) -> String {
    // A path such as `.` or `models/..` has no last component of its own.
    let resolved =
        || dir.canonicalize().ok()?.file_name().map(|n| n.to_string_lossy().into_owned());
    let own = dir.file_name().map(|n| n.to_string_lossy().into_owned());
    own.or_else(resolved).unwrap_or_else(|| "model".to_owned())
}

fn elements(tensor: &TensorInfo) -> u64 {
    tensor.dims.iter().product()
}

fn commonest_type(source: &SafetensorsSource) -> DType {
    let mut counts: BTreeMap<DType, u64> = BTreeMap::new();
    for tensor in source.tensors() {
        *counts.entry(tensor.dtype).or_default() += elements(tensor);
    }
    counts.into_iter().max_by_key(|&(_, n)| n).map_or(DType::BF16, |(dtype, _)| dtype)
}
