//! Structured output as metrics.

use super::page::Page;
use crate::grammar::MaskTimes;
use runtime::Stats;

/// Adds how long token sets took, and how long the engine waited for them.
pub(super) fn expose(page: &mut Page, stats: &Stats, times: &MaskTimes) {
    for (name, help, value) in [
        ("precast:grammar_masks_total", "Token sets of grammars worked out.", times.count()),
        (
            "precast:grammar_waits_total",
            "Token sets of grammars that the engine had to wait for.",
            stats.constraint_waits_total,
        ),
    ] {
        page.counter(name, help, value);
    }
    for (name, help, value) in [
        (
            "precast:grammar_mask_seconds_total",
            "Time of all worker threads for token sets of grammars.",
            times.total(),
        ),
        (
            "precast:grammar_wait_seconds_total",
            "Time that the engine waited for token sets of grammars.",
            stats.constraint_wait,
        ),
    ] {
        page.seconds(name, help, value.as_secs_f64());
    }
}
