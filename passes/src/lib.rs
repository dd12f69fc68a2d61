//! IR to IR: canonicalise, fuse, assign layouts; and the pipelines that say in which order.
#![forbid(unsafe_code)]

mod absorb_latent;
mod bisect;
mod canonicalise;
mod catalog;
mod constants;
mod dead;
mod draw;
mod driver;
mod duplicates;
pub mod filetest;
mod fold_cast;
mod fuse;
mod layouts;
mod manager;
mod numerics;
pub mod pattern;
mod phase;
mod pipelines;
mod places;
mod quantize;
mod reference;
mod report;
mod rewrite;
mod sources;
mod specialise;
mod summary;
mod target;
mod w4a8_experts;

pub use bisect::{Culprit, first_wrong_rewrite};
pub use catalog::{Catalog, Place, RegisterError};
pub use constants::ProductWeights;
pub use draw::{draw_inputs, sample_bindings};
pub use manager::{BrokenPass, Dump, Options, run, run_func};
pub use numerics::{NumericError, NumericReport, check_numerics, numeric_distance};
pub use phase::Phase;
pub use pipelines::{Stage, Step, default_pipeline, names, pipeline_of};
pub use quantize::Quantize;
pub use reference::{ReferenceError, numeric_reference};
pub use report::{PassReport, Report, StepReport, TooFewMatches};
pub use rewrite::{Context, Decline, NearMiss, Region, Replacement, Rewrite};
pub use sources::sources;
pub use specialise::{SpecialiseError, specialise};
pub use summary::{LayerKind, OpCounts, activation_bytes, count_ops, layer_kinds, op_label};
pub use target::{LayoutRule, ROW_WISE_OPS, TargetInfo, WHOLE, WeightType};
