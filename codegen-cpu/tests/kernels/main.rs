//! Every kernel, in every implementation this machine can run, against its definition.

#![allow(clippy::unwrap_used, reason = "tests, and helpers that only tests call")]

extern crate precast_codegen_cpu as codegen_cpu;

mod attention;
mod chain;
mod device;
mod elementwise;
mod experts;
mod external;
mod head_matmul;
mod latent;
mod linear;
mod lower;
mod matmul;
mod moves;
mod norm;
mod product;
mod quantising;
mod quantize;
mod recurrent;
mod rope;
mod select;
mod support;
mod top_k;
