//! Headers of safetensors files: what is stored where, checked against the length of the file.

use crate::error::ModelError;
use safetensors::tensor::{Dtype, Metadata};
use std::{fs::File, io, os::unix::fs::FileExt, path::Path};
use tensor::DType;

/// Length prefix of the header.
const PREFIX: u64 = 8;
/// Longest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// A tensor as a file stores it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) name: String,
    /// The element type, or its spelling in the file where we have none for it.
    pub(crate) dtype: Result<DType, String>,
    pub(crate) dims: Vec<u64>,
    /// Where its bytes begin in the file.
    pub(crate) offset: u64,
}

/// Reads and checks the header of `file`, which was opened from `path`.
pub(crate) fn read(file: &File, path: &Path) -> Result<Vec<Stored>, ModelError> {
    let io = |source: io::Error| ModelError::Io { path: path.to_owned(), source };
    let damaged = |reason: String| ModelError::Damaged { path: path.to_owned(), reason };
    let length = file.metadata().map_err(io)?.len();
    if length < PREFIX {
        return Err(damaged(format!("{length} bytes are too few for a safetensors file")));
    }
    let mut prefix = [0; PREFIX as usize];
    file.read_exact_at(&mut prefix, 0).map_err(io)?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER || header > length - PREFIX {
        return Err(damaged(format!(
            "it promises a header of {header} bytes and has {length} bytes in all"
        )));
    }
    let mut text = vec![0; header as usize];
    file.read_exact_at(&mut text, PREFIX).map_err(io)?;
    // Deserialising also checks that shapes, element types and offsets agree and leave no holes.
    let metadata: Metadata =
        serde_json::from_slice(&text).map_err(|e| damaged(format!("bad header: {e}")))?;
    let data = PREFIX + header;
    let promised = metadata.data_len() as u64;
    if data.checked_add(promised) != Some(length) {
        return Err(damaged(format!(
            "the header promises {promised} bytes of weights, {} are there",
            length - data
        )));
    }
    let stored = metadata.tensors().into_iter().map(|(name, info)| Stored {
        name,
        dtype: element_type(info.dtype),
        dims: info.shape.iter().map(|&d| d as u64).collect(),
        offset: data + info.data_offsets.0 as u64,
    });
    Ok(stored.collect())
}

fn element_type(dtype: Dtype) -> Result<DType, String> {
    match dtype {
        Dtype::F32 => Ok(DType::F32),
        Dtype::F16 => Ok(DType::F16),
        Dtype::BF16 => Ok(DType::BF16),
        Dtype::I8 => Ok(DType::I8),
        Dtype::U8 => Ok(DType::U8),
        Dtype::I32 => Ok(DType::I32),
        Dtype::I64 => Ok(DType::I64),
        Dtype::F8_E4M3 => Ok(DType::F8E4M3),
        other => Err(format!("{other:?}")),
    }
}
