//! What can be wrong with a checkpoint, and what to do about it.

use std::{fmt, io, path::PathBuf};
use tensor::{DType, WeightError};

/// A checkpoint that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file that must be there could not be read.
    #[error("reading {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A JSON file that is none.
    #[error("{path} is not valid JSON: {reason}; download it again", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column where known.
        reason: String,
    },
    /// A model that nothing here can build.
    #[error(
        "{path}: the model `{found}` is not supported; supported: {supported}",
        path = path.display()
    )]
    UnknownModel {
        /// The configuration file.
        path: PathBuf,
        /// Its `architectures[0]`, or `model_type`.
        found: String,
        /// What could be loaded instead.
        supported: String,
    },
    /// A key that must be there.
    #[error("{path}: `{key}` is missing", path = path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key, with those around it: `rope_scaling.factor`.
        key: String,
    },
    /// A value that is not supported.
    #[error("{path}: `{key}` is {value}; supported: {supported}", path = path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What it holds.
        value: String,
        /// What it may hold.
        supported: String,
    },
    /// Keys that nobody here knows and that may change what the model computes.
    #[error(
        "{path}: {keys} not understood, and may change what the model computes; \
         remove what does not matter",
        path = path.display()
    )]
    UnknownKeys {
        /// The file.
        path: PathBuf,
        /// The keys, quoted.
        keys: String,
    },
    /// A directory without weights in safetensors format.
    #[error(
        "{dir} has neither model.safetensors nor model.safetensors.index.json; \
         other weight formats must be converted to safetensors first",
        dir = dir.display()
    )]
    NoWeights {
        /// The directory.
        dir: PathBuf,
    },
    /// Quantised weights without the file that says how.
    #[error(
        "{path} is missing, and without it nothing says how the weights are quantised; copy it \
         from where the weights come from",
        path = path.display()
    )]
    Undescribed {
        /// The description that should be there.
        path: PathBuf,
    },
    /// More than one set of quantised weights.
    #[error(
        "{dir} has both {first} and {second}; keep one set of weights, with the index that names \
         its files",
        dir = dir.display()
    )]
    ManyWeights {
        /// The directory.
        dir: PathBuf,
        /// One of the files.
        first: String,
        /// Another.
        second: String,
    },
    /// A weight file or index that contradicts itself.
    #[error("{path} is damaged: {reason}; download it again", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Two files that each say how the weights are quantised.
    #[error(
        "config.json has a `quantization_config`, and {path} describes the weights too; remove the \
         one that does not belong to them",
        path = path.display()
    )]
    TwiceQuantized {
        /// The description.
        path: PathBuf,
    },
    /// A head trained on states that its target does not have.
    #[error(
        "{dir} reads hidden states, and those of the model it drafts for were rotated before \
         quantising (`optional.quarot.rotation_map`); use weights that were not",
        dir = dir.display()
    )]
    RotatedTarget {
        /// The directory of the head.
        dir: PathBuf,
    },
    /// A tensor that must be looked at could not be read.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// Weights that are not those of the configured model.
    #[error(
        "the weights in {dir} do not fit config.json: {problems}",
        dir = dir.display(),
        problems = listed(problems)
    )]
    Tensors {
        /// The directory.
        dir: PathBuf,
        /// Everything that is wrong, in order of tensor names.
        problems: Vec<TensorProblem>,
    },
}

/// One tensor that does not fit the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorProblem {
    /// Not stored.
    #[error("`{name}` {expected:?} is missing")]
    Missing {
        /// Tensor.
        name: String,
        /// Shape it should have.
        expected: Vec<u64>,
    },
    /// Stored with another shape.
    #[error("`{name}` has shape {found:?}, expected {expected:?}")]
    Shape {
        /// Tensor.
        name: String,
        /// Shape it should have.
        expected: Vec<u64>,
        /// Shape it has.
        found: Vec<u64>,
    },
    /// Stored in an element type the builder cannot use.
    #[error("`{name}` is stored as {found}, supported: {supported}", supported = names(supported))]
    DType {
        /// Tensor.
        name: String,
        /// Element type in the spelling of the file.
        found: String,
        /// Element types it may have.
        supported: &'static [DType],
    },
    /// Part of the model, but `quant_model_description.json` does not say how it is quantised.
    #[error("`{name}` has no type in quant_model_description.json")]
    Undescribed {
        /// Tensor.
        name: String,
    },
    /// Stored in a shape that its packed layout cannot have.
    #[error("`{name}` has shape {found:?}, which is no whole number of packed 4-bit values")]
    Packing {
        /// Tensor.
        name: String,
        /// Shape it has.
        found: Vec<u64>,
    },
    /// Quantised in a way that its use does not allow.
    #[error(
        "`{name}` is quantised for inputs of one recorded scale, which it does not meet here; \
         quantise it as W8A8_DYNAMIC or leave it FLOAT"
    )]
    Static {
        /// Tensor.
        name: String,
    },
    /// An expert that is not stored as the first of its layer.
    #[error("`{name}` is stored as {found}, and that of the first expert as {first}")]
    MixedExperts {
        /// Tensor.
        name: String,
        /// Its element type.
        found: DType,
        /// Element type of the same tensor of expert 0.
        first: DType,
    },
    /// A bias of an expert.
    #[error("`{name}` is a bias of an expert, which nothing here adds; quantise without one")]
    ExpertBias {
        /// Tensor.
        name: String,
    },
    /// Offsets that the arithmetic leaves out because they are always zero.
    #[error("`{name}` is not all zeros, and nothing here adds it; quantise symmetrically")]
    NotZero {
        /// Tensor.
        name: String,
    },
    /// Stored, but no part of the model.
    #[error("`{name}` is stored but no part of the model")]
    Unused {
        /// Tensor.
        name: String,
    },
}

/// Element types that weights may be stored in.
pub(crate) const STORED: &[DType] = &[DType::F32, DType::F16, DType::BF16];

fn names(types: &[DType]) -> String {
    types.iter().map(|t| t.name()).collect::<Vec<_>>().join(", ")
}

/// A wrong configuration misfits every tensor; the first few say which key it is.
fn listed(problems: &[TensorProblem]) -> impl fmt::Display {
    const SHOWN: usize = 5;
    let mut text: Vec<String> = problems.iter().take(SHOWN).map(ToString::to_string).collect();
    if problems.len() > SHOWN {
        text.push(format!("and {} more", problems.len() - SHOWN));
    }
    text.join("; ")
}
