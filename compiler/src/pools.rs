//! Memory that sequences share: KV blocks, blocks of sliding windows, slots of recurrent memory.

use crate::{Buckets, CompileError};
use artifact::{SequenceMemory, WindowMemory};
use ir::{Bindings, Dim, Module, Storage, Symbol, TensorType};
use std::collections::BTreeMap;

/// Symbols of the module, see [`crate::prepare`].
pub(crate) const KV_BLOCKS: &str = "NB";
pub(crate) const WINDOW_BLOCKS: &str = "NW";
pub(crate) const SEQUENCE_SLOTS: &str = "NS";

/// Memory that does not depend on how many KV blocks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pools {
    pub(crate) window: Option<WindowMemory>,
    pub(crate) sequences: Option<SequenceMemory>,
    /// Bytes of all layers for one KV block.
    pub(crate) kv_block_bytes: u64,
}

impl Pools {
    /// What the states of `module` ask for: a slot of recurrent memory for each running sequence,
    /// and blocks for the windows of all of them while one also writes its largest prefill chunk.
    ///
    /// # Errors
    /// [`CompileError::NoWindow`] when there is window memory but no `window` length.
    pub(crate) fn new(
        module: &Module,
        window: Option<u32>,
        buckets: &Buckets,
        block_tokens: u32,
    ) -> Result<Self, CompileError> {
        let running = buckets.decode.last().copied().unwrap_or(1);
        let largest_chunk = buckets.prefill.last().copied().unwrap_or(1);
        let window = match (states_over(module, WINDOW_BLOCKS).next(), window) {
            (None, _) => None,
            (Some((func, state, _)), None) => {
                let (func, state) = (func.to_owned(), state.to_owned());
                return Err(CompileError::NoWindow { func, state });
            }
            (Some(_), Some(tokens)) => {
                // A window that begins inside a block touches one more.
                let each = tokens.saturating_sub(1).div_ceil(block_tokens).saturating_add(1);
                let chunk = largest_chunk.div_ceil(block_tokens) + 1;
                let blocks = running.saturating_mul(each).saturating_add(chunk);
                let bytes_per_block = bytes_over(module, WINDOW_BLOCKS);
                Some(WindowMemory { tokens, blocks, bytes_per_block })
            }
        };
        let sequences = states_over(module, SEQUENCE_SLOTS).next().is_some().then(|| {
            let bytes_per_slot = bytes_over(module, SEQUENCE_SLOTS);
            SequenceMemory { slots: running, bytes_per_slot }
        });
        Ok(Self { window, sequences, kv_block_bytes: bytes_over(module, KV_BLOCKS) })
    }

    /// Numbers for the symbols, the spare block or slot of each pool included.
    pub(crate) fn bindings(&self, kv_blocks: u32) -> Bindings {
        let mut bindings = Bindings::from([(Symbol::new(KV_BLOCKS), u64::from(kv_blocks) + 1)]);
        if let Some(window) = self.window {
            bindings.insert(Symbol::new(WINDOW_BLOCKS), u64::from(window.blocks) + 1);
        }
        if let Some(sequences) = self.sequences {
            bindings.insert(Symbol::new(SEQUENCE_SLOTS), u64::from(sequences.slots) + 1);
        }
        bindings
    }

    /// Bytes of all window blocks, the spare one included.
    pub(crate) fn window_bytes(&self) -> u64 {
        self.window.map_or(0, |w| (u64::from(w.blocks) + 1) * w.bytes_per_block)
    }

    /// Bytes of all slots of recurrent memory, the spare one included.
    pub(crate) fn sequence_bytes(&self) -> u64 {
        self.sequences.map_or(0, |s| (u64::from(s.slots) + 1) * s.bytes_per_slot)
    }
}

/// Function, name and type of each state with the dimension `symbol`, at its first mention.
fn states_over<'a>(
    module: &'a Module,
    symbol: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str, &'a TensorType)> {
    let symbol = Dim::sym(symbol);
    let mut first: BTreeMap<&str, (&str, &TensorType)> = BTreeMap::new();
    for func in &module.funcs {
        for &p in &func.params {
            let value = &func.values[p];
            if value.ty.storage == Storage::State && value.ty.dims.contains(&symbol) {
                first.entry(&value.name).or_insert((&func.name, &value.ty));
            }
        }
    }
    first.into_iter().map(|(name, (func, ty))| (func, name, ty))
}

/// Bytes of one index of the dimension `symbol` over all states.
fn bytes_over(module: &Module, symbol: &str) -> u64 {
    let one = Bindings::from([(Symbol::new(symbol), 1)]);
    states_over(module, symbol).filter_map(|(_, _, ty)| ty.bind(&one).bytes()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose;

    const MODULE: &str = "func @decode(%sequences: i32[T], %kv.0: state bf16[NB,2,4,16,8], \
         %window_kv.1: state bf16[NW,2,4,16,8], %conv.2: state bf16[NS,3,6], \
         %delta.2: state f32[NS,2,4,4]) {\n  return %sequences\n}\n\
         func @prefill(%kv.0: state bf16[NB,2,4,16,8], %window_kv.1: state bf16[NW,2,4,16,8], \
         %latent.3: state bf16[NB,16,8]) {\n  return %kv.0\n}\n";

    fn module() -> Module {
        ir::text::parse("test.ir", MODULE).unwrap()
    }

    #[test]
    fn every_kind_of_memory_is_counted_once() {
        let buckets = choose(&[1, 24], None, &[64, 100], &[], 4096, 16);
        let pools = Pools::new(&module(), Some(128), &buckets, 16).unwrap();
        assert_eq!(pools.kv_block_bytes, 2 * 4 * 16 * 8 * 2 + 16 * 8 * 2);
        // 127 older tokens lie in 8 blocks and a part of one more; a chunk of 100 in 7 and a part.
        let window = WindowMemory { tokens: 128, blocks: 24 * 9 + 8, bytes_per_block: 2048 };
        assert_eq!(pools.window, Some(window));
        let bytes_per_slot = 3 * 6 * 2 + 2 * 4 * 4 * 4;
        assert_eq!(pools.sequences, Some(SequenceMemory { slots: 24, bytes_per_slot }));
        assert_eq!(pools.window_bytes(), 225 * 2048);
        assert_eq!(pools.sequence_bytes(), 25 * bytes_per_slot);
        let bound: Vec<u64> = pools.bindings(7).into_values().collect();
        assert_eq!(bound, [8, 25, 225], "NB, NS, NW with a spare one each");
    }

    #[test]
    fn plain_models_have_no_such_memory() {
        let text = "func @decode(%kv.0: state bf16[NB,2,4,16,8]) {\n  return %kv.0\n}\n";
        let module = ir::text::parse("test.ir", text).unwrap();
        let pools = Pools::new(&module, Some(128), &choose(&[1], None, &[64], &[], 64, 16), 16);
        let pools = pools.unwrap();
        assert_eq!((pools.window, pools.sequences), (None, None));
        assert_eq!(pools.bindings(7).len(), 1);
    }

    #[test]
    fn window_memory_needs_a_window() {
        let buckets = choose(&[1], None, &[64], &[], 4096, 16);
        let error = Pools::new(&module(), None, &buckets, 16).unwrap_err().to_string();
        assert!(error.contains("@decode has the sliding-window memory %window_kv.1"), "{error}");
    }
}
