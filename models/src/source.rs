//! Weight bytes from safetensors files by positioned reads.

use crate::{files::Opened, quant::View};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use tensor::{TensorInfo, WeightError, WeightSource};

/// The tensors that a model uses, read from their files on demand and never mapped: compiling
/// needs memory for the ranges it asks for, not for the model.
///
/// Layouts that exist only in files are undone here: packed rows of 4-bit codes become `i4`
/// matrices, MXFP4 blocks `mxfp4` tensors, bit patterns in 64-bit integers `f32`.
#[derive(Debug)]
pub struct SafetensorsSource {
    tensors: BTreeMap<String, Place>,
}

#[derive(Clone, Debug)]
struct Place {
    info: TensorInfo,
    view: View,
    bytes: Bytes,
}

#[derive(Clone, Debug)]
enum Bytes {
    /// From `offset` of one of `files` on.
    Stored { files: Arc<Vec<(PathBuf, File)>>, file: usize, offset: u64 },
    /// Nowhere: only this configuration says that they exist.
    Promised(PathBuf),
}

impl SafetensorsSource {
    /// The tensors of `opened` called `used`, seen through their views. Every one must be stored in
    /// an element type that its view takes.
    pub(crate) fn new<'a>(
        opened: &Opened,
        used: impl IntoIterator<Item = (&'a str, View)>,
    ) -> Self {
        let place = |(name, view): (&str, View)| {
            let (file, stored) = opened.stored.get(name)?;
            let stored_type = *stored.dtype.as_ref().ok()?;
            let (dtype, dims) = view.of(stored_type, &stored.dims)?;
            let view = if dtype == stored_type { View::Plain } else { view };
            let files = Arc::clone(&opened.files);
            let bytes = Bytes::Stored { files, file: *file, offset: stored.offset };
            let info = TensorInfo { name: name.to_owned(), dtype, dims };
            Some((name.to_owned(), Place { info, view, bytes }))
        };
        Self { tensors: used.into_iter().filter_map(place).collect() }
    }

    /// Tensors that only the configuration at `config` promises; reading one is an error.
    pub(crate) fn promised(config: &Path, infos: impl IntoIterator<Item = TensorInfo>) -> Self {
        let place = |info: TensorInfo| {
            let bytes = Bytes::Promised(config.to_owned());
            (info.name.clone(), Place { info, view: View::Plain, bytes })
        };
        Self { tensors: infos.into_iter().map(place).collect() }
    }

    /// The same tensors with `prefix` before their names.
    pub(crate) fn renamed(self, prefix: &str) -> Self {
        let rename = |(name, mut place): (String, Place)| {
            let name = format!("{prefix}{name}");
            place.info.name.clone_from(&name);
            (name, place)
        };
        Self { tensors: self.tensors.into_iter().map(rename).collect() }
    }

    /// Adds those tensors of `other` whose names `wanted` picks.
    pub(crate) fn borrow_from(&mut self, other: &Self, wanted: impl Fn(&str) -> bool) {
        let picked = other.tensors.iter().filter(|(name, _)| wanted(name));
        self.tensors.extend(picked.map(|(name, place)| (name.clone(), place.clone())));
    }

    /// Every tensor the model uses, in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values().map(|p| &p.info)
    }

    /// Hands the bytes of tensor `name` to `sink` in order, a piece at a time.
    ///
    /// # Errors
    /// As [`WeightSource::read`].
    pub fn stream(&self, name: &str, mut sink: impl FnMut(&[u8])) -> Result<(), WeightError> {
        const PIECE: u64 = 1 << 20;
        let place = self.place(name)?;
        let bytes = place.info.bytes();
        let mut piece = vec![0; bytes.min(PIECE) as usize];
        let mut start = 0;
        while start < bytes {
            let piece = &mut piece[..(bytes - start).min(PIECE) as usize];
            self.read(name, start, piece)?;
            sink(piece);
            start += piece.len() as u64;
        }
        Ok(())
    }

    fn place(&self, name: &str) -> Result<&Place, WeightError> {
        self.tensors.get(name).ok_or_else(|| WeightError::Missing { name: name.to_owned() })
    }

    /// Fills `out` with bytes of a file from `start` of the tensor at `place` on.
    fn raw(&self, place: &Place, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
        let name = place.info.name.clone();
        match &place.bytes {
            Bytes::Stored { files, file, offset } => {
                let (path, file) = &files[*file];
                file.read_exact_at(out, offset + start).map_err(|source| WeightError::Io {
                    name,
                    file: path.display().to_string(),
                    source,
                })
            }
            Bytes::Promised(config) => Err(WeightError::Io {
                name,
                file: config.display().to_string(),
                source: io::Error::other(
                    "only the configuration was opened; name a checkpoint directory with weights",
                ),
            }),
        }
    }

    /// The lower half of every eight bytes.
    fn low_words(&self, place: &Place, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
        let first = start / 4;
        let words = (start + out.len() as u64).div_ceil(4) - first;
        let mut wide = vec![0; words as usize * 8];
        self.raw(place, first * 8, &mut wide)?;
        let low = wide.chunks_exact(8).flat_map(|word| &word[..4]);
        for (out, &byte) in out.iter_mut().zip(low.skip((start % 4) as usize)) {
            *out = byte;
        }
        Ok(())
    }

    /// Rows of nibbles from rows of bytes that hold two of them each.
    fn nibble_rows(&self, place: &Place, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
        let columns = place.info.dims[1];
        let row_bytes = columns / 2;
        let mut packed = Vec::new();
        let (mut at, mut left) = (start, out);
        while !left.is_empty() {
            let (row, column) = (at / row_bytes, at % row_bytes);
            let here = ((row_bytes - column) as usize).min(left.len());
            let (part, rest) = std::mem::take(&mut left).split_at_mut(here);
            packed.resize(here * 2, 0);
            self.raw(place, row / 2 * columns + column * 2, &mut packed)?;
            let shift = if row % 2 == 0 { 0 } else { 4 };
            for (out, pair) in part.iter_mut().zip(packed.chunks_exact(2)) {
                *out = (pair[0] >> shift & 15) | (pair[1] >> shift & 15) << 4;
            }
            at += here as u64;
            left = rest;
        }
        Ok(())
    }
}

impl WeightSource for SafetensorsSource {
    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).map(|p| &p.info)
    }

    fn read(&self, name: &str, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
        let place = self.place(name)?;
        let end = start.checked_add(out.len() as u64);
        assert!(
            end.is_some_and(|end| end <= place.info.bytes()),
            "reading {} bytes from {start} leaves `{name}`",
            out.len()
        );
        match place.view {
            View::NibbleRows => self.nibble_rows(place, start, out),
            View::LowWords => self.low_words(place, start, out),
            View::Plain | View::MxFp4Blocks => self.raw(place, start, out),
        }
    }
}
