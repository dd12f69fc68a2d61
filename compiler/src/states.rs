//! Persistent memories: one place for each name, the same for all plans.

use artifact::StateEntry;
use ir::{Bindings, Module, Storage};

const ALIGN: u64 = 4096;

/// Every state of a module with its place in the state space.
pub(crate) struct StateTable(Vec<StateEntry>);

impl StateTable {
    /// States in order of first mention. Their dimensions must be numbers under `bindings`.
    pub(crate) fn new(module: &Module, bindings: &Bindings) -> Self {
        let mut entries: Vec<StateEntry> = Vec::new();
        let mut end = 0u64;
        for func in &module.funcs {
            for &p in &func.params {
                let value = &func.values[p];
                let known = entries.iter().any(|e| e.name == value.name);
                if value.ty.storage != Storage::State || known {
                    continue;
                }
                let ty = value.ty.bind(bindings);
                let dims = ty.const_dims().expect("the dimensions of states are bound");
                let bytes = ty.bytes().expect("the dimensions of states are bound");
                let offset = end.next_multiple_of(ALIGN);
                end = offset + bytes;
                entries.push(StateEntry {
                    name: value.name.clone(),
                    dtype: ty.dtype,
                    dims,
                    offset,
                    bytes,
                });
            }
        }
        Self(entries)
    }

    pub(crate) fn offset(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|e| e.name == name).map(|e| e.offset)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.last().map_or(0, |e| (e.offset + e.bytes).next_multiple_of(ALIGN))
    }

    pub(crate) fn into_entries(self) -> Vec<StateEntry> {
        self.0
    }
}
