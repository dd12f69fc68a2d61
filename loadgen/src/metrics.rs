//! From what became of requests to the numbers of the table, by the standard client's formulas.

use crate::{
    output::Output,
    statistics::{deviation, mean, percentile, sorted},
};

/// The numbers of the table. Times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Requests that succeeded; all other numbers are theirs.
    pub completed: usize,
    /// From the first request to the last answer, in seconds.
    pub duration: f64,
    /// Tokens of the prompts.
    pub total_input: usize,
    /// Tokens of the answers.
    pub total_output: usize,
    /// The same counted from the text, without a tokenizer unknown.
    pub total_output_retokenized: Option<usize>,
    /// Requests a second.
    pub request_throughput: f64,
    /// Tokens of prompts a second.
    pub input_throughput: f64,
    /// Tokens of answers a second.
    pub output_throughput: f64,
    /// Both.
    pub total_throughput: f64,
    /// The most tokens of answers in a second, counted from the first request.
    pub max_output_tokens_per_s: f64,
    /// The most requests that were under way in such a second.
    pub max_concurrent_requests: usize,
    /// Sum of latencies by duration.
    pub concurrency: f64,
    /// Tokens that a step of the server accepts, when it speculates.
    pub accept_length: Option<f64>,
    /// From sending to the last byte.
    pub e2e: Latency,
    /// To the first text.
    pub ttft: Latency,
    /// The rest by the tokens of the rest.
    pub tpot: Latency,
    /// Between tokens.
    pub itl: Latency,
}

/// A distribution of times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Standard deviation.
    pub std: f64,
    /// 95 % are at most this.
    pub p95: f64,
    /// 99 % are at most this.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// Of times in seconds.
    pub(crate) fn of(seconds: Vec<f64>) -> Self {
        let ms = sorted(seconds.into_iter().map(|s| s * 1e3).collect());
        Self {
            mean: mean(&ms),
            median: percentile(&ms, 50.0),
            std: deviation(&ms),
            p95: percentile(&ms, 95.0),
            p99: percentile(&ms, 99.0),
            max: ms.last().copied().unwrap_or_default(),
        }
    }
}

/// What was measured, and how it is to be read.
#[derive(Clone, Copy)]
pub struct Measured<'a> {
    /// What became of each request.
    pub outputs: &'a [Output],
    /// Seconds from the first request to the last answer.
    pub duration: f64,
    /// Tokens of a text, where there is a tokenizer.
    pub count: Option<&'a dyn Fn(&str) -> usize>,
    /// Tokens that a step of the server accepts, when it speculates.
    pub accept_length: Option<f64>,
    /// Whether gaps are shared by the tokens of a chunk's text when the server speculates.
    pub retokenizes_gaps: bool,
}

impl Metrics {
    /// The numbers.
    pub fn new(measured: Measured<'_>) -> Self {
        let Measured { outputs, duration, count, accept_length, .. } = measured;
        let done: Vec<&Output> = outputs.iter().filter(|o| o.failure.is_none()).collect();
        let total_input: usize = done.iter().map(|o| o.prompt_len).sum();
        let total_output: usize = done.iter().map(|o| o.output_len).sum();
        let tpot = done.iter().filter(|o| o.output_len > 1);
        let tpot = tpot.map(|o| (o.latency - o.ttft) / (o.output_len - 1) as f64);
        let latencies: Vec<f64> = done.iter().map(|o| o.latency).collect();
        let shares = accept_length.is_some_and(|length| length > 0.0) && measured.retokenizes_gaps;
        let itl = match count.filter(|_| shares) {
            Some(count) => done.iter().flat_map(|o| shared_gaps(o, count)).collect(),
            None => done.iter().flat_map(|o| o.itl.iter().copied()).collect(),
        };
        let (max_output_tokens_per_s, max_concurrent_requests) = peaks(&done);
        let rate = |n: usize| if duration > 0.0 { n as f64 / duration } else { 0.0 };
        Self {
            completed: done.len(),
            duration,
            total_input,
            total_output,
            total_output_retokenized: count.map(|f| done.iter().map(|o| f(&o.text)).sum()),
            request_throughput: rate(done.len()),
            input_throughput: rate(total_input),
            output_throughput: rate(total_output),
            total_throughput: rate(total_input + total_output),
            max_output_tokens_per_s,
            max_concurrent_requests,
            concurrency: latencies.iter().sum::<f64>() * rate(1),
            accept_length,
            tpot: Latency::of(tpot.collect()),
            ttft: Latency::of(done.iter().map(|o| o.ttft).collect()),
            e2e: Latency::of(latencies),
            itl: Latency::of(itl),
        }
    }
}

/// Each gap once for each token of its chunk, divided by their number.
fn shared_gaps(output: &Output, count: &dyn Fn(&str) -> usize) -> Vec<f64> {
    let chunks = output.chunk_ends.windows(2).map(|ends| &output.text[ends[0]..ends[1]]);
    let gaps = output.itl.iter().zip(chunks);
    gaps.flat_map(|(gap, chunk)| {
        let tokens = count(chunk);
        std::iter::repeat_n(gap / tokens.max(1) as f64, tokens)
    })
    .collect()
}

/// The most tokens and the most requests in a second, of the seconds since the first request.
fn peaks(done: &[&Output]) -> (f64, usize) {
    let first = done.iter().map(|o| o.start).fold(f64::INFINITY, f64::min);
    let last = done.iter().map(|o| o.start + o.latency).fold(0.0, f64::max);
    if done.is_empty() {
        return (0.0, 0);
    }
    let seconds = (last - first).ceil() as usize + 1;
    let (mut tokens, mut requests) = (vec![0u64; seconds], vec![0usize; seconds]);
    for output in done {
        let mut time = output.start + output.ttft - first;
        let gaps = std::iter::once(0.0).chain(output.itl.iter().copied());
        for gap in gaps {
            time += gap;
            if let Some(tokens) = tokens.get_mut(time as usize) {
                *tokens += 1;
            }
        }
        let start = output.start - first;
        let end = ((start + output.latency) as usize).min(seconds - 1);
        requests[start as usize..=end].iter_mut().for_each(|n| *n += 1);
    }
    let most = |counts: &[u64]| counts.iter().copied().max().unwrap_or_default() as f64;
    (most(&tokens), requests.into_iter().max().unwrap_or_default())
}
