//! Attention on vector cores.

use super::{
    super::{
        Declined, Kernel,
        source::{Budget, Source, float, require},
    },
    PIECE,
    problem::{Memory, Problem},
    signature::{Phase, Signature},
};
use crate::chip::Chip;
use compiler::Lowered;

/// How the work of a problem is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    /// Heads that a block works on at once.
    heads: u64,
    /// Rows of keys that are in local memory at once.
    tile: u64,
}

impl Tiling {
    /// As many heads as fit, since each reads all keys again, and then as many rows.
    fn of(problem: &Problem, chip: &Chip) -> Result<Self, Declined> {
        let group = problem.group();
        let heads = (1..=group).rev().filter(|heads| group.is_multiple_of(*heads));
        let tiles = [64, 32, 16, 8].into_iter().filter(|tile| problem.block.is_multiple_of(*tile));
        let all = heads.flat_map(|heads| tiles.clone().map(move |tile| Self { heads, tile }));
        let mut last = Declined("blocks of tokens are no multiples of 8".to_owned());
        for tiling in all {
            match tiling.budget(problem).fits(chip.ub_bytes) {
                // Tiles of fewer rows than this leave most of an instruction unused.
                Ok(()) if tiling.tile >= 16 || tiling.heads == 1 => return Ok(tiling),
                Ok(()) => {}
                Err(declined) => last = declined,
            }
        }
        Err(last)
    }

    fn budget(self, problem: &Problem) -> Budget {
        let Self { heads, tile } = self;
        let [value, rotated] = problem.key;
        let pitch = value + rotated_pitch(problem);
        let (query, cached) = (bytes(problem.query), bytes(problem.cached));
        Budget::default()
            .buffer("keys as they come", 2 * tile * pitch * cached)
            .buffer("queries as they come", heads * (value + rotated) * query)
            .buffer("queries", heads * (value + rotated) * 4)
            .buffer("keys", tile * pitch * 4)
            .buffer("products", tile * value.max(64) * 4)
            .buffer("scores", heads * PIECE * 4)
            .buffer("mixed values", heads * value * 4)
            .buffer("weights", tile * 32 + heads * 32 + 1024)
            .buffer("sums", heads * value * 4 + (2 * heads).next_multiple_of(8) * 4 + value * 4)
            // What leaves: either the result or a record.
            .buffer("results", heads * (value + 16) * 4)
    }
}

pub(super) fn bytes(dtype: tensor::DType) -> u64 {
    float(dtype, "").unwrap_or(4)
}

/// Columns that a row of rotated keys takes in local memory: copies of single rows fill up 32 bytes.
fn rotated_pitch(problem: &Problem) -> u64 {
    match problem.memory {
        Memory::Selected { .. } => problem.key[1].next_multiple_of(32 / bytes(problem.cached)),
        _ => problem.key[1],
    }
}

pub(super) fn lower(problem: &Problem, chip: &Chip) -> Result<Lowered, Declined> {
    let tiling = Tiling::of(problem, chip)?;
    let items = problem.rows * (problem.heads / tiling.heads);
    let pieces = problem.most_pieces(PIECE);
    let cores = u64::from(chip.vector_cores);
    if pieces == 1 || items >= 2 * cores {
        let why = match pieces {
            1 => format!("vector cores, by rows: no row has more than {PIECE} places"),
            _ => format!("vector cores, by rows: {items} items keep {cores} cores busy"),
        };
        let signature = Signature::new(problem, Phase::Whole, None);
        let kernel = kernel(problem, tiling, &signature)?;
        return Ok(signature.call(kernel, items.clamp(1, cores) as u32, &why));
    }
    let why = format!(
        "vector cores, pieces of {PIECE} places: {items} items are too few for {cores} cores"
    );
    let signature = Signature::new(problem, Phase::Pieces, None);
    let first = kernel(problem, tiling, &signature)?;
    let mut lowered = signature.call(first, cores as u32, &why);
    lowered.scratch_bytes.push(items * pieces * record_bytes(problem, tiling.heads));
    fold(problem, tiling.heads, &mut lowered, chip)?;
    Ok(lowered)
}

/// Bytes of what a piece comes to for `heads` heads.
pub(super) fn record_bytes(problem: &Problem, heads: u64) -> u64 {
    heads * (problem.key[0] + 16) * 4
}

/// Adds the kernel that folds records of `heads` heads to those that make them.
pub(super) fn fold(
    problem: &Problem,
    heads: u64,
    lowered: &mut Lowered,
    chip: &Chip,
) -> Result<(), Declined> {
    let value = problem.key[0];
    Budget::default()
        .buffer("records", 2 * record_bytes(problem, heads))
        .buffer("sums", heads * value * 4 + heads * 8 + value * 4)
        .buffer("results", 2 * value * 4)
        .fits(chip.ub_bytes)?;
    let signature = Signature::new(problem, Phase::Combine, None);
    let kernel = kernel(problem, Tiling { heads, tile: 8 }, &signature)?;
    let items = problem.rows * (problem.heads / heads);
    let blocks = items.clamp(1, u64::from(chip.vector_cores)) as u32;
    let fold = signature.call(kernel, blocks, "");
    lowered.calls.extend(fold.calls);
    lowered.files.extend(fold.files);
    Ok(())
}

fn kernel(problem: &Problem, tiling: Tiling, signature: &Signature) -> Result<Kernel, Declined> {
    let phase = signature.phase;
    let Tiling { heads, tile } = tiling;
    let [key, rotated] = problem.key;
    require(tile <= 255, || format!("tiles of {tile} rows; an instruction repeats 255 times"))?;
    let (memory, text) = match problem.memory {
        Memory::Cache { kv_heads } => {
            (format!("a cache of {kv_heads} heads"), include_str!("cache.h"))
        }
        Memory::Latent => ("latents".to_owned(), include_str!("latent.h")),
        Memory::Selected { places } => {
            (format!("{places} selected latents"), include_str!("selected.h"))
        }
    };
    let what = match phase {
        Phase::Whole => "Attention",
        Phase::Pieces => "Attention, first half: pieces of rows",
        Phase::Combine => "Attention, second half: rows from their pieces",
    };
    let queries = problem.heads;
    let heading = format!("{what} of {queries} heads over {memory}.");
    let (kv_heads, places) = match problem.memory {
        Memory::Cache { kv_heads } => (kv_heads, 0),
        Memory::Latent => (1, 0),
        Memory::Selected { places } => (1, places),
    };
    let source = Source::new(&heading)
        .element("Query", problem.query, "queries")?
        .element("Cached", problem.cached, "keys and values")?
        .element("Out", problem.out, "results")?
        .size("HEADS", problem.heads, "query heads")
        .size("KV_HEADS", kv_heads, "heads of the memory")
        .size("KEY0", key, "columns of a key")
        .size("KEY1", rotated, "columns of its rotated part")
        .size(
            "PITCH1",
            rotated_pitch(problem),
            "columns that the rotated part takes in local memory",
        )
        .size("VALUE", key, "columns of a value")
        .size("SELECTED", places, "most places that a row names; 0: it reads all")
        .size("BLOCK", problem.block, "tokens of a block")
        .size("WINDOW", problem.window, "places that a row sees; 0: all")
        .flag("SINKS", problem.sinks, "whether heads have a logit without a value")
        .number("SCALE", problem.scale, "of scores")
        .number("NEVER", -3.0e38, "score of a place that does not count")
        .size("ITEM_HEADS", heads, "heads that a block works on at once")
        .size("ITEMS", problem.heads / heads, "groups of so many heads")
        .size("TILE", tile, "rows of keys in local memory")
        .size("PIECE", PIECE, "places of a piece")
        .size("RECORD", heads * (key + 16), "floats that a piece comes to")
        .size("KEY_WIDTH", key + rotated, "columns of a query")
        .size("TILE_PITCH", key + rotated_pitch(problem), "columns of a key in local memory")
        .size("PRODUCT_PITCH", key.max(64), "columns of products")
        .size(
            "RAW_BYTES",
            (key + rotated_pitch(problem)) * bytes(problem.cached),
            "of a key as it comes",
        )
        .size("QUERY_BYTES", (key + rotated) * bytes(problem.query), "of a query as it comes")
        .part(include_str!("../vector.h"))
        .part(text);
    let source = match phase {
        Phase::Whole => source
            .part(include_str!("piece.h"))
            .part(include_str!("fold.h"))
            .part(include_str!("whole.h")),
        Phase::Pieces => source.part(include_str!("piece.h")).part(include_str!("pieces.h")),
        Phase::Combine => source.part(include_str!("fold.h")).part(include_str!("combine.h")),
    };
    let stem = match (problem.memory, phase) {
        (_, Phase::Combine) => "attention_fold",
        (Memory::Cache { .. }, _) => "attention",
        (Memory::Latent, _) => "latent_attention",
        (Memory::Selected { .. }, _) => "sparse_latent_attention",
    };
    let body = match phase {
        Phase::Whole => "    Attend(operands, sinksGm, outGm, rows, outStride);\n",
        Phase::Pieces => "    AttendPieces(operands, recordsGm, rows, mostPieces);\n",
        Phase::Combine => {
            "    Combine(operands, recordsGm, sinksGm, outGm, rows, outStride, mostPieces);\n"
        }
    };
    Ok(source.entry(&signature.function("KERNEL_TYPE_AIV_ONLY", body)).kernel(stem))
}
