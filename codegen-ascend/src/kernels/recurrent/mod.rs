//! Memories of sequences, token by token: the rows of a sequence are found in device memory.

use super::{
    Declined, Kernel,
    source::{Budget, Source, float, require},
};
use crate::chip::Chip;
use compiler::{Arg, Lowered, Operand};
use ir::Op;
use tensor::DType;

/// Most channels of a convolution that are worked on at once.
const CHANNELS: u64 = 1024;

/// Kernels of [`Op::CausalConv`] and [`Op::GatedDelta`].
///
/// # Errors
/// [`Declined`] for other ops, element types other than `f32` and `bf16`, sizes that are no
/// multiples of what the chip copies, or that do not fit its local memory.
pub fn lower(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    match op {
        Op::CausalConv {} => causal_conv(operands, results, chip),
        Op::GatedDelta {} => gated_delta(operands, results, chip),
        other => Err(Declined(format!("{} has no memory of a sequence", other.mnemonic()))),
    }
}

fn causal_conv(
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let [state, x, weight, ..] = operands else { return Err(Declined("no operands".to_owned())) };
    let (rows, channels, taps) = (x.dim(0), x.dim(1), weight.dim(1));
    let memory = float(state.ty.dtype, "the memory")?;
    let (row, tap) = (float(x.ty.dtype, "x")?, float(weight.ty.dtype, "the weight")?);
    require(channels.is_multiple_of(16), || {
        format!("{channels} channels; they are copied 16 at a time")
    })?;
    require(weight.row_stride == taps, || "the weight has gaps between its rows".to_owned())?;
    let width = channels.min(CHANNELS);
    Budget::default()
        .buffer("weights", width * taps * (tap + 8))
        .buffer("rows as they come", 2 * width * row + width * memory)
        .buffer("rows", width * taps * 4)
        .buffer("products", width * (4 + 4 + memory))
        .buffer("results", 2 * width * 4 + width * memory)
        .fits(chip.ub_bytes)?;
    let heading =
        format!("Causal convolution of {taps} taps over {channels} channels, row by row.");
    let source = Source::new(&heading)
        .element("Memory", state.ty.dtype, "rows of the memory")?
        .element("Row", x.ty.dtype, "rows of x")?
        .element("Weight", weight.ty.dtype, "taps")?
        .size("CHANNELS", channels, "channels")
        .size("TAPS", taps, "taps of a channel")
        .size("WIDTH", width, "channels that are worked on at once")
        .part(include_str!("../vector.h"))
        .part(include_str!("conv.h"))
        .part(include_str!("conv.cpp"));
    let mut args: Vec<Arg> = (0..5).map(Arg::Operand).collect();
    args.push(Arg::Result(1));
    let scalars = [rows, x.row_stride, results[1].row_stride];
    let blocks = blocks(rows * channels.div_ceil(width), chip);
    let why = "rows of a sequence follow each other; no library operator takes slots and positions";
    Ok(source.kernel("causal_conv").call(args, &scalars, blocks, why))
}

fn gated_delta(
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let [_, q, k, v, gate, beta, ..] = operands else {
        return Err(Declined("no operands".to_owned()));
    };
    let (rows, key_heads, dk) = (q.dim(0), q.dim(1), q.dim(2));
    let (heads, dv) = (v.dim(1), v.dim(2));
    for (operand, what) in [(q, "q"), (v, "v"), (gate, "the gate")] {
        require(operand.ty.dtype == DType::F32, || format!("{what} is not f32"))?;
    }
    require(dk.is_multiple_of(8) && dv.is_multiple_of(8) && dk <= 248, || {
        format!("memories of {dk} rows and {dv} columns; 8, 16, .. 248 rows and columns of 8")
    })?;
    for stride in [q.row_stride, k.row_stride, v.row_stride, results[1].row_stride] {
        require(stride.is_multiple_of(8), || format!("rows are {stride} elements apart"))?;
    }
    let widths = (1..=dv / 8).rev().map(|n| n * 8).filter(|width| dv.is_multiple_of(*width));
    let mut last = Declined("memories have no columns".to_owned());
    for width in widths {
        match delta_kernel([key_heads, heads, dk, dv, width], chip) {
            Err(declined) => last = declined,
            Ok(kernel) => {
                let mut args: Vec<Arg> = (0..8).map(Arg::Operand).collect();
                args.push(Arg::Result(1));
                let strides = [q, k, v, gate, beta, &results[1]].map(|o| o.row_stride);
                let scalars: Vec<u64> = [rows].into_iter().chain(strides).collect();
                let blocks = blocks(rows * heads * (dv / width), chip);
                let why = format!(
                    "token by token with {width} of {dv} columns of a memory in local memory, so \
                     that a prompt has the same bits however it is cut"
                );
                return Ok(kernel.call(args, &scalars, blocks, &why));
            }
        }
    }
    Err(last)
}

fn delta_kernel(sizes: [u64; 5], chip: &Chip) -> Result<Kernel, Declined> {
    let [key_heads, heads, dk, dv, width] = sizes;
    Budget::default()
        .buffer("memory", dk * width * 4)
        .buffer("products", dk * width * 4)
        .buffer("weights", dk * 32 + width * 4 + 32)
        .buffer("tokens", 2 * (2 * dk + width) * 4)
        .buffer("results", 2 * width * 4)
        .fits(chip.ub_bytes)?;
    let heading =
        format!("Gated delta rule: memories [{dk}, {dv}] of {heads} heads, token by token.");
    let source = Source::new(&heading)
        .size("KEY_HEADS", key_heads, "heads of q and k")
        .size("HEADS", heads, "heads of v, each with a memory")
        .size("DK", dk, "rows of a memory")
        .size("DV", dv, "columns of a memory")
        .size("WIDTH", width, "columns that are worked on at once")
        .size("CHUNKS", dv / width, "runs of so many columns")
        .part(include_str!("../vector.h"))
        .part(include_str!("delta.h"))
        .part(include_str!("delta.cpp"));
    Ok(source.kernel("gated_delta"))
}

fn blocks(items: u64, chip: &Chip) -> u32 {
    items.clamp(1, u64::from(chip.vector_cores)) as u32
}
