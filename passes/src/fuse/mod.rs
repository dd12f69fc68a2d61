//! Fusions: one file each, named after the pass.

mod add_rms_norm;
mod dequantize;
mod epilogues;
mod gate_up;
mod mla_preprocess;
mod mla_prolog;
mod moe;
mod new_nodes;
mod product;
mod qk_rope_write;
mod qkv;
mod quantize;
mod rows;
mod silu_mul;

pub(crate) use add_rms_norm::fuse_add_rms_norm;
pub(crate) use dequantize::FuseDequantize;
pub(crate) use epilogues::FuseEpilogues;
pub(crate) use gate_up::FuseGateUp;
pub(crate) use mla_preprocess::FuseMlaPreprocess;
pub(crate) use mla_prolog::FuseMlaProlog;
pub(crate) use moe::FuseMoe;
pub(crate) use new_nodes::NewNodes;
pub(crate) use qk_rope_write::FuseQkRopeWrite;
pub(crate) use qkv::FuseQkv;
pub(crate) use quantize::FuseQuantize;
pub(crate) use rows::FuseRows;
pub(crate) use silu_mul::fuse_silu_mul;

use crate::{TargetInfo, rewrite::Decline};
use ir::{Func, Node, NodeId, ValueId};

/// Goes on if `holds`.
pub(crate) fn guard(holds: bool, code: &'static str, why: &'static str) -> Result<(), Decline> {
    if holds { Ok(()) } else { Err(Decline::Guard { code, why }) }
}

/// Goes on if the target has a kernel for `mnemonic`.
pub(crate) fn kernel(target: &TargetInfo, mnemonic: &str) -> Result<(), Decline> {
    guard(target.has(mnemonic), "no-kernel", "the target has no kernel for the fused op")
}

/// The node that computes `value`; parameters and weights are no match.
fn producer(func: &Func, value: ValueId) -> Result<(NodeId, &Node), Decline> {
    func.def_node(value).ok_or(Decline::NoMatch)
}
