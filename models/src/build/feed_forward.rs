//! The feed-forward half of a layer.

use super::{Builder, Place, Precision};
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
        let Precision { weights, .. } = self.options.precision;
        let prefix = place.stored(names::FEED_FORWARD_NORM);
        let normed = self.norm(&prefix, x, weights, &place.name("mlp_norm"));
        let y = match spec {
            FeedForward::Dense(gated) => self.gated(place, "mlp", gated, normed),
            FeedForward::Experts(experts) => self.experts(place, experts, normed),
        };
        self.op(Op::Add {}, &[x, y], &place.name("out"))
    }

    /// The gated block stored under `part`.
    fn gated(&mut self, place: &Place, part: &str, gated: &Gated, x: ValueId) -> ValueId {
        let inputs = self.columns(x);
        let up = Linear { outputs: gated.width, inputs, bias: gated.bias };
        let down = Linear { outputs: inputs, inputs: gated.width, bias: gated.bias };
        let stored = |which: &str| place.stored(&format!("{part}.{which}_proj"));

        let gate = self.linear(&stored("gate"), x, up, &place.name("gate"));
        let up = self.linear(&stored("up"), x, up, &place.name("up"));
        let gate = self.op(Op::Silu {}, &[gate], &place.name("silu"));
        let product = self.op(Op::Mul {}, &[gate, up], &place.name("gated"));
        let product = self.cast(product, self.options.precision.weights, &place.name("gated_cast"));
        self.linear(&stored("down"), product, down, &place.name("down"))
    }
}
