//! How the projections of a checkpoint are quantised, and what is stored for each.

mod description;
mod settings;
mod stored;

pub(crate) use description::{DESCRIPTION, Description};
pub use settings::Published;
pub(crate) use stored::{Expected, Use, View, expand, mxfp4, usually_fp8};

use crate::source::SafetensorsSource;
use tensor::{DType, WeightSource};

/// Rows and columns of a block of FP8 codes that share a scale.
pub(crate) const FP8_BLOCK: u64 = 128;
/// Values of MXFP4 that share an exponent.
pub(crate) const MXFP4_BLOCK: u64 = 32;

/// Everything that says how a checkpoint is quantised.
#[derive(Debug)]
pub(crate) enum Quantization {
    /// What `quantization_config` of `config.json` says, or that there is none.
    Published(Published),
    /// A type for each tensor, in `quant_model_description.json`.
    Described(Description),
}

impl Quantization {
    /// Whether the residual stream is not that of the original model but a rotation of it.
    pub(crate) fn is_rotated(&self) -> bool {
        matches!(self, Self::Described(description) if description.is_rotated())
    }
}

/// How one projection is stored, and so how it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// A floating-point matrix.
    Float,
    /// int8 codes; inputs are quantised with a scale and an offset measured beforehand.
    StaticInt8,
    /// Codes with a scale for each row and `group` of columns.
    Codes {
        /// What they are.
        codes: Codes,
        /// Columns that share a scale.
        group: u64,
    },
}

/// What the codes of a projection are, and so what its inputs become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codes {
    /// int8 or int4; rows of inputs are quantised to int8 as they come.
    Int,
    /// FP8; inputs are quantised to FP8 or stay as they are.
    Fp8,
}

impl Scheme {
    /// How the projection `prefix` is stored in `source`, which must hold it.
    pub(crate) fn of(source: &SafetensorsSource, prefix: &str) -> Self {
        let info = source.info(&format!("{prefix}.weight"));
        let Some((dtype, &columns)) = info.and_then(|i| Some((i.dtype, i.dims.last()?))) else {
            return Self::Float;
        };
        let has = |part: &str| source.info(&format!("{prefix}.{part}")).is_some();
        match dtype {
            DType::F8E4M3 => Self::Codes { codes: Codes::Fp8, group: FP8_BLOCK },
            DType::I8 if has("deq_scale") => Self::StaticInt8,
            DType::I8 | DType::I4 => Self::Codes { codes: Codes::Int, group: columns },
            _ => Self::Float,
        }
    }
}
