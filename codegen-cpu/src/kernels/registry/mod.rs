//! Kernel names and what they stand for, a table for each family.

mod dense;
mod experts;
mod latent;
mod product;
mod quant;
mod recurrent;
#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;

use super::bind::{Binder, Kernel, Run, compiled};
use super::simd::Portable;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512, Avx512Bf16};
#[cfg(target_arch = "aarch64")]
use super::simd::{BYTE_DOTS, NO_DOTS, Neon, PAIR_DOTS};
use crate::device::InstructionSet;

type Bind = fn(InstructionSet, &mut Binder<'_>) -> Result<Box<dyn Run>, String>;

/// A kernel by its name.
struct Entry {
    name: &'static str,
    bind: Bind,
    row_wise: bool,
}

/// A family's kernels.
type Table = &'static [Entry];

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
    let entry = tables.iter().copied().flatten().find(|entry| entry.name == name)?;
    binder.call(entry.name, linear);
    if set == InstructionSet::Avx512Amx {
        binder.allow_tiles();
    }
    Some((entry.bind)(set, binder))
}

/// Names of the kernels that run row by row, as steps of a chain do: see `Kernel::ROW_WISE`.
pub fn row_wise() -> impl Iterator<Item = &'static str> {
    TABLES.into_iter().flatten().filter(|entry| entry.row_wise).map(|entry| entry.name)
}

/// Every kernel name, products without `linear_`.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.into_iter().flatten().map(|entry| entry.name)
}

/// The kernel `K`.
const fn kernel<K: Kernel>(name: &'static str) -> Entry {
    Entry { name, bind: choose::<K>, row_wise: K::ROW_WISE }
}

/// One of several kernels, none of which runs row by row: `bind` chooses.
const fn by_machine(name: &'static str, bind: Bind) -> Entry {
    Entry { name, bind, row_wise: false }
}

fn choose<K: Kernel>(set: InstructionSet, b: &mut Binder<'_>) -> Result<Box<dyn Run>, String> {
    match set {
        InstructionSet::Portable => compiled::<K, Portable>(b),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => compiled::<K, Avx2<false>>(b),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::AvxVnni => compiled::<K, Avx2<true>>(b),
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
