//! Driving an engine without a server.

use artifact::Artifact;
use cli::HostDevice;
use codegen_cpu::InstructionSet;
use runtime::{Engine, EngineOptions, LogprobOptions, Request, Sampling, TokenEvent, TokenSink};
use std::sync::{Arc, Mutex};

/// The tokens of a request with their log-probabilities, as they come.
#[derive(Clone, Default)]
pub struct Output(Arc<Mutex<Vec<(u32, f32)>>>);

impl Output {
    /// Room for `tokens` tokens, so that taking one does not allocate.
    pub fn with_capacity(tokens: usize) -> Self {
        Self(Arc::new(Mutex::new(Vec::with_capacity(tokens))))
    }

    /// What has come so far.
    pub fn tokens(&self) -> Vec<(u32, f32)> {
        self.0.lock().expect("no holder panics").clone()
    }
}

impl TokenSink for Output {
    fn push(&mut self, event: TokenEvent) -> bool {
        if let TokenEvent::Token { token, logprob, .. } = event {
            let logprob = logprob.and_then(|l| l.logprob).unwrap_or(0.0);
            self.0.lock().expect("no holder panics").push((token, logprob));
        }
        true
    }
    fn is_open(&self) -> bool {
        true
    }
}

/// An engine on this machine's CPU.
///
/// # Panics
/// When the artifact does not load.
pub fn load(artifact: &Artifact, threads: u32) -> Engine<HostDevice> {
    let options = EngineOptions { max_running_requests: Some(64), ..Default::default() };
    load_with(artifact, threads, options)
}

/// [`load`] with options.
///
/// # Panics
/// When the artifact does not load.
pub fn load_with(artifact: &Artifact, threads: u32, options: EngineOptions) -> Engine<HostDevice> {
    load_on(artifact, InstructionSet::best(), threads, options)
}

/// [`load_with`] for kernels of `set`.
///
/// # Panics
/// When the artifact does not load.
pub fn load_on(
    artifact: &Artifact,
    set: InstructionSet,
    threads: u32,
    options: EngineOptions,
) -> Engine<HostDevice> {
    let instruction_set = Some(set.to_string());
    let args = cli::EngineArgs { threads: Some(threads), instruction_set, ..Default::default() };
    cli::load_engine(artifact, &args, options, false).expect("the artifact loads")
}

/// A request for `max_tokens` tokens after `prompt`, whose seed is its id.
pub fn request(id: u64, prompt: &[u32], max_tokens: usize, output: &Output) -> Request {
    Request {
        sampling: Sampling { temperature: 0.9, seed: Some(id), ..Sampling::default() },
        ignore_eos: true,
        logprobs: LogprobOptions { output: true, ..LogprobOptions::default() },
        ..Request::greedy(id, prompt.to_vec(), max_tokens, Box::new(output.clone()))
    }
}
