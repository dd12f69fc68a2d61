//! What a model keeps of a step for a draft.

use super::Builder;
use crate::{draft::Capture, expected::names};
use ir::{Dim, Op, TensorType, ValueId};

impl Builder<'_> {
    /// The state that values are captured in.
    pub(super) fn features_param(&mut self, capture: Option<&Capture>) -> Option<ValueId> {
        let width = capture?.width(self.config.hidden);
        let ty =
            TensorType::state(self.options.precision.activations, [Dim::sym("R"), width.into()]);
        Some(self.f.param("features", ty))
    }

    /// The next version of `state`: what `capture` wants of the rows of this step, whose residual
    /// stream ends in `x`.
    pub(super) fn capture(
        &mut self,
        state: ValueId,
        capture: Option<&Capture>,
        x: ValueId,
    ) -> ValueId {
        let rows = match capture {
            Some(Capture::Residuals(points)) => {
                let parts: Vec<ValueId> =
                    points.iter().map(|&p| self.residuals[p as usize]).collect();
                self.op(Op::Concat { axis: 1 }, &parts, "captured")
            }
            Some(Capture::FinalNorm) | None => {
                self.norm(names::FINAL_NORM, x, self.options.precision.activations, "captured")
            }
        };
        self.op(Op::StoreRows {}, &[state, rows], "features.out")
    }
}
