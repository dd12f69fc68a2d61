//! The engine: loading, taking requests, and choosing what a step does.

use crate::{
    EngineError, Finish, FlushError, Flushed, PrefixCaching, Request, RequestError, Stats,
    TokenEvent,
    bind::bind,
    capacity,
    choice::{self, Prompt, Work},
    costs::Costs,
    handle::{Shared, Totals},
    limits::{Checked, Limits},
    memory::Memories,
    replay::Replayer,
    sampler::Sampler,
    schedule::{Scheduler, StepLimits},
    sequence::{Sequence, Sizing},
    stats::Counters,
    step::Piece,
    throughput::Throughput,
};
use artifact::{Artifact, Manifest, Plan};
use hal::{Device, DeviceError, MemoryRequest};
use std::{
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, Release, SeqCst},
    },
    time::{Duration, Instant},
};

/// How an engine is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// The most requests that run at once; the artifact's number when `None`. More than the
    /// largest decode bucket is allowed: a step then takes several replays.
    pub max_running_requests: Option<u32>,
    /// The most requests that wait when as many as possible run;
    /// [`EngineOptions::DEFAULT_MAX_QUEUED`] when `None`.
    pub max_queued_requests: Option<u32>,
    /// The most prompt tokens that a step feeds; as many as the largest prefill plan takes when
    /// `None`. Larger plans are not used then.
    pub chunked_prefill_size: Option<u32>,
    /// The most prompt tokens of requests whose prefill has begun, where a prompt counts with what
    /// one step may feed of it; [`EngineOptions::DEFAULT_MAX_PREFILL_TOKENS`] when `None`. The first
    /// is always admitted.
    pub max_prefill_tokens: Option<u32>,
    /// Decode replays feed no tokens of prompts.
    pub disable_mixed_chunk: bool,
    /// Requests of a higher [`Request::priority`] start first.
    pub priority_scheduling: bool,
    /// Time of one replay of each plan, in the order of the manifest, for the choice of steps;
    /// measured when `None`.
    pub plan_times: Option<Vec<Duration>>,
    /// Compare the weights with their checksum, which reads every byte.
    pub check_weights: bool,
    /// Keep KV blocks for later requests that begin with the same tokens, where the model allows it:
    /// see [`PrefixCaching`]. On by default.
    pub prefix_cache: bool,
    /// The most tokens in KV memory, rounded down to whole blocks; what the artifact has when `None`.
    pub max_total_tokens: Option<u32>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_running_requests: None,
            max_queued_requests: None,
            check_weights: false,
            prefix_cache: true,
            max_total_tokens: None,
            chunked_prefill_size: None,
            max_prefill_tokens: None,
            disable_mixed_chunk: false,
            priority_scheduling: false,
            plan_times: None,
        }
    }
}

impl EngineOptions {
    /// Requests that may wait when nothing else is said.
    pub const DEFAULT_MAX_QUEUED: u32 = 8192;
    /// Prompt tokens whose prefill has begun when nothing else is said.
    pub const DEFAULT_MAX_PREFILL_TOKENS: u32 = 16384;
}

/// How long the parts of a start took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartupReport {
    /// Reading plans and mapping the weights.
    pub map_ms: f64,
    /// Comparing the weights with their checksum; `None` when that was not asked for.
    pub check_ms: Option<f64>,
    /// Providing the memory on the device.
    pub load_ms: f64,
    /// Capturing each plan, by name, in the manifest's order.
    pub bind: Vec<(String, f64)>,
    /// Everything.
    pub total_ms: f64,
}

/// What [`Engine::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// Nothing runs and nothing waits.
    Idle,
    /// Fed a piece of a prompt.
    Prefill {
        /// Tokens fed.
        tokens: u32,
    },
    /// Waited a moment: all that is left to do needs tokens of a [`crate::Constraint`] that are not
    /// known yet.
    Parked,
    /// Chose one token for each of the sequences that decode.
    Decode {
        /// How many.
        rows: u32,
    },
    /// As [`StepOutcome::Decode`], with tokens of prompts in the same replay.
    Mixed {
        /// Sequences that decode.
        rows: u32,
        /// Tokens of prompts.
        tokens: u32,
    },
}

/// An engine that owns its device. Drive it with [`Engine::step`], or hand it to a thread with
/// [`Engine::spawn`].
pub struct Engine<D: Device> {
    pub(crate) replayer: Replayer<D>,
    pub(crate) scheduler: Scheduler,
    pub(crate) sampler: Sampler,
    pub(crate) shared: Arc<Shared>,
    pub(crate) scratch: Scratch,
    throughput: Throughput,
    eos: Vec<u32>,
    block_tokens: usize,
    has_window: bool,
    startup: StartupReport,
}

/// Buffers of a step, sized once.
pub(crate) struct Scratch {
    /// Running sequences that decode.
    pub(crate) batch: Vec<usize>,
    /// Running sequences that are in prefill, in the order in which they are served.
    pub(crate) prompts: Vec<Prompt>,
    /// What a decode replay feeds.
    pub(crate) pieces: Vec<Piece>,
    /// Running sequences that the next one probably feeds, ascending.
    pub(crate) next: Vec<usize>,
    /// One row of logits.
    pub(crate) logits: Vec<f32>,
    /// Running sequences that ended in this step, ascending.
    pub(crate) ended: Vec<usize>,
    /// Time of this step that was spent waiting for constraints.
    pub(crate) waited: Duration,
}

impl<D: Device> Engine<D> {
    /// Maps the weights of an artifact, gives the device its memory and captures every plan.
    ///
    /// # Errors
    /// [`EngineError`] when the artifact is damaged, the device cannot run it, or an option is out
    /// of range.
    pub fn load(
        mut device: D,
        artifact: &Artifact,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let start = Instant::now();
        let manifest = artifact.manifest();
        let plans = artifact.plans()?;
        let weights = Arc::new(artifact.map_weights()?);
        let mapped = Instant::now();
        let check_ms = if options.check_weights {
            artifact.check_weights(&weights)?;
            Some(ms_since(mapped))
        } else {
            None
        };
        let checked = Instant::now();
        let memory = MemoryRequest {
            root: artifact.root().to_owned(),
            weights,
            arena_bytes: manifest.memory.arena_bytes,
            state_bytes: manifest.memory.state_bytes,
        };
        device
            .load(memory)
            .map_err(|source| EngineError::Device { doing: "providing memory".into(), source })?;
        let load_ms = ms_since(checked);
        let mut engine = Self::from_parts(device, manifest, &plans, options)?;
        engine.startup.map_ms = mapped.duration_since(start).as_secs_f64() * 1e3;
        engine.startup.check_ms = check_ms;
        engine.startup.load_ms = load_ms;
        engine.startup.total_ms = ms_since(start);
        Ok(engine)
    }

    /// An engine from a manifest, its plans, and a device whose memory is loaded already.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn from_parts(
        mut device: D,
        manifest: &Manifest,
        plans: &[Plan],
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let start = Instant::now();
        let max_running = options.max_running_requests.unwrap_or(manifest.max_running_requests);
        capacity::check(manifest, max_running)?;
        let blocks = capacity::kv_blocks(manifest, options.max_total_tokens)?;
        let prefix_cache = PrefixCaching::new(manifest, options.prefix_cache);
        tracing::info!("prefix cache: {prefix_cache}");
        let max_queued = options.max_queued_requests.unwrap_or(EngineOptions::DEFAULT_MAX_QUEUED);
        let window_blocks = manifest.window.map_or(0, |window| window.blocks);
        let slots = manifest.sequences.map_or(0, |sequences| sequences.slots);

        let (graphs, buckets, bind_times) = bind(&mut device, manifest, plans)?;
        let costs = Costs::new(&buckets, options.plan_times.as_deref());
        capacity::chunk(&costs, options.chunked_prefill_size)?;
        let replayer = Replayer::new(device, graphs, costs, options.chunked_prefill_size, manifest);
        let block_tokens = manifest.kv.block_tokens;
        let in_memory = blocks * block_tokens;
        let context = manifest.model.max_context.min(replayer.context_tokens()).min(in_memory);
        let chunk = replayer.max_chunk();
        let max_running = capacity::max_running(manifest, blocks, max_running, context, chunk)?;
        let vocab_size = manifest.model.vocab_size;
        let counters = Counters::new(buckets, max_running);
        counters.free_blocks.store(blocks.into(), Relaxed);
        counters.free_window_blocks.store(window_blocks.into(), Relaxed);
        counters.free_slots.store(slots.into(), Relaxed);
        let ceiling = capacity::ceiling(&replayer.costs, max_running);
        let limits = Limits { vocab_size, context_tokens: context as usize };
        let totals = Totals { blocks, block_tokens, window_blocks, slots, prefix_cache };
        let requests = (max_running, max_queued);
        let shared =
            Shared::new(limits, requests, ceiling, totals, counters, replayer.device_name());
        let memories = Memories::new(manifest, blocks, prefix_cache == PrefixCaching::On);
        let scratch = Scratch {
            batch: Vec::with_capacity(max_running as usize),
            prompts: Vec::with_capacity(max_running as usize),
            pieces: Vec::with_capacity(replayer.costs.decode_rows().max().unwrap_or(0) as usize),
            next: Vec::with_capacity(max_running as usize),
            logits: vec![0.0; vocab_size as usize],
            ended: Vec::with_capacity(max_running as usize),
            waited: Duration::ZERO,
        };
        let prefill_tokens =
            options.max_prefill_tokens.unwrap_or(EngineOptions::DEFAULT_MAX_PREFILL_TOKENS);
        let step_limits = StepLimits {
            max_running: max_running as usize,
            chunk,
            prefill_tokens: prefill_tokens as usize,
            mixes: !options.disable_mixed_chunk,
            by_priority: options.priority_scheduling,
            has_slots: manifest.sequences.is_some(),
        };
        Ok(Self {
            replayer,
            scheduler: Scheduler::new(memories, block_tokens, step_limits),
            sampler: Sampler::new(vocab_size as usize),
            shared: Arc::new(shared),
            scratch,
            throughput: Throughput::default(),
            eos: manifest.model.eos_token_ids.clone(),
            block_tokens: block_tokens as usize,
            has_window: manifest.window.is_some(),
            startup: StartupReport {
                bind: bind_times,
                total_ms: ms_since(start),
                ..StartupReport::default()
            },
        })
    }

    /// How long the start took.
    pub fn startup(&self) -> &StartupReport {
        &self.startup
    }

    /// Name of the device, for reports.
    pub fn device_name(&self) -> String {
        self.replayer.device_name()
    }

    /// Gives the device back; requests that have not ended are dropped without an event.
    pub fn into_device(self) -> D {
        self.replayer.into_device()
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Queues a request; no queue limit applies. Its events come from [`Engine::step`].
    ///
    /// # Errors
    /// [`RequestError`] when it can never be served; its sink is dropped without an event.
    pub fn add(&mut self, request: Request) -> Result<(), RequestError> {
        let checked = self.shared.limits.check(request)?;
        self.shared.requests.fetch_add(1, SeqCst);
        self.enqueue(checked);
        Ok(())
    }

    /// Queues a request that was checked and counted.
    pub(crate) fn enqueue(&mut self, request: Checked) {
        let sizing = Sizing {
            context_tokens: self.shared.limits.context_tokens,
            block_tokens: self.block_tokens,
            has_window: self.has_window,
            eos: &self.eos,
        };
        self.scheduler.enqueue(Sequence::new(request, &sizing));
        self.shared.counters.waiting.store(self.scheduler.waiting.len() as u64, Relaxed);
    }

    /// Drops requests whose client left, starts those that have room, and does one piece of work.
    ///
    /// # Errors
    /// When the device fails. Every request was told and is gone; the engine must not be used
    /// further.
    pub fn step(&mut self) -> Result<StepOutcome, DeviceError> {
        let start = Instant::now();
        self.shared.counters.begin_step(start);
        self.drop_closed();
        self.start_waiting();
        self.scratch.waited = Duration::ZERO;
        self.resume_parked();
        let work = self.choose_work();
        self.scheduler.prefilled_last = matches!(work, Work::Prefill(_));
        let outcome = match work {
            Work::Nothing => Ok(self.wait_for_parked()),
            Work::Prefill(index) => self.prefill_step(index),
            Work::Decode { rows } => self.decode_step(rows),
        };
        match &outcome {
            Err(error) => self.abort_all(&error.to_string()),
            Ok(outcome) => {
                let time = self.publish().duration_since(start);
                if !matches!(outcome, StepOutcome::Idle | StepOutcome::Parked) {
                    self.shared.counters.step(time);
                }
            }
        }
        outcome
    }

    fn choose_work(&mut self) -> Work {
        self.scheduler.reuse_prefixes();
        let (scheduler, prompts) = (&self.scheduler, &mut self.scratch.prompts);
        scheduler.prompts(prompts);
        choice::order(prompts);
        let limits = (scheduler.limits.chunk, scheduler.limits.mixes);
        let decoding = scheduler.decoding();
        choice::choose(&self.replayer.costs, decoding, prompts, limits, scheduler.prefilled_last)
    }

    /// Brings the counters up to date; returns when.
    pub(crate) fn publish(&mut self) -> Instant {
        let counters = &self.shared.counters;
        counters.waiting.store(self.scheduler.waiting.len() as u64, Relaxed);
        let preempted = self.scheduler.waiting.iter().take_while(|s| s.was_preempted()).count();
        counters.preempted.store(preempted as u64, Relaxed);
        let memories = &self.scheduler.memories;
        let kv = memories.kv();
        counters.free_blocks.store(kv.available() as u64, Relaxed);
        counters.cached_blocks.store(kv.cached() as u64, Relaxed);
        counters.evicted_blocks.store(kv.evicted(), Relaxed);
        counters.prefix_hits.store(self.scheduler.reused_tokens, Relaxed);
        counters.free_window_blocks.store(memories.free_window_blocks() as u64, Relaxed);
        counters.free_slots.store(memories.free_slots() as u64, Relaxed);
        let now = Instant::now();
        let generated = counters.generation_tokens.load(Relaxed);
        let rate = self.throughput.update(now, generated, self.scheduler.is_idle());
        counters.gen_throughput.store(rate.to_bits(), Relaxed);
        counters.end_step();
        // Last: who sees that nothing runs sees the rest too.
        counters.running.store(self.scheduler.running.len() as u64, Release);
        now
    }

    pub(crate) fn drop_closed(&mut self) {
        for index in (0..self.scheduler.running.len()).rev() {
            if !self.scheduler.running[index].is_open() {
                let sequence = self.scheduler.remove_running(index);
                self.count_end(&sequence, &CLIENT_LEFT);
            }
        }
        for index in (0..self.scheduler.waiting.len()).rev() {
            if !self.scheduler.waiting[index].is_open()
                && let Some(sequence) = self.scheduler.waiting.remove(index)
            {
                self.count_end(&sequence, &CLIENT_LEFT);
            }
        }
    }

    fn start_waiting(&mut self) {
        while let Some(sequence) = self.scheduler.start_next() {
            if !sequence.was_preempted() {
                let tokens = sequence.prompt_len as u64;
                let shared = &self.shared;
                shared.counters.prompt_tokens.fetch_add(tokens, Relaxed);
                if shared.totals.prefix_cache == PrefixCaching::On {
                    shared.counters.prefix_queries.fetch_add(tokens, Relaxed);
                }
                let queued = sequence.request.arrival.elapsed();
                // Whoever has left is dropped in the next step.
                sequence.request.sink.push(TokenEvent::Started { queued });
            }
        }
    }

    /// Counts a request that is gone.
    pub(crate) fn count_end(&self, sequence: &Sequence, finish: &Finish) {
        tracing::debug!(
            request = sequence.request.id.0,
            prompt_tokens = sequence.prompt_len,
            output_tokens = sequence.output_len(),
            ?finish,
            "request ended"
        );
        let counters = &self.shared.counters;
        match finish {
            Finish::Abort(_) | Finish::Constraint(_) => counters.aborted.fetch_add(1, Relaxed),
            Finish::Stop { .. } | Finish::Length | Finish::Complete => {
                counters.finished.fetch_add(1, Relaxed)
            }
        };
        self.shared.requests.fetch_sub(1, SeqCst);
    }

    /// Ends every request and frees all memory.
    pub(crate) fn abort_all(&mut self, why: &str) {
        let finish = Finish::Abort(why.to_owned());
        while !self.scheduler.running.is_empty() {
            let sequence = self.scheduler.remove_running(self.scheduler.running.len() - 1);
            self.abort(sequence, &finish);
        }
        while let Some(sequence) = self.scheduler.waiting.pop_front() {
            self.abort(sequence, &finish);
        }
        self.publish();
    }

    /// Ends a request, unless it ended in the step that failed.
    fn abort(&self, mut sequence: Sequence, finish: &Finish) {
        if sequence.ended.is_none() {
            sequence.end(finish.clone());
        }
        self.count_end(&sequence, sequence.ended.as_ref().unwrap_or(finish));
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Frees the KV blocks that keep a prefix for later requests.
    ///
    /// # Errors
    /// [`FlushError::Busy`] when requests have not ended, unless the engine is paused and none of them
    /// holds memory.
    pub fn flush_cache(&mut self) -> Result<Flushed, FlushError> {
        self.drop_closed();
        let is_retracted = self.shared.paused.load(SeqCst) && self.scheduler.running.is_empty();
        if !self.is_idle() && !is_retracted {
            let requests = self.scheduler.running.len() + self.scheduler.waiting.len();
            return Err(FlushError::Busy { requests: requests as u64 });
        }
        let blocks = self.scheduler.memories.flush();
        self.publish();
        Ok(Flushed { blocks })
    }
}

/// Counted as aborted; nobody reads the reason. Empty, so that it allocates nothing.
pub(crate) const CLIENT_LEFT: Finish = Finish::Abort(String::new());

fn ms_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
