//! What a call reads and computes at least, from its scalars: see `codegen-cpu/KERNELS.md`.

use super::feed::Feed;
use artifact::{Scalar, Space, Step};
use codegen_cpu::probe::Peak;
use std::ops::AddAssign;

/// What is multiplied, which decides by how fast an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Operands {
    F32,
    Bf16,
    Int16,
    Int8,
    /// With inputs of 8 bits.
    Int4,
}

impl Operands {
    pub(super) const ALL: [Operands; 5] =
        [Operands::F32, Operands::Bf16, Operands::Int16, Operands::Int8, Operands::Int4];

    /// Name in reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Operands::F32 => "f32",
            Operands::Bf16 => "bf16",
            Operands::Int16 => "int16",
            Operands::Int8 => "int8",
            Operands::Int4 => "int4",
        }
    }

    /// Whether an instruction multiplies them; the fastest that a machine has is its limit.
    pub(super) fn multiplied_by(self, peak: Peak) -> bool {
        match peak {
            Peak::F32MultiplyAdd => true,
            // Of bytes that meet both bytes of 16 bits there are twice as many products, which are twice as fast.
            Peak::Bf16DotProduct | Peak::AmxBf16 => matches!(self, Self::Bf16 | Self::Int16),
            Peak::Int16MultiplyAdd => matches!(self, Self::Int16 | Self::Int8 | Self::Int4),
            Peak::Int8DotProduct | Peak::AmxInt8 => matches!(self, Self::Int8 | Self::Int4),
            Peak::Int4MultiplyAdd => self == Self::Int4,
        }
    }
}

/// What a call cannot do without: bytes that no cache holds, and arithmetic. What it passes on in the
/// arena is neither.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// Bytes of weights that it reads.
    pub(super) weight_bytes: f64,
    /// Bytes of keys, values and other persistent memory that it reads and writes.
    pub(super) state_bytes: f64,
    /// Multiplications and additions of products and attention.
    pub(super) ops: [f64; Operands::ALL.len()],
}

impl Work {
    pub(super) fn bytes(&self) -> f64 {
        self.weight_bytes + self.state_bytes
    }

    pub(super) fn all_ops(&self) -> f64 {
        self.ops.iter().sum()
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.weight_bytes += other.weight_bytes;
        self.state_bytes += other.state_bytes;
        for (sum, ops) in self.ops.iter_mut().zip(other.ops) {
            *sum += ops;
        }
    }
}

/// A call: the name of the kernel, and its place in the plan.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) kernel: &'a str,
    pub(super) step: &'a Step,
}

impl<'a> Call<'a> {
    /// Scalar `i`, a count.
    fn n(&self, i: usize) -> u64 {
        match self.step.scalars.get(i) {
            Some(Scalar::Int(n)) => *n,
            _ => 0,
        }
    }

    /// The kernel, without what says that it goes on after a product.
    fn name(&self) -> &'a str {
        self.kernel.strip_prefix("linear_").unwrap_or(self.kernel)
    }

    fn begins(&self, with: &[&str]) -> bool {
        with.iter().any(|prefix| self.name().starts_with(prefix))
    }

    /// Rows, outputs and inputs of a product.
    fn product(&self) -> Option<(u64, u64, u64)> {
        if self.begins(&["grouped_"]) {
            Some((self.n(0) * self.n(1), self.n(4), self.n(5)))
        } else if self.begins(&["matmul_", "quant_matmul_", "static_matmul_", "dequant_matmul_"]) {
            Some((self.n(0), self.n(1), self.n(2)))
        } else {
            None
        }
    }

    /// Where the bounds of the experts' rows lie among the buffers, and how many experts there are;
    /// `None` for what is no product by expert.
    pub(super) fn expert_starts(&self) -> Option<(usize, usize)> {
        let at = match self.name().strip_prefix("grouped_")?.strip_prefix("quant_matmul_") {
            // Types of the weight and of the result: inputs are codes, with scales.
            Some(types) if types.split('_').count() == 2 => 3,
            _ => 2,
        };
        Some((at, self.n(3) as usize))
    }

    fn weight_bytes(&self) -> f64 {
        let weights = self.step.args.iter().filter(|at| at.space == Space::Weights);
        weights.map(|at| at.bytes as f64).sum()
    }

    /// What it has to do for `feed`; `met` experts have rows.
    pub(super) fn work(&self, feed: &Feed, met: Option<usize>) -> Work {
        let mut work = Work { weight_bytes: self.weight_bytes(), ..Work::default() };
        if let (Some(met), Some((_, experts))) = (met, self.expert_starts()) {
            work.weight_bytes *= met as f64 / experts.max(1) as f64;
        }
        if self.begins(&["embed_"]) {
            work.weight_bytes *= self.n(0) as f64 / self.n(1).max(1) as f64;
        }
        let (ops, state_bytes) = self.arithmetic_and_state(feed);
        work.ops[self.operands() as usize] = ops;
        work.state_bytes = state_bytes;
        work
    }

    /// What it multiplies, by its name.
    fn operands(&self) -> Operands {
        let name = self.name().strip_prefix("grouped_").unwrap_or(self.name());
        let has = |word: &str| name.split('_').any(|w| w == word);
        if name.starts_with("static_matmul_") || name.starts_with("quant_matmul_") && !has("fp8") {
            return if has("i4") { Operands::Int4 } else { Operands::Int8 };
        }
        if has("compact") {
            return Operands::Bf16;
        }
        if has("attention") && has("i8") {
            // Codes meet numbers of two bytes.
            return Operands::Int16;
        }
        // The first type is that of the weights or the memory; codes meet inputs of the second.
        let first = name.split('_').find(|w| ["f32", "bf16"].contains(w));
        if first == Some("f32") && !name.starts_with("quant_matmul_") {
            Operands::F32
        } else {
            Operands::Bf16
        }
    }

    /// Operations, and bytes of state.
    fn arithmetic_and_state(&self, feed: &Feed) -> (f64, f64) {
        let n = |i| self.n(i) as f64;
        let element = if self.name().split('_').any(|w| w == "bf16") { 2.0 } else { 4.0 };
        // The type of the cache comes before that of the result.
        let mut types = self.name().split('_').filter(|w| ["f32", "bf16", "i8"].contains(w));
        let (cache, scale) = match types.next() {
            Some("i8") => (1.0, ir::SCALE_BYTES as f64),
            Some("bf16") => (2.0, 0.0),
            Some(_) => (4.0, 0.0),
            None => (element, 0.0),
        };
        if let Some((rows, outputs, inputs)) = self.product() {
            return (2.0 * rows as f64 * outputs as f64 * inputs as f64, 0.0);
        }
        match self.name() {
            name if name.starts_with("head_matmul_") => (2.0 * n(0) * n(1) * n(2) * n(3), 0.0),
            name if name.starts_with("attention_") || name.starts_with("sink_attention_") => {
                let window = if name.starts_with("sink_") { self.n(10) } else { 0 };
                let (heads, kv_heads, d) = (n(3), n(4), n(5));
                let seen = feed.seen(window);
                let token = 2.0 * kv_heads * (d * cache + scale);
                (4.0 * heads * d * seen.by_rows, token * seen.by_sequences)
            }
            name if name.contains("latent_attention_") => {
                let (heads, latent, rope) = (n(3), n(4), n(5));
                let mut seen = feed.seen(0);
                if name.starts_with("sparse_") {
                    seen = feed.chosen(self.n(11));
                }
                let ops = 2.0 * heads * (2.0 * latent + rope) * seen.by_rows;
                (ops, (latent + rope) * cache * seen.by_sequences)
            }
            name if name.starts_with("select_keys_") => {
                let (heads, d, seen) = (n(3), n(4), feed.seen(0));
                (2.0 * heads * d * seen.by_rows, d * cache * seen.by_sequences)
            }
            name if name.starts_with("kv_write_") => {
                (0.0, 2.0 * n(0) * n(1) * (n(2) * cache + scale))
            }
            name if name.starts_with("paged_write_") => (0.0, n(0) * n(1) * cache),
            name if name.starts_with("causal_conv_") => {
                (0.0, 2.0 * feed.sequences() as f64 * n(1) * (n(2) - 1.0) * cache)
            }
            // Memories of f32.
            "gated_delta" => (0.0, 2.0 * feed.sequences() as f64 * n(3) * n(4) * n(5) * 4.0),
            _ => (0.0, 0.0),
        }
    }

    /// Its size, for people.
    pub(super) fn shape(&self) -> String {
        if let Some((rows, outputs, inputs)) = self.product() {
            let by_expert = self.expert_starts();
            let experts = by_expert.map_or(String::new(), |(_, e)| format!(", {e} experts"));
            return format!("{rows} x {inputs} -> {outputs}{experts}{}", self.end());
        }
        let n = |i| self.n(i);
        if self.begins(&["head_matmul_"]) {
            return format!("{} x {} heads x {} -> {}", n(0), n(1), n(3), n(2));
        }
        if self.begins(&["attention_", "sink_attention_"]) {
            return format!("{} rows, {} heads of {}, {} of keys", n(0), n(3), n(5), n(4));
        }
        if self.begins(&["latent_attention_", "sparse_latent_attention_"]) {
            return format!("{} rows, {} heads of {} + {}", n(0), n(3), n(4), n(5));
        }
        let ints = self.step.scalars.iter().map_while(|s| match s {
            Scalar::Int(n) => Some(n.to_string()),
            Scalar::Float(_) => None,
        });
        ints.take(2).collect::<Vec<_>>().join(" x ")
    }

    /// What a product does with its sums.
    fn end(&self) -> String {
        const SCALARS: usize = 8;
        let begin = self.step.scalars.len().saturating_sub(SCALARS);
        if self.name() == self.kernel {
            return String::new();
        }
        let mut text = String::new();
        for (i, what) in [(0, "bias"), (1, "gate"), (2, "residual"), (3, "argmax"), (4, "top_k")] {
            if self.n(begin + i) > 0 {
                text = format!("{text}, {what}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(scalars: &[u64]) -> Step {
        let scalars = scalars.iter().map(|&n| Scalar::Int(n)).collect();
        Step { scalars, ..Step::default() }
    }

    #[test]
    fn operands_are_those_of_the_fastest_way_to_multiply() {
        for (kernel, operands) in [
            ("matmul_bf16_f32", Operands::Bf16),
            ("linear_matmul_compact_f32", Operands::Bf16),
            ("grouped_matmul_compact_f32", Operands::Bf16),
            ("linear_matmul_f32_f32", Operands::F32),
            ("quant_matmul_i8_bf16", Operands::Int8),
            ("linear_grouped_quant_matmul_i4_f32", Operands::Int4),
            ("static_matmul_i8_f32", Operands::Int8),
            ("linear_static_matmul_i8_f32_bf16", Operands::Int8),
            ("linear_quant_matmul_i4_f32_f32", Operands::Int4),
            ("quant_matmul_fp8_f32", Operands::Bf16),
            ("quant_matmul_fp8_f32_f32", Operands::Bf16),
            ("dequant_matmul_fp8_f32_bf16", Operands::F32),
            ("grouped_dequant_matmul_mxfp4_bf16_f32", Operands::Bf16),
            ("head_matmul_bf16_f32", Operands::Bf16),
            ("attention_bf16_f32", Operands::Bf16),
            ("sink_attention_i8_f32", Operands::Int16),
            ("sparse_latent_attention_f32_bf16", Operands::F32),
        ] {
            let step = step(&[]);
            assert_eq!(Call { kernel, step: &step }.operands(), operands, "{kernel}");
        }
    }

    #[test]
    fn what_multiplies_wide_integers_multiplies_narrow_ones() {
        for peak in Peak::ALL {
            let by = |operands: Operands| operands.multiplied_by(peak);
            assert!(Operands::ALL.into_iter().any(by), "{peak:?}");
            assert!(by(Operands::Int8) <= by(Operands::Int4), "{peak:?}");
            if !Peak::FLOATS.contains(&peak) {
                assert!(by(Operands::Int16) <= by(Operands::Int8), "{peak:?}");
            }
        }
    }

    #[test]
    fn products_count_rows_outputs_and_inputs() {
        let dense = step(&[3, 128, 64, 64, 128]);
        let call = Call { kernel: "matmul_bf16_f32", step: &dense };
        assert_eq!(call.arithmetic_and_state(&Feed::of(&[1], 1)), (2.0 * 3.0 * 128.0 * 64.0, 0.0));
        assert_eq!(call.shape(), "3 x 64 -> 128");
        let by_expert = step(&[3, 2, 0, 16, 128, 64, 64, 1, 64, 128, 0, 1, 1, 0, 0, 128]);
        let call = Call { kernel: "linear_grouped_quant_matmul_i8_f32", step: &by_expert };
        assert_eq!(call.expert_starts(), Some((3, 16)));
        assert_eq!(call.shape().split(',').next(), Some("6 x 64 -> 128"));
        // Rows of floats have no scales beside them.
        let call = Call { kernel: "linear_grouped_quant_matmul_i8_f32_f32", step: &by_expert };
        assert_eq!(call.expert_starts(), Some((2, 16)));
        assert_eq!(call.shape().split(',').next(), Some("6 x 64 -> 128"));
    }

    #[test]
    fn attention_reads_a_window_once_for_the_rows_of_a_sequence() {
        // 10 rows of a sequence that had 10 tokens before.
        let feed = Feed::of(&(11..=20).collect::<Vec<_>>(), 10);
        let sinks = step(&[10, 1, 2, 6, 2, 16, 16, 0, 96, 96, 4]);
        let call = Call { kernel: "sink_attention_bf16_f32", step: &sinks };
        let (ops, bytes) = call.arithmetic_and_state(&feed);
        assert_eq!(ops, 4.0 * 6.0 * 16.0 * 40.0);
        assert_eq!(bytes, 2.0 * 2.0 * 16.0 * 2.0 * 13.0);
        let codes = Call { kernel: "sink_attention_i8_f32", step: &sinks };
        assert_eq!(codes.arithmetic_and_state(&feed), (ops, 2.0 * 2.0 * (16.0 + 4.0) * 13.0));
        let plain = Call { kernel: "attention_f32_bf16", step: &sinks };
        let (ops, bytes) = plain.arithmetic_and_state(&feed);
        assert_eq!(ops, 4.0 * 6.0 * 16.0 * 155.0);
        assert_eq!(bytes, 2.0 * 2.0 * 16.0 * 4.0 * 20.0);
    }
}
