//! Counters of a running engine: written by the engine thread, read by anyone, never locked.

use crate::slower::Slower;
use artifact::{Manifest, Phase};
use std::{
    fmt,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// What the beginning of a step is measured from.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A snapshot of an engine's counters. Totals count from the start of the engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests that hold memory on the device.
    pub running: u64,
    /// Requests that wait, preempted ones included.
    pub waiting: u64,
    /// Those of them that ran before and gave their memory back.
    pub preempted: u64,
    /// Whether no steps are taken, see [`crate::EngineHandle::pause`].
    pub is_paused: bool,
    /// The most requests that run at once.
    pub max_running_requests: u64,
    /// The most requests that wait when as many as possible run.
    pub max_queued_requests: u64,
    /// KV blocks that no request holds, those that keep a prefix for later ones included.
    pub free_blocks: u64,
    /// KV blocks that no request holds and that keep a prefix for later ones.
    pub cached_blocks: u64,
    /// How often such a block was given to a request that needed room, and so lost its prefix.
    pub evicted_blocks_total: u64,
    /// Whether prefixes are kept.
    pub prefix_cache: PrefixCaching,
    /// Prompt tokens that were looked for among the prefixes; a preempted request counts once.
    pub prefix_queried_tokens_total: u64,
    /// Those of them that were found, and not computed again.
    pub prefix_hit_tokens_total: u64,
    /// KV blocks, the spare one not counted.
    pub total_blocks: u64,
    /// Blocks of layers with a sliding window that no request holds; 0 without such layers.
    pub free_window_blocks: u64,
    /// Blocks of layers with a sliding window, the spare one not counted.
    pub total_window_blocks: u64,
    /// Slots of recurrent memory that no request holds; 0 without such memory.
    pub free_sequence_slots: u64,
    /// Slots of recurrent memory, the spare one not counted.
    pub total_sequence_slots: u64,
    /// Tokens in a KV block.
    pub block_tokens: u64,
    /// Prompt tokens of admitted requests; a preempted request counts once.
    pub prompt_tokens_total: u64,
    /// Tokens pushed to clients.
    pub generation_tokens_total: u64,
    /// How often a running request gave its memory back and was computed again.
    pub preemptions_total: u64,
    /// Requests that ended with a stop token or at their length.
    pub requests_finished_total: u64,
    /// Requests that ended because their client left or they could not be served.
    pub requests_aborted_total: u64,
    /// Requests refused because the queue was full.
    pub requests_rejected_total: u64,
    /// Steps that fed prompts alone.
    pub prefill_steps_total: u64,
    /// Steps that fed sequences that decode, some with prompts; one step may take several replays.
    pub decode_steps_total: u64,
    /// How often the tokens that a constraint allows were not known when they were needed.
    pub constraint_waits_total: u64,
    /// How often a request was left out of steps because they were not known soon enough.
    pub constraint_parks_total: u64,
    /// Time that the engine waited for them.
    pub constraint_wait: Duration,
    /// Decode steps by the sequences they had: the first entry counts those with one.
    pub decode_batch_sizes: Vec<u64>,
    /// How long the present step has taken so far; `None` between steps.
    pub current_step: Option<Duration>,
    /// Prompt tokens that decode replays fed.
    pub mixed_prompt_tokens_total: u64,
    /// Decode replays whose inputs were made while the device ran the one before; 0 where the device
    /// and the host share the processors.
    pub prepared_steps_total: u64,
    /// Time of the last step.
    pub last_step: Duration,
    /// How long steps took, those that found nothing to do not counted.
    pub step_times: StepTimes,
    /// Part of the steps in which the engine waited for the device: replays and their first output.
    pub device_time: Duration,
    /// The other part of the steps: what the engine itself costs.
    pub engine_time: Duration,
    /// What made replays larger or more numerous than they need be.
    pub fallbacks: Fallbacks,
    /// Replays of a decode step when as many requests run as may; more than 1 when
    /// `max_running_requests` is above the largest decode bucket.
    pub ceiling_replays: u64,
    /// Rows of such a step that are padding, unless prompts fill them; more than 0 when
    /// `max_running_requests` is no bucket.
    pub ceiling_padded_rows: u64,
    /// Tokens per second over the last half second or more with work; 0 when idle.
    pub gen_throughput: f64,
    /// One entry for each captured plan, in the order of the manifest.
    pub buckets: Vec<BucketStats>,
}

/// Whether KV blocks are kept for later requests that begin with the same tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixCaching {
    /// They are.
    On,
    /// [`crate::EngineOptions::prefix_cache`] is not set.
    #[default]
    Disabled,
    /// The model has layers with a sliding window: what they need at the end of a prefix is not in KV
    /// blocks.
    SlidingWindow,
    /// The model has recurrent layers: what they need at the end of a prefix is not in KV blocks.
    Recurrent,
}

impl PrefixCaching {
    pub(crate) fn new(manifest: &Manifest, wanted: bool) -> Self {
        match (wanted, manifest.window, manifest.sequences) {
            (false, _, _) => Self::Disabled,
            (true, Some(_), _) => Self::SlidingWindow,
            (true, None, Some(_)) => Self::Recurrent,
            (true, None, None) => Self::On,
        }
    }
}

impl fmt::Display for PrefixCaching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Disabled => "off: disabled",
            Self::SlidingWindow => "off: the model has layers with a sliding window",
            Self::Recurrent => "off: the model has recurrent layers",
        })
    }
}

/// How often a replay was larger than it need be, or there were more of them, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fallbacks {
    /// Further replays of a decode step because its batch is above the largest bucket.
    pub split: u64,
    /// Decode replays whose longest context made shorter ones run at a larger tier.
    pub context: u64,
    /// Replays of which more than half of the rows were padding.
    pub padding: u64,
}

impl Fallbacks {
    /// Names and counts.
    pub fn by_reason(&self) -> [(&'static str, u64); 3] {
        [("split", self.split), ("context", self.context), ("padding", self.padding)]
    }
}

/// A histogram of step times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Steps up to each of [`StepTimes::BOUNDS`] and above the one before, then those above all.
    pub counts: [u64; StepTimes::BOUNDS.len() + 1],
    /// All of them together.
    pub sum: Duration,
}

impl StepTimes {
    /// Upper bounds in seconds.
    pub const BOUNDS: [f64; 15] = [
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
        5.0,
    ];
}

/// How often a captured plan was replayed, and how long that took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketStats {
    /// Which part of the work.
    pub phase: Phase,
    /// Rows of a replay.
    pub rows: u32,
    /// Longest context in tokens; 0 for a head that reads none.
    pub context_tokens: u32,
    /// Replays so far.
    pub replays: u64,
    /// Rows of those replays that were padding.
    pub padded_rows: u64,
    /// Time that those replays took, all together.
    pub replay_time: Duration,
}

/// One plan's counters.
pub(crate) struct BucketCounters {
    pub(crate) phase: Phase,
    pub(crate) rows: u32,
    pub(crate) context_tokens: u32,
    pub(crate) replays: AtomicU64,
    pub(crate) padded_rows: AtomicU64,
    replay_ns: AtomicU64,
}

impl BucketCounters {
    pub(crate) fn new(phase: Phase, rows: u32, context_tokens: u32) -> Self {
        let (replays, padded_rows, replay_ns) = (0.into(), 0.into(), 0.into());
        Self { phase, rows, context_tokens, replays, padded_rows, replay_ns }
    }

    /// A replay with `live` rows that were no padding took `ns` nanoseconds.
    pub(crate) fn count(&self, live: u32, ns: u64) {
        self.replays.fetch_add(1, Relaxed);
        self.padded_rows.fetch_add(u64::from(self.rows - live), Relaxed);
        self.replay_ns.fetch_add(ns, Relaxed);
    }
}

/// The live counters behind [`Stats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) running: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) preempted: AtomicU64,
    pub(crate) free_blocks: AtomicU64,
    pub(crate) cached_blocks: AtomicU64,
    pub(crate) evicted_blocks: AtomicU64,
    pub(crate) prefix_queries: AtomicU64,
    pub(crate) prefix_hits: AtomicU64,
    pub(crate) free_window_blocks: AtomicU64,
    pub(crate) free_slots: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) generation_tokens: AtomicU64,
    pub(crate) preemptions: Slower,
    pub(crate) finished: AtomicU64,
    pub(crate) aborted: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) prefill_steps: AtomicU64,
    pub(crate) decode_steps: AtomicU64,
    pub(crate) constraint_waits: AtomicU64,
    pub(crate) constraint_parks: Slower,
    pub(crate) constraint_wait_ns: AtomicU64,
    decode_batch_sizes: Vec<AtomicU64>,
    /// Nanoseconds from [`EPOCH`] to the beginning of the present step; 0 between steps.
    step_began_ns: AtomicU64,
    pub(crate) mixed_tokens: AtomicU64,
    pub(crate) prepared_steps: AtomicU64,
    pub(crate) last_step_ns: AtomicU64,
    pub(crate) step_ns: AtomicU64,
    pub(crate) step_counts: [AtomicU64; StepTimes::BOUNDS.len() + 1],
    pub(crate) device_ns: AtomicU64,
    pub(crate) fallback_split: Slower,
    pub(crate) fallback_context: Slower,
    pub(crate) fallback_padding: Slower,
    /// Bits of an `f64`.
    pub(crate) gen_throughput: AtomicU64,
    pub(crate) buckets: Vec<BucketCounters>,
}

impl Counters {
    /// Zeroes, for at most `max_running` sequences in a step.
    pub(crate) fn new(buckets: Vec<BucketCounters>, max_running: u32) -> Self {
        LazyLock::force(&EPOCH);
        let decode_batch_sizes = (0..max_running).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, decode_batch_sizes, ..Self::default() }
    }

    /// Counts a decode step over `rows` sequences.
    pub(crate) fn count_decode(&self, rows: usize) {
        self.decode_steps.fetch_add(1, Relaxed);
        if let Some(count) = rows.checked_sub(1).and_then(|i| self.decode_batch_sizes.get(i)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// A step begins.
    pub(crate) fn begin_step(&self, now: Instant) {
        let since = now.duration_since(*EPOCH).as_nanos() as u64;
        self.step_began_ns.store(since.max(1), Relaxed);
    }

    /// The step is over.
    pub(crate) fn end_step(&self) {
        self.step_began_ns.store(0, Relaxed);
    }

    /// How long the present step has taken so far; `None` between steps.
    pub(crate) fn current_step(&self) -> Option<Duration> {
        match self.step_began_ns.load(Relaxed) {
            0 => None,
            began => Some(EPOCH.elapsed().saturating_sub(Duration::from_nanos(began))),
        }
    }

    /// A step that did something took `time`.
    pub(crate) fn step(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let at = StepTimes::BOUNDS.partition_point(|&bound| bound < seconds);
        self.step_counts[at].fetch_add(1, Relaxed);
        self.step_ns.fetch_add(time.as_nanos() as u64, Relaxed);
        self.last_step_ns.store(time.as_nanos() as u64, Relaxed);
    }

    /// Everything that changes; the caller fills in the limits.
    pub(crate) fn snapshot(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        // The device's time is a part of a step's, which is added when the step ends.
        let device_ns = get(&self.device_ns);
        let step_ns = get(&self.step_ns).max(device_ns);
        Stats {
            running: get(&self.running),
            waiting: get(&self.waiting),
            preempted: get(&self.preempted),
            free_blocks: get(&self.free_blocks),
            cached_blocks: get(&self.cached_blocks),
            evicted_blocks_total: get(&self.evicted_blocks),
            prefix_queried_tokens_total: get(&self.prefix_queries),
            prefix_hit_tokens_total: get(&self.prefix_hits),
            free_window_blocks: get(&self.free_window_blocks),
            free_sequence_slots: get(&self.free_slots),
            prompt_tokens_total: get(&self.prompt_tokens),
            generation_tokens_total: get(&self.generation_tokens),
            preemptions_total: self.preemptions.times(),
            requests_finished_total: get(&self.finished),
            requests_aborted_total: get(&self.aborted),
            requests_rejected_total: get(&self.rejected),
            prefill_steps_total: get(&self.prefill_steps),
            decode_steps_total: get(&self.decode_steps),
            constraint_waits_total: get(&self.constraint_waits),
            constraint_parks_total: self.constraint_parks.times(),
            constraint_wait: Duration::from_nanos(get(&self.constraint_wait_ns)),
            decode_batch_sizes: self.decode_batch_sizes.iter().map(get).collect(),
            current_step: self.current_step(),
            mixed_prompt_tokens_total: get(&self.mixed_tokens),
            prepared_steps_total: get(&self.prepared_steps),
            last_step: Duration::from_nanos(get(&self.last_step_ns)),
            step_times: StepTimes {
                counts: self.step_counts.each_ref().map(get),
                sum: Duration::from_nanos(step_ns),
            },
            device_time: Duration::from_nanos(device_ns),
            engine_time: Duration::from_nanos(step_ns - device_ns),
            fallbacks: Fallbacks {
                split: self.fallback_split.times(),
                context: self.fallback_context.times(),
                padding: self.fallback_padding.times(),
            },
            gen_throughput: f64::from_bits(get(&self.gen_throughput)),
            buckets: self.buckets.iter().map(BucketCounters::snapshot).collect(),
            ..Stats::default()
        }
    }
}

impl BucketCounters {
    fn snapshot(&self) -> BucketStats {
        BucketStats {
            phase: self.phase,
            rows: self.rows,
            context_tokens: self.context_tokens,
            replays: self.replays.load(Relaxed),
            padded_rows: self.padded_rows.load(Relaxed),
            replay_time: Duration::from_nanos(self.replay_ns.load(Relaxed)),
        }
    }
}
