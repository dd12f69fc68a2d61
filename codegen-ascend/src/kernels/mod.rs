//! Kernels of ours, generated as Ascend C.
//!
//! A kernel is called with the device addresses of its buffers, in the order of
//! [`compiler::KernelCall::args`], followed by its scalars, each in eight bytes as a whole number.
//! Sizes that depend on the bucket are scalars, so that all buckets share one kernel; everything
//! else is a constant in its source. Its name ends in a hash of its source.

pub mod copy;
pub mod experts;
pub mod paged;
pub mod recurrent;
pub mod rows;
pub mod sampling;
pub mod shim;
mod source;

use artifact::Scalar;
use compiler::{Arg, KernelCall, KernelFile, Lowered};

/// Why a generator has no kernel for an op. The next choice is tried; the last reason is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declined(pub String);

/// Which cores run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Vector cores; a block is one of them.
    Vector,
    /// Cube cores; a block is one of them.
    Cube,
    /// A cube core and its two vector cores; a block is all three.
    Mixed,
}

/// A generated kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Name of its function, and of its file without extension.
    pub name: String,
    /// Ascend C.
    pub source: String,
}

/// Where the name of the function goes in a source.
pub const NAME: &str = "@NAME@";

impl Kernel {
    /// A kernel from a source that has [`NAME`] for the name of its function. Its name is `stem` and
    /// a hash of that source.
    pub fn new(stem: &str, source: &str) -> Self {
        let mut hasher = artifact::Hasher::default();
        hasher.update(source.as_bytes());
        let hash = hasher.finish().to_string();
        let name = format!("{stem}_{}", &hash[..12]);
        let source = source.replace(NAME, &name);
        Self { name, source }
    }

    /// Path of its source in the artifact.
    pub fn path(&self) -> String {
        format!("kernels/{}.cpp", self.name)
    }

    /// An op computed by one launch of this kernel.
    pub fn call(self, args: Vec<Arg>, scalars: &[u64], blocks: u32, why: &str) -> Lowered {
        let scalars = scalars.iter().map(|&v| Scalar::Int(v)).collect();
        let file = KernelFile { path: self.path(), text: self.source };
        Lowered {
            calls: vec![KernelCall { kernel: self.name, args, scalars, operator: None, blocks }],
            files: vec![file],
            why: why.to_owned(),
            ..Lowered::default()
        }
    }
}
