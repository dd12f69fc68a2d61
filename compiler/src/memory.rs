//! How much KV memory there is, and whether everything fits.

use crate::CompileError;
use artifact::Plan;
use std::fmt;

/// Tokens that the default KV memory holds for each running sequence.
const DEFAULT_TOKENS: u32 = 4096;

/// How much KV memory to plan for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvBudget {
    /// 4,096 tokens for every running sequence or one longest context, whichever is more, as far
    /// as the memory limit allows.
    Default,
    /// This many blocks.
    Blocks(u32),
    /// What weights and arena leave of this fraction of the memory limit.
    Fraction(f64),
}

/// What the rest of the artifact leaves for KV memory, and what sequences want of it.
pub(crate) struct Demand {
    /// Weights, arena, hidden states and the spare block.
    pub(crate) fixed_bytes: u64,
    /// One block over all layers.
    pub(crate) block_bytes: u64,
    pub(crate) block_tokens: u32,
    /// Longest context, in tokens.
    pub(crate) max_context: u32,
    /// The most sequences that decode at once.
    pub(crate) running: u32,
}

impl Demand {
    /// Blocks to plan for. Too few for one context is no error here: [`check`] names what is too
    /// big.
    pub(crate) fn blocks(&self, budget: KvBudget, limit: Option<u64>) -> Result<u32, CompileError> {
        let one_context = self.max_context.div_ceil(self.block_tokens);
        let each = self.max_context.min(DEFAULT_TOKENS).div_ceil(self.block_tokens);
        let wanted = one_context.max(self.running.saturating_mul(each));
        let fit = |limit: u64| {
            let blocks = limit.saturating_sub(self.fixed_bytes) / self.block_bytes.max(1);
            u32::try_from(blocks).unwrap_or(u32::MAX)
        };
        match (budget, limit) {
            (KvBudget::Blocks(n), _) => Ok(n.max(1)),
            (KvBudget::Fraction(f), Some(limit)) => Ok(fit((limit as f64 * f) as u64).max(1)),
            (KvBudget::Fraction(_), None) => Err(CompileError::NoMemoryLimit),
            (KvBudget::Default, None) => Ok(wanted),
            (KvBudget::Default, Some(limit)) => Ok(wanted.min(fit(limit)).max(one_context)),
        }
    }
}

/// Bytes that one plan needs, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanMemory {
    /// Packed weights.
    pub weights_bytes: u64,
    /// KV blocks and hidden states.
    pub kv_bytes: u64,
    /// KV blocks of layers with a sliding window.
    pub window_bytes: u64,
    /// Memory of fixed size for each running sequence.
    pub sequence_bytes: u64,
    /// The plan's arena.
    pub arena_bytes: u64,
}

impl PlanMemory {
    /// Everything together.
    pub fn total(&self) -> u64 {
        let Self { weights_bytes, kv_bytes, window_bytes, sequence_bytes, arena_bytes } = *self;
        weights_bytes + kv_bytes + window_bytes + sequence_bytes + arena_bytes
    }

    /// What to do when it is more than `limit` bytes.
    pub(crate) fn remedy(&self, limit: u64) -> &'static str {
        let for_sequences = self.window_bytes + self.sequence_bytes;
        if self.weights_bytes > limit {
            "the weights alone are too large: choose --quantize, or raise --memory"
        } else if self.kv_bytes + self.arena_bytes < for_sequences {
            "lower --max-running-requests, or raise --memory"
        } else {
            "lower --max-context, --kv-blocks or --graph-bs, or raise --memory"
        }
    }
}

impl fmt::Display for PlanMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights_bytes, kv_bytes, window_bytes, sequence_bytes, arena_bytes } = self;
        write!(f, "weights {weights_bytes}, KV and hidden states {kv_bytes}, ")?;
        if *window_bytes > 0 {
            write!(f, "sliding-window blocks {window_bytes}, ")?;
        }
        if *sequence_bytes > 0 {
            write!(f, "recurrent memory {sequence_bytes}, ")?;
        }
        write!(f, "arena {arena_bytes}")
    }
}

/// Checks that every plan fits; `fixed` is what all plans need, without an arena.
///
/// # Errors
/// [`CompileError::DoesNotFit`] names the first plan that does not.
pub(crate) fn check<'a>(
    plans: impl Iterator<Item = &'a Plan>,
    fixed: &PlanMemory,
    limit: Option<u64>,
) -> Result<(), CompileError> {
    let Some(limit_bytes) = limit else { return Ok(()) };
    for plan in plans {
        let demand = PlanMemory { arena_bytes: plan.arena_bytes, ..*fixed };
        if demand.total() > limit_bytes {
            return Err(CompileError::DoesNotFit { plan: plan.name.clone(), demand, limit_bytes });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: Demand = Demand {
        fixed_bytes: 1000,
        block_bytes: 10,
        block_tokens: 16,
        max_context: 32768,
        running: 24,
    };

    fn blocks(budget: KvBudget, limit: Option<u64>) -> u32 {
        DEMAND.blocks(budget, limit).unwrap()
    }

    #[test]
    fn the_default_holds_the_running_sequences_as_far_as_memory_allows() {
        assert_eq!(blocks(KvBudget::Default, None), 24 * 256);
        assert_eq!(blocks(KvBudget::Default, Some(1_000_000)), 24 * 256);
        assert_eq!(blocks(KvBudget::Default, Some(1000 + 30_000)), 3000);
        assert_eq!(blocks(KvBudget::Default, Some(1000)), 2048, "one context, which will not fit");
    }

    #[test]
    fn the_error_names_what_is_too_big() {
        let fixed = PlanMemory { weights_bytes: 100, kv_bytes: 20, ..Default::default() };
        let error = |fixed: PlanMemory, limit_bytes: u64| {
            let plan = "decode-bs1-ctx16".to_owned();
            CompileError::DoesNotFit { plan, demand: fixed, limit_bytes }.to_string()
        };
        let weights = error(fixed, 90);
        assert!(
            weights.contains("needs 120 bytes (weights 100, KV and hidden states 20, arena 0)")
        );
        assert!(weights.contains("limit is 90; the weights alone"), "{weights}");
        assert!(error(fixed, 110).contains("lower --max-context"));
        let recurrent = error(PlanMemory { window_bytes: 5, sequence_bytes: 60, ..fixed }, 150);
        assert!(recurrent.contains("sliding-window blocks 5, recurrent memory 60"), "{recurrent}");
        assert!(recurrent.contains("lower --max-running-requests"), "{recurrent}");
    }

    #[test]
    fn a_fraction_is_of_the_limit() {
        assert_eq!(blocks(KvBudget::Fraction(0.5), Some(4000)), 100);
        assert_eq!(blocks(KvBudget::Blocks(7), None), 7);
        assert!(DEMAND.blocks(KvBudget::Fraction(0.5), None).is_err());
    }
}
