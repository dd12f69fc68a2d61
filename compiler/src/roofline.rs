//! How long a decode step takes by its batch size, modelled: the longer of what memory and what
//! arithmetic need for the matrix products and the memory of sequences.

use crate::pools::{KV_BLOCKS, WINDOW_BLOCKS};
use ir::{Dim, Module, Op, Storage, Symbol};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How fast a device is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Bytes a second that it reads from memory.
    pub bytes_per_second: f64,
    /// Multiplications and additions a second.
    pub flops_per_second: f64,
    /// Seconds that a step takes without any work.
    pub step_seconds: f64,
}

/// What the rows of a step attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Tokens of a sequence.
    pub tokens: u32,
    /// Tokens of a sliding window, where layers have one.
    pub window: Option<u32>,
    /// Tokens in a KV block.
    pub block_tokens: u32,
}

/// What a decode step reads and computes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepWork {
    /// Bytes of weights that every step reads.
    pub weight_bytes: f64,
    /// Experts, of which a step reads those that its rows are routed to.
    pub experts: Vec<Experts>,
    /// Bytes of KV blocks and other memory that each row reads.
    pub row_bytes: f64,
    /// Multiplications and additions of each row.
    pub row_flops: f64,
}

/// Experts of equal number and choice, over all layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// How many a layer has.
    pub count: u64,
    /// How many each row is routed to.
    pub chosen: u64,
    /// Bytes of all of them in all layers.
    pub bytes: f64,
}

impl Experts {
    /// Bytes that `rows` rows read, when each expert is as likely as the others.
    fn hit_bytes(&self, rows: f64) -> f64 {
        let missed = 1.0 - self.chosen as f64 / self.count as f64;
        self.bytes * (1.0 - missed.max(0.0).powf(rows))
    }
}

impl StepWork {
    /// Of `@decode` in `module`, for rows with `context` tokens. Activations, routing and norms are left
    /// out: they are small beside weights and KV memory. `bits` are those that floats in products are
    /// going to be quantised to.
    pub fn of(module: &Module, context: Context, bits: Option<u64>) -> Self {
        let mut work = Self::default();
        let Some(func) = module.func("decode") else { return work };
        let mut experts: BTreeMap<(u64, u64), f64> = BTreeMap::new();
        for &n in &func.order {
            let node = &func.nodes[n];
            let Some(operand) = node.op.matmul_weight() else { continue };
            let ty = &func.values[node.args[operand]].ty;
            let Some(elements) = ty.const_dims().map(|d| d.iter().product::<u64>()) else {
                continue;
            };
            let stored = ty.bytes().unwrap_or_default() as f64;
            let bytes = match bits {
                Some(bits) if ty.dtype.is_float() => elements as f64 * bits as f64 / 8.0,
                _ => stored,
            };
            let grouped = matches!(
                node.op,
                Op::GroupedMatmul { .. }
                    | Op::GroupedQuantMatmul { .. }
                    | Op::GroupedMixedMatmul { .. }
                    | Op::GroupedDequantMatmul { .. }
            );
            // The order of the pairs, `[T,k]`, stands two operands before the weight.
            let order = operand.checked_sub(2).map(|i| &func.values[node.args[i]].ty);
            let chosen = order.and_then(|t| t.dims.get(1)).and_then(Dim::as_const);
            match (grouped, chosen, ty.dims[0].as_const()) {
                (true, Some(chosen), Some(count)) if count > 0 => {
                    *experts.entry((count, chosen)).or_default() += bytes;
                    work.row_flops += 2.0 * elements as f64 * chosen as f64 / count as f64;
                }
                _ => {
                    work.weight_bytes += bytes;
                    work.row_flops += 2.0 * elements as f64;
                }
            }
        }
        let entry = |((count, chosen), bytes)| Experts { count, chosen, bytes };
        work.experts = experts.into_iter().map(entry).collect();
        for &param in &func.params {
            let ty = &func.values[param].ty;
            if ty.storage == Storage::State {
                work.row_bytes += row_bytes(ty, context);
            }
        }
        work
    }

    /// Seconds of a step with `rows` rows.
    pub fn seconds(&self, rows: u32, rates: &Rates) -> f64 {
        let rows = f64::from(rows);
        let hit: f64 = self.experts.iter().map(|e| e.hit_bytes(rows)).sum();
        let bytes = self.weight_bytes + hit + self.row_bytes * rows;
        let memory = bytes / rates.bytes_per_second;
        let arithmetic = self.row_flops * rows / rates.flops_per_second;
        rates.step_seconds + memory.max(arithmetic)
    }
}

/// Bytes of a state that a row reads: of KV memory its tokens, of others one index.
fn row_bytes(ty: &ir::TensorType, context: Context) -> f64 {
    let symbols: Vec<&Symbol> = ty.symbols().collect();
    let [symbol] = symbols[..] else { return 0.0 };
    let one = ty.bind(&[(symbol.clone(), 1)].into()).bytes().unwrap_or_default() as f64;
    let Context { tokens, window, block_tokens } = context;
    let of = |tokens: u32| one / f64::from(block_tokens.max(1)) * f64::from(tokens);
    match symbol.name() {
        KV_BLOCKS => of(tokens),
        WINDOW_BLOCKS => of(tokens.min(window.unwrap_or(tokens))),
        _ => one,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "func @decode(%x: bf16[T,64], %order: i32[T,2], %starts: i32[9], \
         %kv: state bf16[NB,2,4,16,8], %conv: state bf16[NS,3,6]) {\n  \
         weight %w : bf16[32,64]\n  weight %e : bf16[8,16,64]\n  \
         %y = matmul %x, %w {out=bf16} : bf16[T,32]\n  \
         %z = grouped_matmul %x, %order, %starts, %e {out=bf16} : bf16[T,2,16]\n  \
         return %y, %z\n}\n";

    fn work(bits: Option<u64>) -> StepWork {
        let module = ir::text::parse("test.ir", MODULE).unwrap();
        let context = Context { tokens: 100, window: None, block_tokens: 16 };
        StepWork::of(&module, context, bits)
    }

    #[test]
    fn products_and_memory_are_counted() {
        let work = work(None);
        assert_eq!(work.weight_bytes, 32.0 * 64.0 * 2.0);
        let bytes = 8.0 * 16.0 * 64.0 * 2.0;
        assert_eq!(work.experts, [Experts { count: 8, chosen: 2, bytes }]);
        assert_eq!(work.row_flops, 2.0 * (32.0 * 64.0 + 2.0 * 16.0 * 64.0));
        assert_eq!(work.row_bytes, 100.0 * 2.0 * 4.0 * 8.0 * 2.0 + 3.0 * 6.0 * 2.0);
        let quantised = self::work(Some(4));
        assert_eq!(quantised.weight_bytes * 4.0, work.weight_bytes);
    }

    #[test]
    fn rows_hit_ever_more_experts() {
        let rates =
            Rates { bytes_per_second: 1.0, flops_per_second: f64::INFINITY, step_seconds: 3.0 };
        let work = StepWork { row_bytes: 0.0, ..work(None) };
        let read = |rows| work.seconds(rows, &rates) - 3.0 - work.weight_bytes;
        let all = work.experts[0].bytes;
        assert_eq!(read(1), all / 4.0);
        assert!(read(2) < all / 2.0 && read(4) > read(2) && read(200) > 0.999 * all);
        let slow = Rates { flops_per_second: 1.0, bytes_per_second: 1e9, step_seconds: 0.0 };
        assert_eq!(work.seconds(10, &slow), 10.0 * work.row_flops);
    }
}
