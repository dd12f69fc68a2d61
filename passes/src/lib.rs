//! IR to IR: canonicalise, fuse, assign layouts; and the pipelines that say in which order.

mod target;

pub use target::TargetInfo;
