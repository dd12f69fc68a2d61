//! Structured output as metrics.

use super::page::Page;
use crate::grammar::MaskTimes;

/// Adds how many token sets the worker threads made, and how long they took.
pub(super) fn expose(page: &mut Page, times: &MaskTimes) {
    let help = "Sets of allowed tokens that were worked out for grammars.";
    page.counter("precast:grammar_masks_total", help, times.count());
    let help = "Time of all worker threads for these sets.";
    page.seconds("precast:grammar_mask_seconds_total", help, times.total().as_secs_f64());
}
