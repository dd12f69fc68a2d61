//! Inputs and states of a step.

use super::{Builder, Place};
use crate::config::{Attention, FullAttention, Layer};
use ir::{DType, Dim, Op, SCALE_BYTES, TensorType, ValueId};

/// Inputs of a step that the layers read, and the current version of each state.
pub(super) struct Step {
    pub(super) token_ids: ValueId,
    pub(super) positions: ValueId,
    /// Where rows lie in the KV memory.
    pub(super) paged: Paged,
    /// Where rows lie in the window memory, where a layer has a window.
    window: Option<Paged>,
    /// Slots of recurrent memory, where a layer has it.
    sequences: Option<ValueId>,
    pub(super) states: States,
    /// Cosines and sines of the rows, once something has to be rotated.
    pub(super) rope: Option<ValueId>,
}

/// Where the rows of a step lie in paged memory.
#[derive(Clone, Copy)]
pub(super) struct Paged {
    pub(super) slots: ValueId,
    pub(super) table: ValueId,
}

/// What queries look at.
#[derive(Clone, Copy)]
pub(super) struct Past {
    pub(super) cache: ValueId,
    pub(super) table: ValueId,
    pub(super) positions: ValueId,
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

/// Kind of the cache of `a`.
pub(super) fn cache_kind(a: &FullAttention) -> &'static str {
    if a.window().is_some() { "window_kv" } else { "kv" }
}

/// Type of the block tables of so many sequences.
fn table_type(sequences: Dim) -> TensorType {
    TensorType::new(DType::I32, [sequences, Dim::sym("W")])
}

fn state_name(kind: &str, layer: usize) -> String {
    format!("{kind}.{layer}")
}

impl Step {
    /// Slots of recurrent memory.
    pub(super) fn sequences(&self) -> ValueId {
        self.sequences.expect("declared, for a layer has recurrent memory")
    }

    /// Where rows lie in the cache of `a`.
    pub(super) fn place(&self, a: &FullAttention) -> Paged {
        match a.window() {
            Some(_) => self.window.expect("declared, for a layer has a window"),
            None => self.paged,
        }
    }
}

impl Builder<'_> {
    /// Declares inputs and states; the block table has `sequences` rows.
    pub(super) fn step_params(&mut self, sequences: Dim) -> Step {
        let table = table_type(sequences);
        let mut step = Step {
            token_ids: self.row_param("token_ids"),
            positions: self.row_param("positions"),
            paged: Paged {
                slots: self.row_param("slots"),
                table: self.f.param("block_table", table.clone()),
            },
            window: None,
            sequences: None,
            states: States::default(),
            rope: None,
        };
        if self.config.sliding_window().is_some() {
            let slots = self.row_param("window_slots");
            step.window = Some(Paged { slots, table: self.f.param("window_table", table) });
        }
        if self.config.layers.iter().any(|l| matches!(l.attention, Attention::Delta(_))) {
            step.sequences = Some(self.row_param("sequences"));
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

    /// An input with an integer for each row.
    pub(super) fn row_param(&mut self, name: &str) -> ValueId {
        self.f.param(name, TensorType::new(DType::I32, [Dim::sym("T")]))
    }

    /// Declares what queries of one sequence in layer `place`, whose keys and values are written, look at.
    pub(super) fn past_params(&mut self, place: &Place, a: &FullAttention) -> Past {
        let positions = self.row_param("positions");
        let table = self.f.param("block_table", table_type(Dim::Const(1)));
        let kind = cache_kind(a);
        let states = self.states_of(&self.config.layers[place.layer]);
        let state = states.into_iter().find(|(found, _)| *found == kind);
        let (_, ty) = state.expect("the layer has a cache");
        Past { cache: self.f.param(&state_name(kind, place.layer), ty), table, positions }
    }

    /// Kinds and types of the states of a layer.
    fn states_of(&self, layer: &Layer) -> Vec<(&'static str, TensorType)> {
        let (kv, block) = (self.options.kv_dtype, Dim::Const(self.options.kv_block_tokens));
        let (float, scale) = match kv {
            DType::I8 => (self.options.precision.weights, SCALE_BYTES),
            float => (float, 0),
        };
        let paged = |channels: u64| {
            TensorType::state(float, [Dim::sym("NB"), block.clone(), channels.into()])
        };
        match &layer.attention {
            Attention::Full(a) => {
                let blocks = if a.window().is_some() { "NW" } else { "NB" };
                let (heads, row) = (a.kv_heads.into(), (a.head_dim + scale).into());
                let dims = [Dim::sym(blocks), 2.into(), heads, block, row];
                vec![(cache_kind(a), TensorType::state(kv, dims))]
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
                    ("conv", TensorType::state(float, rows)),
                    ("delta", TensorType::state(DType::F32, memory)),
                ]
            }
        }
    }

    /// Computes the rotary table of the step, which all layers share.
    pub(super) fn rope_table(&mut self, step: &mut Step) -> ValueId {
        *step.rope.get_or_insert_with(|| self.rope_of(step.positions))
    }

    /// Cosines and sines of rows at `positions`.
    pub(super) fn rope_of(&mut self, positions: ValueId) -> ValueId {
        self.op(Op::RopeTable { spec: self.config.rope }, &[positions], "rope")
    }
}
