//! A short greedy run that is recorded at compile time and repeated by `serve --verify`.

use crate::{Precast, args::EngineArgs, device::HostDevice, engine::load_engine};
use anyhow::bail;
use artifact::{Artifact, Recorded, RecordedToken};
use codegen_cpu::device::InstructionSet;
use runtime::{Engine, EngineOptions, LogprobOptions, Request, StepOutcome, TokenEvent, TokenSink};
use std::{path::Path, sync::mpsc};

/// Tokens of the prompt and of the answer that are recorded at compile time.
const RECORDED_PROMPT: u32 = 12;
const RECORDED_TOKENS: usize = 8;

/// How far a recorded log-probability may be off on another instruction set, which sums in another
/// order: bf16 keeps 8 bits of each activation.
const TOLERANCE: f32 = 0.25;

/// Collects events for a caller that drives the engine itself.
struct Collect(mpsc::Sender<TokenEvent>);

impl TokenSink for Collect {
    fn push(&mut self, event: TokenEvent) -> bool {
        self.0.send(event).is_ok()
    }
    fn is_open(&self) -> bool {
        true
    }
}

/// Runs a finished artifact for a few tokens, so that `serve --verify` can repeat them.
pub(crate) fn record(precast: &Precast, root: &Path) -> anyhow::Result<Recorded> {
    let artifact = Artifact::open(root)?;
    let args = EngineArgs { no_checksum: true, ..Default::default() };
    let mut engine = load_engine(precast, &artifact, &args, EngineOptions::default(), true)?;
    let vocab = artifact.manifest().model.vocab_size;
    // Spread over the vocabulary; any prompt would do, as long as it is always the same.
    let prompt: Vec<u32> = (0..RECORDED_PROMPT).map(|i| (i * 7919 + 13) % vocab).collect();
    let tokens = replay(&mut engine, &prompt)?;
    let instruction_set = InstructionSet::best().name().to_owned();
    Ok(Recorded { instruction_set, prompt, tokens })
}

fn replay(engine: &mut Engine<HostDevice>, prompt: &[u32]) -> anyhow::Result<Vec<RecordedToken>> {
    let (events, received) = mpsc::channel();
    let request = Request::greedy(0, prompt.to_vec(), RECORDED_TOKENS, Box::new(Collect(events)));
    let logprobs = LogprobOptions { output: true, ..Default::default() };
    engine.add(Request { ignore_eos: true, logprobs, ..request })?;
    while engine.step()? != StepOutcome::Idle {}
    let mut tokens = Vec::new();
    for event in received.try_iter() {
        match event {
            TokenEvent::Token { token, logprob, .. } => tokens.push(RecordedToken {
                id: token,
                logprob: logprob.and_then(|l| l.logprob).unwrap_or(f32::NAN),
            }),
            TokenEvent::Ended { finish } => bail!("the recorded run ended early: {finish:?}"),
            _ => {}
        }
    }
    Ok(tokens)
}

/// Repeats the recorded run and compares.
pub(crate) fn check_recorded(
    artifact: &Artifact,
    engine: &mut Engine<HostDevice>,
) -> anyhow::Result<()> {
    let Some(recorded) = &artifact.manifest().recorded else {
        bail!(
            "{}: nothing was recorded at compile time (--no-record), so --verify has nothing to compare",
            artifact.root().display()
        );
    };
    let got = replay(engine, &recorded.prompt)?;
    let device = engine.device_name();
    let is_same_set = device.split([' ', ',']).any(|word| word == recorded.instruction_set);
    let same = if is_same_set { got == recorded.tokens } else { close(&got, &recorded.tokens) };
    if !same {
        bail!(
            "--verify: this machine answers {got:?}, the artifact recorded {:?} with {}; \
             run `precast compile` again, or check this machine's memory",
            recorded.tokens,
            recorded.instruction_set
        );
    }
    tracing::info!("verified {} recorded tokens", got.len());
    Ok(())
}

/// Whether two runs on different instruction sets agree: up to the first token that differs, where
/// the two must be nearly as probable.
fn close(got: &[RecordedToken], recorded: &[RecordedToken]) -> bool {
    let shared = got.iter().zip(recorded).take_while(|(a, b)| a.id == b.id).count();
    got.len() == recorded.len()
        && got
            .iter()
            .zip(recorded)
            .take(shared + 1)
            .all(|(a, b)| (a.logprob - b.logprob).abs() <= TOLERANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_may_part_where_two_tokens_are_nearly_as_probable() {
        let run = |tokens: &[(u32, f32)]| -> Vec<RecordedToken> {
            tokens.iter().map(|&(id, logprob)| RecordedToken { id, logprob }).collect()
        };
        let recorded = run(&[(1, -0.5), (2, -1.0), (3, -0.1)]);
        assert!(close(&run(&[(1, -0.6), (2, -1.1), (3, -0.1)]), &recorded));
        assert!(close(&run(&[(1, -0.5), (9, -1.1), (7, -4.0)]), &recorded));
        assert!(!close(&run(&[(1, -0.5), (9, -2.0), (7, -0.1)]), &recorded));
        assert!(!close(&run(&[(1, -1.5), (2, -1.0), (3, -0.1)]), &recorded));
        assert!(!close(&run(&[(1, -0.5)]), &recorded));
    }
}
