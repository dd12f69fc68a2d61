//! Element types, layouts and where weight bytes come from. Knows no other crate.

mod compact;
mod dtype;
pub mod layout;
mod mapped;
mod source;

pub use compact::{Compact, Entry};
pub use dtype::{DType, ParseDTypeError};
pub use layout::Layout;
pub use mapped::MappedFile;
pub use source::{TensorInfo, WeightError, WeightSource};
