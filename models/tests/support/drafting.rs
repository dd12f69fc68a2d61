//! A draft on the interpreter, fed the way an engine would feed it.

use crate::{
    run::{BLOCKS, HIDDEN_ROWS, bindings, ints, load, poisoned, states},
    support::F32,
};
use ir::{
    DType, Func, Module,
    interp::{self, Tensor},
};
use precast_models::{BuildOptions, draft::Draft};
use std::collections::HashMap;

const BLOCK: usize = F32.kv_block_tokens as usize;

/// The draft of one sequence with its memories.
pub(crate) struct Drafting {
    module: Module,
    weights: HashMap<String, Tensor>,
    states: Vec<Tensor>,
    /// What the draft knows after its last step.
    pub(crate) hidden: Tensor,
    target_ids: Option<Vec<u32>>,
}

impl Drafting {
    pub(crate) fn new(draft: &Draft, hidden: u64) -> Self {
        Self::built(draft, hidden, &F32)
    }

    /// [`Drafting::new`] with other types than f32.
    pub(crate) fn built(draft: &Draft, hidden: u64, options: &BuildOptions) -> Self {
        let module = draft.build(options);
        let states = states(module.func("draft_start").unwrap(), &bindings(1, 1));
        Self {
            module,
            weights: load(draft.source()),
            states,
            hidden: poisoned(DType::F32, vec![HIDDEN_ROWS as u64, hidden]),
            target_ids: draft.target_ids().map(<[u32]>::to_vec),
        }
    }

    /// Makes `@draft_prefill` return the value called `name` first.
    pub(crate) fn expose(&mut self, name: &str) {
        let f = self.module.funcs.iter_mut().find(|f| f.name == "draft_prefill").unwrap();
        let value = f.values.iter().find(|(_, v)| v.name == name).unwrap().0;
        let results = std::iter::once(value).chain(f.results.iter().copied()).collect();
        f.set_results(results);
    }

    /// Runs `function` on pairs from position `first` on, which read the first rows of `features`,
    /// or row `row` of what the draft knows. Returns what precedes the states.
    pub(crate) fn step(
        &mut self,
        function: &str,
        tokens: &[usize],
        first: usize,
        features: Option<&Tensor>,
        row: usize,
    ) -> Vec<Tensor> {
        let f = self.module.func(function).unwrap();
        let width = (first + tokens.len()).div_ceil(BLOCK);
        let inputs = self.inputs(f, tokens, first, width, features, row);
        let weights = |name: &str| self.weights[name].clone();
        let bound = bindings(tokens.len(), width);
        let mut results = interp::run(f, &inputs, &weights, &bound).unwrap();
        self.hidden = results.pop().unwrap();
        self.states = results.split_off(results.len() - self.states.len());
        results
    }

    fn inputs(
        &self,
        f: &Func,
        tokens: &[usize],
        first: usize,
        width: usize,
        features: Option<&Tensor>,
        row: usize,
    ) -> Vec<Tensor> {
        // Not the blocks of the main model, and not in order.
        let block = |i: usize| (i * 7 + 3) % (BLOCKS - 1);
        let positions: Vec<usize> = (first..first + tokens.len()).collect();
        let slots: Vec<usize> =
            positions.iter().map(|p| block(p / BLOCK) * BLOCK + p % BLOCK).collect();
        let mut states = self.states.iter();
        let input = |param: &ir::Value| match &param.name[..] {
            "token_ids" => ints(tokens),
            "positions" => ints(&positions),
            "slots" => ints(&slots),
            "block_table" => {
                let sequences =
                    param.ty.bind(&bindings(tokens.len(), width)).const_dims().unwrap()[0];
                let one = (0..width).map(|i| block(i) as f64);
                let all = (0..sequences).flat_map(|_| one.clone()).collect();
                Tensor::new(DType::I32, vec![sequences as usize, width], all)
            }
            "rows" if features.is_some() => ints(&(0..tokens.len()).collect::<Vec<_>>()),
            "rows" => ints(&[row]),
            "features" => features.unwrap().clone(),
            "draft_hidden" => self.hidden.clone(),
            _ => states.next().unwrap().clone(),
        };
        f.params.iter().map(|&p| &f.values[p]).map(input).collect()
    }

    /// The target's id of the draft's token.
    pub(crate) fn target_id(&self, own: usize) -> usize {
        self.target_ids.as_ref().map_or(own, |ids| ids[own] as usize)
    }

    /// Tokens that follow pairs, which begin at position `first` and end in the newest token.
    pub(crate) fn chain(
        &mut self,
        function: &str,
        tokens: &[usize],
        first: usize,
        features: &Tensor,
        steps: usize,
    ) -> Vec<usize> {
        let last = |results: &[Tensor]| *results[1].data().last().unwrap() as usize;
        let results = self.step(function, tokens, first, Some(features), 0);
        let mut drafted = vec![self.target_id(last(&results))];
        let (mut row, mut position) = (tokens.len() - 1, first + tokens.len());
        while drafted.len() < steps {
            let token = drafted[drafted.len() - 1];
            let results = self.step("draft_next", &[token], position, None, row);
            drafted.push(self.target_id(last(&results)));
            (row, position) = (0, position + 1);
        }
        drafted
    }
}
