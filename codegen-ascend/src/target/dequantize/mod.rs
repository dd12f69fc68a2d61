//! The kernel that turns sums of integer products into numbers, for results that no library operator
//! scales to the type that is wanted.

use super::library::decline;
use crate::{
    chip::Chip,
    kernels::{Declined, Kernel},
};
use compiler::{Arg, Lowered};
use ir::DType;

/// Columns of a row that are computed at a time.
const TILE: u64 = 2048;

/// Sums `i32[rows,N]` and what they are multiplied by.
pub(super) struct Dequantize {
    /// The sums, dense.
    pub(super) sums: Arg,
    /// `f32[rows]`, if rows have scales.
    pub(super) row_scale: Option<Arg>,
    /// `f32[experts,N]`.
    pub(super) weight_scale: Arg,
    /// Which rows belong to which expert; all to the only one without it.
    pub(super) groups: Option<Groups>,
    /// `[rows,N]`, dense.
    pub(super) out: Arg,
    /// Rows.
    pub(super) rows: u64,
    /// `N`.
    pub(super) width: u64,
    /// Type of the result, f32 or bf16.
    pub(super) dtype: DType,
}

/// A list `i64[experts]` in device memory of how rows are shared out among experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    /// The list.
    pub(super) list: Arg,
    /// Experts.
    pub(super) experts: u64,
    /// Whether it counts the rows of each expert, rather than saying where each ends.
    pub(super) counts: bool,
}

impl Dequantize {
    /// `out[r,n] = (sums[r,n] * weight_scale[expert(r),n]) * row_scale[r]`, rounded once.
    pub(super) fn lower(&self, chip: &Chip) -> Result<Lowered, Declined> {
        let tile = TILE.min(self.width.next_multiple_of(16));
        let out_type = match self.dtype {
            DType::F32 => "float",
            DType::BF16 => "bfloat16_t",
            other => return decline(format!("sums become f32 or bf16, not {other}")),
        };
        // Two buffers each of sums, scales and results, and the values.
        let needed = tile * (2 * (4 + 4 + self.dtype.bits() / 8) + 4);
        if needed > chip.ub_bytes {
            return decline(format!("{needed} bytes do not fit {} of a core", chip.ub_bytes));
        }
        let kernel = self.kernel(tile, out_type);
        let mut args = vec![self.sums];
        args.extend(self.row_scale);
        args.push(self.weight_scale);
        args.extend(self.groups.map(|g| g.list));
        args.push(self.out);
        let blocks = self.rows.clamp(1, u64::from(chip.vector_cores)) as u32;
        Ok(kernel.call(args, &[self.rows], blocks, "sums of integers are scaled in f32"))
    }

    fn kernel(&self, tile: u64, out_type: &str) -> Kernel {
        let experts = self.groups.map_or(1, |g| g.experts);
        let constants = format!(
            "using Out = {out_type};\n\
             constexpr uint64_t WIDTH = {};     // columns\n\
             constexpr uint32_t TILE = {tile};  // columns at a time\n\
             constexpr uint64_t EXPERTS = {experts};",
            self.width
        );
        let mut parameters = vec!["sums"];
        parameters.extend(self.row_scale.map(|_| "rowScale"));
        parameters.push("weightScale");
        parameters.extend(self.groups.map(|_| "groups"));
        parameters.push("out");
        let parameters: Vec<String> = parameters.iter().map(|p| format!("GM_ADDR {p}")).collect();
        let mut globals = String::new();
        if self.row_scale.is_some() {
            globals += "    GlobalTensor<float> rowScaleGm;\n    \
                        rowScaleGm.SetGlobalBuffer((__gm__ float *)rowScale, rows);\n";
        }
        if self.groups.is_some() {
            globals += "    GlobalTensor<int64_t> groupsGm;\n    \
                        groupsGm.SetGlobalBuffer((__gm__ int64_t *)groups, EXPERTS);\n";
        }
        let (first_end, next_end) = match self.groups {
            None => ("rows", "end = rows;"),
            Some(Groups { counts: true, .. }) => {
                ("groupsGm.GetValue(0)", "end += groupsGm.GetValue(expert);")
            }
            Some(_) => ("groupsGm.GetValue(0)", "end = groupsGm.GetValue(expert);"),
        };
        let scale_row = match self.row_scale {
            Some(_) => {
                "            Muls(value, value, rowScaleGm.GetValue(row), padded);\n            \
                 PipeBarrier<PIPE_V>();"
            }
            None => "",
        };
        let store = match self.dtype {
            DType::BF16 => "Cast(result, value, RoundMode::CAST_RINT, padded);",
            _ => "Muls(result, value, 1.0f, padded);",
        };
        let source = include_str!("dequantize.cpp")
            .replace("@CONSTANTS@", &constants)
            .replace("@PARAMETERS@", &format!("{}, uint64_t rows", parameters.join(", ")))
            .replace("@GLOBALS@", &globals)
            .replace("@FIRST_END@", first_end)
            .replace("@NEXT_END@", next_end)
            .replace("@SCALE_ROW@\n", &format!("{scale_row}\n").replace("\n\n", "\n"))
            .replace("@STORE@", store);
        let stem = if self.groups.is_some() { "dequantize_experts" } else { "dequantize" };
        Kernel::new(stem, &source)
    }
}
