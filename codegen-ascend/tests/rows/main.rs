//! Kernels for rows against the reference: every op alone and composites of real models, over
//! element types, widths that fill no block, and numbers of rows around the number of cores.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod composites;
mod contract;
mod harness;
mod models;
mod ops;
mod wide;
