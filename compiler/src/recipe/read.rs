//! Evaluates recipes, any range of rows at a time.

use super::{Entry, Id, Part, Recipe, Recipes, computed, values};
use crate::CompileError;
use std::{collections::HashMap, sync::Arc};
use tensor::WeightSource;

/// Bytes of input that a reader holds to pick single rows or columns from.
const PICK_BYTES: usize = 4 << 20;

/// Reads recipes from one source, and measures what quantisation loses.
pub(crate) struct Reader<'a> {
    recipes: &'a Recipes,
    source: &'a dyn WeightSource,
    loss: values::Loss,
    /// What the interpreter computed: small, and read a few rows at a time.
    computed: HashMap<Id, Vec<u8>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(recipes: &'a Recipes, source: &'a dyn WeightSource) -> Self {
        Self { recipes, source, loss: values::Loss::default(), computed: HashMap::new() }
    }

    /// The root of the mean square of the quantisation error of all codes read since the last
    /// call, over that of the values.
    pub(crate) fn take_error(&mut self) -> f64 {
        std::mem::take(&mut self.loss).relative()
    }

    /// Rows `start .. start + count` of `id`, row-major and dense, appended to `out`.
    ///
    /// # Errors
    /// [`CompileError`] when the source cannot be read, or holds a type that is not converted.
    pub(crate) fn read(
        &mut self,
        id: Id,
        start: u64,
        count: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), CompileError> {
        if count == 0 {
            return Ok(());
        }
        let entry = Arc::clone(&self.recipes.entries[id.0 as usize]);
        match &entry.recipe {
            Recipe::Tensor { name } => {
                let at = out.len();
                let row_bytes = entry.row_bytes();
                out.resize(at + count as usize * row_bytes, 0);
                self.source.read(name, start * row_bytes as u64, &mut out[at..])?;
            }
            Recipe::Cast { x } => {
                let raw = self.rows(*x, start, count)?;
                values::cast(self.recipes.get(*x).dtype, entry.dtype, &raw, out)?;
            }
            Recipe::Rows { parts } => self.stacked(parts, start, count, out)?,
            Recipe::Columns { parts } => self.columns(parts, start, count, out)?,
            Recipe::Interleave { block, a, b } => {
                self.interleave(*block, [*a, *b], entry.row_bytes(), start..start + count, out)?;
            }
            Recipe::RowBlocks { x, period, start: first, len } => {
                let blocks = Blocks { period: *period, first: *first, len: *len };
                self.row_blocks(*x, &blocks, start, count, out)?;
            }
            Recipe::ColumnRange { x, start: first } => {
                let raw = self.rows(*x, start, count)?;
                let from = self.recipes.get(*x);
                for row in raw.chunks_exact(from.row_bytes()) {
                    values::copy_elements(entry.dtype, row, *first, entry.cols, out);
                }
            }
            Recipe::Refold { x } => {
                let from = self.recipes.get(*x);
                let (begin, end) = (start * entry.cols, (start + count) * entry.cols);
                let (first, last) = (begin / from.cols, end.div_ceil(from.cols));
                let skip = begin - first * from.cols;
                let raw = self.rows(*x, first, last - first)?;
                values::copy_elements(entry.dtype, &raw, skip, end - begin, out);
            }
            Recipe::Transpose { x, rows } => {
                self.transpose(*x, *rows, &entry, start..start + count, out)?;
            }
            Recipe::Repeat { x, times } => {
                let (first, last) = (start / times, (start + count - 1) / times);
                let raw = self.rows(*x, first, last - first + 1)?;
                let bytes = entry.row_bytes();
                for row in start..start + count {
                    out.extend_from_slice(&raw[(row / times - first) as usize * bytes..][..bytes]);
                }
            }
            Recipe::AddScalar { x, bits } => {
                let raw = self.rows(*x, start, count)?;
                let mut numbers = values::numbers(entry.dtype, &raw)?;
                numbers.iter_mut().for_each(|v| *v += f32::from_bits(*bits));
                values::store(entry.dtype, &numbers, out)?;
            }
            Recipe::Dequantize { codes, scale, group } => {
                let (codes_raw, scales_raw) =
                    (self.rows(*codes, start, count)?, self.rows(*scale, start, count)?);
                let (codes, scale) = (self.recipes.get(*codes), self.recipes.get(*scale));
                let mut numbers = values::numbers(codes.dtype, &codes_raw)?;
                let scales = values::scales(scale.dtype, &scales_raw)?;
                values::scale(&mut numbers, &scales, entry.cols as usize, *group as usize);
                values::store(entry.dtype, &numbers, out)?;
            }
            Recipe::Codes { x, group } => {
                let raw = self.rows(*x, start, count)?;
                let numbers = values::numbers(self.recipes.get(*x).dtype, &raw)?;
                values::codes(entry.dtype, &numbers, *group as usize, &mut self.loss, out);
            }
            Recipe::RowSums { x, bits } => {
                let raw = self.rows(*x, start, count)?;
                let from = self.recipes.get(*x);
                let numbers = values::numbers(from.dtype, &raw)?;
                let times = f64::from(f32::from_bits(*bits));
                for row in numbers.chunks_exact(from.cols as usize) {
                    let sum: f64 = row.iter().copied().map(f64::from).sum();
                    out.extend_from_slice(&((sum * times) as f32).to_le_bytes());
                }
            }
            Recipe::FloatBits { x } => {
                let raw = self.rows(*x, start, count)?;
                for number in raw.as_chunks::<4>().0 {
                    out.extend_from_slice(&u64::from(u32::from_le_bytes(*number)).to_le_bytes());
                }
            }
            Recipe::Scales { x, bits, group } => {
                let raw = self.rows(*x, start, count)?;
                let numbers = values::numbers(self.recipes.get(*x).dtype, &raw)?;
                let largest = values::largest_code(*bits);
                for group in numbers.chunks_exact(*group as usize) {
                    out.extend_from_slice(&values::scale_of(group, largest).to_le_bytes());
                }
            }
            Recipe::Computed { formula, args } => {
                if !self.computed.contains_key(&id) {
                    let all = |&a: &Id| self.rows(a, 0, self.recipes.get(a).rows);
                    let operands = args.iter().map(all).collect::<Result<Vec<_>, _>>()?;
                    self.computed.insert(id, computed::compute(formula, &operands)?);
                }
                let (bytes, first) = (entry.row_bytes(), start as usize * entry.row_bytes());
                out.extend_from_slice(&self.computed[&id][first..first + count as usize * bytes]);
            }
        }
        Ok(())
    }

    fn rows(&mut self, id: Id, start: u64, count: u64) -> Result<Vec<u8>, CompileError> {
        let bytes = count as usize * self.recipes.get(id).row_bytes();
        let mut out = Vec::with_capacity(bytes);
        self.read(id, start, count, &mut out)?;
        Ok(out)
    }

    fn stacked(
        &mut self,
        parts: &[Part],
        start: u64,
        count: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), CompileError> {
        let period = parts.last().map_or(0, |p| p.start + p.rows);
        let (mut at, end) = (start, start + count);
        while at < end {
            let (outer, inside) = (at / period, at % period);
            // Parts without rows begin where the next one does: the last of them has the row.
            let part = parts[parts.partition_point(|p| p.start <= inside) - 1];
            let take = (part.start + part.rows - inside).min(end - at);
            self.read(part.id, outer * part.rows + inside - part.start, take, out)?;
            at += take;
        }
        Ok(())
    }

    fn columns(
        &mut self,
        parts: &[Id],
        start: u64,
        count: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), CompileError> {
        let read: Vec<(Vec<u8>, usize)> = parts
            .iter()
            .map(|&p| Ok((self.rows(p, start, count)?, self.recipes.get(p).row_bytes())))
            .collect::<Result<_, CompileError>>()?;
        for row in 0..count as usize {
            for (raw, bytes) in &read {
                out.extend_from_slice(&raw[row * bytes..][..*bytes]);
            }
        }
        Ok(())
    }

    fn interleave(
        &mut self,
        block: u64,
        parts: [Id; 2],
        row_bytes: usize,
        rows: std::ops::Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), CompileError> {
        // Rows of each part among the rows before `row`.
        let before = |row: u64| {
            let (pair, inside) = (row / (2 * block), row % (2 * block));
            [pair * block + inside.min(block), pair * block + inside.saturating_sub(block)]
        };
        let (first, last) = (before(rows.start), before(rows.end));
        let mut read = [Vec::new(), Vec::new()];
        for i in 0..2 {
            self.read(parts[i], first[i], last[i] - first[i], &mut read[i])?;
        }
        let (mut at, mut taken) = (rows.start, [0, 0]);
        while at < rows.end {
            let inside = at % (2 * block);
            let side = usize::from(inside >= block);
            let take = (block - inside % block).min(rows.end - at);
            let bytes = take as usize * row_bytes;
            out.extend_from_slice(&read[side][taken[side]..][..bytes]);
            taken[side] += bytes;
            at += take;
        }
        Ok(())
    }

    fn row_blocks(
        &mut self,
        x: Id,
        blocks: &Blocks,
        start: u64,
        count: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), CompileError> {
        let row_bytes = self.recipes.get(x).row_bytes();
        let (mut at, end) = (start, start + count);
        while at < end {
            // Small blocks are picked from a run that is read at once.
            let run = blocks.run(at, end, PICK_BYTES / row_bytes.max(1));
            let (first, last) = (blocks.source(at), blocks.source(run - 1) + 1);
            if last - first == run - at {
                self.read(x, first, last - first, out)?;
            } else {
                let raw = self.rows(x, first, last - first)?;
                for row in at..run {
                    let from = (blocks.source(row) - first) as usize * row_bytes;
                    out.extend_from_slice(&raw[from..from + row_bytes]);
                }
            }
            at = run;
        }
        Ok(())
    }

    fn transpose(
        &mut self,
        x: Id,
        slice_rows: u64,
        entry: &Entry,
        rows: std::ops::Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), CompileError> {
        let (dtype, slice_cols) = (entry.dtype, self.recipes.get(x).cols);
        let batch = (PICK_BYTES / self.recipes.get(x).row_bytes().max(1)).max(1) as u64;
        let mut at = rows.start;
        while at < rows.end {
            let (slice, first) = (at / slice_cols, at % slice_cols);
            let take = (slice_cols - first).min(rows.end - at);
            let base = out.len();
            out.resize(base + take as usize * entry.row_bytes(), 0);
            let mut row = 0;
            while row < slice_rows {
                let count = batch.min(slice_rows - row);
                let raw = self.rows(x, slice * slice_rows + row, count)?;
                let tile = values::Tile { dtype, from_cols: slice_cols, to_cols: slice_rows };
                tile.transpose(&raw, first..first + take, row..row + count, &mut out[base..]);
                row += count;
            }
            at += take;
        }
        Ok(())
    }
}

/// Rows `first .. first + len` of every `period` rows.
struct Blocks {
    period: u64,
    first: u64,
    len: u64,
}

impl Blocks {
    /// Where `row` comes from.
    fn source(&self, row: u64) -> u64 {
        row / self.len * self.period + self.first + row % self.len
    }

    /// The end of the rows from `at` on, `end` at most, that are worth reading at once from a run
    /// of at most `most` rows.
    fn run(&self, at: u64, end: u64, most: usize) -> u64 {
        let in_block = (at / self.len + 1) * self.len;
        if self.period > 8 * self.len {
            return in_block.min(end);
        }
        let blocks = (most as u64 / self.period).saturating_sub(1);
        (in_block + blocks * self.len).min(end)
    }
}
