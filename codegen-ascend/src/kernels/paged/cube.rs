//! Attention on cube cores: products of queries with keys and of weights with values there, softmax
//! on the two vector cores of each. Tiles of query vectors, which share their keys, are what makes
//! it pay: the heads of a row that read one head of the cache, and as many rows of a prompt as fit.

use super::{
    super::{
        Declined, Kernel,
        source::{Budget, Source, require},
    },
    PIECE,
    problem::{Memory, Problem},
    signature::{Phase, Signature},
    vector,
};
use crate::chip::Chip;
use compiler::Lowered;
use tensor::DType;

/// Most query vectors in a tile, columns or terms that are multiplied at once, and places of a
/// fractal.
const MOST_VECTORS: u64 = 128;
const STEP: u64 = 128;
/// Fewer columns than this leave the unit waiting for its operands.
const LEAST_KEY: u64 = 64;
/// Rows of scores that a vector core works on at once.
const ROWS_AT_ONCE: u64 = 8;

/// Sizes of a tile.
#[derive(Clone, Copy, Debug)]
struct Tiling {
    /// Heads of a row, and rows.
    heads: u64,
    rows: u64,
    /// Query vectors: both together, in whole fractals.
    vectors: u64,
    /// Keys that are in L1 at once.
    keys: u64,
}

/// Whether keys and heads have sizes for this unit; the same for every bucket, so that the bits of a
/// row are.
fn suits(problem: &Problem) -> Result<(), Declined> {
    let [key, rotated] = problem.key;
    let types = [problem.query, problem.cached];
    require(types == [DType::BF16; 2], || "the cube cores multiply bf16 here".to_owned())?;
    require(key >= LEAST_KEY && rotated.is_multiple_of(16), || {
        format!("keys of {key} + {rotated} columns; cube cores take {LEAST_KEY} + 16 at least")
    })?;
    let block = problem.block;
    require(block.is_multiple_of(16) && PIECE.is_multiple_of(block), || {
        format!("blocks of {block} tokens; pieces of {PIECE} must be whole blocks")
    })
}

impl Tiling {
    /// As many heads and then as many rows as fit.
    fn of(problem: &Problem, whole: bool, chip: &Chip) -> Result<Self, Declined> {
        let group = problem.group();
        let most = match problem.memory {
            // Each row has places of its own.
            Memory::Selected { .. } => 1,
            _ if !whole => 1,
            _ => problem.rows / problem.sequences.max(1),
        };
        let mut last = Declined("no tile fits".to_owned());
        for heads in (1..=group.min(MOST_VECTORS)).rev().filter(|h| group.is_multiple_of(*h)) {
            for rows in (1..=(MOST_VECTORS / heads).min(most.max(1))).rev() {
                for keys in [128, 64, 32, 16] {
                    let vectors = (heads * rows).next_multiple_of(16);
                    let tiling = Self { heads, rows, vectors, keys };
                    match tiling.fits(problem, whole, chip) {
                        Ok(()) => return Ok(tiling),
                        Err(declined) => last = declined,
                    }
                }
            }
        }
        Err(last)
    }

    fn tile_bytes(self, problem: &Problem) -> u64 {
        let [value, rotated] = problem.key;
        (self.keys * (value + rotated)).max(STEP * STEP.min(value)) * 2
    }

    fn fits(self, problem: &Problem, whole: bool, chip: &Chip) -> Result<(), Declined> {
        let [value, rotated] = problem.key;
        let (vectors, half) = (self.vectors, self.vectors / 2);
        Budget::default()
            .buffer("queries", vectors * (value + rotated) * 2)
            .buffer("weights", vectors * PIECE * 2)
            .buffer("tiles", 2 * self.tile_bytes(problem))
            .fits(chip.l1_bytes)?;
        Budget::default().buffer("left operands", 2 * vectors * STEP * 2).fits(chip.l0a_bytes)?;
        Budget::default().buffer("right operands", 2 * STEP * STEP * 2).fits(chip.l0b_bytes)?;
        Budget::default().buffer("sums", 2 * vectors * STEP * 4).fits(chip.l0c_bytes)?;
        let results = match whole {
            true => half * value * 4 + half * 8 + value * 4 + 2 * value * 4,
            false => 2 * (value + 16) * 4,
        };
        Budget::default()
            .buffer("scores", 2 * ROWS_AT_ONCE * PIECE * 4)
            .buffer("weights", ROWS_AT_ONCE * PIECE * 2)
            .buffer("mixed values", 2 * value * 4)
            .buffer("sums", ROWS_AT_ONCE * 32 + 1024)
            .buffer("results", results + 64)
            .fits(chip.ub_bytes)
    }

    /// Bytes that the cores of a block share.
    fn exchange_bytes(self, problem: &Problem) -> u64 {
        2 * self.vectors * (PIECE * 4 + PIECE * 2 + problem.key[0] * 4)
    }
}

pub(super) fn lower(problem: &Problem, chip: &Chip) -> Result<Lowered, Declined> {
    suits(problem)?;
    let pieces = problem.most_pieces(PIECE);
    let cores = u64::from(chip.cube_cores);
    let tiling = Tiling::of(problem, true, chip)?;
    let per_sequence = (problem.rows / problem.sequences.max(1)).div_ceil(tiling.rows);
    let tiles = problem.sequences * per_sequence * (problem.heads / tiling.heads);
    let sizes = |tiling: Tiling| {
        let Tiling { heads, rows, .. } = tiling;
        format!("cube cores, tiles of {rows} rows with {heads} heads that share their keys")
    };
    if pieces == 1 || tiles >= 2 * cores {
        let why = format!("{}; {tiles} tiles for {cores} cores", sizes(tiling));
        let signature = Signature::new(problem, Phase::Whole, Some(0));
        let kernel = kernel(problem, tiling, 1, &signature)?;
        let blocks = tiles.clamp(1, cores);
        let mut lowered = signature.call(kernel, blocks as u32, &why);
        lowered.scratch_bytes.push(blocks * tiling.exchange_bytes(problem));
        return Ok(lowered);
    }
    let tiling = Tiling::of(problem, false, chip)?;
    let records = (1..=tiling.heads.min(16)).rev().find(|h| tiling.heads.is_multiple_of(*h));
    let record_heads = records.unwrap_or(1);
    let why = format!("{}, pieces of {PIECE} places: few rows for {cores} cores", sizes(tiling));
    let signature = Signature::new(problem, Phase::Pieces, Some(1));
    let kernel = kernel(problem, tiling, record_heads, &signature)?;
    let mut lowered = signature.call(kernel, cores as u32, &why);
    let records = problem.rows * (problem.heads / record_heads) * pieces;
    lowered.scratch_bytes.push(records * vector::record_bytes(problem, record_heads));
    lowered.scratch_bytes.push(cores * tiling.exchange_bytes(problem));
    vector::fold(problem, record_heads, &mut lowered, chip)?;
    Ok(lowered)
}

fn kernel(
    problem: &Problem,
    tiling: Tiling,
    record_heads: u64,
    signature: &Signature,
) -> Result<Kernel, Declined> {
    let [key, rotated] = problem.key;
    let whole = signature.phase == Phase::Whole;
    let (stem, what, operands, rows) = match problem.memory {
        Memory::Cache { .. } => {
            ("cube_attention", "a cache", include_str!("cache.h"), include_str!("rows_of_cache.h"))
        }
        Memory::Latent => (
            "cube_latent_attention",
            "latents",
            include_str!("latent.h"),
            include_str!("rows_of_latent.h"),
        ),
        Memory::Selected { .. } => (
            "cube_sparse_latent_attention",
            "selected latents",
            include_str!("selected.h"),
            include_str!("rows_of_selected.h"),
        ),
    };
    let phase = if whole { "" } else { ", first half: pieces of rows" };
    let heading = format!("Attention of {} heads over {what} on cube cores{phase}.", problem.heads);
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
        .size("PITCH1", rotated, "columns that the rotated part takes in local memory")
        .size("KEY_WIDTH", key + rotated, "columns of a query")
        .size("VALUE", key, "columns of a value")
        .size("SELECTED", places, "most places that a row names; 0: it reads all")
        .size("BLOCK", problem.block, "tokens of a block")
        .size("WINDOW", problem.window, "places that a row sees; 0: all")
        .flag("SINKS", problem.sinks, "whether heads have a logit without a value")
        .number("SCALE", problem.scale, "of scores")
        .number("NEVER", -3.0e38, "score of a place that does not count")
        .size("TILE", tiling.keys, "keys in local memory")
        .size("ITEM_HEADS", tiling.heads, "heads of a row in a tile")
        .size("ITEMS", problem.heads / tiling.heads, "groups of so many heads")
        .size("ROWS", tiling.rows, "rows in a tile")
        .size("VECTORS", tiling.vectors, "query vectors of a tile, in whole fractals")
        .size("HALF", tiling.vectors / 2, "of them for each vector core")
        .size("PIECE", PIECE, "places of a piece")
        .size("STEP", STEP, "columns or terms that are multiplied at once")
        .size("KEYS_AT_ONCE", tiling.keys, "keys in L1 at once")
        .size("TILE_BYTES", tiling.tile_bytes(problem), "of keys or values in L1")
        .size("ROWS_AT_ONCE", ROWS_AT_ONCE, "rows of scores in local memory")
        .size("RECORD_HEADS", record_heads, "heads of a record")
        .size("RECORD", record_heads * (key + 16), "floats of a record")
        .flag("WHOLE", whole, "whether a block folds all pieces of its tiles")
        .part(include_str!("../vector.h"))
        .part(operands)
        .part(rows)
        .part(include_str!("steps.h"))
        .part(include_str!("products.h"));
    let (source, results) = match whole {
        true => (
            source.part(include_str!("fold.h")).part(include_str!("results_whole.h")),
            "outGm, sinksGm, outStride",
        ),
        false => (source.part(include_str!("results_pieces.h")), "recordsGm, operands, mostPieces"),
    };
    let body = format!(
        "    if ASCEND_IS_AIC {{\n        TPipe pipe;\n        \
         Products products(pipe, operands, between);\n        products.Run(steps);\n    }}\n    \
         if ASCEND_IS_AIV {{\n        TPipe pipe;\n        Results results({results});\n        \
         Weights weights(pipe, operands, between, results);\n        weights.Run(steps);\n    }}\n"
    );
    let function = signature.function("KERNEL_TYPE_MIX_AIC_1_2", &body);
    Ok(source.part(include_str!("weights.h")).entry(&function).kernel(stem))
}
