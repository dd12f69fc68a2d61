//! Sequences whose next tokens nobody knows yet: they keep their row of logits and their memory, and steps
//! go on without them.

use crate::{Allowed, Engine, StepOutcome, replay::Outputs};
use hal::{Device, DeviceError};
use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

/// The share of a replay's time that all sequences of a step together wait for before one is parked. What
/// is a little late is worth that: a parked sequence misses a whole step.
const SHARE: u32 = 4;
/// How long a step waits that has nothing else to do. Then the engine hears of new requests.
const ALONE: Duration = Duration::from_millis(20);
/// How long a sequence may be parked. Sets of tokens are bounded to take milliseconds, so this long only
/// a starved thread takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// A sequence that is parked.
pub(crate) struct Parked {
    since: Instant,
    /// Of its next token.
    logits: Vec<f32>,
}

impl<D: Device> Engine<D> {
    /// Whether it is not known which tokens the running sequence `index` may have next, although the
    /// engine waited for as long as others can bear after a replay that took `replay`.
    pub(crate) fn is_late(&mut self, index: usize, replay: Duration) -> bool {
        let is_alone = self.scheduler.running.len() == 1 && self.scheduler.waiting.is_empty();
        let patience = if is_alone { ALONE } else { replay / SHARE };
        let Some(constraint) = &mut self.scheduler.running[index].request.constraint else {
            return false;
        };
        if constraint.allowed(Duration::ZERO) != Allowed::Pending {
            return false;
        }
        self.shared.counters.constraint_waits.fetch_add(1, Relaxed);
        let left = patience.saturating_sub(self.scratch.waited);
        left.is_zero() || self.wait(index, left)
    }

    /// Waits to hear what the running sequence `index` may choose. Returns whether that is still unknown.
    fn wait(&mut self, index: usize, patience: Duration) -> bool {
        let Some(constraint) = &mut self.scheduler.running[index].request.constraint else {
            return false;
        };
        let start = Instant::now();
        let is_late = constraint.allowed(patience) == Allowed::Pending;
        let waited = start.elapsed();
        self.scratch.waited += waited;
        self.shared.counters.constraint_wait_ns.fetch_add(waited.as_nanos() as u64, Relaxed);
        is_late
    }

    /// Keeps row `row` of the last replay for the running sequence `index`, which no step feeds until it
    /// is known what it may choose.
    pub(crate) fn park(
        &mut self,
        index: usize,
        outputs: Outputs,
        row: u32,
    ) -> Result<(), DeviceError> {
        let mut logits = vec![0.0; self.scratch.logits.len()];
        self.replayer.logits(outputs, row, &mut logits)?;
        self.scheduler.running[index].parked = Some(Parked { since: Instant::now(), logits });
        self.shared.counters.constraint_parks.count(1, || {
            "the tokens that a grammar allows next were not known when they were needed, and its request \
             misses steps while others go on; a simpler grammar, or a processor that the device does not \
             use (`--threads`), avoids that"
        });
        Ok(())
    }

    /// Chooses the tokens of parked sequences of which it is known by now what they may choose, and ends
    /// those that waited for too long.
    pub(crate) fn resume_parked(&mut self) {
        for index in (0..self.scheduler.running.len()).rev() {
            let sequence = &mut self.scheduler.running[index];
            let Some(parked) = &mut sequence.parked else { continue };
            let constraint = sequence.request.constraint.as_mut();
            let is_known = constraint.is_none_or(|c| c.allowed(Duration::ZERO) != Allowed::Pending);
            if !is_known && parked.since.elapsed() < PATIENCE {
                continue;
            }
            std::mem::swap(&mut self.scratch.logits, &mut parked.logits);
            sequence.parked = None;
            if self.choose_from_logits(index) {
                self.remove_ended(index);
            }
        }
    }

    /// What a step does when no sequence can be fed: it waits for a moment if some are parked.
    pub(crate) fn wait_for_parked(&mut self) -> StepOutcome {
        match self.scheduler.running.iter().position(|s| s.parked.is_some()) {
            Some(index) => {
                self.wait(index, ALONE);
                StepOutcome::Parked
            }
            None => StepOutcome::Idle,
        }
    }
}
