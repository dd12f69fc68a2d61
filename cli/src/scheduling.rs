//! The options that say how much runs and how steps are filled.

use clap::Args;
use runtime::EngineOptions;

/// How requests are scheduled.
#[derive(Clone, Debug, Args)]
pub struct SchedulingArgs {
    /// Requests that may wait; more are answered 429.
    #[arg(long, visible_alias = "max-queue", value_name = "N", default_value_t = 1024)]
    pub max_queued_requests: u32,
    /// The most prompt tokens that a step feeds; -1 is as many as the largest prefill plan takes
    /// [default: -1]. With fewer, larger plans are not used.
    #[arg(
        long,
        value_name = "TOKENS",
        allow_negative_numbers = true,
        value_parser = chunk,
        default_value = "-1",
        hide_default_value = true
    )]
    pub chunked_prefill_size: Chunk,
    /// The most prompt tokens whose prefill has begun; a prompt counts with what one step may feed of
    /// it, and the first is always admitted.
    #[arg(
        long,
        value_name = "TOKENS",
        value_parser = clap::value_parser!(u32).range(1..),
        default_value_t = EngineOptions::DEFAULT_MAX_PREFILL_TOKENS
    )]
    pub max_prefill_tokens: u32,
    /// Do not feed tokens of prompts in decode steps.
    #[arg(long)]
    pub disable_mixed_chunk: bool,
    /// Decode steps feed tokens of prompts: so by default; taken for SGLang's sake.
    #[arg(long, hide = true, conflicts_with = "disable_mixed_chunk")]
    pub enable_mixed_chunk: bool,
    /// Start waiting requests of a higher `priority` first.
    #[arg(long)]
    pub enable_priority_scheduling: bool,
}

/// A value of `--chunked-prefill-size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk(Option<u32>);

fn chunk(text: &str) -> Result<Chunk, String> {
    let tokens = match text.parse::<i64>() {
        Ok(-1) => Some(None),
        Ok(n) => u32::try_from(n).ok().filter(|&n| n > 0).map(Some),
        Err(_) => None,
    };
    tokens.map(Chunk).ok_or_else(|| "must be -1 (no limit) or at least 1".into())
}

impl SchedulingArgs {
    /// `options` with what was asked for.
    pub(crate) fn apply(&self, options: EngineOptions) -> EngineOptions {
        EngineOptions {
            max_queued_requests: Some(self.max_queued_requests),
            chunked_prefill_size: self.chunked_prefill_size.0,
            max_prefill_tokens: Some(self.max_prefill_tokens),
            disable_mixed_chunk: self.disable_mixed_chunk,
            priority_scheduling: self.enable_priority_scheduling,
            ..options
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SchedulingArgs,
    }

    fn options(line: &str) -> Result<EngineOptions, clap::Error> {
        let line = Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace()))?;
        Ok(line.args.apply(EngineOptions::default()))
    }

    #[test]
    fn flags_have_the_meaning_that_is_known_of_them() {
        let plain = options("").unwrap();
        assert_eq!((plain.max_queued_requests, plain.chunked_prefill_size), (Some(1024), None));
        assert_eq!(plain.max_prefill_tokens, Some(16384));
        assert!(!plain.disable_mixed_chunk && !plain.priority_scheduling);
        let all = "--chunked-prefill-size 64 --max-prefill-tokens 100 --disable-mixed-chunk \
                   --enable-priority-scheduling --max-queued-requests 3";
        let all = options(all).unwrap();
        assert_eq!((all.max_queued_requests, all.chunked_prefill_size), (Some(3), Some(64)));
        assert_eq!(all.max_prefill_tokens, Some(100));
        assert!(all.disable_mixed_chunk && all.priority_scheduling);
        assert_eq!(options("--chunked-prefill-size -1").unwrap().chunked_prefill_size, None);
        assert!(options("--enable-mixed-chunk").is_ok());
        for bad in
            ["--chunked-prefill-size 0", "--chunked-prefill-size -2", "--max-prefill-tokens 0"]
        {
            assert!(options(bad).is_err(), "{bad}");
        }
    }
}
