//! How the program came to be: the passes as they ran, and what they made of each function.

use crate::Checksum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tensor::{DType, Layout};

/// The pipeline in its effective configuration: what ran, not what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipeline {
    /// What passes were told of the target.
    pub target: PassTarget,
    /// How products of floats were quantised; `None` where none was.
    pub quantize: Option<QuantizedProducts>,
    /// The limit that was set on rewrites; `None` for none.
    pub rewrite_limit: Option<u64>,
    /// Every step in order, the ones that were left out included.
    pub passes: Vec<PassEntry>,
}

/// Facts about a target that passes decide by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassTarget {
    /// Name.
    pub name: String,
    /// Layout in which matrix products read weights.
    pub matmul_weight_layout: Layout,
    /// Exceptions from that; the first that applies counts.
    pub layout_rules: Vec<WeightLayout>,
    /// Element types that weights are converted to when they are stored.
    #[serde(default)]
    pub weight_types: Vec<StoredType>,
    /// Rows of gate and up weights that alternate, where there is a kernel for both.
    pub gate_up_block: Option<u64>,
    /// Whether its integer products take a scale for each part of a row.
    #[serde(default)]
    pub scales_parts: bool,
    /// Fused ops and kinds of composites that it has kernels for.
    pub fused: Vec<String>,
    /// Ops that it runs row by row, several on one row after another.
    pub row_wise: Vec<String>,
}

/// A layout for some weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightLayout {
    /// Mnemonic of the op that reads the weight.
    pub op: String,
    /// Element type; `None` for all.
    pub dtype: Option<DType>,
    /// Layout.
    pub layout: Layout,
}

/// An element type for some weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredType {
    /// Mnemonic of the product that reads the weight.
    pub op: String,
    /// Element type of the rows that it multiplies; `None` for all.
    pub rows: Option<DType>,
    /// Element type of the weight.
    pub from: DType,
    /// What it is converted to.
    pub to: DType,
}

/// How products of floats were quantised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantizedProducts {
    /// Bits of a weight.
    pub bits: u64,
    /// Weights of a row that share a scale, `u64::MAX` for all of them; `None` where each product had
    /// its own choice.
    pub group: Option<u64>,
    /// Whether output projections were quantised too.
    pub head: bool,
}

/// A step of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassEntry {
    /// Pass.
    pub pass: String,
    /// Checksum of the pass's source; `None` for one that does not tell.
    pub source: Option<Checksum>,
    /// Whether it was left out.
    pub disabled: bool,
    /// Rewrites by function, functions without any left out.
    pub fired: BTreeMap<String, u64>,
}

/// What the pipeline made of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionEntry {
    /// Function.
    pub name: String,
    /// Rows of the step that bytes are counted for.
    pub rows: u32,
    /// As the model definition gives it.
    pub before: StepCosts,
    /// As plans are made of it.
    pub after: StepCosts,
}

/// What a step of a function runs and moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCosts {
    /// Ops by mnemonic, composites by `fused:` and their kind, with how often each runs. Constants
    /// are none.
    pub ops: BTreeMap<String, u64>,
    /// Bytes of activations that ops read and write, each operand and result counted; weights,
    /// states and views of other values are not.
    pub activation_bytes: u64,
}

impl StepCosts {
    /// Ops together.
    pub fn total(&self) -> u64 {
        self.ops.values().sum()
    }
}
