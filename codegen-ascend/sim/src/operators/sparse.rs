//! Attention to the keys that an indexer chose.

use super::arithmetic::{largest, softmax};
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I32};
use std::ops::Range;

pub(super) const OPERATORS: &[(&str, Implementation)] =
    &[("LightningIndexer", indexer), ("SparseFlashAttention", sparse_attention)];

/// Width of the keys that are only compared.
const INDEX_WIDTH: usize = 128;
/// Heads of the indexer.
const INDEX_HEADS: usize = 64;
/// Keys that may be chosen.
const MAX_CHOSEN: i64 = 2048;
/// Width of a latent row, and of its rotated part.
const LATENT: (usize, usize) = (512, 64);

/// How queries and keys are laid out, and which lengths they have.
struct Sequences<'a> {
    query: &'a Tensor,
    query_lengths: Option<&'a Tensor>,
    key: &'a Tensor,
    key_lengths: Option<&'a Tensor>,
    table: Option<&'a Tensor>,
    /// Queries of all sequences one after the other, instead of as many for each.
    packed: bool,
    keys: Keys,
    causal: bool,
}

/// How keys are laid out.
#[derive(Clone, Copy, PartialEq)]
enum Keys {
    Paged,
    Padded,
    Packed,
}

/// Queries and keys of a sequence.
struct Sequence {
    index: usize,
    /// Rows of the queries, counted over all.
    queries: Range<usize>,
    /// First row of the keys, where they are not paged.
    first_key: usize,
    keys: usize,
}

impl<'a> Sequences<'a> {
    fn check(
        call: &'a Call,
        (layout_keys, key_lengths): (&str, &str),
        width: usize,
    ) -> Result<Self, Fault> {
        let (query, key) = (call.tensor("query")?, call.tensor("key")?);
        let packed = match call.text("layout_query")? {
            None | Some("BSND") => false,
            Some("TND") => true,
            Some(other) => {
                return Err(Fault::invalid(format!("layout_query: {other} is not BSND or TND")));
            }
        };
        let keys = match (call.text(layout_keys)?, packed) {
            (Some("PA_BSND"), _) => Keys::Paged,
            (None | Some("BSND"), false) => Keys::Padded,
            (Some("TND"), true) => Keys::Packed,
            (other, _) => {
                return Err(Fault::invalid(format!(
                    "{layout_keys}: {other:?} is neither PA_BSND nor the layout of the query"
                )));
            }
        };
        query.of(&[F16, BF16])?.nd()?.contiguous()?;
        key.of(&[query.element])?.nd()?.contiguous()?;
        let rank = if packed { 3 } else { 4 };
        query.ranked(rank, rank)?.rule(query.width() == width, &format!("rows of {width}"))?;
        let rank = if keys == Keys::Packed { 3 } else { 4 };
        key.ranked(rank, rank)?;
        key.rule(
            key.width() == width && key.dims[rank - 2] == 1,
            &format!("one head of rows of {width}"),
        )?;
        let this = Self {
            query,
            query_lengths: call.optional("actual_seq_lengths_query")?,
            key,
            key_lengths: call.optional(key_lengths)?,
            table: call.optional("block_table")?,
            packed,
            keys,
            causal: match call.int("sparse_mode")? {
                0 => false,
                3 => true,
                other => {
                    return Err(Fault::invalid(format!("sparse_mode: {other} is not 0 or 3")));
                }
            },
        };
        this.lengths(key_lengths)?;
        Ok(this)
    }

    fn lengths(&self, key_lengths: &str) -> Result<(), Fault> {
        for t in [self.query_lengths, self.key_lengths].into_iter().flatten() {
            t.of(&[I32])?.ranked(1, 1)?;
        }
        if self.packed && self.query_lengths.is_none() {
            return Err(Fault::invalid("actual_seq_lengths_query: TND needs it"));
        }
        let count = self.count();
        if self.keys != Keys::Padded {
            let missing = || Fault::invalid(format!("{key_lengths}: TND and PA_BSND need it"));
            self.key_lengths.ok_or_else(missing)?.shaped(&[count])?;
        }
        if self.keys == Keys::Paged {
            let missing = || Fault::invalid("block_table: PA_BSND needs it");
            let table = self.table.ok_or_else(missing)?;
            table.of(&[I32])?.ranked(2, 2)?.shaped(&[count, table.dims[1]])?;
            let block = self.key.dims[1];
            self.key.rule(
                block.is_multiple_of(16) && block <= 1024,
                "blocks of a multiple of 16 and at most 1024",
            )?;
        }
        Ok(())
    }

    fn count(&self) -> usize {
        match self.query_lengths {
            Some(lengths) => lengths.len(),
            None => self.query.dims[0],
        }
    }

    fn heads(&self) -> usize {
        self.query.dims[self.query.dims.len() - 2]
    }

    /// Rows of queries, those that belong to no sequence included.
    fn rows(&self) -> usize {
        self.query.len() / (self.heads() * self.query.width()).max(1)
    }

    fn read(&self) -> Result<Vec<Sequence>, Fault> {
        let queries = self.query_lengths.map(Tensor::integers);
        let keys = self.key_lengths.map(Tensor::integers);
        let each = if self.packed { 0 } else { self.query.dims[1] };
        let mut all = Vec::new();
        let (mut start, mut first_key) = (0, 0);
        for index in 0..self.count() {
            let ends = |v: &Option<Vec<i64>>| v.as_ref().map(|v| v[index].max(0) as usize);
            let rows = match (self.packed, ends(&queries)) {
                (true, Some(end)) => start..end.max(start),
                (_, own) => index * each..index * each + own.unwrap_or(each),
            };
            let (first, count) = match (self.keys, ends(&keys)) {
                (Keys::Packed, Some(end)) => (first_key, end.saturating_sub(first_key)),
                (Keys::Padded, own) => (index * self.key.dims[1], own.unwrap_or(self.key.dims[1])),
                (_, own) => (0, own.unwrap_or(0)),
            };
            if rows.end > self.rows() || rows.len() > each && !self.packed {
                return Err(Fault::exception(format!(
                    "actual_seq_lengths_query: rows {rows:?} of {}",
                    self.rows()
                )));
            }
            start = rows.end;
            first_key = first + count;
            all.push(Sequence { index, queries: rows, first_key: first, keys: count });
        }
        Ok(all)
    }

    /// How many keys the query in row `row` of a sequence may see.
    fn visible(&self, s: &Sequence, row: usize) -> usize {
        if !self.causal {
            return s.keys;
        }
        (s.keys + 1 + row).saturating_sub(s.queries.end).min(s.keys)
    }

    /// Row `at` of the keys of a sequence, out of `memory`, which is laid out like them.
    fn key_row(&self, memory: &Tensor, s: &Sequence, at: usize) -> Result<Vec<f32>, Fault> {
        let outside = || Fault::exception(format!("{}: there is no row {at}", memory.name));
        let width = memory.width();
        let flat = memory.reshaped(&[memory.rows(), width]);
        let row = match (self.keys, self.table) {
            (Keys::Paged, Some(table)) => {
                let size = memory.dims[1];
                let (block, inside) = (at / size, at % size);
                if block >= table.dims[1] {
                    return Err(outside());
                }
                let block = table.at(s.index).at(block).integers()[0];
                let block = usize::try_from(block).map_err(|_| outside())?;
                block * size + inside
            }
            _ => s.first_key + at,
        };
        if row >= flat.dims[0] {
            return Err(outside());
        }
        Ok(flat.at(row).reals())
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// For each query the keys with the largest sums over heads of a weight times the positive part of
/// their product, best first, and -1 where there are no more.
fn indexer(call: &Call) -> Outcome<'_> {
    let sequences = Sequences::check(call, ("layout_key", "actual_seq_lengths_key"), INDEX_WIDTH)?;
    let (query, weights) = (sequences.query, call.tensor("weights")?);
    let heads = sequences.heads();
    query.rule(heads == INDEX_HEADS, "64 heads")?;
    let rows = sequences.rows();
    weights.of(&[query.element, F32])?.contiguous()?;
    weights.shaped(&query.dims[..query.dims.len() - 1])?;
    let chosen = call.int_in("sparse_count", 1..=MAX_CHOSEN)? as usize;
    let out = call.tensor("sparse_indices_out")?;
    let shape = [&query.dims[..query.dims.len() - 2], &[1, chosen]].concat();
    out.of(&[I32])?.contiguous()?.shaped(&shape)?;
    let values = call.optional("sparse_values_out")?;
    let values = if call.flag("return_values")? { values } else { None };
    if let Some(values) = values {
        values.of(&[query.element, F32])?.contiguous()?.shaped(&shape)?;
    }
    Ok(Prepared::new(4096 + rows as u64 * 64, move || {
        let (q, w) = (query.reals(), weights.reals());
        let width = INDEX_WIDTH;
        let out = out.reshaped(&[rows, chosen]);
        for s in sequences.read()? {
            let keys: Vec<Vec<f32>> = (0..s.keys)
                .map(|j| sequences.key_row(sequences.key, &s, j))
                .collect::<Result<_, _>>()?;
            for row in s.queries.clone() {
                let scores: Vec<f32> = keys[..sequences.visible(&s, row)]
                    .iter()
                    .map(|key| {
                        let head = |h: usize| {
                            let q = &q[(row * heads + h) * width..][..width];
                            w[row * heads + h] * dot(q, key).max(0.0)
                        };
                        (0..heads).map(head).sum()
                    })
                    .collect();
                let best = largest(&scores, chosen);
                let mut ids: Vec<i64> = best.iter().map(|&j| j as i64).collect();
                ids.resize(chosen, -1);
                out.at(row).put_integers(&ids);
                if let Some(values) = values {
                    let mut kept: Vec<f32> = best.iter().map(|&j| scores[j]).collect();
                    kept.resize(chosen, f32::NEG_INFINITY);
                    values.reshaped(&[rows, chosen]).at(row).put(&kept);
                }
            }
        }
        Ok(())
    }))
}

/// Attention of latent queries to the keys that `sparse_indices` lists for each.
fn sparse_attention(call: &Call) -> Outcome<'_> {
    let (width, rotated) = LATENT;
    let sequences = Sequences::check(call, ("layout_kv", "actual_seq_lengths_kv"), width)?;
    let (query, key, value) = (sequences.query, sequences.key, call.tensor("value")?);
    let heads = sequences.heads();
    query.rule(heads.is_power_of_two() && heads <= 128, "a power of two of at most 128 heads")?;
    value.of(&[query.element])?.contiguous()?.shaped(&key.dims)?;
    let missing = |name: &'static str| Fault::invalid(format!("{name}: is needed"));
    let query_rope = call.optional("query_rope")?.ok_or_else(|| missing("query_rope"))?;
    let key_rope = call.optional("key_rope")?.ok_or_else(|| missing("key_rope"))?;
    for (part, whole) in [(query_rope, query), (key_rope, key)] {
        let shape = [&whole.dims[..whole.dims.len() - 1], &[rotated]].concat();
        part.of(&[query.element])?.contiguous()?.shaped(&shape)?;
    }
    if call.int("attention_mode")? != 2 {
        return Err(Fault::invalid("attention_mode: only 2 (latent rows) is taken"));
    }
    if call.flag("return_softmax_lse")? {
        return Err(Fault::invalid("return_softmax_lse: is for training"));
    }
    let size = call.int_in("sparse_block_size", 1..=128)? as usize;
    if !size.is_power_of_two() || sequences.keys == Keys::Paged && key.dims[1] % size != 0 {
        return Err(Fault::invalid(format!(
            "sparse_block_size: {size} is no power of two that divides a block"
        )));
    }
    let chosen = call.tensor("sparse_indices")?;
    let count = chosen.width();
    chosen.of(&[I32])?.contiguous()?;
    chosen.shaped(&[&query.dims[..query.dims.len() - 2], &[1, count]].concat())?;
    let out = call.tensor("attention_out")?;
    out.of(&[query.element])?.contiguous()?.shaped(&query.dims)?;
    let scale = call.float("scale_value")? as f32;
    let rows = sequences.rows();
    Ok(Prepared::new(4096 + rows as u64 * 64, move || {
        let (q, qr, chosen) = (query.reals(), query_rope.reals(), chosen.integers());
        let out = out.reshaped(&[rows, heads, width]);
        for s in sequences.read()? {
            for row in s.queries.clone() {
                let visible = sequences.visible(&s, row);
                let listed = &chosen[row * count..][..count];
                let listed = listed.iter().take_while(|&&i| i >= 0).map(|&i| i as usize * size);
                let listed = listed.flat_map(|first| first..first + size).filter(|&j| j < visible);
                let (mut keys, mut values, mut ropes) = (Vec::new(), Vec::new(), Vec::new());
                for j in listed {
                    keys.push(sequences.key_row(key, &s, j)?);
                    values.push(sequences.key_row(value, &s, j)?);
                    ropes.push(sequences.key_row(key_rope, &s, j)?);
                }
                for h in 0..heads {
                    let own = &q[(row * heads + h) * width..][..width];
                    let own_rope = &qr[(row * heads + h) * rotated..][..rotated];
                    let score =
                        |(k, r): (&Vec<f32>, &Vec<f32>)| (dot(own, k) + dot(own_rope, r)) * scale;
                    let scores: Vec<f32> = keys.iter().zip(&ropes).map(score).collect();
                    let mut sum = vec![0.0; width];
                    for (p, v) in softmax(&scores).iter().zip(&values) {
                        sum.iter_mut().zip(v).for_each(|(s, v)| *s += p * v);
                    }
                    out.at(row).at(h).put(&sum);
                }
            }
        }
        Ok(())
    }))
}
