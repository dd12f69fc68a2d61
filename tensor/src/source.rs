//! Where weight bytes come from. Defined here so that the compiler needs to know no file format.

use crate::DType;

/// What is known of a stored tensor without reading its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the checkpoint.
    pub name: String,
    /// Stored element type.
    pub dtype: DType,
    /// Stored shape, outermost dimension first.
    pub dims: Vec<u64>,
}

impl TensorInfo {
    /// Bytes of the whole tensor.
    pub fn bytes(&self) -> u64 {
        self.dtype.bytes_for(self.dims.iter().product())
    }
}

/// A tensor that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// No tensor of that name.
    #[error("tensor `{name}` is not in the checkpoint")]
    Missing {
        /// The name asked for.
        name: String,
    },
    /// Reading failed.
    #[error("reading tensor `{name}` from {file}: {source}")]
    Io {
        /// The tensor.
        name: String,
        /// The file it lies in.
        file: String,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// A name to bytes. Bytes are little-endian, row-major and dense.
pub trait WeightSource {
    /// What is stored under `name`.
    fn info(&self, name: &str) -> Option<&TensorInfo>;

    /// Fills `out` with the bytes that begin at `start` inside the tensor.
    ///
    /// # Errors
    /// [`WeightError`] when there is no such tensor or its file cannot be read.
    ///
    /// # Panics
    /// When the range leaves the tensor.
    fn read(&self, name: &str, start: u64, out: &mut [u8]) -> Result<(), WeightError>;
}
