//! The kernels of `KERNELS.md`. Each is written once and compiled for every instruction set.

/// `$call` where the constant `$N` is `$n`, one of `$count`.
macro_rules! by_count {
    ($n:expr, [$($count:literal)*], $N:ident => $call:expr) => {
        match $n {
            $($count => {
                const $N: usize = $count;
                $call
            })*
            _ => unreachable!("a tile has no more rows than there are registers for"),
        }
    };
}

mod argmax;
mod attention;
mod barrier;
mod bind;
mod concat;
mod element;
mod elementwise;
mod epilogue;
mod exp;
mod experts;
pub mod external;
mod head_matmul;
pub mod kv;
mod l2_norm;
mod latent;
mod layer_norm;
mod matmul;
mod norm;
mod product;
mod quantize;
mod recurrent;
pub mod reference;
mod registry;
mod rope;
mod rows;
mod simd;
mod top_k;
mod uses;
mod worker;

pub(crate) use barrier::Barrier;
pub(crate) use bind::{Binder, Buffer, Run};
pub(crate) use registry::bind;
pub use registry::{names, row_wise};
pub(crate) use top_k::MOST as MOST_OF_A_ROW;
pub(crate) use uses::{Use, check_chain};
pub(crate) use worker::{Scratch, Worker, share};
