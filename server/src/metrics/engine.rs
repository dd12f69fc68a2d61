//! The engine's counters as metrics.

use super::{counted::Counted, page::Page};
use runtime::{BucketStats, StartupReport, Stats, StepTimes};

/// Adds what `stats` says. Answers that ended at a stop string, `stop_texts`, were aborted in the
/// engine's eyes only.
pub(super) fn expose(page: &mut Page, stats: &Stats, stop_texts: u64) {
    gauges(page, stats);
    counters(page, stats, stop_texts);
    page.add(Counted::new(
        "precast:step_time_seconds",
        "Time of a step of the engine.",
        &StepTimes::BOUNDS,
        &stats.step_times.counts,
        stats.step_times.sum.as_secs_f64(),
    ));
    buckets(page, stats);
}

fn gauges(page: &mut Page, stats: &Stats) {
    let used = stats.total_blocks.saturating_sub(stats.free_blocks);
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    for (name, help, value) in [
        ("sglang:num_running_reqs", "Requests that are computed.", stats.running as f64),
        ("sglang:num_queue_reqs", "Requests that wait.", stats.waiting as f64),
        (
            "sglang:num_retracted_reqs",
            "Waiting requests that ran before and gave their KV blocks back.",
            stats.preempted as f64,
        ),
        ("sglang:token_usage", "Used share of the KV blocks.", share(used, stats.total_blocks)),
        (
            "sglang:num_used_tokens",
            "Tokens that the used KV blocks hold.",
            (used * stats.block_tokens) as f64,
        ),
        (
            "sglang:max_total_num_tokens",
            "Tokens that all KV blocks hold.",
            (stats.total_blocks * stats.block_tokens) as f64,
        ),
        (
            "sglang:gen_throughput",
            "Generated tokens per second over the last half second or more with work.",
            stats.gen_throughput,
        ),
        (
            "sglang:cache_hit_rate",
            "Share of the prompt tokens looked for that the prefix cache had.",
            share(stats.prefix_hit_tokens_total, stats.prefix_queried_tokens_total),
        ),
        (
            "precast:kv_cached_blocks",
            "KV blocks that no request holds and that keep a prefix for later ones.",
            stats.cached_blocks as f64,
        ),
        (
            "precast:window_blocks",
            "Blocks of layers with a sliding window.",
            stats.total_window_blocks as f64,
        ),
        (
            "precast:window_blocks_used",
            "Blocks of layers with a sliding window that requests hold.",
            stats.total_window_blocks.saturating_sub(stats.free_window_blocks) as f64,
        ),
        ("precast:sequence_slots", "Slots of recurrent memory.", stats.total_sequence_slots as f64),
        (
            "precast:sequence_slots_used",
            "Slots of recurrent memory that requests hold.",
            stats.total_sequence_slots.saturating_sub(stats.free_sequence_slots) as f64,
        ),
        (
            "precast:max_running_requests",
            "The most requests that are computed at once.",
            stats.max_running_requests as f64,
        ),
        (
            "precast:generation_paused",
            "1 while no steps are taken because somebody asked for a pause.",
            if stats.is_paused { 1.0 } else { 0.0 },
        ),
        (
            "precast:step_seconds",
            "Time of the last step of the engine.",
            stats.last_step.as_secs_f64(),
        ),
    ] {
        page.gauge(name, help, value);
    }
}

fn counters(page: &mut Page, stats: &Stats, stop_texts: u64) {
    let stop_texts = stop_texts.min(stats.requests_aborted_total);
    let aborted = stats.requests_aborted_total - stop_texts;
    let finished = stats.requests_finished_total + stop_texts;
    for (name, help, value) in [
        (
            "sglang:prompt_tokens_total",
            "Prompt tokens of admitted requests.",
            stats.prompt_tokens_total,
        ),
        ("sglang:generation_tokens_total", "Generated tokens.", stats.generation_tokens_total),
        (
            "sglang:cached_tokens_total",
            "Prompt tokens taken from the prefix cache.",
            stats.prefix_hit_tokens_total,
        ),
        (
            "vllm:prefix_cache_queries_total",
            "Prompt tokens looked for in the prefix cache.",
            stats.prefix_queried_tokens_total,
        ),
        (
            "precast:kv_evicted_blocks_total",
            "KV blocks that lost their prefix because a request needed room.",
            stats.evicted_blocks_total,
        ),
        ("sglang:num_requests_total", "Requests that have ended.", finished + aborted),
        (
            "sglang:num_aborted_requests_total",
            "Requests whose client left or that could not be served.",
            aborted,
        ),
        ("vllm:request_success_total", "Requests that ended with an answer.", finished),
        (
            "sglang:num_retractions_total",
            "How often a request gave its KV blocks back and was computed again.",
            stats.preemptions_total,
        ),
        (
            "precast:requests_rejected_total",
            "Requests refused because the queue was full.",
            stats.requests_rejected_total,
        ),
        ("precast:prefill_steps_total", "Steps of prompts alone.", stats.prefill_steps_total),
        (
            "precast:constraint_waits_total",
            "How often the tokens that a grammar allows were not known in time.",
            stats.constraint_waits_total,
        ),
        (
            "precast:constraint_parks_total",
            "How often a request was left out of steps because of that.",
            stats.constraint_parks_total,
        ),
        ("precast:decode_steps_total", "Decode steps computed.", stats.decode_steps_total),
        (
            "precast:prepared_steps_total",
            "Decode replays whose inputs were made while the device ran the one before.",
            stats.prepared_steps_total,
        ),
        (
            "precast:mixed_prompt_tokens_total",
            "Prompt tokens in rows of decode replays.",
            stats.mixed_prompt_tokens_total,
        ),
    ] {
        page.counter(name, help, value);
    }
    for (name, help, time) in [
        ("precast:device_seconds_total", "Seconds of steps spent in replays.", stats.device_time),
        (
            "precast:engine_overhead_seconds_total",
            "Seconds of steps spent in all but replays.",
            stats.engine_time,
        ),
    ] {
        page.seconds(name, help, time.as_secs_f64());
    }
    page.seconds(
        "precast:constraint_wait_seconds_total",
        "Seconds that the engine waited for them.",
        stats.constraint_wait.as_secs_f64(),
    );
}

fn buckets(page: &mut Page, stats: &Stats) {
    page.counters(
        "precast:graph_fallback_total",
        "Replays that were larger than they need be, or more, by reason.",
        ["reason"],
        stats.fallbacks.by_reason().into_iter().map(|(why, n)| ([why.to_owned()], n)),
    );
    let sizes = stats.decode_batch_sizes.iter().zip(1_u32..);
    page.counters(
        "precast:decode_batch_size_total",
        "Decode steps by the requests they had, exactly.",
        ["size"],
        sizes.map(|(&count, size)| ([size.to_string()], count)),
    );
    let labels = ["phase", "bucket", "context"];
    let name = |bucket: &BucketStats| {
        [bucket.phase.to_string(), bucket.rows.to_string(), bucket.context_tokens.to_string()]
    };
    let samples = |count: fn(&BucketStats) -> u64| {
        stats.buckets.iter().map(move |bucket| (name(bucket), count(bucket)))
    };
    let help = "Replays of a captured graph.";
    page.counters("precast:graph_replays_total", help, labels, samples(|bucket| bucket.replays));
    let help = "Rows of those replays that were padding.";
    let padded = samples(|bucket| bucket.padded_rows);
    page.counters("precast:graph_padded_rows_total", help, labels, padded);
    let help = "Seconds that those replays took.";
    let seconds = stats.buckets.iter().map(|b| (name(b), b.replay_time.as_secs_f64()));
    page.seconds_by("precast:graph_replay_seconds_total", help, labels, seconds);
}

/// Adds how long the start took.
pub(super) fn expose_startup(page: &mut Page, startup: &StartupReport) {
    let seconds = |ms: f64| ms / 1e3;
    page.gauge(
        "sglang:engine_startup_time",
        "Seconds from opening the artifact to a ready engine.",
        seconds(startup.total_ms),
    );
    page.gauge(
        "sglang:engine_load_weights_time",
        "Seconds for mapping and checking the weights and providing memory.",
        seconds(startup.map_ms + startup.check_ms.unwrap_or(0.0) + startup.load_ms),
    );
}
