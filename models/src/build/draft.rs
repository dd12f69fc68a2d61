//! Layers that draft tokens as primitive ops.

use super::{BuildOptions, Builder, Place, Precision, check_options};
use crate::{
    config::Attention,
    draft::{Draft, Form, Mtp},
    expected::names,
};
use ir::{DType, Dim, Func, Module, Op, TensorType, ValueId};
use std::collections::BTreeMap;

/// What a draft begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    /// What the main model left in `features`.
    Target,
    /// What the draft itself left in `draft_hidden`.
    Draft,
}

/// The functions of [`Draft::build`].
pub(crate) fn build(draft: &Draft, options: &BuildOptions) -> Module {
    check_options(options);
    let each = || Dim::sym("T");
    Module {
        funcs: vec![
            function(draft, options, "draft_prefill", Dim::Const(1), From::Target),
            function(draft, options, "draft_start", each(), From::Target),
            function(draft, options, "draft_next", each(), From::Draft),
        ],
    }
}

fn function(draft: &Draft, options: &BuildOptions, name: &str, sequences: Dim, from: From) -> Func {
    let mut b = Builder {
        f: Func::new(name),
        config: draft.config(),
        source: draft.source(),
        options,
        casts: BTreeMap::new(),
        static_codes: BTreeMap::new(),
        residuals: Vec::new(),
    };
    let Precision { weights, activations } = options.precision;
    let mut step = b.step_params(sequences);
    let rows = b.f.param("rows", TensorType::new(DType::I32, [Dim::sym("T")]));
    let state = |width: u64| TensorType::state(activations, [Dim::sym("R"), width.into()]);
    let features = (from == From::Target)
        .then(|| b.f.param("features", state(draft.capture().width(b.config.hidden))));
    let hidden = b.f.param("draft_hidden", state(b.config.hidden));

    let table = b.weight(names::EMBED, weights);
    let embedded = b.op(Op::Embed { out: activations }, &[step.token_ids, table], "embedded");
    let known = b.op(Op::GatherRows {}, &[features.unwrap_or(hidden), rows], "known");
    let layer = &draft.config().layers[0];
    let (next, normed) = match draft.form() {
        Form::Mtp(mtp) => {
            let place = Place { layer: 0, stored: mtp.layer.clone(), name: "draft".to_owned() };
            let x = b.joined(mtp, embedded, known);
            let x = b.attention(&place, &layer.attention, x, &mut step);
            let x = b.feed_forward(&place, &layer.feed_forward, x);
            // Both the next step and the head read the state after the norm.
            let next = b.norm(&mtp.norm, x, activations, "draft_norm");
            (next, b.cast(next, weights, "draft_norm_cast"))
        }
        Form::Eagle3 { .. } => {
            let stored = "draft.midlayer".to_owned();
            let place = Place { layer: 0, stored, name: "draft".to_owned() };
            let x = match from {
                From::Draft => known,
                From::Target => b.reduced(known),
            };
            let Attention::Full(attention) = &layer.attention else {
                unreachable!("EAGLE-3 heads attend by softmax over heads")
            };
            let e =
                b.norm(&place.stored(names::ATTENTION_NORM), embedded, weights, "embedded_norm");
            let g = b.norm(&place.stored("hidden_norm"), x, weights, "known_norm");
            let both = b.op(Op::Concat { axis: 1 }, &[e, g], "joined");
            let o = b.full_attention(&place, attention, both, &mut step);
            let x = b.op(Op::Add {}, &[x, o], "draft.attn_residual");
            let next = b.feed_forward(&place, &layer.feed_forward, x);
            (next, b.norm("draft.norm", next, weights, "draft_norm"))
        }
    };
    let logits = match draft.form() {
        Form::Eagle3 { own_head: true } => b.head_of("draft.lm_head", normed),
        _ => b.head(normed),
    };
    let argmax = b.op(Op::Argmax {}, &[logits], "argmax");
    let mut results = vec![logits, argmax];
    results.extend(step.states.values());
    results.push(b.op(Op::StoreRows {}, &[hidden, next], "draft_hidden.out"));
    b.f.set_results(results);
    b.f
}

impl Builder<'_> {
    /// The embedding of a token and the state before it, each normalised, as one residual stream.
    fn joined(&mut self, mtp: &Mtp, embedded: ValueId, known: ValueId) -> ValueId {
        let weights = self.options.precision.weights;
        let e = self.norm(&mtp.embedding_norm, embedded, weights, "embedded_norm");
        let g = self.norm(&mtp.hidden_norm, known, weights, "known_norm");
        let both = self.op(Op::Concat { axis: 1 }, &[e, g], "joined");
        self.linear(&mtp.join, both, mtp.join_shape(self.config.hidden), "x")
    }

    /// Captured values as one state of the draft.
    fn reduced(&mut self, known: ValueId) -> ValueId {
        let cast = self.cast(known, self.options.precision.weights, "known_cast");
        let linear = crate::draft::eagle3::reduction(self.config.hidden, self.columns(known));
        self.linear("draft.fc", cast, linear, "reduced")
    }
}
