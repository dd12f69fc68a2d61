//! What is computed with the prefix cache is, bit for bit, what is computed without.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use cli::HostDevice;
use precast_tests::{
    compile, compile_here,
    engine::{Output, load_with, request},
    fixture,
    http::Server,
    precast,
};
use runtime::{
    Engine, EngineOptions, PrefixCaching, StepOutcome, TokenEvent, TokenLogprob, TokenSink,
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");

/// Blocks of 16 tokens.
const BUILD: &str = "--graph-bs 1 4 --prefill-chunks 16 48 --max-context 256 --kv-blocks 64";

#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<TokenEvent>>>);

impl TokenSink for Events {
    fn push(&mut self, event: TokenEvent) -> bool {
        self.0.lock().unwrap().push(event);
        true
    }
    fn is_open(&self) -> bool {
        true
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    prompt: Option<Vec<TokenLogprob>>,
}

impl Events {
    fn answer(&self) -> (Answer, usize) {
        let (mut answer, mut cached) = (Answer::default(), 0);
        for event in self.0.lock().unwrap().iter() {
            match event {
                TokenEvent::Prompt { logprobs } => answer.prompt = Some(logprobs.clone()),
                TokenEvent::Token { token, logprob, cached_tokens, .. } => {
                    answer.tokens.push(*token);
                    answer.logprobs.push(logprob.clone().unwrap());
                    cached = *cached_tokens;
                }
                TokenEvent::Ended { finish } => panic!("{finish:?}"),
                TokenEvent::Started { .. } | TokenEvent::Retracted => {}
            }
        }
        (answer, cached)
    }
}

struct Job {
    prompt: Vec<u32>,
    tokens: usize,
    prompt_from: Option<usize>,
}

/// Greedy, with the two most probable tokens at each position.
fn run(engine: &mut Engine<HostDevice>, jobs: &[Job]) -> Vec<(Answer, usize)> {
    let start = |(job, id): (&Job, u64)| {
        let events = Events::default();
        let mut request = request(id, &job.prompt, job.tokens, &Output::default());
        request.sampling.temperature = 0.0;
        request.logprobs.top_n = 2;
        request.logprobs.prompt_from = job.prompt_from;
        request.sink = Box::new(events.clone());
        engine.add(request).unwrap();
        events
    };
    let all: Vec<Events> = jobs.iter().zip(0..).map(start).collect();
    while engine.step().unwrap() != StepOutcome::Idle {}
    all.iter().map(Events::answer).collect()
}

fn options(prefix_cache: bool) -> EngineOptions {
    EngineOptions { prefix_cache, max_running_requests: Some(8), ..EngineOptions::default() }
}

fn words(salt: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (salt * 7919 + i * i * 31 + i * 101) % 470).collect()
}

fn job(prompt: Vec<u32>, tokens: usize) -> Job {
    Job { prompt, tokens, prompt_from: None }
}

macro_rules! models {
    ($($name:ident)*) => { $(#[test] fn $name() { same_with_and_without(stringify!($name)) })* };
}

models! { qwen2 qwen3_moe_w8a8 deepseek_v3 deepseek_v32_w8a8 }

fn same_with_and_without(model: &str) {
    let dir = TempDir::new().unwrap();
    let options_of = format!("{BUILD} --no-record");
    let artifact = compile_here(&fixture(model), &dir.path().join("artifact"), &options_of);
    let mut plain = load_with(&artifact, 2, options(false));
    let mut cached = load_with(&artifact, 2, options(true));
    assert_eq!(cached.stats().prefix_cache, PrefixCaching::On);
    let mut both = |jobs: &[Job]| -> (Vec<Answer>, Vec<usize>) {
        let want: Vec<Answer> = run(&mut plain, jobs).into_iter().map(|(a, _)| a).collect();
        let (got, found): (Vec<Answer>, Vec<usize>) = run(&mut cached, jobs).into_iter().unzip();
        assert_eq!(got, want, "{model}");
        (got, found)
    };

    // A conversation. What was fed before is found, up to its last whole block.
    let mut talk = words(1, 41);
    let mut fed = 0;
    for turn in 0..4 {
        let (answers, found) = both(&[job(talk.clone(), 20)]);
        assert_eq!(found, [fed / 16 * 16], "turn {turn}");
        talk.extend(&answers[0].tokens);
        fed = talk.len() - 1;
        talk.extend(words(turn + 5, 9));
    }
    // Parts of it, to the token at which a block ends and those around.
    for len in [15, 16, 17, 32, 33, 100] {
        let (_, found) = both(&[job(talk[..len].to_vec(), 4)]);
        assert_eq!(found, [(len - 1) / 16 * 16], "of {len}");
    }
    // Several at once, with what they have in common and without.
    let system = words(9, 70);
    let ends = [5, 30, 1, 26, 58].iter().zip(20..);
    let jobs: Vec<Job> =
        ends.map(|(&n, salt)| job([&system[..], &words(salt, n)].concat(), 30)).collect();
    let (_, found) = both(&jobs);
    assert_eq!(found, [64, 64, 0, 64, 64], "the shortest is fed first and computes it for all");
    let (_, found) = both(&jobs);
    assert_eq!(found, [64, 96, 64, 80, 112]);
    // Log-probabilities of the prompt from some token on.
    for (from, want) in [(0, 0), (1, 0), (17, 16), (40, 32), (70, 64), (97, 96)] {
        let (_, found) = both(&[Job { prompt_from: Some(from), ..job(jobs[1].prompt.clone(), 2) }]);
        assert_eq!(found, [want], "from {from}");
    }
    let stats = cached.stats();
    assert_eq!((stats.free_blocks, stats.running), (stats.total_blocks, 0));
    assert!(stats.cached_blocks > 20 && stats.prefix_hit_tokens_total > 500);
}

#[test]
fn it_is_off_for_models_with_other_memories() {
    for (model, why) in
        [("gpt_oss", PrefixCaching::SlidingWindow), ("qwen3_next", PrefixCaching::Recurrent)]
    {
        let dir = TempDir::new().unwrap();
        let build = format!("{BUILD} --no-record");
        let artifact = compile_here(&fixture(model), &dir.path().join("artifact"), &build);
        let mut engine = load_with(&artifact, 2, options(true));
        assert_eq!(engine.stats().prefix_cache, why);
        let jobs = [job(words(1, 60), 5)];
        let twice = [run(&mut engine, &jobs), run(&mut engine, &jobs)];
        assert_eq!((&twice[0], twice[1][0].1), (&twice[1], 0), "{model}");
    }
}

#[test]
fn pressure_evicts_and_preempts_and_changes_nothing() {
    let dir = TempDir::new().unwrap();
    let build = format!("{BUILD} --no-record");
    let artifact = compile_here(&fixture("qwen3"), &dir.path().join("artifact"), &build);
    let jobs: Vec<Job> = (0..12)
        .map(|i| job([words(i % 2, 20 + i), words(i + 3, 7)].concat(), 60 + i as usize))
        .collect();
    let want = run(&mut load_with(&artifact, 2, options(false)), &jobs);
    // Room for one context, or little more.
    let tight = EngineOptions { max_total_tokens: Some(260), ..options(true) };
    let mut engine = load_with(&artifact, 2, tight);
    assert_eq!(engine.stats().total_blocks, 16);
    for round in 0..2 {
        for (got, want) in run(&mut engine, &jobs).iter().zip(&want) {
            assert_eq!(got.0, want.0, "round {round}");
        }
    }
    let stats = engine.stats();
    assert!(stats.preemptions_total > 0 && stats.evicted_blocks_total > 0, "{stats:?}");
    assert!(stats.prefix_hit_tokens_total > 0);
    assert_eq!(stats.free_blocks, 16);
    assert_eq!(engine.flush_cache().unwrap().blocks, stats.cached_blocks);
}

#[test]
fn clients_see_what_was_cached() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture("qwen3"), &out, BUILD);
    let ids = words(2, 50);
    let body = json!({
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": 20, "ignore_eos": true},
    });
    let info = |server: &Server| -> Value {
        serde_json::from_str(&server.get("/get_server_info").1).unwrap()
    };

    let server = Server::start(PRECAST, &out, "--max-total-tokens 600 --enable-cache-report");
    assert_eq!(info(&server)["max_total_num_tokens"], 592, "37 blocks");
    assert_eq!(
        (&info(&server)["disable_radix_cache"], &info(&server)["prefix_cache"]),
        (&json!(false), &json!("on"))
    );
    let mut tokens = None;
    for found in [0, 48, 48] {
        let answer = server.ask("/generate", &body);
        assert_eq!(answer["meta_info"]["cached_tokens"], found);
        assert_eq!(*tokens.get_or_insert(answer["output_ids"].clone()), answer["output_ids"]);
    }
    let completion = json!({"prompt": ids, "max_tokens": 3, "temperature": 0});
    let usage = &server.ask("/v1/completions", &completion)["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 48);
    // Counters follow at the end of the step.
    let start = Instant::now();
    while server.metric("sglang:num_running_reqs") > 0.0 {
        assert!(start.elapsed() < Duration::from_secs(20), "the request ends");
    }
    // 200 tokens of prompts, 144 of them found; 69 tokens are in memory.
    for (name, value) in [
        ("sglang:cached_tokens_total", 144.0),
        ("vllm:prefix_cache_hits_total", 144.0),
        ("vllm:prefix_cache_queries_total", 200.0),
        ("sglang:cache_hit_rate", 0.72),
        ("sglang:token_usage", 0.0),
        ("precast:kv_cached_blocks", 4.0),
        ("precast:kv_evicted_blocks_total", 0.0),
    ] {
        assert_eq!(server.metric(name), value, "{name}");
    }
    assert_eq!(server.get("/flush_cache"), (200, "Cache flushed: 4 blocks were freed.\n".into()));
    assert_eq!(server.get("/flush_cache"), (200, "Cache flushed: 0 blocks were freed.\n".into()));
    assert_eq!(server.ask("/generate", &body)["meta_info"]["cached_tokens"], 0);

    let mut stream = body.clone();
    stream["stream"] = true.into();
    stream["sampling_params"]["max_new_tokens"] = 200.into();
    let mut lines = BufReader::new(server.post_stream("/generate", &stream)).lines();
    lines.next().unwrap().unwrap();
    let (status, text) = server.get("/flush_cache");
    if status != 200 {
        assert_eq!((status, text.contains("1 requests are running")), (400, true), "{text}");
    }
    drop(lines);
    drop(server);

    let server = Server::start(PRECAST, &out, "--disable-prefix-cache");
    assert_eq!(info(&server)["prefix_cache"], "off: disabled");
    for _ in 0..2 {
        let answer = server.ask("/generate", &body);
        assert_eq!(answer["meta_info"]["cached_tokens"], 0);
        assert_eq!(tokens, Some(answer["output_ids"].clone()), "the same without the cache");
    }
    drop(server);

    let serve = ["serve", out.to_str().unwrap(), "--port", "0", "--max-total-tokens", "1025"];
    let refused = precast(PRECAST, serve);
    assert!(!refused.status.success());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("`--max-total-tokens` is 1025, but must be at least 16"), "{message}");
    assert!(message.contains("at most 1024"), "{message}");
}
