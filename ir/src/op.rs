//! Every operation, declared once: spelling, operands, attributes and typing rule stand together,
//! and printer, parser and verifier are derived from them.

pub use crate::attr::Dims;
pub use crate::op_error::{ParseOpError, TypeError};
use crate::{
    attr::{RopeSpec, RouteSpec},
    body::Body,
    rules::{
        check_cache, check_expanded, check_latent, check_quantized, check_scale, check_selected,
        check_sequences, element_count, ensure, grouped, holds_heads, one,
    },
    types::{Dim, Storage, TensorType},
};
use std::collections::BTreeMap;
use tensor::{DType, Layout};

/// Attributes by name, as text.
pub type AttrMap = BTreeMap<String, String>;

fn take<T: std::str::FromStr>(
    attrs: &mut AttrMap,
    op: &'static str,
    attr: &'static str,
    kind: &'static str,
) -> Result<T, ParseOpError> {
    let text = attrs.remove(attr).ok_or(ParseOpError::MissingAttr { op, attr })?;
    text.parse().map_err(|_| ParseOpError::BadAttr { attr, kind, text })
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

    /// The last two axes exchanged.
    Transpose = "transpose"(x) {} infer {
        ensure(x.rank() >= 2 && x.layout == Layout::Nd && x.storage == Storage::Tensor,
            "x must be an nd tensor of rank 2 or more", x)?;
        let mut dims = x.dims.clone();
        dims.swap(x.rank() - 2, x.rank() - 1);
        one(x.with_dims(dims))
    }

    /// Each row of `x [R,N]` `times` times, cut to `rows`.
    RepeatRows = "repeat_rows"(x) { times: u64, rows: u64 } infer {
        ensure(x.rank() == 2 && x.layout == Layout::Nd, "x must be an nd matrix", x)?;
        let enough = x.dims[0].as_const().is_some_and(|n| *times > 0 && n == rows.div_ceil(*times));
        ensure(enough && *rows > 0, "x must have as many rows as are repeated", x)?;
        one(x.with_dims([Dim::Const(*rows), x.dims[1].clone()]))
    }

    /// Parts of one type as the slices of a new first axis.
    Stack = "stack"(..parts) {} infer {
        for p in parts {
            ensure(p == &parts[0] && p.storage == Storage::Tensor, "parts must be tensors of one type", p)?;
        }
        let mut dims = vec![Dim::Const(parts.len() as u64)];
        dims.extend(parts[0].dims.iter().cloned());
        one(parts[0].with_dims(dims))
    }

    /// Rows (of the last axis) of two equal tensors `[..,N,K]` in alternating blocks along the axis
    /// before it: `block` of `a`, `block` of `b`, and so on: `[..,2N,K]`.
    Interleave = "interleave"(a, b) { block: u64 } infer {
        ensure(a == b && a.rank() >= 2, "operands must be matrices, or stacks of them, of one type", b)?;
        let axis = a.rank() - 2;
        let rows = a.dims[axis].as_const();
        ensure(*block > 0 && rows.is_some_and(|n| n % block == 0), "rows must be a multiple of the block", a)?;
        let doubled = rows.and_then(|n| n.checked_mul(2));
        ensure(doubled.is_some(), "rows must fit 64 bits twice", a)?;
        let mut dims = a.dims.clone();
        dims[axis] = Dim::Const(doubled.unwrap_or_default());
        one(a.with_dims(dims))
    }

    /// The same matrix in another layout.
    Relayout = "relayout"(x) { layout: Layout } infer {
        ensure(x.rank() >= 2, "only matrices and stacks of them have layouts", x)?;
        let fits = *layout != Layout::Compact || x.dtype == DType::BF16;
        ensure(fits, "only bf16 has a compact layout", x)?;
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

    /// `x + value`.
    AddScalar = "add_scalar"(x) { value: f32 } infer {
        ensure(x.dtype.is_float() && x.storage == Storage::Tensor, "x must be floating point", x)?;
        one((*x).clone())
    }

    /// `1 / (1 + exp(-x))`.
    Sigmoid = "sigmoid"(x) {} infer {
        ensure(x.dtype.is_float(), "x must be floating point", x)?;
        one((*x).clone())
    }

    /// `x [T,N]` times `scale [T,1]`, one factor for each row.
    ScaleRows = "scale_rows"(x, scale) {} infer {
        ensure(x.rank() == 2 && x.dtype.is_float(), "x must be a float matrix", x)?;
        ensure(scale.dtype == x.dtype && scale.dims[..] == [x.dims[0].clone(), Dim::Const(1)],
            "scale must have one element for each row of x", scale)?;
        one((*x).clone())
    }

    /// The gated activation of gpt-oss: `g = min(gate, limit)`, `u = clamp(up, -limit, limit)`,
    /// `(u + 1) * g * sigmoid(alpha * g)`, computed in f32 and rounded once to `out`.
    SwigluClamped = "swiglu_clamped"(gate, up) { alpha: f32, limit: f32, out: DType } infer {
        ensure(gate.dtype.is_float(), "gate must be floating point", gate)?;
        ensure(gate == up, "operands must have one type", up)?;
        one(gate.with_dtype(*out))
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

    /// Layer normalisation over the last axis (arXiv 1607.06450):
    /// `weight * (x - mean(x)) / sqrt(var(x) + eps) + bias`, in f32 and rounded once to `out`.
    LayerNorm = "layer_norm"(x, weight, bias) { eps: f32, out: DType } infer {
        ensure(x.dtype.is_float() && x.rank() > 0, "x must be floating point", x)?;
        ensure(weight.dtype.is_float() && weight.dims[..] == x.dims[x.rank() - 1..],
            "weight must match the last axis of x", weight)?;
        ensure(bias == weight, "bias must have the type of weight", bias)?;
        one(x.with_dtype(*out))
    }

    /// `scale * x / sqrt(sum(x^2) + eps)` over the last axis, computed in f32.
    L2Norm = "l2_norm"(x) { eps: f32, scale: f32 } infer {
        ensure(x.dtype.is_float() && x.rank() > 0, "x must be floating point", x)?;
        one((*x).clone())
    }

    /// A matrix product for each head: `x [T,heads,K]` times the transpose of `weight
    /// [heads,N,K]`, accumulated in f32 and rounded once to `out`: `[T,heads,N]`.
    HeadMatmul = "head_matmul"(x, weight) { out: DType } infer {
        ensure(x.rank() == 3 && x.dtype.is_float(), "x must be [T,heads,K]", x)?;
        ensure(weight.rank() == 3 && weight.dtype.is_float(), "weight must be [heads,N,K]", weight)?;
        ensure(weight.dims[0] == x.dims[1] && weight.dims[2] == x.dims[2],
            "weight must match the heads and the last axis of x", weight)?;
        let dims = [x.dims[0].clone(), x.dims[1].clone(), weight.dims[1].clone()];
        one(TensorType::new(*out, dims))
    }

    /// Index of the largest element of each row, the smallest index among equals.
    Argmax = "argmax"(x) {} infer {
        ensure(x.rank() == 2 && x.dtype.is_float(), "x must be a float matrix", x)?;
        one(TensorType::new(DType::I32, [x.dims[0].clone()]))
    }

    /// The `k` largest elements of each row of `x [T,N]`, `k <= N`, and their indices: `[T,k]` of the type
    /// of `x` and `i32[T,k]`, in descending order, the smaller index first among equals. NaN is smaller
    /// than every number.
    TopK = "top_k"(x) { k: u64 } infer {
        ensure(x.rank() == 2 && x.dtype.is_float(), "x must be a float matrix", x)?;
        let fits = x.dims[1].as_const().is_some_and(|n| (1..=n).contains(k) && n <= i32::MAX as u64);
        ensure(fits, "k must be 1 to the number of columns of x", x)?;
        let dims = [x.dims[0].clone(), Dim::Const(*k)];
        Ok(vec![TensorType::new(x.dtype, dims.clone()), TensorType::new(DType::I32, dims)])
    }

    // ---- quantisation: values are codes times scales -------------------------------------------

    /// `times` times the sum of each row of `x [..,K]`: `f32[..,1]`.
    RowSums = "row_sums"(x) { times: f32 } infer {
        ensure(x.dtype.is_float() && x.rank() > 0, "x must be floating point with rows", x)?;
        let mut dims = x.dims.clone();
        dims[x.rank() - 1] = Dim::Const(1);
        one(TensorType::new(DType::F32, dims))
    }

    /// The bits of each element of `x`, f32, as a whole number: `i64` of its shape.
    FloatBits = "float_bits"(x) {} infer {
        ensure(x.dtype == DType::F32, "x must be f32", x)?;
        one(x.with_dtype(DType::I64))
    }

    /// The values of a quantised weight: element `(n,k)` of `codes [..,N,K]` times
    /// `scale[n, k / group]`, with `scale [..,N,ceil(K/group)]` in f32, or in u8 as the E8M0
    /// exponents of MXFP4 (`2^(e-127)`). Computed in f32 and rounded once to `out`.
    Dequantize = "dequantize"(codes, scale) { group: u64, out: DType } infer {
        check_scale(codes, scale, *group)?;
        one(codes.with_dtype(*out))
    }

    /// Symmetric quantisation of a weight `x [..,N,K]`, round to nearest even, in groups of
    /// `group` along `K` (a divisor of it): codes of `bits` (8 or 4) and `scale f32[..,N,K/group]`
    /// `= max|x| / (2^(bits-1) - 1)`; 0 where all of a group is 0. Returns codes and scales.
    QuantizeWeight = "quantize_weight"(x) { bits: u64, group: u64 } infer {
        ensure(x.rank() >= 2 && x.dtype.is_float(), "x must be a float matrix", x)?;
        let k = x.dims[x.rank() - 1].as_const();
        ensure(*group > 0 && k.is_some_and(|k| k % group == 0), "group must divide the last axis of x", x)?;
        let codes = match bits { 8 => DType::I8, 4 => DType::I4, _ => {
            return Err(TypeError::Rule { rule: "bits must be 8 or 4", found: bits.to_string() });
        } };
        let mut dims = x.dims.clone();
        if let Some(d) = dims.last_mut() { *d = Dim::Const(k.unwrap_or_default() / group); }
        Ok(vec![x.with_dtype(codes), TensorType::new(DType::F32, dims)])
    }

    /// Symmetric quantisation of every row of `x [..,K]` by its own scale `max|x| / 127`: codes
    /// `rint(x / scale)` as i8, scales `f32[..,1]`. A row of zeros has scale 0 and codes 0.
    /// Returns codes and scales.
    QuantizeRows = "quantize_rows"(x) {} infer {
        ensure(x.dtype.is_float() && x.rank() > 0 && x.storage == Storage::Tensor, "x must be floating point", x)?;
        let mut scale = x.dims.clone();
        if let Some(d) = scale.last_mut() { *d = Dim::Const(1); }
        Ok(vec![x.with_dtype(DType::I8), TensorType::new(DType::F32, scale)])
    }

    /// Quantisation by one scale and offset, `f32[1]` each, measured beforehand:
    /// `clamp(rint(x / scale + offset), -128, 127)` as i8.
    QuantizeStatic = "quantize_static"(x, scale, offset) {} infer {
        ensure(x.dtype.is_float() && x.rank() > 0 && x.storage == Storage::Tensor, "x must be floating point", x)?;
        ensure(*scale == &TensorType::new(DType::F32, [Dim::Const(1)]), "scale must be f32[1]", scale)?;
        ensure(offset == scale, "offset must be f32[1]", offset)?;
        one(x.with_dtype(DType::I8))
    }

    /// Quantisation of groups of `group` along the last axis of `x [..,K]` to fp8: scale
    /// `max(max|x|, 1e-4) / 448`, rounded up to a power of two where `power_of_two`, codes
    /// `fp8(x / scale)`, scales `f32[..,ceil(K/group)]`. Returns codes and scales.
    QuantizeFp8 = "quantize_fp8"(x) { group: u64, power_of_two: bool } infer {
        ensure(x.dtype.is_float() && x.rank() > 0 && x.storage == Storage::Tensor, "x must be floating point", x)?;
        let groups = x.dims[x.rank() - 1].as_const().filter(|_| *group > 0).map(|k| k.div_ceil(*group));
        ensure(groups.is_some(), "group must be positive and the last axis a number", x)?;
        let mut scale = x.dims.clone();
        if let Some(d) = scale.last_mut() { *d = Dim::Const(groups.unwrap_or_default()); }
        Ok(vec![x.with_dtype(DType::F8E4M3), TensorType::new(DType::F32, scale)])
    }

    /// Product of quantised rows and a quantised weight `[N,K]`, both i8, i8 and i4, or both fp8.
    ///
    /// With `p_g` the product over group `g` of `group` elements of `K` (exact for integers), the
    /// result is the sum over groups of `p_g * weight_scale[n,g] * x_scale[t,g]` in f32;
    /// `x_scale [..,1]` is one scale for all groups. `weight_scale` is `f32[N,ceil(K/group)]`.
    QuantMatmul = "quant_matmul"(x, x_scale, weight, weight_scale) { group: u64, out: DType } infer {
        check_quantized(x, x_scale, weight, *group)?;
        check_scale(weight, weight_scale, *group)?;
        ensure(weight.rank() == 2, "weight must be a matrix", weight)?;
        let mut dims = x.dims.clone();
        dims[x.rank() - 1] = weight.dims[0].clone();
        one(TensorType::new(*out, dims))
    }

    /// Product of rows from [`Op::QuantizeStatic`] and `weight i8[N,K]`: `(x * weight + bias) *
    /// scale` with `bias i32[N]`, `scale f32[N]`; the sum is exact.
    StaticMatmul = "static_matmul"(x, weight, bias, scale) { out: DType } infer {
        ensure(x.dtype == DType::I8 && x.rank() > 0, "x must be i8", x)?;
        ensure(weight.dtype == DType::I8 && weight.rank() == 2, "weight must be an i8 matrix", weight)?;
        ensure(weight.dims[1] == x.dims[x.rank() - 1], "weight must match the last axis of x", weight)?;
        ensure(bias.dtype == DType::I32 && bias.dims[..] == weight.dims[..1], "bias must be i32[N]", bias)?;
        ensure(scale.dtype == DType::F32 && scale.dims == bias.dims, "scale must be f32[N]", scale)?;
        let mut dims = x.dims.clone();
        dims[x.rank() - 1] = weight.dims[0].clone();
        one(TensorType::new(*out, dims))
    }

    // ---- mixture of experts --------------------------------------------------------------------

    /// Chooses experts by `logits f32[T,E]` and, for sigmoid scores, an optional `bias f32[E]`; see
    /// [`RouteSpec`]. Returns `ids i32[T,k]`, ascending, and their weights `f32[T,k]`.
    Route = "route"(..args) { spec: RouteSpec } infer {
        let logits = args[0];
        ensure(logits.rank() == 2 && logits.dtype == DType::F32, "logits must be f32[T,E]", logits)?;
        let experts = logits.dims[1].as_const();
        ensure(experts.is_some_and(|e| spec.fits(e)), "the specification must fit the number of experts", logits)?;
        if let [_, bias] = args {
            ensure(bias.dtype == DType::F32 && bias.dims[..] == logits.dims[1..], "bias must be f32[E]", bias)?;
        } else if args.len() > 2 {
            return Err(TypeError::Arity { op: "route", expected: 2, got: args.len() });
        }
        let dims = [logits.dims[0].clone(), Dim::Const(spec.k)];
        Ok(vec![TensorType::new(DType::I32, dims.clone()), TensorType::new(DType::F32, dims)])
    }

    /// Sorts the pairs of `ids i32[T,k]` by expert, stable: `order i32[T,k]` lists pairs `t * k +
    /// j`, those of expert `e` at places `starts[e] .. starts[e+1]` of `starts i32[experts+1]`.
    ExpertGroups = "expert_groups"(ids) { experts: u64 } infer {
        ensure(ids.rank() == 2 && ids.dtype == DType::I32, "ids must be i32[T,k]", ids)?;
        let starts = experts.checked_add(1).filter(|_| *experts > 0);
        ensure(starts.is_some(), "there must be experts", ids)?;
        let starts = TensorType::new(DType::I32, [Dim::Const(starts.unwrap_or_default())]);
        Ok(vec![(*ids).clone(), starts])
    }

    /// [`Op::Matmul`] of every pair with the weight of its expert, `weight [E,N,K]`: pair `(t,j)`
    /// reads row `t` of `x [T,K]`, or its own row of `x [T,k,K]`. `order` and `starts` come from
    /// [`Op::ExpertGroups`]. Result `[T,k,N]`.
    GroupedMatmul = "grouped_matmul"(x, order, starts, weight) { out: DType } infer {
        ensure(x.dtype.is_float(), "x must be floating point", x)?;
        ensure(weight.dtype.is_float(), "weight must be floating point", weight)?;
        one(grouped(x, order, starts, weight, *out)?)
    }

    /// [`Op::QuantMatmul`] of every pair with the weight of its expert, as in
    /// [`Op::GroupedMatmul`]; `weight [E,N,K]`, `weight_scale f32[E,N,ceil(K/group)]`.
    GroupedQuantMatmul = "grouped_quant_matmul"(x, x_scale, order, starts, weight, weight_scale) { group: u64, out: DType } infer {
        check_quantized(x, x_scale, weight, *group)?;
        check_scale(weight, weight_scale, *group)?;
        one(grouped(x, order, starts, weight, *out)?)
    }

    /// [`Op::GroupedQuantMatmul`] for units that multiply 4 by 4 bits: rows `i8` are taken as two
    /// halves, of which the low one less 8 has a sign, and `assist` has what that leaves out.
    ///
    /// `weight i4[E,K,N]`, inputs first; `weight_scale i64[E,G,N]`, the bits of f32, one for each of `G`
    /// equal parts of `K`; `assist f32[E,N]`, 8 times the sum over `K` of weights times scales. With
    /// `p_g` the exact sum over part `g` of `(x - 8) * weight`, the result is `(sum_g p_g *
    /// weight_scale[e,g,n] + assist[e,n]) * x_scale`.
    GroupedMixedMatmul = "grouped_mixed_matmul"(x, x_scale, order, starts, weight, weight_scale, assist) { out: DType } infer {
        ensure(x.dtype == DType::I8 && weight.dtype == DType::I4, "x and weight must be i8 and i4", weight)?;
        ensure(weight.rank() == 3, "weight must be [E,K,N]", weight)?;
        let [experts, inputs, outputs] = [0, 1, 2].map(|axis| weight.dims[axis].clone());
        let of_x = x_scale.dtype == DType::F32 && x_scale.rank() == x.rank()
            && x_scale.dims[..x.rank() - 1] == x.dims[..x.rank() - 1]
            && x_scale.dims[x.rank() - 1] == Dim::Const(1);
        ensure(of_x, "x_scale must be f32 with one element for each row", x_scale)?;
        let parts = weight_scale.dims.get(1).and_then(Dim::as_const).filter(|&g| g > 0);
        let whole = inputs.as_const().zip(parts).is_some_and(|(k, g)| k.is_multiple_of(g));
        let of_weight = weight_scale.dtype == DType::I64 && weight_scale.rank() == 3
            && (&weight_scale.dims[0], &weight_scale.dims[2]) == (&experts, &outputs);
        ensure(whole && of_weight, "weight_scale must be i64[E,G,N] for equal parts of K", weight_scale)?;
        ensure(assist.dtype == DType::F32 && assist.dims[..] == [experts.clone(), outputs.clone()],
            "assist must be f32[E,N]", assist)?;
        let rows = weight.with_dims([experts, outputs, inputs]);
        one(grouped(x, order, starts, &rows, *out)?)
    }

    /// `x [T,k,N]` plus row `ids[t,j]` of `bias [E,N]`.
    ExpertBias = "expert_bias"(x, ids, bias) {} infer {
        ensure(x.rank() == 3 && x.dtype.is_float(), "x must be [T,k,N]", x)?;
        ensure(ids.dtype == DType::I32 && ids.dims[..] == x.dims[..2], "ids must be i32[T,k]", ids)?;
        ensure(bias.rank() == 2 && bias.dtype == x.dtype && bias.dims[1] == x.dims[2],
            "bias must be [E,N] of the type of x", bias)?;
        one((*x).clone())
    }

    /// The sum over `j`, in order, of `weights[t,j] * x[t,j]` for `x [T,k,N]`, `weights f32[T,k]`,
    /// in f32 and rounded once to `out`: `[T,N]`.
    CombineExperts = "combine_experts"(x, weights) { out: DType } infer {
        ensure(x.rank() == 3 && x.dtype.is_float(), "x must be [T,k,N]", x)?;
        ensure(weights.dtype == DType::F32 && weights.dims[..] == x.dims[..2], "weights must be f32[T,k]", weights)?;
        one(TensorType::new(*out, [x.dims[0].clone(), x.dims[2].clone()]))
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
    ///
    /// A cache `i8[blocks,2,heads,block,d+4]` holds what [`Op::QuantizeRows`] makes of the `d` elements: their
    /// codes, and behind them the bytes of the scale, least significant first.
    KvWrite = "kv_write"(state, k, v, slots) {} infer {
        check_cache(state)?;
        ensure(k.rank() == 3 && k.dims[1] == state.dims[2] && holds_heads(state, &k.dims[2]),
            "k must have the heads of the cache", k)?;
        ensure(v == k, "v must have the type of k", v)?;
        ensure(slots.dtype == DType::I32 && slots.dims[..] == k.dims[..1], "slots must be i32[T]", slots)?;
        one((*state).clone())
    }

    /// Causal attention of `q [T,heads,d]` over a paged cache `[blocks,2,kv_heads,block,d]`, or one of codes
    /// as [`Op::KvWrite`] has it.
    ///
    /// `table i32[S,W]` lists the blocks of each sequence; `T` is a multiple of `S` and token `t`
    /// belongs to sequence `t / (T / S)`. Token `t` attends to places `0 ..= positions[t]` with
    /// scores `scale * q.k`; query head `h` reads cache head `h / (heads / kv_heads)`.
    Attention = "attention"(q, state, table, positions) { scale: f32, out: DType } infer {
        ensure(q.rank() == 3 && q.dtype.is_float(), "q must be [T,heads,d]", q)?;
        check_cache(state)?;
        ensure(holds_heads(state, &q.dims[2]), "state must be a cache with the head size of q", state)?;
        let groups = q.dims[1].as_const().zip(state.dims[2].as_const()).is_some_and(|(h, g)| g > 0 && h % g == 0);
        ensure(groups, "query heads must be a multiple of the cache's", q)?;
        ensure(table.dtype == DType::I32 && table.rank() == 2, "table must be i32[S,W]", table)?;
        ensure(positions.dtype == DType::I32 && positions.dims[..] == q.dims[..1], "positions must be i32[T]", positions)?;
        one(q.with_dtype(*out))
    }

    /// [`Op::Attention`] with a learned logit for each head, `sinks f32[heads]`, that takes
    /// probability and adds no value (arXiv 2309.17453), over the last `window` places only
    /// (`positions[t] - window < j`); 0 is no window.
    SinkAttention = "sink_attention"(q, state, table, positions, sinks) { scale: f32, window: u64, out: DType } infer {
        ensure(q.rank() == 3 && sinks.dtype == DType::F32 && sinks.dims[..] == q.dims[1..2],
            "sinks must be f32[heads]", sinks)?;
        Op::Attention { scale: *scale, out: *out }.infer(&[q, state, table, positions])
    }

    /// Writes the rows of `x [T,C]` into the paged memory `state [blocks,block,C]` at `slots[t] =
    /// block * block_tokens + place`, rounding to its element type.
    PagedWrite = "paged_write"(state, x, slots) {} infer {
        ensure(state.storage == Storage::State && state.rank() == 3, "state must be a paged memory [blocks,block,C]", state)?;
        ensure(x.rank() == 2 && x.dtype.is_float() && x.dims[1] == state.dims[2], "x must have the rows of the state", x)?;
        ensure(slots.dtype == DType::I32 && slots.dims[..] == x.dims[..1], "slots must be i32[T]", slots)?;
        one((*state).clone())
    }

    /// Absorbed multi-head latent attention (arXiv 2405.04434): all heads read one latent vector
    /// and one rotated key for each place, `latent [blocks,block,C]` and `rope [blocks,block,R]`.
    ///
    /// Scores are `scale * (q_latent . latent_j + q_rope . rope_j)` for `q_latent [T,heads,C]`,
    /// `q_rope [T,heads,R]`, results the mixed latents `[T,heads,C]`. `table` and `positions` are
    /// those of [`Op::Attention`].
    LatentAttention = "latent_attention"(q_latent, q_rope, latent, rope, table, positions) { scale: f32, out: DType } infer {
        check_latent(q_latent, q_rope, latent, rope, table, positions)?;
        one(q_latent.with_dtype(*out))
    }

    /// [`Op::LatentAttention`] over the places `selected i32[T,S]` alone; negative entries, which
    /// come last, are none.
    SparseLatentAttention = "sparse_latent_attention"(q_latent, q_rope, latent, rope, table, positions, selected) { scale: f32, out: DType } infer {
        check_latent(q_latent, q_rope, latent, rope, table, positions)?;
        check_selected(selected, q_latent)?;
        one(q_latent.with_dtype(*out))
    }

    /// Multi-head latent attention as published (arXiv 2405.04434, eq. 9 to 19), over the memory of
    /// [`Op::LatentAttention`]: each head has a key `keys[h] latent_j` and a value `values[h] latent_j`
    /// of its own for each place, expanded by `keys [heads,N,C]` and `values [heads,V,C]`.
    ///
    /// Scores are `scale * (q_nope . (keys[h] latent_j) + q_rope . rope_j)` for `q_nope [T,heads,N]` and
    /// `q_rope [T,heads,R]`, results the mixed values `[T,heads,V]`, in f32 and rounded once to `out`.
    ExpandedLatentAttention = "expanded_latent_attention"(q_nope, q_rope, keys, values, latent, rope, table, positions) { scale: f32, out: DType } infer {
        check_expanded(q_nope, q_rope, [keys, values], latent, rope, table, positions)?;
        one(TensorType::new(*out, [q_nope.dims[0].clone(), q_nope.dims[1].clone(), values.dims[1].clone()]))
    }

    /// [`Op::ExpandedLatentAttention`] over the places `selected` alone, as
    /// [`Op::SparseLatentAttention`] has them.
    SparseExpandedLatentAttention = "sparse_expanded_latent_attention"(q_nope, q_rope, keys, values, latent, rope, table, positions, selected) { scale: f32, out: DType } infer {
        check_expanded(q_nope, q_rope, [keys, values], latent, rope, table, positions)?;
        check_selected(selected, q_nope)?;
        one(TensorType::new(*out, [q_nope.dims[0].clone(), q_nope.dims[1].clone(), values.dims[1].clone()]))
    }

    /// The lightning indexer (DeepSeek-V3.2): the `keys` places `j <= positions[t]` with the largest
    /// `sum_h weights[t,h] * relu(scale * q[t,h] . k_j)`, the smaller place among equals, for
    /// `q [T,heads,D]`, `weights f32[T,heads]` and the paged keys `state [blocks,block,D]`. Returns
    /// `i32[T,keys]`: places in ascending order, then -1.
    SelectKeys = "select_keys"(q, weights, state, table, positions) { keys: u64, scale: f32 } infer {
        ensure(q.rank() == 3 && q.dtype.is_float(), "q must be [T,heads,D]", q)?;
        ensure(weights.dtype == DType::F32 && weights.dims[..] == q.dims[..2], "weights must be f32[T,heads]", weights)?;
        ensure(state.storage == Storage::State && state.rank() == 3 && state.dims[2] == q.dims[2],
            "state must be a paged memory of keys", state)?;
        ensure(*keys > 0 && *keys <= i32::MAX as u64, "keys must be positive and fit 32 bits", q)?;
        ensure(table.dtype == DType::I32 && table.rank() == 2, "table must be i32[S,W]", table)?;
        ensure(positions.dtype == DType::I32 && positions.dims[..] == q.dims[..1], "positions must be i32[T]", positions)?;
        one(TensorType::new(DType::I32, [q.dims[0].clone(), Dim::Const(*keys)]))
    }

    // ---- recurrent memory: one slot for each sequence ------------------------------------------
    // Rows of one sequence stand together, in order, and `sequences[t]` names their slot. The row
    // at position 0 begins with a memory of zeros, whatever the slot holds.

    /// Causal depthwise convolution over the tokens of a sequence: `y[t,c] = sum_i weight[c,i] *
    /// x[t-K+1+i,c]` for `x [T,C]`, `weight [C,K]`, f32. `state [slots,K-1,C]` holds the last rows
    /// of `x`; rows are rounded to its element type before anything reads them. Returns the next
    /// state and `y f32[T,C]`.
    CausalConv = "causal_conv"(state, x, weight, sequences, positions) {} infer {
        ensure(x.rank() == 2 && x.dtype.is_float(), "x must be [T,C]", x)?;
        ensure(weight.rank() == 2 && weight.dims[0] == x.dims[1], "weight must be [C,K]", weight)?;
        let taps = weight.dims[1].as_const().filter(|&k| k > 1).map(|k| k - 1);
        ensure(taps.is_some(), "weight must have two taps or more", weight)?;
        ensure(state.storage == Storage::State && state.rank() == 3
            && state.dims[1].as_const() == taps && state.dims[2] == x.dims[1], "state must be [slots,K-1,C]", state)?;
        check_sequences(sequences, positions, x)?;
        Ok(vec![(*state).clone(), TensorType::new(DType::F32, x.dims.iter().cloned())])
    }

    /// The decay of the gated delta rule, `-exp(a_log) * softplus(a + dt_bias)`: `a f32[T,heads]`,
    /// `a_log` and `dt_bias f32[heads]`.
    DeltaGate = "delta_gate"(a, a_log, dt_bias) {} infer {
        ensure(a.rank() == 2 && a.dtype == DType::F32, "a must be f32[T,heads]", a)?;
        ensure(a_log.dtype == DType::F32 && a_log.dims[..] == a.dims[1..], "a_log must be f32[heads]", a_log)?;
        ensure(dt_bias == a_log, "dt_bias must be f32[heads]", dt_bias)?;
        one((*a).clone())
    }

    /// The gated delta rule (arXiv 2412.06464), token by token, f32. For each value head, with the
    /// memory `S [dk,dv]` in `state f32[slots,heads,dk,dv]`: `S' = exp(gate) S`,
    /// `S = S' + k (beta (v - k S'))^T`, `o = q S`. `q` and `k [T,key_heads,dk]`; key head `i`
    /// serves the value heads `i * heads / key_heads` and following; `v [T,heads,dv]`, `gate` and
    /// `beta f32[T,heads]`. Returns the next state and `o f32[T,heads,dv]`.
    GatedDelta = "gated_delta"(state, q, k, v, gate, beta, sequences, positions) {} infer {
        ensure(q.rank() == 3 && q.dtype == DType::F32, "q must be f32[T,key_heads,dk]", q)?;
        ensure(k == q, "k must have the type of q", k)?;
        ensure(v.rank() == 3 && v.dtype == DType::F32 && v.dims[0] == q.dims[0], "v must be f32[T,heads,dv]", v)?;
        let groups = v.dims[1].as_const().zip(q.dims[1].as_const()).is_some_and(|(h, g)| g > 0 && h % g == 0);
        ensure(groups, "value heads must be a multiple of key heads", v)?;
        ensure(gate.dtype == DType::F32 && gate.dims[..] == v.dims[..2], "gate must be f32[T,heads]", gate)?;
        ensure(beta == gate, "beta must be f32[T,heads]", beta)?;
        ensure(state.storage == Storage::State && state.dtype == DType::F32 && state.rank() == 4
            && state.dims[1] == v.dims[1] && state.dims[2] == q.dims[2] && state.dims[3] == v.dims[2],
            "state must be f32[slots,heads,dk,dv]", state)?;
        check_sequences(sequences, positions, v)?;
        Ok(vec![(*state).clone(), (*v).clone()])
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

    // ---- fused: the meaning and the type of each are those of its body in `expand` ------------

    /// [`Op::Add`] then [`Op::RmsNorm`] of the sum; returns the sum and the norm.
    AddRmsNorm = "add_rms_norm"(a, b, weight) { eps: f32, out: DType } infer {
        Op::AddRmsNorm { eps: *eps, out: *out }.type_of_body(&[a, b, weight])
    }

    /// [`Op::Silu`] of `gate`, [`Op::Mul`] with `up`, then [`Op::Cast`].
    SiluMul = "silu_mul"(gate, up) { out: DType } infer {
        Op::SiluMul { out: *out }.type_of_body(&[gate, up])
    }

    /// [`Op::SiluMul`] of the columns of `x [..,2N]`, which alternate along the last axis: `block`
    /// of the gate, `block` of the up projection, and so on: `[..,N]`.
    SiluMulPairs = "silu_mul_pairs"(x) { block: u64, out: DType } infer {
        Op::SiluMulPairs { block: *block, out: *out }.type_of_body(&[x])
    }

    /// [`Op::SwigluClamped`] of the columns of `x`, which alternate as in [`Op::SiluMulPairs`].
    SwigluClampedPairs = "swiglu_clamped_pairs"(x) { block: u64, alpha: f32, limit: f32, out: DType } infer {
        let op = Op::SwigluClampedPairs { block: *block, alpha: *alpha, limit: *limit, out: *out };
        op.type_of_body(&[x])
    }

    /// [`Op::Matmul`] with a weight from [`Op::Dequantize`] in f32, which is never stored.
    DequantMatmul = "dequant_matmul"(x, weight, weight_scale) { group: u64, out: DType } infer {
        Op::DequantMatmul { group: *group, out: *out }.type_of_body(&[x, weight, weight_scale])
    }

    /// [`Op::GroupedMatmul`] with a weight from [`Op::Dequantize`] in f32, which is never stored.
    GroupedDequantMatmul = "grouped_dequant_matmul"(x, order, starts, weight, weight_scale) { group: u64, out: DType } infer {
        let op = Op::GroupedDequantMatmul { group: *group, out: *out };
        op.type_of_body(&[x, order, starts, weight, weight_scale])
    }

    /// A composite: the ops of `body` as one, whose parameters are the operands and whose results
    /// the results. [`Body::kind`] says what computes it.
    Fused = "fused"(..args) { body: Body } infer {
        body.infer(args)
    }
}
