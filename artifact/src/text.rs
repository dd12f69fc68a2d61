//! The text form of a plan, for people and for golden files.

use crate::{Element, Operator, Param, Plan, Scalar, Step, TensorParam};
use std::fmt::{self, Display};
use tensor::Layout;

/// Items with something between them.
struct Joined<'a, T>(&'a [T], &'a str);

impl<T: Display> Display for Joined<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            let between = if i == 0 { "" } else { self.1 };
            write!(f, "{between}{item}")?;
        }
        Ok(())
    }
}

impl Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Int(n) => write!(f, "{n}"),
            Scalar::Float(x) => write!(f, "{x:?}"),
        }
    }
}

impl Display for TensorParam {
    /// `#1 bf16[1024,3072] by [1,1024] nz[64,192,16,16]`: argument, type, strides unless dense,
    /// storage unless the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}[{}]", self.arg, self.element, Joined(&self.dims, ","))?;
        let plain = match self.element {
            Element::Of(dtype) => {
                let dims: Vec<u64> = self.dims.iter().map(|&d| d as u64).collect();
                *self == TensorParam::dense(self.arg, dtype, &dims)
            }
            Element::U64 | Element::Bool => false,
        };
        if !plain {
            write!(f, " by [{}]", Joined(&self.strides, ","))?;
            if self.layout != Layout::Nd || self.storage != self.dims {
                write!(f, " {}[{}]", self.layout, Joined(&self.storage, ","))?;
            }
        }
        Ok(())
    }
}

impl Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Param::Absent => f.write_str("-"),
            Param::Tensor(t) => write!(f, "{t}"),
            Param::Tensors(list) => write!(f, "[{}]", Joined(list, "; ")),
            Param::Int(v) => write!(f, "{v}"),
            Param::Float(v) => write!(f, "{v:?}"),
            Param::Bool(v) => write!(f, "{v}"),
            Param::Text(v) => write!(f, "{v:?}"),
            Param::Ints(v) => write!(f, "[{}]", Joined(v, ",")),
            Param::Scalar(element, v) => write!(f, "{element} {v:?}"),
            Param::Type(element) => write!(f, "{element}"),
        }
    }
}

impl Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name, Joined(&self.params, ", "))
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {} ({} rows, arena {} bytes)", self.name, self.rows, self.arena_bytes)?;
        for (kind, ports) in [("input", &self.inputs), ("output", &self.outputs)] {
            for p in ports {
                writeln!(f, "{kind} {} {}{:?} at arena+{}", p.name, p.dtype, p.dims, p.at.offset)?;
            }
        }
        for (i, step) in self.steps.iter().enumerate() {
            let chain =
                self.chains.iter().find(|c| c.first as usize <= i && i <= c.last() as usize);
            if let Some(c) = chain.filter(|c| c.first as usize == i) {
                let (steps, rows, bytes) = (c.steps, c.rows, c.private_bytes);
                writeln!(
                    f,
                    "     chain of {steps} steps, row by row, {rows} rows, {bytes} private bytes"
                )?;
            }
            let mark = if chain.is_some() { "|" } else { " " };
            write!(f, "{i:>4}{mark}")?;
            self.show(step, f)?;
        }
        Ok(())
    }
}

impl Plan {
    fn show(&self, step: &Step, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let issue = &step.issue;
        if issue.stream > 0 {
            write!(f, "stream {}: ", issue.stream)?;
        }
        if !issue.waits.is_empty() {
            write!(f, "after {}: ", Joined(&issue.waits, ","))?;
        }
        let kernel = self.kernels.get(step.kernel as usize).map_or("?", String::as_str);
        let arg = |at: &crate::BufferRef| format!("{}+{}:{}", at.space.name(), at.offset, at.bytes);
        let args: Vec<String> = step.args.iter().map(arg).collect();
        write!(f, "{kernel} ({}) [{}]", Joined(&args, ", "), Joined(&step.scalars, ", "))?;
        if issue.blocks > 0 {
            write!(f, " x{}", issue.blocks)?;
        }
        writeln!(f)?;
        match issue.operator.and_then(|o| self.operators.get(o as usize)) {
            Some(operator) => writeln!(f, "       {operator}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferRef, Issue, Phase, Placement, Space};
    use tensor::DType;

    #[test]
    fn a_recipe_is_readable() {
        let at = |offset, bytes| BufferRef { space: Space::Arena, offset, bytes };
        let weight = TensorParam {
            arg: 1,
            element: Element::Of(DType::BF16),
            dims: vec![32, 48],
            strides: vec![1, 32],
            layout: Layout::Nz,
            storage: vec![2, 3, 16, 16],
        };
        let plan = Plan {
            name: "decode-bs2-ctx128".into(),
            phase: Phase::Decode,
            rows: 2,
            context_tokens: 128,
            arena_bytes: 512,
            inputs: vec![],
            outputs: vec![],
            placements: vec![Placement { offset: 0, bytes: 512, first: 0, last: 1 }],
            kernels: vec!["aclnnMatmulWeightNz".into(), "rows_1f".into()],
            operators: vec![Operator {
                name: "MatmulWeightNz".into(),
                params: vec![
                    Param::Tensor(TensorParam::strided(0, Element::Of(DType::BF16), &[2, 32], 64)),
                    Param::Tensor(weight),
                    Param::Tensor(TensorParam::dense(2, DType::BF16, &[2, 48])),
                    Param::Int(1),
                    Param::Absent,
                    Param::Scalar(Element::U64, 0.5),
                    Param::Ints(vec![1, -1]),
                    Param::Text("PA_NZ".into()),
                ],
            }],
            steps: vec![
                Step {
                    kernel: 0,
                    args: vec![at(0, 192), at(192, 64), at(256, 192)],
                    issue: Issue { operator: Some(0), ..Issue::default() },
                    ..Step::default()
                },
                Step {
                    kernel: 1,
                    args: vec![at(256, 192)],
                    scalars: vec![Scalar::Int(2), Scalar::Float(0.5)],
                    issue: Issue { stream: 1, waits: vec![0], blocks: 40, operator: None },
                },
            ],
            chains: vec![],
        };
        let expected = "\
plan decode-bs2-ctx128 (2 rows, arena 512 bytes)
   0 aclnnMatmulWeightNz (arena+0:192, arena+192:64, arena+256:192) []
       MatmulWeightNz(#0 bf16[2,32] by [64,1] nd[96], #1 bf16[32,48] by [1,32] nz[2,3,16,16], \
#2 bf16[2,48], 1, -, u64 0.5, [1,-1], \"PA_NZ\")
   1 stream 1: after 0: rows_1f (arena+256:192) [2, 0.5] x40
";
        assert_eq!(plan.to_string(), expected);
    }
}
