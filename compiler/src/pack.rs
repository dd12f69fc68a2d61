//! Writes weights in the order plans read them and in the layout their kernels read.

use crate::{CompileError, recipe::Packed};
use artifact::{FileStream, WeightEntry};
use ir::{DType, Layout};
use tensor::{
    WeightSource,
    layout::{Nz, Panels},
};

/// Rows of an unpacked weight that are read at a time; a multiple of every panel height.
const CHUNK_ROWS: u64 = 512;

/// Every distinct weight, with the offset it will have in the file.
#[derive(Default)]
pub(crate) struct WeightTable {
    weights: Vec<Packed>,
    entries: Vec<WeightEntry>,
    end: u64,
}

impl WeightTable {
    /// The entry of `packed`, added at its first use.
    pub(crate) fn entry(&mut self, packed: Packed, align: u64) -> &WeightEntry {
        let known = self.weights.iter().position(|w| *w == packed);
        let index = known.unwrap_or_else(|| {
            let (rows, cols) = packed.recipe.shape();
            let dtype = packed.recipe.dtype();
            let offset = self.end.next_multiple_of(align);
            let bytes = packed.layout.bytes(rows, cols, dtype);
            self.end = offset + bytes;
            self.entries.push(WeightEntry {
                recipe: packed.recipe.to_string(),
                dtype,
                dims: packed.dims.clone(),
                layout: packed.layout,
                offset,
                bytes,
                quantization_error: None,
            });
            self.weights.push(packed);
            self.entries.len() - 1
        });
        &self.entries[index]
    }

    /// Length of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }

    pub(crate) fn entries(&self) -> &[WeightEntry] {
        &self.entries
    }

    /// Reads, converts and writes every weight. `progress` gets the bytes written so far.
    pub(crate) fn write(
        &self,
        source: &dyn WeightSource,
        out: &mut FileStream,
        align: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CompileError> {
        for (packed, entry) in self.weights.iter().zip(&self.entries) {
            let at = out.align(align)?;
            assert_eq!(at, entry.offset, "weights are written at the offsets plans were given");
            write_one(packed, source, out)?;
            progress(entry.offset + entry.bytes);
        }
        Ok(())
    }
}

fn write_one(
    packed: &Packed,
    source: &dyn WeightSource,
    out: &mut FileStream,
) -> Result<(), CompileError> {
    let recipe = &packed.recipe;
    let (rows, cols) = recipe.shape();
    let dtype = recipe.dtype();
    // NZ interleaves all rows inside a column of fractals, so it is packed whole.
    let step = if packed.layout == Layout::Nz { rows } else { CHUNK_ROWS };
    let (mut dense, mut arranged) = (Vec::new(), Vec::new());
    let mut start = 0;
    while start < rows {
        let count = step.min(rows - start);
        dense.clear();
        recipe.read(source, start, count, &mut dense)?;
        match packed.layout {
            Layout::Nd => out.write(&dense)?,
            Layout::Panels => {
                arranged.clear();
                pack_panels(&dense, count, cols, dtype, &mut arranged);
                out.write(&arranged)?;
            }
            Layout::Nz => {
                arranged.clear();
                pack_nz(&dense, count, cols, dtype, &mut arranged);
                out.write(&arranged)?;
            }
        }
        start += count;
    }
    Ok(())
}

/// Row-major `rows x cols` into panels. See [`Panels`] for the arrangement; the loop visits memory
/// in the order of the output, and the tests hold it to [`Panels::offset`].
fn pack_panels(dense: &[u8], rows: u64, cols: u64, dtype: DType, out: &mut Vec<u8>) {
    let layout = Panels::new(rows, cols, dtype);
    let size = dtype.bytes_for(1) as usize;
    let group_bytes = layout.group() as usize * size;
    let row_bytes = cols as usize * size;
    let panel_bytes = layout.panel_len() as usize * size;
    out.resize(layout.count() as usize * panel_bytes, 0);
    for (panel, target) in out.chunks_exact_mut(panel_bytes).enumerate() {
        for lane in 0..Panels::WIDTH as usize {
            let row = panel * Panels::WIDTH as usize + lane;
            let Some(source) = dense.get(row * row_bytes..(row + 1) * row_bytes) else { break };
            let places = target.chunks_exact_mut(Panels::WIDTH as usize * group_bytes);
            for (group, place) in source.chunks(group_bytes).zip(places) {
                place[lane * group_bytes..][..group.len()].copy_from_slice(group);
            }
        }
    }
}

fn pack_nz(dense: &[u8], rows: u64, cols: u64, dtype: DType, out: &mut Vec<u8>) {
    let layout = Nz::new(rows, cols, dtype);
    let size = dtype.bytes_for(1) as usize;
    out.resize(layout.padded_len() as usize * size, 0);
    for r in 0..rows {
        for c in 0..cols {
            let from = (r * cols + c) as usize * size;
            let to = layout.offset(r, c) as usize * size;
            out[to..to + size].copy_from_slice(&dense[from..from + size]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_packed_as_the_layout_says() {
        for (dtype, size) in [(DType::F32, 4), (DType::BF16, 2), (DType::I8, 1)] {
            for (rows, cols) in [(1u64, 1u64), (3, 5), (64, 8), (130, 7)] {
                let dense: Vec<u8> =
                    (0..rows * cols * size).map(|i| (i * 37 % 251 + 1) as u8).collect();
                let mut packed = Vec::new();
                pack_panels(&dense, rows, cols, dtype, &mut packed);
                let layout = Panels::new(rows, cols, dtype);
                let mut expected = vec![0; (layout.padded_len() * size) as usize];
                for r in 0..rows {
                    for c in 0..cols {
                        let (to, from) = (layout.offset(r, c) * size, (r * cols + c) * size);
                        expected[to as usize..(to + size) as usize]
                            .copy_from_slice(&dense[from as usize..(from + size) as usize]);
                    }
                }
                assert_eq!(packed, expected, "{dtype} {rows}x{cols}");
            }
        }
    }
}
