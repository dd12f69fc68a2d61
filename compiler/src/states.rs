//! Persistent memories: one place for each name, the same for all plans.

use crate::{
    CompileError,
    pools::{KV_BLOCKS, SEQUENCE_SLOTS, WINDOW_BLOCKS},
};
use artifact::{Pool, StateEntry};
use ir::{Bindings, Dim, Func, Storage, TensorType};

const ALIGN: u64 = 4096;

/// Every state of a module with its place in the state space.
pub(crate) struct StateTable(Vec<StateEntry>);

impl StateTable {
    /// States of the functions of a module in order of first mention. Their dimensions must be numbers under `bindings`.
    ///
    /// # Errors
    /// [`CompileError::StateType`] when two functions give a state different types.
    pub(crate) fn new<'a>(
        funcs: impl IntoIterator<Item = &'a Func>,
        bindings: &Bindings,
    ) -> Result<Self, CompileError> {
        let mut entries: Vec<StateEntry> = Vec::new();
        let mut end = 0u64;
        for func in funcs {
            for &p in &func.params {
                let value = &func.values[p];
                if value.ty.storage != Storage::State {
                    continue;
                }
                let ty = value.ty.bind(bindings);
                let dims = ty.const_dims().expect("the dimensions of states are bound");
                if let Some(known) = entries.iter().find(|e| e.name == value.name) {
                    if (known.dtype, &known.dims) != (ty.dtype, &dims) {
                        let (func, state) = (func.name.clone(), value.name.clone());
                        return Err(CompileError::StateType { func, state });
                    }
                    continue;
                }
                let bytes = ty.bytes().expect("the dimensions of states are bound");
                let offset = end.next_multiple_of(ALIGN);
                end = offset + bytes;
                entries.push(StateEntry {
                    name: value.name.clone(),
                    dtype: ty.dtype,
                    dims,
                    pool: pool(&value.ty),
                    offset,
                    bytes,
                });
            }
        }
        Ok(Self(entries))
    }

    pub(crate) fn offset(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|e| e.name == name).map(|e| e.offset)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.last().map_or(0, |e| (e.offset + e.bytes).next_multiple_of(ALIGN))
    }

    pub(crate) fn entries(&self) -> &[StateEntry] {
        &self.0
    }

    pub(crate) fn into_entries(self) -> Vec<StateEntry> {
        self.0
    }
}

/// The pool that a state of this type belongs to.
fn pool(ty: &TensorType) -> Option<Pool> {
    let pools =
        [(KV_BLOCKS, Pool::Kv), (WINDOW_BLOCKS, Pool::Window), (SEQUENCE_SLOTS, Pool::Sequences)];
    pools.into_iter().find(|(symbol, _)| ty.dims.contains(&Dim::sym(symbol))).map(|(_, p)| p)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::Symbol;

    /// Two functions that store into a state `%h`, with these types.
    fn table(first: &str, second: &str) -> Result<StateTable, CompileError> {
        let func = |name: &str, ty: &str| {
            format!(
                "func @{name}(%x: f32[2,4], %h: state {ty}) {{\n  \
                   %next = store_rows %h, %x : state {ty}\n  \
                   return %next\n}}\n"
            )
        };
        let text = func("prefill", first) + &func("head", second);
        let module = ir::text::parse("test.ir", &text).expect("the text is correct");
        StateTable::new(&module.funcs, &Bindings::from([(Symbol::new("R"), 8)]))
    }

    #[test]
    fn functions_share_a_state_of_one_type() {
        let states = table("f32[R,4]", "f32[8,4]").unwrap();
        assert_eq!(states.offset("h"), Some(0));
        assert_eq!(states.bytes(), ALIGN);
        assert_eq!(states.into_entries().len(), 1);
        let error = table("f32[R,4]", "f32[16,4]").err().unwrap().to_string();
        assert!(error.contains("@head declares the state %h with another type"), "{error}");
    }
}
