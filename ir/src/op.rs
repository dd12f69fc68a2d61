//! Every operation, declared once: spelling, operands, attributes and typing rule stand together,
//! and printer, parser and verifier are derived from them.

pub use crate::attr::Dims;
use crate::{
    attr::RopeSpec,
    types::{Dim, Storage, Symbol, TensorType},
};
use std::collections::BTreeMap;
use tensor::{DType, Layout};

/// Attributes by name, as text.
pub type AttrMap = BTreeMap<String, String>;

/// A typing rule that operands break.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TypeError {
    /// Wrong number of operands.
    #[error("`{op}` takes {expected} operands, found {got}")]
    Arity {
        /// Mnemonic.
        op: &'static str,
        /// How many it takes.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// A rule about a type.
    #[error("{rule}, found {found}")]
    Rule {
        /// What must hold.
        rule: &'static str,
        /// The type that breaks it.
        found: String,
    },
}

/// Text that is no operation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParseOpError {
    /// No such mnemonic.
    #[error("unknown operation `{0}`")]
    UnknownOp(String),
    /// An attribute is missing.
    #[error("`{op}` needs the attribute `{attr}`")]
    MissingAttr {
        /// Mnemonic.
        op: &'static str,
        /// Attribute.
        attr: &'static str,
    },
    /// An attribute has no value of its kind.
    #[error("attribute `{attr}`: `{text}` is not {}", kind_of_attr(kind))]
    BadAttr {
        /// Attribute.
        attr: &'static str,
        /// Its type in the declaration of the op.
        kind: &'static str,
        /// What was written.
        text: String,
    },
}

fn take<T: std::str::FromStr>(
    attrs: &mut AttrMap,
    op: &'static str,
    attr: &'static str,
    kind: &'static str,
) -> Result<T, ParseOpError> {
    let text = attrs.remove(attr).ok_or(ParseOpError::MissingAttr { op, attr })?;
    text.parse().map_err(|_| ParseOpError::BadAttr { attr, kind, text })
}

/// What an attribute of type `kind` looks like.
fn kind_of_attr(kind: &str) -> &'static str {
    match kind {
        "DType" => "an element type such as `f32`, `bf16` or `i8`",
        "Dims" => "a list of dimensions such as `[T,64]`",
        "Layout" => "a layout; use `nd`, `nz` or `panels`",
        "RopeSpec" => "a specification such as `rope(theta=10000,dim=64)`",
        "bool" => "`true` or `false`",
        "f32" => "a number",
        _ => "a whole number",
    }
}

fn ensure(holds: bool, rule: &'static str, found: &TensorType) -> Result<(), TypeError> {
    if holds { Ok(()) } else { Err(TypeError::Rule { rule, found: found.to_string() }) }
}

fn one(t: TensorType) -> Result<Vec<TensorType>, TypeError> {
    Ok(vec![t])
}

/// Product of the numbers and the sorted symbols of `dims`; `None` past 64 bits.
fn element_count(dims: &[Dim]) -> Option<(u64, Vec<&Symbol>)> {
    let (mut number, mut symbols) = (1u64, Vec::new());
    for d in dims {
        match d {
            Dim::Const(n) => number = number.checked_mul(*n)?,
            Dim::Sym(s) => symbols.push(s),
        }
    }
    symbols.sort();
    Some((number, symbols))
}

/// The only result of an op that has one.
fn single(mut results: Vec<TensorType>) -> TensorType {
    results.pop().expect("the op has one result")
}

macro_rules! bind_operands {
    ($operands:ident, $mnemonic:literal, (..$rest:ident)) => {
        let $rest: &[&TensorType] = $operands;
        if $rest.is_empty() {
            return Err(TypeError::Arity { op: $mnemonic, expected: 1, got: 0 });
        }
    };
    ($operands:ident, $mnemonic:literal, ($($arg:ident),*)) => {
        const ARITY: usize = [$(stringify!($arg)),*].len();
        let [$($arg),*] = $operands else {
            return Err(TypeError::Arity { op: $mnemonic, expected: ARITY, got: $operands.len() });
        };
    };
}

macro_rules! define_ops {
    ($(
        $(#[$doc:meta])*
        $name:ident = $mnemonic:literal $operands:tt { $($attr:ident: $ty:ty),* } infer $body:block
    )*) => {
        /// Every operation the compiler knows.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "attributes are documented with their operation")]
        pub enum Op { $( $(#[$doc])* $name { $($attr: $ty),* }, )* }

        impl Op {
            /// Every mnemonic, in declaration order.
            pub const MNEMONICS: &[&str] = &[$($mnemonic),*];

            /// Spelling in the text format, in dumps and in reports.
            pub fn mnemonic(&self) -> &'static str {
                match self { $( Op::$name { .. } => $mnemonic, )* }
            }

            /// Attributes in declaration order, ready to print.
            pub fn attrs(&self) -> Vec<(&'static str, String)> {
                match self { $(
                    Op::$name { $($attr),* } => vec![$( (stringify!($attr), $attr.to_string()) ),*],
                )* }
            }

            /// The operation called `mnemonic` with attributes removed from `attrs`.
            ///
            /// # Errors
            /// [`ParseOpError`] when the mnemonic is unknown or an attribute is missing or malformed.
            pub fn parse(mnemonic: &str, attrs: &mut AttrMap) -> Result<Op, ParseOpError> {
                match mnemonic {
                    $( $mnemonic => Ok(Op::$name {
                        $($attr: take(attrs, $mnemonic, stringify!($attr), stringify!($ty))?),*
                    }), )*
                    other => Err(ParseOpError::UnknownOp(other.to_owned())),
                }
            }

            /// Types of the results, or the rule the operands break. The verifier calls nothing else.
            ///
            /// # Errors
            /// [`TypeError`] names the rule and the type that breaks it.
            #[allow(unused_variables, reason = "an op may have no attributes")]
            pub fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
                match self { $(
                    Op::$name { $($attr),* } => {
                        bind_operands!(operands, $mnemonic, $operands);
                        $body
                    }
                )* }
            }
        }
    };
}

define_ops! {
    // ---- reading tables, changing types -------------------------------------------------------

    /// Row `ids[t]` of `table [V,H]` for every token, as `out`.
    Embed = "embed"(ids, table) { out: DType } infer {
        ensure(ids.dtype == DType::I32 && ids.rank() == 1, "ids must be i32[T]", ids)?;
        ensure(table.rank() == 2 && table.dtype.is_float(), "table must be a float matrix", table)?;
        one(TensorType::new(*out, [ids.dims[0].clone(), table.dims[1].clone()]))
    }

    /// Rows `rows[i]` of `x [R,H]`, which may be a state.
    GatherRows = "gather_rows"(x, rows) {} infer {
        ensure(rows.dtype == DType::I32 && rows.rank() == 1, "rows must be i32[M]", rows)?;
        ensure(x.rank() == 2, "x must be a matrix", x)?;
        one(TensorType::new(x.dtype, [rows.dims[0].clone(), x.dims[1].clone()]))
    }

    /// Writes the rows of `x [T,H]` over the first rows of `state [R,H]`.
    StoreRows = "store_rows"(state, x) {} infer {
        ensure(state.storage == Storage::State && state.rank() == 2, "state must be a matrix state", state)?;
        ensure(x.rank() == 2 && x.dims[1] == state.dims[1] && x.dtype == state.dtype,
            "x must have the row type of the state", x)?;
        one((*state).clone())
    }

    /// Conversion to another element type, rounding to nearest even.
    Cast = "cast"(x) { to: DType } infer {
        ensure(x.storage == Storage::Tensor, "a state cannot be cast", x)?;
        one(x.with_dtype(*to))
    }

    // ---- shape ---------------------------------------------------------------------------------

    /// The same elements in the same order under other dimensions.
    Reshape = "reshape"(x) { dims: Dims } infer {
        let (from, to) = (element_count(&x.dims), element_count(&dims.0));
        ensure(from.is_some() && from == to, "reshape must keep the element count", x)?;
        ensure(x.layout == Layout::Nd, "only nd tensors can be reshaped", x)?;
        one(x.with_dims(dims.0.iter().cloned()))
    }

    /// Elements `start .. start + len` along `axis`.
    Slice = "slice"(x) { axis: u64, start: u64, len: u64 } infer {
        let a = *axis as usize;
        ensure(a < x.rank(), "axis must exist", x)?;
        let end = start.checked_add(*len);
        ensure(x.dims[a].as_const().zip(end).is_some_and(|(n, end)| end <= n && *len > 0),
            "the sliced axis must be a number that holds the slice", x)?;
        let mut dims = x.dims.clone();
        dims[a] = Dim::Const(*len);
        one(x.with_dims(dims))
    }

    /// Parts joined along `axis`.
    Concat = "concat"(..parts) { axis: u64 } infer {
        let (a, first) = (*axis as usize, parts[0]);
        ensure(a < first.rank(), "axis must exist", first)?;
        let mut total = Some(0u64);
        for p in parts {
            ensure(p.dtype == first.dtype && p.rank() == first.rank(), "parts must agree in element type and rank", p)?;
            let others_agree = (0..p.rank()).all(|i| i == a || p.dims[i] == first.dims[i]);
            ensure(others_agree, "parts must agree in every other dimension", p)?;
            let n = p.dims[a].as_const();
            ensure(n.is_some(), "the joined axis must be a number", p)?;
            total = total.zip(n).and_then(|(t, n)| t.checked_add(n));
        }
        ensure(total.is_some(), "the joined axis must fit 64 bits", first)?;
        let mut dims = first.dims.clone();
        dims[a] = Dim::Const(total.unwrap_or_default());
        one(first.with_dims(dims))
    }

    /// Rows of two equal matrices in alternating blocks: `block` of `a`, `block` of `b`, and so on.
    Interleave = "interleave"(a, b) { block: u64 } infer {
        ensure(a == b && a.rank() == 2, "operands must be matrices of one type", b)?;
        let rows = a.dims[0].as_const();
        ensure(*block > 0 && rows.is_some_and(|n| n % block == 0), "rows must be a multiple of the block", a)?;
        let doubled = rows.and_then(|n| n.checked_mul(2));
        ensure(doubled.is_some(), "rows must fit 64 bits twice", a)?;
        one(a.with_dims([Dim::Const(doubled.unwrap_or_default()), a.dims[1].clone()]))
    }

    /// The same matrix in another layout.
    Relayout = "relayout"(x) { layout: Layout } infer {
        ensure(x.rank() == 2, "only matrices have layouts", x)?;
        one(x.with_layout(*layout))
    }

    // ---- arithmetic ----------------------------------------------------------------------------

    /// Element-wise sum.
    Add = "add"(a, b) {} infer {
        ensure(a == b, "operands must have one type", b)?;
        one((*a).clone())
    }

    /// Element-wise product.
    Mul = "mul"(a, b) {} infer {
        ensure(a == b, "operands must have one type", b)?;
        one((*a).clone())
    }

    /// `x * sigmoid(x)`.
    Silu = "silu"(x) {} infer {
        ensure(x.dtype.is_float(), "x must be floating point", x)?;
        one((*x).clone())
    }

    /// `x [..,N]` plus `bias [N]` on every row.
    AddBias = "add_bias"(x, bias) {} infer {
        ensure(x.rank() > 0 && bias.dims[..] == x.dims[x.rank() - 1..] && bias.dtype == x.dtype,
            "bias must match the last axis of x", bias)?;
        one((*x).clone())
    }

    /// `x [..,K]` times the transpose of `weight [N,K]`, accumulated in f32 and rounded once to `out`.
    Matmul = "matmul"(x, weight) { out: DType } infer {
        ensure(x.dtype.is_float() && x.rank() > 0, "x must be floating point", x)?;
        ensure(weight.dtype.is_float() && weight.rank() == 2, "weight must be a float matrix", weight)?;
        ensure(weight.dims[1] == x.dims[x.rank() - 1], "weight must match the last axis of x", weight)?;
        let mut dims = x.dims.clone();
        dims[x.rank() - 1] = weight.dims[0].clone();
        one(TensorType::new(*out, dims))
    }

    /// Root-mean-square normalisation over the last axis, scaled by `weight` (arXiv 1910.07467):
    /// `weight * x / sqrt(mean(x^2) + eps)`, computed in f32 and rounded once to `out`.
    RmsNorm = "rms_norm"(x, weight) { eps: f32, out: DType } infer {
        ensure(x.dtype.is_float() && x.rank() > 0, "x must be floating point", x)?;
        ensure(weight.dtype.is_float() && weight.dims[..] == x.dims[x.rank() - 1..],
            "weight must match the last axis of x", weight)?;
        one(x.with_dtype(*out))
    }

    /// Index of the largest element of each row, the smallest index among equals.
    Argmax = "argmax"(x) {} infer {
        ensure(x.rank() == 2 && x.dtype.is_float(), "x must be a float matrix", x)?;
        one(TensorType::new(DType::I32, [x.dims[0].clone()]))
    }

    // ---- attention -----------------------------------------------------------------------------

    /// Cosines, then sines, of every rotated channel pair at each position: `f32[T,dim]`.
    RopeTable = "rope_table"(positions) { spec: RopeSpec } infer {
        ensure(positions.dtype == DType::I32 && positions.rank() == 1, "positions must be i32[T]", positions)?;
        one(TensorType::new(DType::F32, [positions.dims[0].clone(), Dim::Const(spec.dim)]))
    }

    /// Rotates the first channels of every head of `x [T,heads,d]` by `table [T,r]`; `interleaved`
    /// pairs channels `2i, 2i+1`, otherwise `i, i + r/2`. Channels past `r` pass through.
    Rotary = "rotary"(x, table) { interleaved: bool } infer {
        ensure(x.rank() == 3 && x.dtype.is_float(), "x must be [T,heads,d]", x)?;
        let fits = table.rank() == 2 && table.dtype == DType::F32 && table.dims[0] == x.dims[0]
            && table.dims[1].as_const().zip(x.dims[2].as_const()).is_some_and(|(r, d)| r <= d && r % 2 == 0);
        ensure(fits, "table must be f32[T,r] with r no larger than a head", table)?;
        one((*x).clone())
    }

    /// Writes keys and values `[T,heads,d]` into the cache `state [blocks,2,heads,block,d]` at
    /// `slots[t] = block * block_tokens + place`, rounding to the element type of the cache.
    KvWrite = "kv_write"(state, k, v, slots) {} infer {
        ensure(state.storage == Storage::State && state.rank() == 5 && state.dims[1] == Dim::Const(2),
            "state must be a cache [blocks,2,heads,block,d]", state)?;
        ensure(k.rank() == 3 && k.dims[1] == state.dims[2] && k.dims[2] == state.dims[4],
            "k must have the heads of the cache", k)?;
        ensure(v == k, "v must have the type of k", v)?;
        ensure(slots.dtype == DType::I32 && slots.dims[..] == k.dims[..1], "slots must be i32[T]", slots)?;
        one((*state).clone())
    }

    /// Causal attention of `q [T,heads,d]` over a paged cache `[blocks,2,kv_heads,block,d]`.
    ///
    /// `table i32[S,W]` lists the blocks of each sequence; `T` is a multiple of `S` and token `t`
    /// belongs to sequence `t / (T / S)`. Token `t` attends to places `0 ..= positions[t]` with
    /// scores `scale * q.k`; query head `h` reads cache head `h / (heads / kv_heads)`.
    Attention = "attention"(q, state, table, positions) { scale: f32, out: DType } infer {
        ensure(q.rank() == 3 && q.dtype.is_float(), "q must be [T,heads,d]", q)?;
        ensure(state.storage == Storage::State && state.rank() == 5 && state.dims[4] == q.dims[2],
            "state must be a cache with the head size of q", state)?;
        let groups = q.dims[1].as_const().zip(state.dims[2].as_const()).is_some_and(|(h, g)| g > 0 && h % g == 0);
        ensure(groups, "query heads must be a multiple of the cache's", q)?;
        ensure(table.dtype == DType::I32 && table.rank() == 2, "table must be i32[S,W]", table)?;
        ensure(positions.dtype == DType::I32 && positions.dims[..] == q.dims[..1], "positions must be i32[T]", positions)?;
        one(q.with_dtype(*out))
    }

    // ---- collectives ---------------------------------------------------------------------------

    /// Sum over the ranks of `group`.
    AllReduce = "all_reduce"(x) { group: String } infer {
        ensure(x.dtype.is_float(), "x must be floating point", x)?;
        one((*x).clone())
    }

    /// The parts of all `ranks` of `group`, joined along the last axis.
    AllGather = "all_gather"(x) { group: String, ranks: u64 } infer {
        let last = x.dims.last().and_then(Dim::as_const).and_then(|n| n.checked_mul(*ranks));
        ensure(last.is_some(), "the last axis must be a number that fits 64 bits times the ranks", x)?;
        let mut dims = x.dims.clone();
        if let Some(d) = dims.last_mut() { *d = Dim::Const(last.unwrap_or_default()); }
        one(x.with_dims(dims))
    }

    // ---- fused: each states its type through the ops it replaces ------------------------------

    /// [`Op::Add`] then [`Op::RmsNorm`] of the sum; returns the sum and the norm.
    AddRmsNorm = "add_rms_norm"(a, b, weight) { eps: f32, out: DType } infer {
        let sum = single(Op::Add {}.infer(&[a, b])?);
        let normed = single(Op::RmsNorm { eps: *eps, out: *out }.infer(&[&sum, weight])?);
        Ok(vec![sum, normed])
    }

    /// [`Op::Silu`] of `gate`, [`Op::Mul`] with `up`, then [`Op::Cast`].
    SiluMul = "silu_mul"(gate, up) { out: DType } infer {
        let gated = single(Op::Silu {}.infer(&[gate])?);
        let product = single(Op::Mul {}.infer(&[&gated, up])?);
        Op::Cast { to: *out }.infer(&[&product])
    }

    /// [`Op::Matmul`] then [`Op::AddBias`].
    MatmulBias = "matmul_bias"(x, weight, bias) { out: DType } infer {
        let product = single(Op::Matmul { out: *out }.infer(&[x, weight])?);
        Op::AddBias {}.infer(&[&product, bias])
    }

    /// [`Op::Matmul`] with the [`Op::Interleave`] of a gate and an up weight, then [`Op::SiluMul`]
    /// of the two halves: `x [..,K]`, `weight [2I,K]` in blocks of `block` rows, result `[..,I]`.
    MatmulSiluMul = "matmul_silu_mul"(x, weight) { block: u64, out: DType } infer {
        let product = single(Op::Matmul { out: DType::F32 }.infer(&[x, weight])?);
        let n = product.dims.last().and_then(Dim::as_const);
        let pair = block.checked_mul(2).filter(|&p| p > 0);
        ensure(n.zip(pair).is_some_and(|(n, pair)| n % pair == 0), "outputs must be whole pairs of blocks", weight)?;
        let mut half = product.clone();
        if let Some(d) = half.dims.last_mut() { *d = Dim::Const(n.unwrap_or_default() / 2); }
        Op::SiluMul { out: *out }.infer(&[&half, &half])
    }

    /// [`Op::Matmul`] to f32 and [`Op::Argmax`] of the product; returns both.
    MatmulArgmax = "matmul_argmax"(x, weight) {} infer {
        let logits = single(Op::Matmul { out: DType::F32 }.infer(&[x, weight])?);
        let best = single(Op::Argmax {}.infer(&[&logits])?);
        Ok(vec![logits, best])
    }
}

impl Op {
    /// The operand that this op overwrites, if it writes a state: its first result is the next
    /// version of it.
    pub fn writes(&self) -> Option<usize> {
        match self {
            Op::KvWrite {} | Op::StoreRows {} => Some(0),
            _ => None,
        }
    }

    /// The operand that is read as a matrix in a layout of the target's choice, if there is one:
    /// the weight of a matrix product, the table of [`Op::Embed`].
    pub fn matrix_operand(&self) -> Option<usize> {
        match self {
            Op::Embed { .. } => Some(1),
            _ => self.matmul_weight(),
        }
    }

    /// The operand that is the weight of a matrix product, if this is one, fused or not.
    pub fn matmul_weight(&self) -> Option<usize> {
        match self {
            Op::Matmul { .. }
            | Op::MatmulBias { .. }
            | Op::MatmulSiluMul { .. }
            | Op::MatmulArgmax {} => Some(1),
            _ => None,
        }
    }

    /// Whether it stands for several primitive ops.
    pub fn is_fused(&self) -> bool {
        matches!(
            self,
            Op::AddRmsNorm { .. }
                | Op::SiluMul { .. }
                | Op::MatmulBias { .. }
                | Op::MatmulSiluMul { .. }
                | Op::MatmulArgmax {}
        )
    }
}
