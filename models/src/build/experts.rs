//! A mixture of experts.

use super::{Builder, Place, Precision};
use crate::{
    config::{Experts, Linear},
    expected::names,
};
use ir::{DType, Op, ValueId};

/// The pairs of a token and one of its experts, sorted by expert.
#[derive(Clone, Copy)]
pub(super) struct Pairs {
    pub(super) order: ValueId,
    pub(super) starts: ValueId,
}

impl Builder<'_> {
    /// The chosen experts of the normalised rows `x`, weighted and summed.
    pub(super) fn experts(&mut self, place: &Place, spec: &Experts, x: ValueId) -> ValueId {
        let Precision { activations, .. } = self.options.precision;
        let (ids, weights) = self.route(place, spec, x);
        let groups = Op::ExpertGroups { experts: spec.count };
        let (order, starts) = (place.name("route_order"), place.name("route_starts"));
        let [order, starts] = self.ops(groups, &[ids], [&order, &starts]);
        let y = self.separate_experts(place, spec, x, Pairs { order, starts });
        let combine = Op::CombineExperts { out: activations };
        self.op(combine, &[y, weights], &place.name("experts"))
    }

    /// Ids `i32[T,k]` and weights `f32[T,k]` of the experts of each row.
    fn route(&mut self, place: &Place, spec: &Experts, x: ValueId) -> (ValueId, ValueId) {
        let linear = Linear { outputs: spec.count, inputs: self.columns(x), bias: false };
        let logits = self.linear(&place.stored("mlp.gate"), x, linear, &place.name("route_logits"));
        let logits = self.cast(logits, DType::F32, &place.name("route_logits_f32"));
        let (ids, weights) = (place.name("route_ids"), place.name("route_weights"));
        let [ids, weights] = self.ops(Op::Route { spec: spec.route }, &[logits], [&ids, &weights]);
        (ids, weights)
    }

    /// Results `[T,k,H]` of experts whose matrices are stored one by one.
    fn separate_experts(
        &mut self,
        place: &Place,
        spec: &Experts,
        x: ValueId,
        pairs: Pairs,
    ) -> ValueId {
        let inputs = self.columns(x);
        let up = Linear { outputs: spec.width, inputs, bias: false };
        let down = Linear { outputs: inputs, inputs: spec.width, bias: false };
        let stored = |which: &str| -> Vec<String> {
            let part = |e| place.stored(&format!("{}.{which}_proj", names::expert(e)));
            (0..spec.count).map(part).collect()
        };
        let gate = self.expert_linear(&stored("gate"), x, pairs, up, &place.name("expert_gate"));
        let up = self.expert_linear(&stored("up"), x, pairs, up, &place.name("expert_up"));
        let gate = self.op(Op::Silu {}, &[gate], &place.name("expert_silu"));
        let product = self.op(Op::Mul {}, &[gate, up], &place.name("expert_gated"));
        let weights = self.options.precision.weights;
        let product = self.cast(product, weights, &place.name("expert_gated_cast"));
        self.expert_linear(&stored("down"), product, pairs, down, &place.name("expert_down"))
    }
}
