//! The feed-forward half of a layer.

use super::{Builder, Place};
use crate::{
    config::{FeedForward, Gated, Linear},
    expected::names,
};
use ir::{Op, ValueId};

impl Builder<'_> {
    /// `x + FeedForward(N(x))`.
    pub(super) fn feed_forward(
        &mut self,
        place: &Place,
        spec: &FeedForward,
        x: ValueId,
    ) -> ValueId {
        let prefix = place.stored(names::FEED_FORWARD_NORM);
        let weights = self.options.precision.weights;
        let normed = self.norm(&prefix, x, weights, &place.name("mlp_norm"));
        let y = match spec {
            FeedForward::Dense(gated) => self.gated(place, "mlp", gated, normed, ""),
            FeedForward::Experts(experts) => self.experts(place, experts, normed),
        };
        self.op(Op::Add {}, &[x, y], &place.name("out"))
    }

    /// The gated block stored under `part`; names of its values begin with `prefix`.
    pub(super) fn gated(
        &mut self,
        place: &Place,
        part: &str,
        gated: &Gated,
        x: ValueId,
        prefix: &str,
    ) -> ValueId {
        let name = |value: &str| place.name(&format!("{prefix}{value}"));
        let inputs = self.columns(x);
        let up = Linear { outputs: gated.width, inputs, bias: gated.bias };
        let down = Linear { outputs: inputs, inputs: gated.width, bias: gated.bias };
        let stored = |which: &str| place.stored(&format!("{part}.{which}_proj"));

        let gate = self.linear(&stored("gate"), x, up, &name("gate"));
        let up = self.linear(&stored("up"), x, up, &name("up"));
        let gate = self.op(Op::Silu {}, &[gate], &name("silu"));
        let product = self.op(Op::Mul {}, &[gate, up], &name("gated"));
        let product = self.cast(product, self.options.precision.weights, &name("gated_cast"));
        self.linear(&stored("down"), product, down, &name("down"))
    }
}
