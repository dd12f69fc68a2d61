//! A checkpoint directory, checked before anything long begins.

use crate::{
    check::{Check, Sound},
    config::{Config, shared::take_eos},
    error::{ModelError, STORED, TensorProblem},
    fields::Fields,
    files::Opened,
    info::ModelInfo,
    quant::{Description, Published, Quantization, expand, usually_fp8},
    source::SafetensorsSource,
};
use std::{
    collections::BTreeMap,
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
    quantization: Quantization,
    /// What the files store; `None` where only a configuration was opened.
    opened: Option<Opened>,
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
    /// names; with a `quant_model_description.json`, the `quant_model_weight*` files instead. No
    /// weight is read but offsets that must be zero.
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
        let quantization = quantization(dir, &config)?;
        let described = matches!(quantization, Quantization::Described(_));
        let opened = Opened::read(dir, described)?;
        let (sound, ignored) = check(dir, &config, &quantization, &opened)?;
        let name = name_of(dir);
        let made = Self::new(dir.to_owned(), name, config, eos_token_ids, sound, quantization);
        Ok(Self { ignored, opened: Some(opened), ..made })
    }

    /// A model without weights: what `config.json` at `path`, or in the directory `path`, says, with
    /// tensors as its publisher would store them, bf16 where nothing says otherwise. Reading a
    /// weight is an error.
    ///
    /// # Errors
    /// [`ModelError`] when the file is missing or damaged, or the model or a setting is not
    /// supported.
    pub fn config_only(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let config = Config::read(&file)?;
        let dir = file.parent().unwrap_or(Path::new("")).to_owned();
        let stem = file.file_stem().map(|s| s.to_string_lossy().into_owned());
        let name = stem.filter(|_| !path.is_dir()).unwrap_or_else(|| name_of(&dir));
        let quantization = Quantization::Published(config.published);
        let (expected, _) = expand(&quantization, config.parts(), usually_fp8);
        let sound = Sound::promised(&file, &expected);
        let eos_token_ids = config.eos_token_ids.clone();
        Ok(Self::new(dir, name, config, eos_token_ids, sound, quantization))
    }

    fn new(
        dir: PathBuf,
        name: String,
        config: Config,
        eos_token_ids: Vec<u32>,
        sound: Sound,
        quantization: Quantization,
    ) -> Self {
        let counted = || sound.counted();
        let info = ModelInfo {
            name,
            model_type: config.model_type.to_owned(),
            architecture: config.architecture.to_owned(),
            vocab_size: config.vocab_size,
            max_context: config.max_context,
            eos_token_ids,
            hidden: config.hidden,
            layers: config.layers.len() as u64,
            sliding_window: config.sliding_window(),
            parameters: counted().map(elements).sum(),
            dtype: commonest_float(counted()),
        };
        let Sound { source, .. } = sound;
        Self { dir, config, info, source, ignored: Vec::new(), quantization, opened: None }
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

    /// How its tensors are quantised.
    pub(crate) fn quantization(&self) -> &Quantization {
        &self.quantization
    }

    /// What its files store; `None` where only a configuration was opened.
    pub(crate) fn opened(&self) -> Option<&Opened> {
        self.opened.as_ref()
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

/// What the checkpoint in `dir` says about its own quantisation.
pub(crate) fn quantization(dir: &Path, config: &Config) -> Result<Quantization, ModelError> {
    match (Description::read(dir)?, config.published) {
        (None, published) => Ok(Quantization::Published(published)),
        (Some(description), Published::Float) => Ok(Quantization::Described(description)),
        (Some(description), _) => {
            Err(ModelError::TwiceQuantized { path: description.path().to_owned() })
        }
    }
}

/// Compares what is stored with what the configuration calls for.
fn check(
    dir: &Path,
    config: &Config,
    quantization: &Quantization,
    opened: &Opened,
) -> Result<(Sound, Vec<Ignored>), ModelError> {
    let mut check = Check::new(opened);
    let sound = check.parts(quantization, config.parts())?;
    for name in check.unseen() {
        match config.ignorable(&name) {
            Some(reason) => check.ignored.push(Ignored { name, reason }),
            None => check.problems.push(TensorProblem::Unused { name }),
        }
    }
    let Check { problems, mut ignored, .. } = check;
    if !problems.is_empty() {
        return Err(ModelError::Tensors { dir: dir.to_owned(), problems });
    }
    ignored.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((sound, ignored))
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

/// The element type of most elements that are no codes.
fn commonest_float<'a>(tensors: impl Iterator<Item = &'a TensorInfo>) -> DType {
    let mut counts: BTreeMap<DType, u64> = BTreeMap::new();
    for tensor in tensors.filter(|t| STORED.contains(&t.dtype)) {
        *counts.entry(tensor.dtype).or_default() += elements(tensor);
    }
    counts.into_iter().max_by_key(|&(_, n)| n).map_or(DType::BF16, |(dtype, _)| dtype)
}
