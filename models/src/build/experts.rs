//! A mixture of experts.

use super::{Builder, Place, Precision};
use crate::{
    config::{ExpertForm, Experts, Gated, Linear, SharedExpert},
    expected::names,
};
use ir::{DType, Op, ValueId};

/// The pairs of a token and one of its experts, sorted by expert.
#[derive(Clone, Copy)]
pub(super) struct Pairs {
    /// `i32[T,k]`: the experts of each token.
    pub(super) ids: ValueId,
    /// `i32[T,k]`: pairs in the order of their experts.
    pub(super) order: ValueId,
    /// `i32[E+1]`: where each expert begins in it.
    pub(super) starts: ValueId,
}

impl Builder<'_> {
    /// The chosen experts of the normalised rows `x`, weighted and summed, and the shared one.
    pub(super) fn experts(&mut self, place: &Place, spec: &Experts, x: ValueId) -> ValueId {
        let Precision { weights: weight_type, activations } = self.options.precision;
        let (ids, weights) = self.route(place, spec, x);
        let groups = Op::ExpertGroups { experts: spec.count };
        let (order, starts) = (place.name("route_order"), place.name("route_starts"));
        let [order, starts] = self.ops(groups, &[ids], [&order, &starts]);
        let pairs = Pairs { ids, order, starts };
        let y = match spec.form {
            ExpertForm::Separate => self.separate_experts(place, spec, x, pairs),
            ExpertForm::Stacked { alpha, limit } => {
                let activation = Op::SwigluClamped { alpha, limit, out: weight_type };
                self.stacked_experts(place, spec, x, pairs, activation)
            }
        };
        let combine = Op::CombineExperts { out: activations };
        let y = self.op(combine, &[y, weights], &place.name("experts"));
        match &spec.shared {
            None => y,
            Some(shared) => {
                let shared = self.shared_expert(place, shared, x);
                self.op(Op::Add {}, &[y, shared], &place.name("experts_and_shared"))
            }
        }
    }

    /// The expert that every row has.
    fn shared_expert(&mut self, place: &Place, spec: &SharedExpert, x: ValueId) -> ValueId {
        let gated = Gated { width: spec.width, bias: false };
        let y = self.gated(place, spec.part, &gated, x, "shared_");
        if !spec.gate {
            return y;
        }
        let linear = Linear { outputs: 1, inputs: self.columns(x), bias: false };
        let prefix = place.stored(&format!("{}_gate", spec.part));
        let gate = self.linear(&prefix, x, linear, &place.name("shared_factor_logit"));
        let gate = self.op(Op::Sigmoid {}, &[gate], &place.name("shared_factor"));
        self.op(Op::ScaleRows {}, &[y, gate], &place.name("shared_scaled"))
    }

    /// Ids `i32[T,k]` and weights `f32[T,k]` of the experts of each row.
    fn route(&mut self, place: &Place, spec: &Experts, x: ValueId) -> (ValueId, ValueId) {
        let router = place.stored(spec.router);
        let name = place.name("route_logits");
        let inputs = self.columns(x);
        let linear = Linear { outputs: spec.count, inputs, bias: spec.router_bias };
        let logits = self.exact_linear(&router, x, linear, &name);
        let logits = self.cast(logits, DType::F32, &format!("{name}_f32"));
        let mut args = vec![logits];
        if spec.score_bias {
            args.push(self.weight(&place.stored(names::SCORE_BIAS), DType::F32));
        }
        let (ids, weights) = (place.name("route_ids"), place.name("route_weights"));
        let [ids, weights] = self.ops(Op::Route { spec: spec.route }, &args, [&ids, &weights]);
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
