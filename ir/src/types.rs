//! Types of values: element type, dimensions that may be symbols, layout, and what holds them.

use std::{collections::BTreeMap, fmt, sync::Arc};
use tensor::{DType, Layout};

/// A dimension whose value is known only when a graph is specialised.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(Arc<str>);

impl Symbol {
    /// The symbol called `name`.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }
    /// Its spelling.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Values of symbols.
pub type Bindings = BTreeMap<Symbol, u64>;

/// One dimension of a tensor.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// A number.
    Const(u64),
    /// A number that specialisation fills in.
    Sym(Symbol),
}

impl Dim {
    /// The symbolic dimension called `name`.
    pub fn sym(name: &str) -> Self {
        Dim::Sym(Symbol::new(name))
    }

    /// The number, if it is one.
    pub fn as_const(&self) -> Option<u64> {
        match self {
            Dim::Const(n) => Some(*n),
            Dim::Sym(_) => None,
        }
    }
}

impl Dim {
    /// The number that `bindings` gives a symbol, if it knows it.
    pub fn bind(&self, bindings: &Bindings) -> Self {
        match self {
            Dim::Sym(s) => bindings.get(s).map_or_else(|| self.clone(), |&n| Dim::Const(n)),
            Dim::Const(_) => self.clone(),
        }
    }
}

impl From<u64> for Dim {
    fn from(n: u64) -> Self {
        Dim::Const(n)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Const(n) => write!(f, "{n}"),
            Dim::Sym(s) => f.write_str(s.name()),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a value stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Storage {
    /// An immutable tensor.
    #[default]
    Tensor,
    /// A version of memory that outlives the step, such as a KV cache. An op that writes it takes
    /// one version and returns the next, so the order of accesses is in the data flow.
    State,
}

/// The type of a value: `bf16[T,896]`, `i8[4096,7168] nz`, `state f32[N,2,8,16,64]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Outermost dimension first; empty for a scalar.
    pub dims: Vec<Dim>,
    /// Arrangement in memory; only matrices have one other than [`Layout::Nd`].
    pub layout: Layout,
    /// Tensor or persistent memory.
    pub storage: Storage,
}

impl TensorType {
    /// A dense tensor type.
    pub fn new(dtype: DType, dims: impl IntoIterator<Item = Dim>) -> Self {
        Self {
            dtype,
            dims: dims.into_iter().collect(),
            layout: Layout::Nd,
            storage: Storage::Tensor,
        }
    }

    /// A type of persistent memory.
    pub fn state(dtype: DType, dims: impl IntoIterator<Item = Dim>) -> Self {
        Self { storage: Storage::State, ..Self::new(dtype, dims) }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The same shape with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// The same element type with other dimensions.
    pub fn with_dims(&self, dims: impl IntoIterator<Item = Dim>) -> Self {
        Self { dims: dims.into_iter().collect(), ..self.clone() }
    }

    /// The same tensor in another layout.
    pub fn with_layout(&self, layout: Layout) -> Self {
        Self { layout, ..self.clone() }
    }

    /// Dimensions as numbers, or `None` while a symbol is left.
    pub fn const_dims(&self) -> Option<Vec<u64>> {
        self.dims.iter().map(Dim::as_const).collect()
    }

    /// Symbols among the dimensions.
    pub fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.dims.iter().filter_map(|d| match d {
            Dim::Sym(s) => Some(s),
            Dim::Const(_) => None,
        })
    }

    /// Replaces the symbols that `bindings` knows.
    pub fn bind(&self, bindings: &Bindings) -> Self {
        self.with_dims(self.dims.iter().map(|d| match d {
            Dim::Sym(s) => bindings.get(s).map_or_else(|| d.clone(), |&n| Dim::Const(n)),
            Dim::Const(_) => d.clone(),
        }))
    }

    /// Bytes in memory with layout padding, or `None` while a symbol is left.
    pub fn bytes(&self) -> Option<u64> {
        let dims = self.const_dims()?;
        Some(match (self.layout, dims.as_slice()) {
            (Layout::Nd, _) => self.dtype.bytes_for(dims.iter().product()),
            (layout, [outer @ .., rows, cols]) => {
                outer.iter().product::<u64>() * layout.bytes(*rows, *cols, self.dtype)
            }
            (_, _) => self.dtype.bytes_for(dims.iter().product()),
        })
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.storage == Storage::State {
            f.write_str("state ")?;
        }
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.dims.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")?;
        if self.layout != Layout::Nd {
            write!(f, " {}", self.layout)?;
        }
        Ok(())
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
