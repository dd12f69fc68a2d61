//! What comes after a product of codes: the scales of its rows and columns.

use super::{Declined, Kernel, emit::whole_blocks, program::cpp_type, text};
use crate::{chip::Chip, kernels::NAME};
use ir::DType;
use std::fmt::Write;

/// `out[t,n] = acc[t,n] * x_scale[t] * w_scale[n] + bias[n]`, in f32 and rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dequantize {
    /// Columns `n`.
    pub columns: u64,
    /// Whether each row has a scale; without it there is no such buffer.
    pub row_scales: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// Element type of the result: f32, bf16 or f16.
    pub out: DType,
}

/// Columns that are handled at once.
const PART: u64 = 4096;

/// The kernel for `spec`.
///
/// Buffers: `acc i32[T,N]`, `x_scale f32[T]` where there are row scales, `w_scale f32[N]`, `bias
/// f32[N]` where there is one, `out [T,N]`. Scalars: `T`, the distance between rows of `acc` and of
/// `out` in elements. Blocks: as many as there are rows, at most the vector cores.
///
/// # Errors
/// When the result has a type that the vector unit can not make.
pub fn dequantize(spec: &Dequantize, chip: &Chip) -> Result<Kernel, Declined> {
    if !matches!(spec.out, DType::F32 | DType::BF16 | DType::F16) {
        return Err(Declined(format!("a result of {}", spec.out)));
    }
    let (n, cpp) = (spec.columns, cpp_type(spec.out)?);
    let part = n.min(PART);
    let bytes = whole_blocks(part * 4);
    let (in_bytes, out_bytes) = (bytes * (2 + u64::from(spec.bias)), bytes);
    if 2 * (in_bytes + out_bytes) + bytes + 512 > chip.ub_bytes {
        return Err(Declined("a part of a row does not fit local memory".to_owned()));
    }
    let mut body = format!("extern \"C\" __global__ __aicore__ void {NAME}(GM_ADDR acc_address, ");
    if spec.row_scales {
        body += "GM_ADDR x_scale_address, ";
    }
    body += "GM_ADDR w_scale_address, ";
    if spec.bias {
        body += "GM_ADDR bias_address, ";
    }
    let _ = write!(
        body,
        "GM_ADDR result_address,
    uint64_t rows, uint64_t acc_stride, uint64_t result_stride) {{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    // A contiguous run of rows for each core.
    const uint64_t share = (rows + GetBlockNum() - 1) / GetBlockNum();
    const uint64_t first = GetBlockIdx() * share;
    const uint64_t last = first + share < rows ? first + share : rows;
    if (first >= last) return;
    GlobalTensor<int32_t> acc;
    acc.SetGlobalBuffer((__gm__ int32_t*)acc_address);
    GlobalTensor<float> w_scale;
    w_scale.SetGlobalBuffer((__gm__ float*)w_scale_address);
    GlobalTensor<{cpp}> result;
    result.SetGlobalBuffer((__gm__ {cpp}*)result_address);
"
    );
    for name in
        [(spec.row_scales, "x_scale"), (spec.bias, "bias")].iter().filter(|n| n.0).map(|n| n.1)
    {
        let _ = writeln!(
            body,
            "    GlobalTensor<float> {name};\n    {name}.SetGlobalBuffer((__gm__ float*){name}_address);"
        );
    }
    let _ = write!(
        body,
        "    TPipe pipe;
    TQue<QuePosition::VECIN, 2> partsIn;
    pipe.InitBuffer(partsIn, 2, {in_bytes});
    TQue<QuePosition::VECOUT, 2> partsOut;
    pipe.InitBuffer(partsOut, 2, {out_bytes});
    TBuf<> work;
    pipe.InitBuffer(work, {bytes});
    const LocalTensor<float> values = work.Get<float>();
    for (uint64_t row = first; row < last; ++row) {{
        for (uint32_t at = 0; at < COLUMNS; at += PART) {{
            const uint32_t columns = COLUMNS - at < PART ? COLUMNS - at : PART;
            LocalTensor<float> in = partsIn.AllocTensor<float>();
            CopyIn(in.ReinterpretCast<int32_t>(), acc[row * acc_stride + at], 1, columns, 0);
            CopyIn(in[ROOM], w_scale[at], 1, columns, 0);
"
    );
    if spec.bias {
        body += "            CopyIn(in[2 * ROOM], bias[at], 1, columns, 0);\n";
    }
    body += "            partsIn.EnQue(in);
            in = partsIn.DeQue<float>();
            LocalTensor<uint8_t> out = partsOut.AllocTensor<uint8_t>();
            Cast(values, in.ReinterpretCast<int32_t>(), RoundMode::CAST_RINT, columns);
            Step();
";
    if spec.row_scales {
        body += "            Muls(values, values, x_scale.GetValue(row), columns);\n            Step();\n";
    }
    body += "            Mul(values, values, in[ROOM], columns);\n            Step();\n";
    if spec.bias {
        body += "            Add(values, values, in[2 * ROOM], columns);\n            Step();\n";
    }
    body += match spec.out {
        DType::F32 => "            Adds(out.ReinterpretCast<float>(), values, 0.0f, columns);\n",
        DType::BF16 => {
            "            Cast(out.ReinterpretCast<bfloat16_t>(), values, RoundMode::CAST_RINT, columns);\n"
        }
        _ => {
            "            Cast(out.ReinterpretCast<half>(), values, RoundMode::CAST_RINT, columns);\n"
        }
    };
    let _ = write!(
        body,
        "            partsIn.FreeTensor(in);
            partsOut.EnQue(out);
            out = partsOut.DeQue<uint8_t>();
            CopyOut(result[row * result_stride + at], out.ReinterpretCast<{cpp}>(), 1, columns, 0);
            partsOut.FreeTensor(out);
        }}
    }}
}}
"
    );
    let about =
        "// A product of codes becomes numbers: times the scale of its row and of its column.\n";
    let constants = format!(
        "/// Columns, those that are handled at once, and elements that a part has room for.\n\
         constexpr uint32_t COLUMNS = {n}, PART = {part}, ROOM = {};\n",
        bytes / 4
    );
    Ok(Kernel::new("dequantize", &text::source(about, &constants, &body)))
}
