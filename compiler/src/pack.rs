//! Writes weights in the order plans read them and in the layout their kernels read.

use crate::{
    CompileError,
    recipe::{Packed, Reader, Recipes},
};
use artifact::{FileStream, Space, Step, WeightEntry};
use ir::{DType, Layout};
use std::collections::HashMap;
use tensor::{
    Compact, Entry, WeightSource,
    layout::{Nz, Panels},
};

/// Rows of an unpacked weight that are read at a time; a multiple of every panel height.
const CHUNK_ROWS: u64 = 512;

/// Bytes of an unpacked weight that are read at a time, where a panel is no larger.
const CHUNK_BYTES: u64 = 32 << 20;

/// Every distinct weight, with a place in a file in which each has the most bytes it may take. Plans are made with
/// these places; those in the real file are known when it is written.
#[derive(Default)]
pub(crate) struct WeightTable {
    known: HashMap<Packed, usize>,
    weights: Vec<Packed>,
    entries: Vec<WeightEntry>,
    end: u64,
}

impl WeightTable {
    /// The entry of `packed`, added at its first use.
    pub(crate) fn entry(&mut self, packed: &Packed, recipes: &Recipes, align: u64) -> &WeightEntry {
        if let Some(&known) = self.known.get(packed) {
            return &self.entries[known];
        }
        let matrix = recipes.get(packed.recipe);
        let slice = Slice::of(packed, matrix.rows);
        let offset = self.end.next_multiple_of(align);
        let bytes = slice.count * packed.layout.bytes(slice.rows, matrix.cols, matrix.dtype);
        self.end = offset + bytes;
        let at = self.entries.len();
        self.entries.push(WeightEntry {
            recipe: recipes.text(packed.recipe),
            dtype: matrix.dtype,
            dims: packed.dims.clone(),
            layout: packed.layout,
            offset,
            bytes,
            quantization_error: None,
        });
        self.weights.push(packed.clone());
        self.known.insert(packed.clone(), at);
        &self.entries[at]
    }

    /// The most bytes that the file may have.
    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }

    pub(crate) fn entries(&self) -> &[WeightEntry] {
        &self.entries
    }

    /// Reads, converts and writes every weight, and notes what quantising it lost. `progress` gets
    /// the bytes dealt with so far, of [`WeightTable::bytes`].
    pub(crate) fn write(
        self,
        recipes: &Recipes,
        source: &dyn WeightSource,
        out: &mut FileStream,
        align: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<WrittenWeights, CompileError> {
        let mut reader = Reader::new(recipes, source);
        let mut entries = Vec::with_capacity(self.entries.len());
        for (packed, planned) in self.weights.iter().zip(&self.entries) {
            let offset = out.align(align)?;
            let mut bytes = 0;
            write_one(packed, recipes, &mut reader, &mut |piece| {
                out.write(piece)?;
                bytes += piece.len() as u64;
                progress(planned.offset + bytes);
                Ok(())
            })?;
            progress(planned.offset + planned.bytes);
            assert!(bytes <= planned.bytes, "plans were made with the most bytes of a weight");
            let error = reader.take_error() as f32;
            let quantization_error = recipes.quantizes(packed.recipe).then_some(error);
            entries.push(WeightEntry { offset, bytes, quantization_error, ..planned.clone() });
        }
        Ok(WrittenWeights { planned: self.entries, entries })
    }
}

/// Weights in their file.
pub(crate) struct WrittenWeights {
    planned: Vec<WeightEntry>,
    entries: Vec<WeightEntry>,
}

impl WrittenWeights {
    /// Turns the places of weights that a plan's `steps` were made with into those they have.
    pub(crate) fn place(&self, steps: &mut [Step]) {
        for arg in steps.iter_mut().flat_map(|step| &mut step.args) {
            if arg.space != Space::Weights {
                continue;
            }
            let after = self.planned.partition_point(|weight| weight.offset <= arg.offset);
            let at = after.checked_sub(1).expect("a plan reads weights of the table");
            let (planned, written) = (&self.planned[at], &self.entries[at]);
            let skipped = arg.offset - planned.offset;
            arg.offset = written.offset + skipped;
            arg.bytes = arg.bytes.min(written.bytes.saturating_sub(skipped));
        }
    }

    pub(crate) fn into_entries(self) -> Vec<WeightEntry> {
        self.entries
    }
}

/// What of a weight is arranged on its own: all of it, or each matrix of a stack.
struct Slice {
    count: u64,
    rows: u64,
}

impl Slice {
    fn of(packed: &Packed, rows: u64) -> Self {
        match (packed.layout, &packed.dims[..]) {
            (Layout::Nz | Layout::Panels | Layout::Compact, [outer @ .., rows, _]) => {
                Self { count: outer.iter().product(), rows: *rows }
            }
            _ => Self { count: 1, rows },
        }
    }
}

/// Hands the bytes of a weight in its layout to `sink`, in order.
fn write_one(
    packed: &Packed,
    recipes: &Recipes,
    reader: &mut Reader<'_>,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), CompileError>,
) -> Result<(), CompileError> {
    let matrix = recipes.get(packed.recipe);
    let (cols, dtype) = (matrix.cols, matrix.dtype);
    let slice = Slice::of(packed, matrix.rows);
    let step = match packed.layout {
        // NZ interleaves all rows inside a column of fractals, so a slice is packed whole.
        Layout::Nz => slice.rows,
        Layout::Nd => CHUNK_ROWS.max(CHUNK_BYTES / dtype.bytes_for(cols).max(1)),
        Layout::Panels | Layout::Compact => {
            let rows = CHUNK_BYTES / dtype.bytes_for(cols).max(1);
            CHUNK_ROWS.min(rows.next_multiple_of(Panels::WIDTH)).max(Panels::WIDTH)
        }
    };
    let (mut dense, mut arranged) = (Vec::new(), Vec::new());
    let mut compact = Compacting::new(Compact::stack(slice.count, slice.rows, cols));
    for index in 0..slice.count {
        let mut start = 0;
        while start < slice.rows {
            let count = step.min(slice.rows - start);
            dense.clear();
            arranged.clear();
            reader.read(packed.recipe, index * slice.rows + start, count, &mut dense)?;
            match packed.layout {
                Layout::Nd => sink(&dense)?,
                Layout::Panels => {
                    pack_panels(&dense, count, cols, dtype, &mut arranged);
                    sink(&arranged)?;
                }
                Layout::Nz => {
                    pack_nz(&dense, count, cols, dtype, &mut arranged);
                    sink(&arranged)?;
                }
                Layout::Compact => {
                    pack_panels(&dense, count, cols, dtype, &mut arranged);
                    sink(&compact.panels(&arranged))?;
                }
            }
            start += count;
        }
    }
    if packed.layout == Layout::Compact { sink(&compact.table()) } else { Ok(()) }
}

/// Row-major matrices `rows x cols`, one after the other, in another layout: what [`ir::Op::Relayout`]
/// makes of their bytes.
pub fn arrange(dense: &[u8], rows: u64, cols: u64, dtype: DType, layout: Layout) -> Vec<u8> {
    let (mut out, mut arranged) = (Vec::new(), Vec::new());
    let matrices = dense.chunks_exact((dtype.bytes_for(rows * cols) as usize).max(1));
    let mut compact = Compacting::new(Compact::stack(matrices.len() as u64, rows, cols));
    for matrix in matrices {
        arranged.clear();
        match layout {
            Layout::Nd => arranged.extend_from_slice(matrix),
            Layout::Panels => pack_panels(matrix, rows, cols, dtype, &mut arranged),
            Layout::Nz => pack_nz(matrix, rows, cols, dtype, &mut arranged),
            Layout::Compact => {
                pack_panels(matrix, rows, cols, dtype, &mut arranged);
                arranged = compact.panels(&arranged);
            }
        }
        out.extend_from_slice(&arranged);
    }
    if layout == Layout::Compact {
        out.extend(compact.table());
    }
    out
}

/// Panels of bf16 on their way to [`Compact`].
struct Compacting {
    layout: Compact,
    /// Bytes of panels so far.
    end: u64,
    table: Vec<Entry>,
}

impl Compacting {
    fn new(layout: Compact) -> Self {
        Self { layout, end: 0, table: Vec::new() }
    }

    /// The next panels, coded.
    fn panels(&mut self, panels: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(panels.len());
        for panel in panels.chunks_exact(self.layout.plain_bytes() as usize) {
            let (entry, coded) = self.layout.encode(self.table.len() as u64, panel);
            let start = u32::try_from(self.end / Compact::UNIT).expect("a weight is below 256 GiB");
            self.table.push(Entry { start, ..entry });
            self.end += coded.len() as u64;
            out.extend(coded);
        }
        out
    }

    /// What is behind the panels.
    fn table(self) -> Vec<u8> {
        let mut table: Vec<u8> = self.table.iter().flat_map(|e| e.to_le_bytes()).collect();
        table.resize(self.layout.table_bytes() as usize, 0);
        table
    }
}

/// Row-major `rows x cols` into panels. See [`Panels`] for the arrangement; the loop visits memory
/// in the order of the output, and the tests hold it to [`Panels::offset`].
fn pack_panels(dense: &[u8], rows: u64, cols: u64, dtype: DType, out: &mut Vec<u8>) {
    let layout = Panels::new(rows, cols, dtype);
    let bytes = |elements: u64| dtype.bytes_for(elements) as usize;
    let (group_bytes, row_bytes) = (bytes(layout.group()), bytes(cols));
    let panel_bytes = bytes(layout.panel_len());
    let flipped = Panels::flipped(dtype);
    out.resize(layout.count() as usize * panel_bytes, 0);
    for (panel, target) in out.chunks_exact_mut(panel_bytes).enumerate() {
        for lane in 0..Panels::WIDTH as usize {
            let row = panel * Panels::WIDTH as usize + lane;
            let Some(source) = dense.get(row * row_bytes..(row + 1) * row_bytes) else { break };
            let places = target.chunks_exact_mut(Panels::WIDTH as usize * group_bytes);
            for (group, place) in source.chunks(group_bytes).zip(places) {
                let place = &mut place[lane * group_bytes..][..group_bytes];
                if dtype.bits() == 4 {
                    place.copy_from_slice(&nibble_group(group));
                } else {
                    place[..group.len()].copy_from_slice(group);
                }
            }
        }
        if flipped != 0 {
            target.iter_mut().for_each(|byte| *byte ^= flipped);
        }
    }
}

/// Up to eight 4-bit elements, two to a byte, with those four apart in one byte.
fn nibble_group(dense: &[u8]) -> [u8; 4] {
    let mut bytes = [0; 4];
    bytes[..dense.len()].copy_from_slice(dense);
    let nibbles = u32::from_le_bytes(bytes);
    // Four nibbles to the low halves of four bytes.
    let spread = |four: u32| {
        let pairs = (four | four << 8) & 0x00ff_00ff;
        (pairs | pairs << 4) & 0x0f0f_0f0f
    };
    (spread(nibbles & 0xffff) | spread(nibbles >> 16) << 4).to_le_bytes()
}

/// Bytes of a row of a fractal: as many elements as fill them, 64 of 4 bits.
const FRACTAL_ROW_BYTES: usize = 32;

/// Row-major `rows x cols` into fractals. See [`Nz`] for the arrangement; the loop moves rows of
/// fractals, and the tests hold it to the documented formula.
fn pack_nz(dense: &[u8], rows: u64, cols: u64, dtype: DType, out: &mut Vec<u8>) {
    let row_bytes = dtype.bytes_for(cols) as usize;
    out.resize(dtype.bytes_for(Nz::new(rows, cols, dtype).padded_len()) as usize, 0);
    let column_bytes = rows.next_multiple_of(16) as usize * FRACTAL_ROW_BYTES;
    for (column, target) in out.chunks_exact_mut(column_bytes).enumerate() {
        let places = target.chunks_exact_mut(FRACTAL_ROW_BYTES);
        for (place, row) in places.zip(dense.chunks_exact(row_bytes)) {
            let start = column * FRACTAL_ROW_BYTES;
            let part = &row[start..row_bytes.min(start + FRACTAL_ROW_BYTES)];
            place[..part.len()].copy_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use artifact::BufferRef;
    use tensor::{TensorInfo, WeightError};

    /// Element `i` of dense or packed memory.
    fn element(bytes: &[u8], i: u64, dtype: DType) -> Vec<u8> {
        match dtype.bits() {
            4 => vec![bytes[i as usize / 2] >> (i % 2 * 4) & 15],
            bits => bytes[(i * bits / 8) as usize..][..bits as usize / 8].to_vec(),
        }
    }

    #[test]
    fn panels_are_packed_as_the_layout_says() {
        for dtype in [DType::F32, DType::BF16, DType::I8, DType::F8E4M3, DType::I4, DType::MxFp4] {
            for (rows, cols) in [(1u64, 2u64), (3, 6), (64, 8), (130, 14)] {
                let len = dtype.bytes_for(rows * cols);
                let dense: Vec<u8> = (0..len).map(|i| (i * 37 % 251 + 1) as u8).collect();
                let mut packed = Vec::new();
                pack_panels(&dense, rows, cols, dtype, &mut packed);
                let layout = Panels::new(rows, cols, dtype);
                assert_eq!(packed.len() as u64, dtype.bytes_for(layout.padded_len()));
                let mut sources = vec![None; layout.padded_len() as usize];
                for r in 0..rows {
                    for c in 0..cols {
                        sources[layout.offset(r, c) as usize] = Some(r * cols + c);
                    }
                }
                for (to, from) in sources.into_iter().enumerate() {
                    let found = element(&packed, to as u64, dtype);
                    let mut expected =
                        from.map_or(vec![0; found.len()], |i| element(&dense, i, dtype));
                    match dtype {
                        DType::I8 => expected[0] = expected[0].wrapping_add(128),
                        DType::I4 => expected[0] = (expected[0] + 8) & 15,
                        _ => {}
                    }
                    assert_eq!(found, expected, "{dtype} {rows}x{cols}, place {to}");
                }
            }
        }
    }

    /// Place of element `(h, w)` of a matrix of `height` rows, from the documentation of the format:
    /// `((w / C0) * ceil(height / 16) + h / 16) * 16 * C0 + (h % 16) * C0 + w % C0`.
    fn fractal_place(height: u64, h: u64, w: u64, dtype: DType) -> u64 {
        let c0 = match dtype {
            DType::F32 => 8,
            DType::BF16 => 16,
            DType::I8 => 32,
            _ => 64,
        };
        ((w / c0) * height.div_ceil(16) + h / 16) * 16 * c0 + (h % 16) * c0 + w % c0
    }

    #[test]
    fn fractals_are_packed_as_the_format_is_documented() {
        for dtype in [DType::F32, DType::BF16, DType::I8, DType::I4] {
            for (rows, cols) in [(1u64, 2u64), (16, 64), (17, 66), (40, 200), (96, 32)] {
                let dense: Vec<u8> =
                    (0..dtype.bytes_for(rows * cols)).map(|i| (i * 37 % 251 + 1) as u8).collect();
                let mut packed = Vec::new();
                pack_nz(&dense, rows, cols, dtype, &mut packed);
                let len = dtype.bytes_for(Nz::new(rows, cols, dtype).padded_len());
                assert_eq!(packed.len() as u64, len, "{dtype} {rows}x{cols}");
                let mut sources = vec![None; (len * 8 / dtype.bits()) as usize];
                for h in 0..rows {
                    for w in 0..cols {
                        let place = fractal_place(rows, h, w, dtype);
                        sources[place as usize] = Some(h * cols + w);
                    }
                }
                for (to, from) in sources.into_iter().enumerate() {
                    let found = element(&packed, to as u64, dtype);
                    let expected = from.map_or(vec![0; found.len()], |i| element(&dense, i, dtype));
                    assert_eq!(found, expected, "{dtype} {rows}x{cols}, place {to}");
                }
            }
        }
    }

    /// Bytes that count up from the name's length.
    struct Counting;

    impl WeightSource for Counting {
        fn info(&self, _: &str) -> Option<&TensorInfo> {
            None
        }
        fn read(&self, name: &str, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
            for (at, byte) in (start..).zip(out) {
                // No byte is an fp8 NaN.
                *byte = (at * 7 % 127 + name.len() as u64 - 1) as u8 | ((at % 2) as u8 * 128);
            }
            Ok(())
        }
    }

    /// What is written for the result of a function without parameters.
    fn written(text: &str) -> (WeightEntry, Vec<u8>) {
        let (weights, bytes) = all_written(text);
        (weights.into_entries().remove(0), bytes)
    }

    /// What is written for all results.
    fn all_written(text: &str) -> (WrittenWeights, Vec<u8>) {
        let func = ir::text::parse("test.ir", text).unwrap().funcs.remove(0);
        let mut recipes = Recipes::default();
        let constants = crate::recipe::constants(&func, &mut recipes).unwrap();
        let mut table = WeightTable::default();
        for &result in &constants.func.results {
            table.entry(constants.packed(result).unwrap(), &recipes, 64);
        }
        let name = format!("precast-pack-{}-{}", std::process::id(), func.name);
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let writer = artifact::Writer::create(&dir.join("out")).unwrap();
        let mut stream = writer.stream("weights.bin").unwrap();
        let (most, mut last) = (table.bytes(), 0);
        let mut progress = |bytes| {
            assert!((last..=most).contains(&bytes), "{bytes} after {last}, of {most}");
            last = bytes;
        };
        let weights = table.write(&recipes, &Counting, &mut stream, 64, &mut progress).unwrap();
        assert_eq!(last, most);
        stream.finish().unwrap();
        let bytes = std::fs::read(writer.staging().join("weights.bin")).unwrap();
        drop(writer);
        std::fs::remove_dir_all(&dir).unwrap();
        (weights, bytes)
    }

    /// Rows of a slice are packed in pieces, and no panel holds rows of two slices.
    #[test]
    fn every_slice_of_a_stack_has_its_own_panels() {
        for (name, dtype, bits) in [("wide", DType::I8, 8), ("narrow", DType::MxFp4, 4)] {
            let (entry, bytes) = written(&format!(
                "func @{name}() {{
  weight %a : {dtype}[600,10]
  weight %bb : {dtype}[600,10]
  %s = stack %a, %bb : {dtype}[2,600,10]
  %p = relayout %s {{layout = panels}} : {dtype}[2,600,10] panels
  return %p
}}
"
            ));
            assert_eq!((entry.bytes, entry.dims), (bytes.len() as u64, vec![2, 600, 10]));
            let mut expected = Vec::new();
            for slice in ["a", "bb"] {
                let mut dense = vec![0; 600 * 10 * bits / 8];
                Counting.read(slice, 0, &mut dense).unwrap();
                let mut packed = Vec::new();
                pack_panels(&dense, 600, 10, dtype, &mut packed);
                expected.extend(packed);
            }
            assert!(bytes == expected, "{dtype}");
        }
    }

    /// Experts stand one after another, each in fractals of its own: `[E,K/C0,N/16,16,C0]`.
    #[test]
    fn every_slice_of_a_stack_has_its_own_fractals() {
        for (name, dtype) in [("brain", DType::BF16), ("bytes", DType::I8), ("nibbles", DType::I4)]
        {
            let (entry, bytes) = written(&format!(
                "func @{name}() {{
  weight %a : {dtype}[40,70]
  weight %bb : {dtype}[40,70]
  %s = stack %a, %bb : {dtype}[2,40,70]
  %p = relayout %s {{layout = nz}} : {dtype}[2,40,70] nz
  return %p
}}
"
            ));
            assert_eq!((entry.bytes, entry.dims), (bytes.len() as u64, vec![2, 40, 70]));
            let slice = Nz::new(40, 70, dtype).padded_len();
            for (index, source) in ["a", "bb"].into_iter().enumerate() {
                let mut dense = vec![0; dtype.bytes_for(40 * 70) as usize];
                Counting.read(source, 0, &mut dense).unwrap();
                for (h, w) in [(0u64, 0u64), (15, 69), (16, 1), (39, 64), (20, 33)] {
                    let place = index as u64 * slice + fractal_place(40, h, w, dtype);
                    let expected = element(&dense, h * 70 + w, dtype);
                    assert_eq!(element(&bytes, place, dtype), expected, "{dtype} {source} {h},{w}");
                }
            }
        }
    }

    /// The panels of all slices follow one another, and the table is behind them.
    #[test]
    fn compact_slices_follow_one_another() {
        let text = |name: &str, layout: &str| {
            format!(
                "func @{name}() {{
  weight %a : fp8[600,64]
  weight %bb : fp8[600,64]
  %s = stack %a, %bb : fp8[2,600,64]
  %x = cast %s {{to = bf16}} : bf16[2,600,64]
  %p = relayout %x {{layout = {layout}}} : bf16[2,600,64] {layout}
  return %p
}}
"
            )
        };
        let (entry, bytes) = written(&text("compact", "compact"));
        let (_, panels) = written(&text("plain", "panels"));
        let layout = Compact::stack(2, 600, 64);
        let mut expected = Vec::new();
        let mut table = Vec::new();
        for (index, panel) in (0..).zip(panels.chunks_exact(layout.plain_bytes() as usize)) {
            let (entry, coded) = layout.encode(index, panel);
            assert!(entry.escapes > 0 && entry.escapes != Entry::PLAIN, "{index}");
            let start = expected.len() as u32 / Compact::UNIT as u32;
            table.extend(Entry { start, ..entry }.to_le_bytes());
            expected.extend(coded);
        }
        table.resize(layout.table_bytes() as usize, 0);
        expected.extend(table);
        assert!(bytes == expected);
        assert_eq!(entry.bytes, bytes.len() as u64);
        assert!((layout.least_bytes()..layout.most_bytes()).contains(&entry.bytes));
    }

    /// Plans name weights where they are, although these take less than they might.
    #[test]
    fn plans_follow_weights_that_are_shorter_than_planned() {
        let (weights, bytes) = all_written(
            "func @shorter() {
  weight %a : fp8[600,64]
  weight %bb : fp8[600,64]
  %x = cast %a {to = bf16} : bf16[600,64]
  %p = relayout %x {layout = compact} : bf16[600,64] compact
  return %p, %bb, %a
}
",
        );
        let WrittenWeights { planned, entries } = &weights;
        assert!(entries[0].bytes < planned[0].bytes && entries[1].offset < planned[1].offset);
        let arg = |space, offset, bytes| BufferRef { space, offset, bytes };
        let whole = |w: &WeightEntry| arg(Space::Weights, w.offset, w.bytes);
        let row = |w: &WeightEntry| arg(Space::Weights, w.offset + 64, 64);
        let other = arg(Space::Arena, planned[1].offset, 64);
        let args = |w: &[WeightEntry]| {
            vec![whole(&w[2]), other, whole(&w[0]), row(&w[1]), row(&w[2]), whole(&w[1])]
        };
        let mut step = [Step { args: args(planned), ..Step::default() }];
        weights.place(&mut step);
        assert_eq!(step[0].args, args(entries));
        for (entry, name) in entries[1..].iter().zip(["bb", "a"]) {
            let mut source = vec![0; 600 * 64];
            Counting.read(name, 0, &mut source).unwrap();
            assert!(bytes[entry.range()] == source, "{name}");
        }
    }

    /// Codes of 4 bits become bytes with the same numbers.
    #[test]
    fn widened_codes_keep_their_numbers() {
        let text = |to: &str, name: &str| {
            format!(
                "func @{name}() {{
  weight %a : i4[40,70]
  %w = cast %a {{to = {to}}} : {to}[40,70]
  %p = relayout %w {{layout = nz}} : {to}[40,70] nz
  return %p
}}
"
            )
        };
        let (_, bytes) = written(&text("i8", "widened"));
        let mut dense = vec![0; 40 * 35];
        Counting.read("a", 0, &mut dense).unwrap();
        for (h, w) in [(0u64, 0u64), (17, 33), (39, 69)] {
            let nibble = element(&dense, h * 70 + w, DType::I4)[0];
            let place = fractal_place(40, h, w, DType::I8);
            assert_eq!(bytes[place as usize] as i8, (nibble << 4) as i8 >> 4, "{h},{w}");
        }
    }

    #[test]
    fn the_error_of_quantised_weights_is_noted() {
        let text = |result: &str| {
            format!(
                "func @{result}() {{
  weight %a : fp8[600,8]
  %x = cast %a {{to = f32}} : f32[600,8]
  %codes, %scales = quantize_weight %x {{bits = 4, group = 4}} : i4[600,8], f32[600,2]
  return %{result}
}}
"
            )
        };
        let (codes, bytes) = written(&text("codes"));
        let (scales, scale_bytes) = written(&text("scales"));
        assert_eq!(scales.quantization_error, None);
        // Put together again and compared with the source, byte by byte.
        let mut raw = vec![0; 600 * 8];
        Counting.read("a", 0, &mut raw).unwrap();
        let fp8 = |code: u8| {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
            let magnitude = match exponent {
                0 => mantissa / 512.0,
                _ => (8.0 + mantissa) * f64::powi(2.0, exponent - 10),
            };
            if code > 127 { -magnitude } else { magnitude }
        };
        let (mut error, mut sum) = (0.0, 0.0);
        for (i, code) in raw.into_iter().enumerate() {
            let nibble = bytes[i / 2] >> (i % 2 * 4) & 15;
            let scale = f32::from_le_bytes(scale_bytes[i / 4 * 4..][..4].try_into().unwrap());
            let found = f64::from((nibble << 4) as i8 >> 4) * f64::from(scale);
            error += (found - fp8(code)).powi(2);
            sum += fp8(code).powi(2);
        }
        let expected = (error / sum).sqrt();
        let found = f64::from(codes.quantization_error.unwrap());
        assert!(expected > 0.01 && (found / expected - 1.0).abs() < 1e-5, "{found} {expected}");
    }
}
