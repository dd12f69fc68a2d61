//! Parameters of attention kernels.

use super::{
    super::{Kernel, NAME},
    PIECE,
    problem::{Memory, Problem},
};
use compiler::{Arg, Lowered};
use std::fmt::Write;

/// Which of the kernels of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Rows from the first piece to the last.
    Whole,
    /// Pieces into records.
    Pieces,
    /// Records into rows.
    Combine,
}

/// A buffer of a kernel: its name, the element type, the variable that it becomes, and what is passed
/// for it.
struct Buffer(&'static str, &'static str, &'static str, Arg);

/// What a kernel takes.
pub(super) struct Signature {
    pub(super) phase: Phase,
    buffers: Vec<Buffer>,
    scalars: [(&'static str, u64); 8],
    selected: bool,
    exchange: bool,
}

impl Signature {
    /// Records are the first scratch buffer; `exchange` is the one that cores of a block share.
    pub(super) fn new(problem: &Problem, phase: Phase, exchange: Option<usize>) -> Self {
        let [query, query1, selected, out] = problem.strides;
        let mut buffers = buffers(problem, phase);
        buffers.extend(exchange.map(|i| Buffer("exchange", "", "", Arg::Scratch(i))));
        let scalars = [
            ("rows", problem.rows),
            ("sequences", problem.sequences),
            ("width", problem.width),
            ("queryStride", query),
            ("query1Stride", query1),
            ("selectedStride", selected),
            ("outStride", out),
            ("mostPieces", problem.most_pieces(PIECE)),
        ];
        let is_selected = matches!(problem.memory, Memory::Selected { .. });
        Self { phase, buffers, scalars, selected: is_selected, exchange: exchange.is_some() }
    }

    pub(super) fn call(&self, kernel: Kernel, blocks: u32, why: &str) -> Lowered {
        let scalars = self.scalars.map(|(_, value)| value);
        kernel.call(self.buffers.iter().map(|b| b.3).collect(), &scalars, blocks, why)
    }

    /// The function: `body` uses the operands, the global tensors and the scalars.
    pub(super) fn function(&self, kind: &str, body: &str) -> String {
        let mut text = format!("extern \"C\" __global__ __aicore__ void {NAME}(\n");
        if self.exchange {
            // Cores that wait for each other need the address of their flags. Newer compilers add it.
            text.push_str("#ifdef PRECAST_SYNC_ARGUMENT\n    uint64_t flags,\n#endif\n");
        }
        text.push_str("   ");
        for Buffer(name, ..) in &self.buffers {
            let _ = write!(text, " GM_ADDR {name},");
        }
        let names: Vec<String> =
            self.scalars.iter().map(|(name, _)| format!("uint64_t {name}")).collect();
        let _ = write!(text, "\n    {})\n{{\n", names.join(", "));
        let _ = writeln!(text, "    KERNEL_TASK_TYPE_DEFAULT({kind});");
        if self.exchange {
            text.push_str("#ifdef PRECAST_SYNC_ARGUMENT\n    SetSyncBaseAddr(flags);\n#endif\n");
        }
        text.push_str("    Operands operands;\n");
        text.push_str(
            "    GlobalTensor<float> recordsGm, sinksGm;\n    GlobalTensor<Out> outGm;\n",
        );
        for Buffer(name, element, variable, _) in &self.buffers {
            if !variable.is_empty() {
                let _ =
                    writeln!(text, "    {variable}.SetGlobalBuffer((__gm__ {element} *){name});");
            }
        }
        text.push_str("    operands.width = width;\n    operands.queryStride = queryStride;\n");
        text.push_str("    operands.query1Stride = query1Stride;\n");
        if self.selected {
            text.push_str("    operands.selectedStride = selectedStride;\n");
        }
        text.push_str("    operands.rowsPerSequence = rows / sequences;\n");
        if self.exchange {
            text.push_str("    const uint32_t block = GetBlockIdx() / GetTaskRation();\n");
            text.push_str("    const Exchange between(exchange, block);\n");
            text.push_str("    Steps steps(operands, rows, block, GetBlockNum());\n");
        }
        text.push_str(body);
        text.push_str("}\n");
        text
    }
}

fn buffers(problem: &Problem, phase: Phase) -> Vec<Buffer> {
    let mut all = vec![Buffer("query", "Query", "operands.query", Arg::Operand(0))];
    match problem.memory {
        Memory::Cache { .. } => all.extend([
            Buffer("cache", "Cached", "operands.cache", Arg::Operand(1)),
            Buffer("table", "int32_t", "operands.table", Arg::Operand(2)),
            Buffer("positions", "int32_t", "operands.positions", Arg::Operand(3)),
        ]),
        Memory::Latent | Memory::Selected { .. } => all.extend([
            Buffer("query1", "Query", "operands.query1", Arg::Operand(1)),
            Buffer("latent", "Cached", "operands.latent", Arg::Operand(2)),
            Buffer("rope", "Cached", "operands.rope", Arg::Operand(3)),
            Buffer("table", "int32_t", "operands.table", Arg::Operand(4)),
            Buffer("positions", "int32_t", "operands.positions", Arg::Operand(5)),
        ]),
    }
    if matches!(problem.memory, Memory::Selected { .. }) {
        all.push(Buffer("selected", "int32_t", "operands.selected", Arg::Operand(6)));
    }
    if phase == Phase::Combine {
        // Of the operands, the fold reads the lengths alone.
        all.retain(|b| matches!(b.0, "positions" | "selected"));
    }
    if problem.sinks && phase != Phase::Pieces {
        all.push(Buffer("sinks", "float", "sinksGm", Arg::Operand(4)));
    }
    if phase != Phase::Whole {
        all.push(Buffer("records", "float", "recordsGm", Arg::Scratch(0)));
    }
    if phase != Phase::Pieces {
        all.push(Buffer("out", "Out", "outGm", Arg::Result(0)));
    }
    all
}
