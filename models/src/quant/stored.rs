//! From the matrices that a model calls for to the tensors that a quantised checkpoint stores.

use super::{
    FP8_BLOCK, MXFP4_BLOCK, Published, Quantization,
    description::{Description, Kind},
};
use crate::{config::Linear, error::STORED, expected::Part};
use tensor::{DType, TensorInfo};

/// A tensor that a checkpoint should store, or may.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expected {
    pub(crate) name: String,
    /// Stored shape.
    pub(crate) dims: Vec<u64>,
    /// Element types it may be stored in, the usual one last.
    pub(crate) types: &'static [DType],
    pub(crate) used: Use,
    pub(crate) view: View,
}

/// What a stored tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Its elements are parameters of the model.
    Parameter,
    /// It says what the codes of a parameter mean.
    Scale,
    /// It may be there and is not used.
    Spare(&'static str),
    /// It may be there and must hold zeros, for nothing adds it.
    Zeros(&'static str),
}

/// How the bytes of a file become a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// They are one.
    Plain,
    /// `i8 [R,C]` holds the rows `2j` and `2j+1` of an `i4 [2R,C]` in the low and high nibbles of row `j`.
    NibbleRows,
    /// `u8 [..,G,16]` holds the nibbles of an `mxfp4 [..,32 G]`, low nibble first.
    MxFp4Blocks,
    /// `i64` holds the bits of an `f32` in its lower half.
    LowWords,
}

impl Expected {
    /// The `count` whole numbers called `name`.
    pub(crate) fn integers(name: &str, count: u64) -> Vec<Self> {
        vec![plain(name.to_owned(), vec![count], &[DType::I64], Use::Scale)]
    }

    /// What a checkpoint would usually hold; nothing where it may do without.
    pub(crate) fn usual(&self) -> Option<TensorInfo> {
        let needed = matches!(self.used, Use::Parameter | Use::Scale);
        let f32 = self.name.ends_with("e_score_correction_bias");
        let dtype = if f32 { DType::F32 } else { *self.types.last()? };
        let (dtype, dims) = self.view.of(dtype, &self.dims)?;
        needed.then(|| TensorInfo { name: self.name.clone(), dtype, dims })
    }
}

/// Whether `weight` is FP8 in checkpoints that are published so.
pub(crate) fn usually_fp8(weight: &str) -> bool {
    const FLOAT: [&str; 6] =
        ["lm_head", ".mlp.gate", ".shared_expert_gate", ".eh_proj", ".weights_proj", "mtp.fc"];
    let prefix = weight.strip_suffix(".weight").unwrap_or(weight);
    !FLOAT.iter().any(|part| prefix.ends_with(part))
}

impl View {
    /// Type and shape of the tensor that stored elements of type `dtype` and shape `dims` are;
    /// `None` where they cannot be.
    pub(crate) fn of(self, dtype: DType, dims: &[u64]) -> Option<(DType, Vec<u64>)> {
        match (self, dtype, dims) {
            (Self::NibbleRows, DType::I8, &[rows, columns]) if columns % 2 == 0 => {
                Some((DType::I4, vec![rows.checked_mul(2)?, columns]))
            }
            (Self::MxFp4Blocks, DType::U8, [outer @ .., groups, bytes])
                if bytes * 2 == MXFP4_BLOCK =>
            {
                let mut dims = outer.to_vec();
                dims.push(groups.checked_mul(MXFP4_BLOCK)?);
                Some((DType::MxFp4, dims))
            }
            (Self::LowWords, DType::I64, dims) => Some((DType::F32, dims.to_vec())),
            (Self::Plain, dtype, dims) | (Self::LowWords, dtype @ DType::F32, dims) => {
                Some((dtype, dims.to_vec()))
            }
            _ => None,
        }
    }
}

const SCALARS: &[DType] = &[DType::F32, DType::BF16, DType::F16];
const NPU_ONLY: &str = "`scale_bias` serves kernels that split activations into nibbles";
const SYMMETRIC: &str = "weights are quantised symmetrically, so offsets are zeros";
const FOLDED: &str = "`quant_bias` contains the bias";
const IN_DEQ_SCALE: &str = "`deq_scale` contains the scales of the weight";

/// What is stored for `parts`. `is_fp8` says of a matrix whether its codes are FP8. Names that a
/// description leaves out are returned apart.
pub(crate) fn expand(
    quantization: &Quantization,
    parts: Vec<Part>,
    is_fp8: impl Fn(&str) -> bool,
) -> (Vec<Expected>, Vec<String>) {
    let (mut all, mut unknown) = (Vec::new(), Vec::new());
    for part in parts {
        match quantization {
            Quantization::Published(published) => {
                let fp8 = matches!(published, Published::Fp8 { .. });
                all.extend(published_part(part, |weight| fp8 && is_fp8(weight)));
            }
            Quantization::Described(description) => {
                described_part(description, part, &mut all, &mut unknown);
            }
        }
    }
    (all, unknown)
}

fn published_part(part: Part, is_fp8: impl Fn(&str) -> bool) -> Vec<Expected> {
    match part {
        Part::Linear { prefix, linear: Linear { outputs, inputs, bias } } => {
            let weight = format!("{prefix}.weight");
            let mut all = if is_fp8(&weight) {
                let scale = format!("{prefix}.weight_scale_inv");
                let blocks = vec![outputs.div_ceil(FP8_BLOCK), inputs.div_ceil(FP8_BLOCK)];
                vec![
                    plain(weight, vec![outputs, inputs], &[DType::F8E4M3], Use::Parameter),
                    plain(scale, blocks, &[DType::F32], Use::Scale),
                ]
            } else {
                vec![float(weight, vec![outputs, inputs])]
            };
            all.extend(bias.then(|| float(format!("{prefix}.bias"), vec![outputs])));
            all
        }
        Part::Norm { prefix, width } => vec![float(format!("{prefix}.weight"), vec![width])],
        Part::MxFp4 { prefix, dims } => mxfp4(&prefix, dims).to_vec(),
        Part::Tensor { name, dims } => vec![float(name, dims)],
    }
}

/// Codes and exponents of matrices in MXFP4.
pub(crate) fn mxfp4(prefix: &str, [count, rows, columns]: [u64; 3]) -> [Expected; 2] {
    let groups = columns / MXFP4_BLOCK;
    let blocks = vec![count, rows, groups, MXFP4_BLOCK / 2];
    let codes = plain(format!("{prefix}_blocks"), blocks, &[DType::U8], Use::Parameter);
    let exponents = vec![count, rows, groups];
    [
        Expected { view: View::MxFp4Blocks, ..codes },
        plain(format!("{prefix}_scales"), exponents, &[DType::U8], Use::Scale),
    ]
}

fn described_part(
    description: &Description,
    part: Part,
    all: &mut Vec<Expected>,
    unknown: &mut Vec<String>,
) {
    let (first, own_bias) = match &part {
        Part::Linear { prefix, linear } => {
            (format!("{prefix}.weight"), linear.bias.then(|| format!("{prefix}.bias")))
        }
        Part::Norm { prefix, .. } => (format!("{prefix}.weight"), None),
        Part::MxFp4 { prefix, .. } => (format!("{prefix}_blocks"), None),
        Part::Tensor { name, .. } => (name.clone(), None),
    };
    let Some(kind) = description.kind(&first) else {
        return unknown.push(first);
    };
    if kind != Kind::W8A8
        && let Some(bias) = own_bias
        && description.kind(&bias).is_none()
    {
        unknown.push(bias);
    }
    // Moving outliers from activations into weights leaves biases at norms and projections.
    let described = |bias: String, n| description.kind(&bias).map(|_| float(bias, vec![n]));
    match part {
        Part::Linear { prefix, linear } => {
            if kind != Kind::W8A8 {
                all.extend(described(format!("{prefix}.bias"), linear.outputs));
            }
            all.extend(projection(kind, &prefix, linear));
        }
        Part::Norm { prefix, width } => {
            all.push(float(format!("{prefix}.weight"), vec![width]));
            all.extend(described(format!("{prefix}.bias"), width));
        }
        Part::MxFp4 { prefix, dims } => all.extend(mxfp4(&prefix, dims)),
        Part::Tensor { name, dims } => all.push(float(name, dims)),
    }
}

fn float(name: String, dims: Vec<u64>) -> Expected {
    plain(name, dims, STORED, Use::Parameter)
}

fn plain(name: String, dims: Vec<u64>, types: &'static [DType], used: Use) -> Expected {
    Expected { name, dims, types, used, view: View::Plain }
}

/// What modelslim stores for a projection, its bias aside unless that is folded into another tensor.
fn projection(kind: Kind, prefix: &str, linear: Linear) -> Vec<Expected> {
    let Linear { outputs: o, inputs: i, .. } = linear;
    let part = |part: &str, dims: &[u64], types, used| {
        plain(format!("{prefix}.{part}"), dims.to_vec(), types, used)
    };
    let codes = |dims: &[u64]| part("weight", dims, &[DType::I8], Use::Parameter);
    let scale = || part("weight_scale", &[o, 1], SCALARS, Use::Scale);
    let offset = || part("weight_offset", &[o, 1], SCALARS, Use::Zeros(SYMMETRIC));
    match kind {
        Kind::Float => vec![float(format!("{prefix}.weight"), vec![o, i])],
        Kind::W8A8Dynamic => vec![codes(&[o, i]), scale(), offset()],
        Kind::W4A8Dynamic => vec![
            Expected { view: View::NibbleRows, ..codes(&[o / 2, i]) },
            scale(),
            offset(),
            part("scale_bias", &[], SCALARS, Use::Spare(NPU_ONLY)),
        ],
        Kind::W8A8 => {
            let deq = part("deq_scale", &[o], &[DType::I64, DType::F32], Use::Scale);
            vec![
                codes(&[o, i]),
                part("input_scale", &[1], SCALARS, Use::Scale),
                part("input_offset", &[1], SCALARS, Use::Scale),
                part("quant_bias", &[o], &[DType::I32], Use::Scale),
                Expected { view: View::LowWords, ..deq },
                part("weight_scale", &[o, 1], SCALARS, Use::Spare(IN_DEQ_SCALE)),
                offset(),
                part("bias", &[o], STORED, Use::Spare(FOLDED)),
            ]
        }
    }
}
