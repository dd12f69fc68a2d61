//! Attention over paged memories.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(missing_docs, reason = "a test")]

mod support;

use ir::{Op, interp::Tensor};
use precast_codegen_ascend::kernels::paged;
use support::{Case, Kernels, Random, check, ints};
use tensor::DType::{self, BF16, F32};

/// A batch: rows of sequences, whose blocks are mixed, at given last positions.
struct Batch {
    /// Rows of each sequence.
    rows: usize,
    /// Position of the last row of each sequence; the others come before it.
    last: Vec<usize>,
    /// Entries of a row of the table.
    width: usize,
    block: usize,
}

impl Batch {
    fn decode(positions: &[usize], width: usize) -> Self {
        Self { rows: 1, last: positions.to_vec(), width, block: 128 }
    }

    fn prefill(rows: usize, last: &[usize], width: usize) -> Self {
        Self { rows, last: last.to_vec(), width, block: 128 }
    }

    fn tokens(&self) -> usize {
        self.rows * self.last.len()
    }

    /// One block more than the tables name.
    fn blocks(&self) -> usize {
        self.width * self.last.len() + 1
    }

    /// Each block belongs to one sequence; neighbours in a table are no neighbours in memory.
    fn table(&self, random: &mut Random) -> Tensor {
        let mut blocks: Vec<i64> = (0..self.blocks() as i64).collect();
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, random.below(i as u64 + 1) as usize);
        }
        blocks.truncate(self.width * self.last.len());
        ints(&[self.last.len(), self.width], blocks)
    }

    fn positions(&self) -> Tensor {
        let of =
            |&last: &usize| (0..self.rows).map(move |i| (last + 1 + i).saturating_sub(self.rows));
        ints(&[self.tokens()], self.last.iter().flat_map(of).map(|p| p as i64))
    }
}

#[derive(Clone, Copy)]
struct Heads {
    query: usize,
    kv: usize,
    size: usize,
}

fn attention(
    random: &mut Random,
    dtype: DType,
    heads: Heads,
    batch: &Batch,
    sinks: Option<u64>,
) -> Case {
    let Heads { query, kv, size } = heads;
    let scale = 1.0 / (size as f32).sqrt();
    let mut operands = vec![
        random.tensor(dtype, &[batch.tokens(), query, size], 2.0),
        random.tensor(dtype, &[batch.blocks(), 2, kv, batch.block, size], 2.0),
        batch.table(random),
        batch.positions(),
    ];
    let op = match sinks {
        None => Op::Attention { scale, out: dtype },
        Some(window) => {
            operands.push(random.tensor(F32, &[query], 2.0));
            Op::SinkAttention { scale, window, out: dtype }
        }
    };
    let mut case = Case::new(op, operands, &[1]);
    case.gaps = vec![32];
    case
}

const SMALL: Heads = Heads { query: 8, kv: 2, size: 16 };

/// Lengths on both sides of blocks, tiles and pieces; one row is padding.
const LENGTHS: [usize; 6] = [0, 1, 127, 128, 511, 700];

#[test]
fn rows_of_one_sequence_each() {
    let mut random = Random(1);
    let batch = Batch::decode(&LENGTHS, 8);
    let heads = |query, kv, size| Heads { query, kv, size };
    let mut cases = Vec::new();
    for dtype in [F32, BF16] {
        cases.push(attention(&mut random, dtype, SMALL, &batch, None));
        cases.push(attention(
            &mut random,
            dtype,
            heads(12, 4, 32),
            &Batch::decode(&[63, 64, 5], 1),
            None,
        ));
        cases.push(attention(&mut random, dtype, heads(2, 1, 48), &Batch::decode(&[40], 2), None));
        if dtype == BF16 {
            continue;
        }
        cases.push(attention(
            &mut random,
            dtype,
            heads(8, 1, 128),
            &Batch::decode(&[600, 3], 5),
            None,
        ));
        cases.push(attention(
            &mut random,
            dtype,
            heads(2, 2, 256),
            &Batch::decode(&[130], 2),
            None,
        ));
    }
    check(paged::lower, &cases, 1e-5);
}

#[test]
fn chunks_of_a_prompt() {
    let mut random = Random(2);
    let mut cases = Vec::new();
    for dtype in [F32, BF16] {
        cases.push(attention(&mut random, dtype, SMALL, &Batch::prefill(40, &[39], 2), None));
        cases.push(attention(&mut random, dtype, SMALL, &Batch::prefill(20, &[530], 8), None));
        cases.push(attention(&mut random, dtype, SMALL, &Batch::prefill(7, &[133, 6, 9], 2), None));
    }
    check(paged::lower, &cases, 1e-5);
}

#[test]
fn sinks_and_windows() {
    let mut random = Random(3);
    let mut cases = Vec::new();
    for dtype in [F32, BF16] {
        let windows: &[u64] = if dtype == F32 { &[0, 12, 128, 520] } else { &[12] };
        for &window in windows {
            cases.push(attention(
                &mut random,
                dtype,
                SMALL,
                &Batch::decode(&LENGTHS, 8),
                Some(window),
            ));
        }
        cases.push(attention(&mut random, dtype, SMALL, &Batch::prefill(40, &[150], 2), Some(12)));
    }
    check(paged::lower, &cases, 1e-5);
}

/// Columns of a latent and of a rotated key.
type Columns = (usize, usize);

fn latent(
    random: &mut Random,
    dtype: DType,
    heads: usize,
    columns: Columns,
    batch: &Batch,
    places: usize,
) -> Case {
    let ((latent, rope), tokens) = (columns, batch.tokens());
    let scale = 1.0 / ((latent + rope) as f32).sqrt();
    let positions = batch.positions();
    let mut operands = vec![
        random.tensor(dtype, &[tokens, heads, latent], 2.0),
        random.tensor(dtype, &[tokens, heads, rope], 2.0),
        random.tensor(dtype, &[batch.blocks(), batch.block, latent], 2.0),
        random.tensor(dtype, &[batch.blocks(), batch.block, rope], 2.0),
        batch.table(random),
        positions.clone(),
    ];
    let op = match places {
        0 => Op::LatentAttention { scale, out: dtype },
        _ => {
            // Every so many places of each row, in ascending order; what is left names none.
            let mut selected = Vec::new();
            for &position in positions.data() {
                let (all, before) = (position as usize + 1, selected.len());
                let step = all.div_ceil(places);
                selected.extend((0..all).step_by(step).map(|p| p as i64));
                selected.resize(before + places, -1);
            }
            operands.push(ints(&[tokens, places], selected));
            Op::SparseLatentAttention { scale, out: dtype }
        }
    };
    Case::new(op, operands, &[2, 3])
}

#[test]
fn latents() {
    let mut random = Random(4);
    let mut cases = Vec::new();
    for dtype in [F32, BF16] {
        for places in [0, 24, 600] {
            let batch = Batch::decode(&LENGTHS, 8);
            cases.push(latent(&mut random, dtype, 4, (32, 8), &batch, places));
            let batch = Batch::prefill(9, &[20, 140], 2);
            cases.push(latent(&mut random, dtype, 4, (32, 8), &batch, places));
        }
        let batch = Batch::decode(&[70], 1);
        if dtype == F32 {
            cases.push(latent(&mut random, dtype, 16, (512, 64), &batch, 0));
            cases.push(latent(&mut random, dtype, 16, (512, 64), &batch, 40));
        }
    }
    check(paged::lower, &cases, 1e-5);
}

/// Sizes for cube cores: weights are rounded to bf16 before they meet the values.
#[test]
fn cube_cores() {
    let mut random = Random(8);
    let heads = |query, kv, size| Heads { query, kv, size };
    let mut cases = vec![
        attention(&mut random, BF16, heads(8, 2, 64), &Batch::decode(&LENGTHS, 8), None),
        attention(&mut random, BF16, heads(6, 2, 128), &Batch::prefill(40, &[39, 620], 5), None),
        attention(&mut random, BF16, heads(4, 4, 80), &Batch::prefill(9, &[9], 2), None),
    ];
    for window in [0, 520] {
        let batch = Batch::decode(&LENGTHS, 8);
        cases.push(attention(&mut random, BF16, heads(8, 2, 64), &batch, Some(window)));
        let batch = Batch::prefill(70, &[600], 8);
        cases.push(attention(&mut random, BF16, heads(8, 2, 64), &batch, Some(window)));
    }
    for places in [0, 24, 600] {
        let batch = Batch::decode(&LENGTHS, 8);
        cases.push(latent(&mut random, BF16, 16, (64, 16), &batch, places));
        let batch = Batch::prefill(9, &[20, 140], 2);
        cases.push(latent(&mut random, BF16, 16, (64, 16), &batch, places));
    }
    let batch = Batch::decode(&[130], 2);
    cases.push(latent(&mut random, BF16, 128, (512, 64), &batch, 0));
    for case in &cases {
        let why = case.lower(paged::lower).unwrap().why;
        assert!(why.starts_with("cube cores"), "{why}");
    }
    check(paged::lower, &cases, 4e-3);
}

/// Keys are whole numbers, so that there are ties and scores are exact.
fn select(random: &mut Random, dtype: DType, keys: u64, columns: usize, batch: &Batch) -> Case {
    let mut whole = |dims: &[usize], limit: u64| {
        let data = (0..dims.iter().product()).map(|_| random.below(limit) as f64 - 1.0).collect();
        Tensor::new(dtype, dims.to_vec(), data)
    };
    let (tokens, heads) = (batch.tokens(), 4);
    let q = whole(&[tokens, heads, columns], 3);
    let state = whole(&[batch.blocks(), batch.block, columns], 3);
    let weights = whole(&[tokens, heads], 4);
    let weights = Tensor::new(F32, weights.dims().to_vec(), weights.data().to_vec());
    let table = batch.table(random);
    let operands = vec![q, weights, state, table, batch.positions()];
    Case::new(Op::SelectKeys { keys, scale: 0.5 }, operands, &[2])
}

#[test]
fn the_largest_scores_are_selected() {
    let mut random = Random(7);
    let mut cases = Vec::new();
    for dtype in [F32, BF16] {
        cases.push(select(&mut random, dtype, 24, 16, &Batch::decode(&LENGTHS, 8)));
        cases.push(select(&mut random, dtype, 130, 128, &Batch::prefill(6, &[300, 131], 4)));
    }
    // More than one chunk of scores, and of places.
    cases.push(select(&mut random, F32, 4100, 16, &Batch::decode(&[5000, 4099, 4100], 40)));
    check(paged::lower, &cases, 0.0);
}

/// Rows `rows` of a case of one row for each sequence, as a batch of their own.
fn alone(case: &Case, rows: &[usize], tables: usize) -> Case {
    let part = |i: usize, tensor: &Tensor| {
        let by_row = case.operands[0].dims()[0] == tensor.dims()[0] && !case.states.contains(&i);
        if !by_row || tensor.dtype() == F32 && tensor.dims().len() == 1 {
            return tensor.clone();
        }
        let size = tensor.data().len() / tensor.dims()[0];
        let data = rows.iter().flat_map(|&r| tensor.data()[r * size..][..size].to_vec()).collect();
        let mut dims = tensor.dims().to_vec();
        dims[0] = rows.len();
        Tensor::new(tensor.dtype(), dims, data)
    };
    assert_eq!(case.operands[tables].dims()[0], case.operands[0].dims()[0]);
    let operands = case.operands.iter().enumerate().map(|(i, t)| part(i, t)).collect();
    Case { op: case.op.clone(), operands, states: case.states.clone(), gaps: case.gaps.clone() }
}

/// A row has the same bits in a batch of forty, where blocks take whole rows, and alone, where they
/// share its pieces.
#[test]
fn a_row_has_its_bits_in_any_company() {
    let mut random = Random(5);
    let mut positions = vec![0; 84];
    positions[..6].copy_from_slice(&[1030, 4, 513, 1500, 127, 128]);
    let batch = Batch::decode(&positions, 12);
    let all = [
        (attention(&mut random, BF16, SMALL, &batch, None), 2),
        (attention(&mut random, F32, SMALL, &batch, Some(700)), 2),
        (latent(&mut random, F32, 8, (32, 8), &batch, 0), 4),
        (latent(&mut random, BF16, 8, (64, 16), &batch, 0), 4),
        (attention(&mut random, BF16, Heads { query: 8, kv: 2, size: 64 }, &batch, Some(700)), 2),
    ];
    let parts: Vec<(Case, Case)> =
        all.into_iter().map(|(case, tables)| (alone(&case, &[3, 5, 2], tables), case)).collect();
    let lowered: Vec<_> = parts
        .iter()
        .map(|(a, b)| (a.lower(paged::lower).unwrap(), b.lower(paged::lower).unwrap()))
        .collect();
    let kernels = Kernels::of(lowered.iter().flat_map(|(a, b)| [a, b]));
    for ((few, many), (lowered_few, lowered_many)) in parts.iter().zip(&lowered) {
        assert_eq!((lowered_few.calls.len(), lowered_many.calls.len()), (2, 1));
        let few = kernels.run(few, lowered_few).unwrap().remove(0);
        let many = kernels.run(many, lowered_many).unwrap().remove(0);
        let size = many.data().len() / many.dims()[0];
        for (i, row) in [3, 5, 2].into_iter().enumerate() {
            assert_eq!(
                few.data()[i * size..][..size],
                many.data()[row * size..][..size],
                "row {row}"
            );
        }
    }
}

/// Seeded bugs, each told by the header or by the comparison.
#[test]
fn bugs_are_told() {
    let mut random = Random(6);
    let case = attention(&mut random, BF16, SMALL, &Batch::decode(&[0, 300, 130], 4), Some(20));
    let right = case.lower(paged::lower).unwrap();
    let bugs = [
        ("positions.GetValue(t)) + 1", "positions.GetValue(t)) + 2", ""),
        ("BLOCK - at % BLOCK", "BLOCK", ""),
        ("        raw = rawQueue.DeQue<Cached>();\n", "", "handed over"),
        ("rawQueue, 2, TILE * RAW_BYTES", "rawQueue, 2, 16 * RAW_BYTES", "outside a local tensor"),
        (
            "        Sync<HardEvent::V_S>();\n        for (uint32_t h = 0; h < ITEM_HEADS; ++h) {\n            total",
            "        for (uint32_t h = 0; h < ITEM_HEADS; ++h) {\n            total",
            "handed over",
        ),
        ("            folded.AddSinks(logits);\n", "", ""),
    ];
    let seeded = bugs.map(|(from, to, _)| support::seeded(&right, from, to));
    let kernels = Kernels::of(&seeded);
    for (lowered, (from, to, message)) in seeded.iter().zip(bugs) {
        let told = support::told(&kernels, &case, lowered, 1e-5);
        assert!(told.contains(message), "`{from}` as `{to}`: {told}");
    }
}

#[test]
fn bugs_of_cube_kernels_are_told() {
    let mut random = Random(9);
    let heads = Heads { query: 8, kv: 2, size: 64 };
    // Enough steps for each block that both slots of what is exchanged are used again.
    let case = attention(&mut random, BF16, heads, &Batch::prefill(33, &[1100], 9), Some(800));
    let right = case.lower(paged::lower).unwrap();
    let bugs = [
        ("            CrossCoreWaitFlag(SCORES_READY);\n", "", ""),
        (
            "        CrossCoreSetFlag<2, PIPE_FIX>(VALUES_READY);\n",
            "",
            "wait for each other for ever",
        ),
        ("columns / 16, down, 0, 0, true, 0", "columns / 16, down, 0, 0, false, 0", "element"),
        (
            "Multiply(sum, columns, keys, at == step.from)",
            "Multiply(sum, columns, keys, true)",
            "element",
        ),
        ("tileL1, 2, TILE_BYTES", "tileL1, 2, 40 * TILE_BYTES", "L1 overflows"),
        (
            "                tileL1.EnQue(tile);\n                tile = tileL1.DeQue<bfloat16_t>();\n",
            "",
            "handed over",
        ),
        ("extent.srcStride = VECTORS", "extent.srcStride = VECTORS - 16", "element"),
    ];
    let seeded = bugs.map(|(from, to, _)| support::seeded(&right, from, to));
    let kernels = Kernels::of(&seeded);
    for (lowered, (from, to, message)) in seeded.iter().zip(bugs) {
        let told = support::told(&kernels, &case, lowered, 4e-3);
        assert!(told.contains(message), "`{from}` as `{to}`: {told}");
    }
}
