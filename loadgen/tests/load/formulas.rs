//! Numbers of a list of requests that are worked out by hand.

use precast_loadgen::{
    ClientCost, Failure, FailureKind, Latency, Measured, Metrics, Output, SocketMetrics,
    SocketTimes, Usage,
};

fn output(start: f64, ttft: f64, latency: f64, itl: &[f64], lens: (usize, usize)) -> Output {
    Output {
        prompt_len: lens.0,
        output_len: lens.1,
        start,
        ttft,
        latency,
        itl: itl.to_vec(),
        ..Output::default()
    }
}

fn outputs() -> Vec<Output> {
    let failure = Failure { kind: FailureKind::Status, message: "429".into() };
    vec![
        Output {
            text: "one two three four five".into(),
            ..output(10.0, 0.1, 1.1, &[0.2; 5], (10, 6))
        },
        Output { failure: Some(failure), ..output(10.0, 0.0, 9.0, &[], (1000, 1000)) },
        Output { text: "six seven".into(), ..output(10.5, 0.3, 0.9, &[0.2, 0.4], (20, 3)) },
        Output { text: "eight".into(), ..output(11.25, 0.5, 0.5, &[], (5, 1)) },
    ]
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

fn measured(outputs: &[Output]) -> Measured<'_> {
    Measured {
        outputs,
        duration: 2.0,
        count: Some(&words),
        accept_length: None,
        retokenizes_gaps: false,
    }
}

#[track_caller]
fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-6 * b.abs().max(1.0), "{a} is not {b}");
}

fn latency(l: Latency, mean: f64, median: f64, p99: f64, max: f64) {
    close(l.mean, mean);
    close(l.median, median);
    close(l.p99, p99);
    close(l.max, max);
}

#[test]
fn every_number_is_as_worked_out() {
    let outputs = outputs();
    let m = Metrics::new(measured(&outputs));
    assert_eq!((m.completed, m.total_input, m.total_output), (3, 35, 10));
    assert_eq!(m.total_output_retokenized, Some(8));
    close(m.request_throughput, 1.5);
    close(m.input_throughput, 17.5);
    close(m.output_throughput, 5.0);
    close(m.total_throughput, 22.5);
    close(m.concurrency, 1.25);
    latency(m.e2e, 2500.0 / 3.0, 900.0, 900.0 + 200.0 * 0.98, 1100.0);
    latency(m.ttft, 300.0, 300.0, 300.0 + 200.0 * 0.98, 500.0);
    close(m.ttft.std, (80_000.0f64 / 3.0).sqrt());
    // The answer of one token has none.
    latency(m.tpot, 250.0, 250.0, 299.0, 300.0);
    latency(m.itl, 1600.0 / 7.0, 200.0, 388.0, 400.0);
    close(m.itl.p95, 340.0);
    // Seconds count from 10.0: tokens at .1 .3 .5 .7 .9 | 1.1, at .8 | 1.0 1.4, and at 1.75.
    close(m.max_output_tokens_per_s, 6.0);
    assert_eq!(m.max_concurrent_requests, 3);
}

#[test]
fn without_successes_all_is_zero() {
    let outputs = outputs();
    let m = Metrics::new(measured(&outputs[1..2]));
    let zero = Metrics { duration: 2.0, total_output_retokenized: Some(0), ..Metrics::default() };
    assert_eq!(m, zero);
}

/// Chunks of several tokens share their gap when the server speculates.
#[test]
fn gaps_are_shared_by_the_tokens_of_a_chunk() {
    let outputs = [Output {
        text: "a b c d e f".into(),
        chunk_ends: vec![1, 5, 11],
        ..output(0.0, 0.1, 0.9, &[0.2, 0.6], (4, 6))
    }];
    let plain = Metrics::new(measured(&outputs));
    latency(plain.itl, 400.0, 400.0, 596.0, 600.0);
    let speculates =
        Measured { accept_length: Some(2.5), retokenizes_gaps: true, ..measured(&outputs) };
    // Two tokens share 200 ms, three share 600 ms.
    latency(Metrics::new(speculates).itl, 160.0, 200.0, 200.0, 200.0);
    let other = Measured { retokenizes_gaps: false, ..speculates };
    assert_eq!(Metrics::new(other).itl, plain.itl);
}

#[test]
fn the_socket_counts_what_failed_and_what_came() {
    let mut outputs = outputs();
    outputs[0].usage = Usage { prompt: Some(10), cached: Some(4), completion: Some(6) };
    outputs[2].usage = Usage { prompt: Some(21), cached: None, completion: None };
    outputs[0].socket = SocketTimes {
        connect: 0.002,
        first_byte: 0.004,
        gaps: vec![0.25, 0.75],
        bytes: 100,
        ..SocketTimes::default()
    };
    outputs[3].text.clear();
    let s = SocketMetrics::new(&outputs, ClientCost { wall: 2.0, cpu: 0.5 });
    assert_eq!((s.connection_errors, s.http_errors, s.stream_errors), (0, 1, 0));
    assert_eq!((s.empty_answers, s.bytes), (1, 100));
    assert_eq!((s.prompt_tokens, s.cached_tokens), (Some(31), Some(4)));
    assert_eq!(s.completion_tokens, Some(6));
    close(s.gap.median, 500.0);
    close(s.first_byte.max, 4.0);
    // 5 + 2 + 0 tokens after the first, two reads after the first.
    close(s.tokens_per_read, 3.5);
    close(s.cost.percent(), 25.0);
}
