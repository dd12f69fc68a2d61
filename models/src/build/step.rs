//! Inputs and states of a step.

use super::{Builder, Place};
use crate::config::{Attention, Layer};
use ir::{DType, Dim, Op, TensorType, ValueId};

/// Inputs of a step that the layers read, and the current version of each state.
pub(super) struct Step {
    pub(super) token_ids: ValueId,
    pub(super) positions: ValueId,
    pub(super) slots: ValueId,
    pub(super) block_table: ValueId,
    /// Slots of recurrent memory, where a layer has it.
    sequences: Option<ValueId>,
    pub(super) states: States,
    /// Cosines and sines of the rows, once something has to be rotated.
    pub(super) rope: Option<ValueId>,
}

/// The current version of each state, in the order of the parameters.
#[derive(Default)]
pub(super) struct States(Vec<(String, ValueId)>);

impl States {
    /// Every version, in order.
    pub(super) fn values(&self) -> impl Iterator<Item = ValueId> {
        self.0.iter().map(|(_, v)| *v)
    }

    /// State `kind` of a layer.
    pub(super) fn of(&mut self, kind: &str, place: &Place) -> &mut ValueId {
        let name = state_name(kind, place.layer);
        let found = self.0.iter_mut().find(|(n, _)| *n == name);
        &mut found.expect("every layer declared its states").1
    }
}

fn state_name(kind: &str, layer: usize) -> String {
    format!("{kind}.{layer}")
}

impl Step {
    /// Slots of recurrent memory.
    pub(super) fn sequences(&self) -> ValueId {
        self.sequences.expect("declared, for a layer has recurrent memory")
    }
}

impl Builder<'_> {
    /// Declares inputs and states; the block table has `sequences` rows.
    pub(super) fn step_params(&mut self, sequences: Dim) -> Step {
        let rows = || TensorType::new(DType::I32, [Dim::sym("T")]);
        let table = TensorType::new(DType::I32, [sequences, Dim::sym("W")]);
        let mut step = Step {
            token_ids: self.f.param("token_ids", rows()),
            positions: self.f.param("positions", rows()),
            slots: self.f.param("slots", rows()),
            block_table: self.f.param("block_table", table),
            sequences: None,
            states: States::default(),
            rope: None,
        };
        if self.config.layers.iter().any(|l| matches!(l.attention, Attention::Delta(_))) {
            step.sequences = Some(self.f.param("sequences", rows()));
        }
        for (i, layer) in self.config.layers.iter().enumerate() {
            for (kind, ty) in self.states_of(layer) {
                let name = state_name(kind, i);
                let param = self.f.param(&name, ty);
                step.states.0.push((name, param));
            }
        }
        step
    }

    /// Kinds and types of the states of a layer.
    fn states_of(&self, layer: &Layer) -> Vec<(&'static str, TensorType)> {
        let (kv, block) = (self.options.kv_dtype, Dim::Const(self.options.kv_block_tokens));
        let paged =
            |channels: u64| TensorType::state(kv, [Dim::sym("NB"), block.clone(), channels.into()]);
        match &layer.attention {
            Attention::Full(a) => {
                let (heads, channels) = (a.kv_heads.into(), a.head_dim.into());
                let dims = [Dim::sym("NB"), 2.into(), heads, block, channels];
                vec![("kv", TensorType::state(kv, dims))]
            }
            Attention::Latent(a) => {
                let mut states = vec![("latent", paged(a.latent)), ("rope_key", paged(a.rope_dim))];
                states.extend(a.indexer.iter().map(|i| ("index_key", paged(i.dim))));
                states
            }
            Attention::Delta(a) => {
                let slots = || Dim::sym("NS");
                let rows = [slots(), (a.taps - 1).into(), a.channels().into()];
                let memory = [slots(), a.value_heads.into(), a.key_dim.into(), a.value_dim.into()];
                vec![
                    ("conv", TensorType::state(kv, rows)),
                    ("delta", TensorType::state(DType::F32, memory)),
                ]
            }
        }
    }

    /// Computes the rotary table of the step, which all layers share.
    pub(super) fn rope_table(&mut self, step: &mut Step) -> ValueId {
        let spec = self.config.rope;
        *step.rope.get_or_insert_with(|| self.op(Op::RopeTable { spec }, &[step.positions], "rope"))
    }
}
