//! A function by itself, to run it on a device beside its interpretation.

use crate::{
    CompileError, KernelFile, Target,
    emit::{PlanName, Stored, emit},
    pack::WeightTable,
    recipe::{Recipes, constants},
    states::StateTable,
};
use artifact::{Phase, Plan, StateEntry};
use ir::{Bindings, Func};

/// A plan without weights: everything that the function reads is an input or a state.
#[derive(Debug)]
pub struct Single {
    /// The plan.
    pub plan: Plan,
    /// States, one for each parameter that is one, in order.
    pub states: Vec<StateEntry>,
    /// Bytes of all states.
    pub state_bytes: u64,
    /// Files that its calls need.
    pub files: Vec<KernelFile>,
}

/// The plan of `func`, whose dimensions are all numbers and which has no weights. Results that are
/// states are no outputs.
///
/// # Errors
/// [`CompileError`] when the target cannot compute an op, or a result is no result of an op.
pub fn single(func: &Func, target: &dyn Target) -> Result<Single, CompileError> {
    let mut recipes = Recipes::default();
    let constants = constants(func, &mut recipes)?;
    let states = StateTable::new([&constants.func], &Bindings::new())?;
    let mut weights = WeightTable::default();
    let stored = Stored { constants: &constants, recipes: &recipes, weights: &mut weights };
    let name =
        PlanName { name: func.name.clone(), phase: Phase::Decode, rows: 0, context_tokens: 0 };
    let emitted = emit(&constants.func, name, target, stored, &states)?;
    Ok(Single {
        plan: emitted.plan,
        state_bytes: states.bytes(),
        states: states.into_entries(),
        files: emitted.files,
    })
}
