//! Kernel names and what they stand for, a table for each family.

mod dense;
mod experts;
mod latent;
mod product;
mod quant;
mod recurrent;
mod row_wise;

use super::bind::{Binder, Kernel, Run, compiled};
use super::simd::Portable;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512, Avx512Bf16};
#[cfg(target_arch = "aarch64")]
use super::simd::{BYTE_DOTS, NO_DOTS, Neon, PAIR_DOTS};
use crate::device::InstructionSet;

type Bind = fn(InstructionSet, &mut Binder<'_>) -> Result<Box<dyn Run>, String>;

/// A family's kernels by name.
type Table = &'static [(&'static str, Bind)];

const TABLES: [Table; 6] = [
    dense::KERNELS,
    experts::KERNELS,
    latent::KERNELS,
    product::KERNELS,
    quant::KERNELS,
    recurrent::KERNELS,
];

/// Binds the call `name`; `None` when there is no such kernel.
pub(crate) fn bind(
    set: InstructionSet,
    name: &str,
    binder: &mut Binder<'_>,
) -> Option<Result<Box<dyn Run>, String>> {
    let (name, linear, tables) = match name.strip_prefix("linear_") {
        Some(product) => (product, true, &[product::KERNELS][..]),
        None => (name, false, &TABLES[..]),
    };
    let (known, bind) = tables.iter().copied().flatten().find(|(known, _)| *known == name)?;
    binder.call(known, linear);
    if set == InstructionSet::Avx512Amx {
        binder.allow_tiles();
    }
    Some(bind(set, binder))
}

/// Names of the kernels that run row by row: a worker `r` of as many as there are rows (or of a part
/// of them that divides their number) computes row `r` (or its rows) alone, from row `r` of its rows
/// and from what no call of the chain writes, meets no other worker and uses no shared memory.
pub fn row_wise() -> impl Iterator<Item = &'static str> {
    row_wise::KERNELS.iter().copied()
}

/// Every kernel name, products without `linear_`.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.into_iter().flatten().map(|(name, _)| *name)
}

fn choose<K: Kernel>(set: InstructionSet, b: &mut Binder<'_>) -> Result<Box<dyn Run>, String> {
    match set {
        InstructionSet::Portable => compiled::<K, Portable>(b),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => compiled::<K, Avx2>(b),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => compiled::<K, Avx512>(b),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512Bf16 | InstructionSet::Avx512Amx => compiled::<K, Avx512Bf16>(b),
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => compiled::<K, Neon<NO_DOTS>>(b),
        #[cfg(target_arch = "aarch64")]
        InstructionSet::NeonDot => compiled::<K, Neon<BYTE_DOTS>>(b),
        #[cfg(target_arch = "aarch64")]
        InstructionSet::NeonBf16 => compiled::<K, Neon<PAIR_DOTS>>(b),
        other => Err(format!("there is no {other} on this architecture")),
    }
}
