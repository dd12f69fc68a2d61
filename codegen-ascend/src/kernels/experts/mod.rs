//! Pairs of tokens and experts: their order, and the rows around products that want them in it.
//!
//! A grouped product of the library reads rows sorted by expert and a list of where each expert
//! ends, both in device memory. [`gather_rows_by_order`] prepares them from the results of
//! [`ir::Op::ExpertGroups`], [`scatter_rows_by_order`] puts the rows of its result where the pairs
//! are.

use super::{
    Declined, Kernel,
    source::{Budget, Source, require},
};
use crate::chip::Chip;
use compiler::{Arg, Lowered, Operand};
use ir::Op;
use tensor::DType;

/// Most bytes of a row that are copied at once.
const MOST_CHUNK: u64 = 64 << 10;

/// Pairs that a block looks at once.
const PAIRS: u64 = 4096;

/// The kernel of [`Op::ExpertGroups`].
///
/// # Errors
/// [`Declined`] for other ops, ids with gaps between rows, or more than 2^24 pairs or experts.
pub fn lower(
    op: &Op,
    operands: &[Operand],
    _results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let Op::ExpertGroups { experts } = op else {
        return Err(Declined(format!("{} has no kernel here", op.mnemonic())));
    };
    let ids = &operands[0];
    let pairs = ids.dim(0) * ids.dim(1);
    require(ids.row_stride == ids.dim(1), || "ids have gaps between their rows".to_owned())?;
    require(pairs < 1 << 24 && *experts < 1 << 24, || {
        format!("{pairs} pairs of {experts} experts; comparisons are exact below 2^24")
    })?;
    let kernel = groups(*experts, chip)?;
    let blocks = (*experts).min(u64::from(chip.vector_cores)) as u32;
    let args = vec![Arg::Operand(0), Arg::Result(0), Arg::Result(1)];
    Ok(kernel.call(args, &[pairs], blocks, "no library operator gives the order of pairs alone"))
}

fn groups(experts: u64, chip: &Chip) -> Result<Kernel, Declined> {
    let heading = format!(
        "Order of pairs by expert, stable.\n\
         ids i32[pairs] -> order i32[pairs], starts i32[{}]; experts 0 .. {experts}.",
        experts + 1
    );
    let chunk = PAIRS * 4;
    Budget::default()
        .buffer("ids", 2 * chunk)
        .buffer("order", 2 * chunk)
        .buffer("start", 32)
        .buffer("comparisons", 3 * chunk + PAIRS / 8)
        .fits(chip.ub_bytes)?;
    let source = Source::new(&heading)
        .size("EXPERTS", experts, "experts")
        .size("CHUNK", PAIRS, "pairs that are compared at once")
        .part(include_str!("groups.h"))
        .part(include_str!("groups.cpp"));
    Ok(source.kernel("expert_groups"))
}

/// Buffers of [`gather_rows_by_order`].
#[derive(Clone, Copy, Debug)]
pub struct GatherArgs {
    /// `x`.
    pub x: Arg,
    /// `order`.
    pub order: Arg,
    /// `starts`.
    pub starts: Arg,
    /// The rows in order, `[T * k, row]` without gaps.
    pub rows: Arg,
    /// The list of a grouped product; without it none is written.
    pub group_list: Option<GroupList>,
}

/// Which rows are whose, `i64[E]`.
#[derive(Clone, Copy, Debug)]
pub struct GroupList {
    /// The list.
    pub list: Arg,
    /// Whether it has the number of rows of each expert (`groupListType` 1), rather than where they
    /// end (0).
    pub counts: bool,
}

/// Row `i` of `args.rows` is the row of `x` that pair `order[i]` reads, for `x [T,..]`, one row for
/// each token, or `x [T,k,..]`, one for each pair, where `own_rows`. The group list is made of `starts`. `order`
/// and `starts` are results of [`Op::ExpertGroups`]. Any element type of whole bytes.
///
/// # Errors
/// [`Declined`] when `order` has gaps or the elements are no whole bytes.
pub fn gather_rows_by_order(
    x: &Operand,
    own_rows: bool,
    order: &Operand,
    starts: &Operand,
    args: &GatherArgs,
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let element = element_bytes(x.ty.dtype)?;
    require(order.row_stride == order.dim(1), || "order has gaps between its rows".to_owned())?;
    let (pairs, per_token) = (order.dim(0) * order.dim(1), order.dim(1));
    let elements: u64 = (1..x.ty.rank()).map(|axis| x.dim(axis)).product();
    let row = element * if own_rows { elements / per_token } else { elements };
    let (experts, list) = (starts.dim(0) - 1, args.group_list.is_some());

    let (chunk, mut budget) = copies(row);
    if list {
        budget = budget.buffer("group list", experts.next_multiple_of(64) * 16);
    }
    budget.fits(chip.ub_bytes)?;
    let heading = format!(
        "Rows of {row} bytes in the order of experts.\n\
         x[pair{}], order i32[pairs], starts i32[{}] -> rows [pairs]{}.",
        if own_rows { "" } else { " / k" },
        experts + 1,
        if list { ", group list i64" } else { "" }
    );
    let source = Source::new(&heading)
        .size("ROW", row, "bytes of a row")
        .size("CHUNK", chunk, "bytes that are copied at once")
        .size("EXPERTS_PER_TOKEN", per_token, "pairs of a token")
        .flag("OWN", own_rows, "whether each pair has a row of its own")
        .size("EXPERTS", experts, "experts")
        .part(include_str!("copy_row.h"))
        .part(include_str!("gather.h"));
    let mut buffers = vec![args.x, args.order, args.rows];
    let source = match args.group_list {
        None => source.part(include_str!("gather.cpp")),
        Some(GroupList { list, counts }) => {
            buffers.extend([args.starts, list]);
            let source = source.flag("COUNTS", counts, "whether the list counts rows of experts");
            source.part(include_str!("group_list.h")).part(include_str!("gather_and_list.cpp"))
        }
    };
    let kernel = source.kernel("gather_rows");
    let scalars = [pairs, x.row_stride * element];
    Ok(kernel.call(buffers, &scalars, blocks(pairs, chip), WHY))
}

/// Buffers of [`scatter_rows_by_order`].
#[derive(Clone, Copy, Debug)]
pub struct ScatterArgs {
    /// The rows in order, `[T * k, N]` without gaps.
    pub rows: Arg,
    /// `order`.
    pub order: Arg,
    /// `out`.
    pub out: Arg,
}

/// Row `i` of `args.rows` becomes the row of pair `order[i]` in `out [T,k,N]`.
///
/// # Errors
/// [`Declined`] when `order` has gaps or the elements are no whole bytes.
pub fn scatter_rows_by_order(
    order: &Operand,
    out: &Operand,
    args: &ScatterArgs,
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let element = element_bytes(out.ty.dtype)?;
    require(order.row_stride == order.dim(1), || "order has gaps between its rows".to_owned())?;
    let (pairs, per_token) = (order.dim(0) * order.dim(1), order.dim(1));
    let row = out.dim(2) * element;
    let (chunk, budget) = copies(row);
    budget.fits(chip.ub_bytes)?;
    let heading = format!(
        "Rows of {row} bytes from the order of experts to the places of their pairs.\n\
         rows [pairs], order i32[pairs] -> out[order[i]] = rows[i]."
    );
    let source = Source::new(&heading)
        .size("ROW", row, "bytes of a row")
        .size("CHUNK", chunk, "bytes that are copied at once")
        .size("EXPERTS_PER_TOKEN", per_token, "pairs of a token")
        .part(include_str!("copy_row.h"))
        .part(include_str!("scatter.cpp"));
    let buffers = vec![args.rows, args.order, args.out];
    let scalars = [pairs, out.row_stride * element];
    Ok(source.kernel("scatter_rows").call(buffers, &scalars, blocks(pairs, chip), WHY))
}

const WHY: &str = "rows of pairs are copied by the order that the device has";

/// Bytes that are copied at once, and the two buffers they go through.
fn copies(row: u64) -> (u64, Budget) {
    let chunk = row.min(MOST_CHUNK);
    (chunk, Budget::default().buffer("rows", 2 * chunk.next_multiple_of(32)))
}

fn blocks(pairs: u64, chip: &Chip) -> u32 {
    pairs.clamp(1, u64::from(chip.vector_cores)) as u32
}

fn element_bytes(dtype: DType) -> Result<u64, Declined> {
    match dtype {
        DType::MxFp4 | DType::I4 => Err(Declined(format!("rows of {dtype} are no whole bytes"))),
        other => Ok(other.bytes_for(1)),
    }
}
