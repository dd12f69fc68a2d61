//! Which sizes get plans, and why.

use artifact::{Bucket, Phase};

/// Rows for which head plans exist: one for the last token of a prompt, more for the
/// log-probabilities of prompts.
const HEAD_ROWS: [u32; 2] = [1, 16];

/// The sizes that were decided on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Decode batch sizes, ascending; the last is the admission ceiling.
    pub decode: Vec<u32>,
    /// Prefill chunk lengths, ascending.
    pub prefill: Vec<u32>,
    /// Rows of logits computed at once after a prefill, ascending.
    pub head: Vec<u32>,
    /// Context lengths that plans are sized for, in tokens, ascending; the last is the longest
    /// context there is.
    pub tiers: Vec<u32>,
    /// Every decision.
    pub notes: Vec<Bucket>,
}

/// Decides the sizes.
///
/// - `ceiling` is the most sequences that decode at once; by default the largest of `decode`. It
///   always becomes a bucket, and larger ones are dropped since they could never fill.
/// - `prefill` lengths beyond `max_context` are dropped likewise.
/// - `tiers` are rounded up to whole KV blocks, and `max_context` always becomes one.
pub fn choose(
    decode: &[u32],
    ceiling: Option<u32>,
    prefill: &[u32],
    tiers: &[u32],
    max_context: u32,
    block_tokens: u32,
) -> Buckets {
    let mut notes = Vec::new();
    let ceiling = ceiling.or_else(|| decode.iter().copied().max()).unwrap_or(1).max(1);
    let decode = keep(
        Phase::Decode,
        decode,
        ceiling,
        &format!("no more than {ceiling} sequences decode at once (--max-running-requests)"),
        "the admission ceiling (--max-running-requests) is always a bucket",
        &mut notes,
    );
    let longest = max_context.next_multiple_of(block_tokens);
    let largest_chunk = prefill.iter().copied().filter(|&p| p <= longest).max().unwrap_or(longest);
    let prefill = keep(
        Phase::Prefill,
        prefill,
        largest_chunk,
        &format!("no prompt is longer than {max_context} tokens (--max-context)"),
        "no requested chunk fits the longest context (--max-context)",
        &mut notes,
    );
    let head = HEAD_ROWS.to_vec();
    let mut tiers: Vec<u32> = tiers
        .iter()
        .filter(|&&t| t > 0 && t < longest)
        .map(|t| t.next_multiple_of(block_tokens))
        .chain([longest])
        .collect();
    tiers.sort_unstable();
    tiers.dedup();
    Buckets { decode, prefill, head, tiers, notes }
}

/// The requested sizes up to `limit`, and `limit` itself, ascending.
fn keep(
    phase: Phase,
    requested: &[u32],
    limit: u32,
    why_dropped: &str,
    why_added: &str,
    notes: &mut Vec<Bucket>,
) -> Vec<u32> {
    let mut sizes = requested.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let mut note = |rows, kept, reason: &str| {
        notes.push(Bucket { phase, rows, kept, reason: reason.to_owned() });
    };
    sizes.retain(|&rows| {
        let kept = rows > 0 && rows <= limit;
        note(rows, kept, if kept { "requested" } else { why_dropped });
        kept
    });
    if sizes.last() != Some(&limit) {
        sizes.push(limit);
        note(limit, true, why_added);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_is_always_a_bucket() {
        let b = choose(&[8, 1, 4, 8, 64], Some(12), &[128], &[], 2048, 16);
        assert_eq!(b.decode, [1, 4, 8, 12]);
        let dropped: Vec<u32> = b.notes.iter().filter(|n| !n.kept).map(|n| n.rows).collect();
        assert_eq!(dropped, [64]);
        assert!(b.notes.iter().any(|n| n.rows == 12 && n.reason.contains("ceiling")));
        assert_eq!(choose(&[8, 16, 24], None, &[128], &[], 2048, 16).decode, [8, 16, 24]);
    }

    #[test]
    fn chunks_and_tiers_end_at_the_longest_context() {
        let b = choose(&[1], None, &[32, 512], &[128, 4096], 100, 16);
        assert_eq!(b.prefill, [32]);
        assert_eq!(b.tiers, [112]);
        let b = choose(&[1], None, &[512], &[100, 4096], 32768, 16);
        assert_eq!(b.tiers, [112, 4096, 32768]);
        let b = choose(&[1], None, &[512], &[0, 32760, u32::MAX], 32768, 16);
        assert_eq!(b.tiers, [32768]);
        assert_eq!(choose(&[1], None, &[512], &[], 64, 16).prefill, [64]);
    }
}
