//! The options, named as the standard client names them.

use clap::{Args, ValueEnum};
use std::{ffi::OsString, path::PathBuf};

/// Options of `bench serving`.
#[derive(Clone, Debug, Args)]
pub struct ServingArgs {
    /// Which API is asked: `/generate` (sglang), `/v1/completions` (sglang-oai, vllm) or
    /// `/v1/chat/completions` (those that end in chat).
    #[arg(long, value_enum, default_value_t = ApiBackend::Sglang)]
    pub backend: ApiBackend,
    /// Where the server is, such as http://127.0.0.1:8000; goes before --host and --port.
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// Host of the server.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port of the server.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Name of the model, or a directory with its tokenizer [default: what /v1/models says].
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Name of the model in requests, when --model is a directory.
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Directory with tokenizer.json [default: --model, or what the server loaded if it is here].
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Where prompts come from.
    #[arg(long, value_enum, default_value_t = DatasetName::Sharegpt)]
    pub dataset_name: DatasetName,
    /// JSON file of conversations, for `sharegpt` and `random`.
    #[arg(long, value_name = "FILE")]
    pub dataset_path: Option<PathBuf>,
    /// Requests to send.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = at_least_one)]
    pub num_prompts: usize,
    /// Tokens of a prompt, for `random` and `random-ids`.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, value_parser = at_least_one)]
    pub random_input_len: usize,
    /// Tokens of an answer, for `random` and `random-ids`.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, value_parser = at_least_one)]
    pub random_output_len: usize,
    /// Lengths are drawn between this part of the length and the length; 1 fixes them.
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = ratio)]
    pub random_range_ratio: f64,
    /// Size of the vocabulary, for `random-ids` without a tokenizer [default: what the server says].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub vocab_size: Option<u32>,
    /// Tokens of an answer instead of those in the file, for `sharegpt`.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(4..))]
    pub sharegpt_output_len: Option<u32>,
    /// Leave out what is longer than this, prompt and answer together, for `sharegpt`.
    #[arg(long, value_name = "TOKENS")]
    pub sharegpt_context_len: Option<usize>,
    /// Put the prompt into the model's chat template, for `sharegpt`.
    #[arg(long)]
    pub apply_chat_template: bool,
    /// Groups that share a prefix, for `generated-shared-prefix`.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub gsp_num_groups: usize,
    /// Prompts of a group.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub gsp_prompts_per_group: usize,
    /// Tokens of the prefix.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = at_least_one)]
    pub gsp_system_prompt_len: usize,
    /// Tokens after the prefix.
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = at_least_one)]
    pub gsp_question_len: usize,
    /// Tokens of an answer.
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = at_least_one)]
    pub gsp_output_len: usize,
    /// As --random-range-ratio, for the three lengths of `generated-shared-prefix`.
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = ratio)]
    pub gsp_range_ratio: f64,
    /// Requests a second, a Poisson process; inf sends all at once.
    #[arg(long, value_name = "RATE", default_value_t = f64::INFINITY, value_parser = rate)]
    pub request_rate: f64,
    /// The most requests under way; more wait for their turn.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub max_concurrency: Option<usize>,
    /// Seed of lengths, order and arrivals; the same seed draws what the Python client draws.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u32,
    /// Let answers end where the model ends them.
    #[arg(long)]
    pub disable_ignore_eos: bool,
    /// Ask for whole answers instead of streams.
    #[arg(long)]
    pub disable_stream: bool,
    /// Ask for log-probabilities of the answer.
    #[arg(long)]
    pub return_logprob: bool,
    /// Send token ids instead of text, for `random` and `random-ids`.
    #[arg(long)]
    pub tokenize_prompt: bool,
    /// Copies of the first request to send before; their answers have at most 32 tokens.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub warmup_requests: usize,
    /// Empty the server's prefix cache after warming up.
    #[arg(long)]
    pub flush_cache: bool,
    /// Tell the server to profile meanwhile (/start_profile, /stop_profile).
    #[arg(long)]
    pub profile: bool,
    /// Fields to add to every request.
    #[arg(long, value_name = "JSON")]
    pub extra_request_body: Option<String>,
    /// Headers to add to every request.
    #[arg(long, value_name = "NAME=VALUE", num_args = 1..)]
    pub header: Vec<String>,
    /// Append the results as a line of JSON.
    #[arg(long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// Lengths, times, texts and errors of every request in that line too.
    #[arg(long)]
    pub output_details: bool,
    /// Goes into the line as it is.
    #[arg(long)]
    pub tag: Option<String>,
    /// Do not count finished requests on the terminal.
    #[arg(long)]
    pub disable_tqdm: bool,
}

/// Which API is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ApiBackend {
    /// `/generate`.
    #[value(alias = "sglang-native")]
    Sglang,
    /// `/v1/completions`.
    SglangOai,
    /// `/v1/chat/completions`.
    SglangOaiChat,
    /// `/v1/completions`.
    Vllm,
    /// `/v1/chat/completions`.
    VllmChat,
}

/// Shape of requests and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Generate,
    Completions,
    Chat,
}

impl ApiBackend {
    pub(crate) fn api(self) -> Api {
        match self {
            Self::Sglang => Api::Generate,
            Self::SglangOai | Self::Vllm => Api::Completions,
            Self::SglangOaiChat | Self::VllmChat => Api::Chat,
        }
    }

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sglang => "sglang",
            Self::SglangOai => "sglang-oai",
            Self::SglangOaiChat => "sglang-oai-chat",
            Self::Vllm => "vllm",
            Self::VllmChat => "vllm-chat",
        }
    }

    /// Whether gaps are divided by the tokens of a chunk when the server speculates, for chunks then
    /// have several and do not say how many.
    pub(crate) fn retokenizes_gaps(self) -> bool {
        matches!(self, Self::SglangOai | Self::SglangOaiChat)
    }
}

impl Api {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Generate => "/generate",
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

/// Where prompts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatasetName {
    /// The first two turns of recorded conversations.
    Sharegpt,
    /// Recorded text, cut or repeated to a random length.
    Random,
    /// Consecutive token ids from a random one.
    RandomIds,
    /// Groups of random prompts that begin alike.
    GeneratedSharedPrefix,
}

impl DatasetName {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sharegpt => "sharegpt",
            Self::Random => "random",
            Self::RandomIds => "random-ids",
            Self::GeneratedSharedPrefix => "generated-shared-prefix",
        }
    }
}

/// Flags with underscores in the spelling that the parser knows: `--num_prompts=8` becomes
/// `--num-prompts=8`.
pub fn hyphenate(arg: OsString) -> OsString {
    match arg.to_str().and_then(|text| text.strip_prefix("--")) {
        Some(flag) if !flag.is_empty() => {
            let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
            format!("--{}{value}", name.replace('_', "-")).into()
        }
        _ => arg,
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let n: usize = text.parse().map_err(|_| format!("`{text}` is not a whole number"))?;
    if n > 0 { Ok(n) } else { Err("must be at least 1".into()) }
}

fn ratio(text: &str) -> Result<f64, String> {
    let f: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.0..=1.0).contains(&f) { Ok(f) } else { Err("must be between 0 and 1".into()) }
}

fn rate(text: &str) -> Result<f64, String> {
    let f: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if f > 0.0 { Ok(f) } else { Err("must be above 0, or inf".into()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    fn parse(line: &str) -> Result<ServingArgs, clap::Error> {
        let command = ServingArgs::augment_args(
            Command::new("x").infer_long_args(true).args_override_self(true),
        );
        let words = line.split_whitespace().map(|word| hyphenate(word.into()));
        ServingArgs::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    #[test]
    fn a_published_command_line_parses() {
        let args = parse(
            "x --backend sglang --dataset-name random --num-prompts 80 --max-concurrency 80 \
             --random-input-len 3500 --random-output-len 1500 --random-range-ratio 1 --seed 7",
        )
        .unwrap();
        assert_eq!((args.num_prompts, args.max_concurrency), (80, Some(80)));
        assert_eq!(args.request_rate, f64::INFINITY);
    }

    #[test]
    fn abbreviations_and_underscores_parse() {
        let args = parse("x --num-prompt 3 --random_input 5 --random_range_ratio=0.5").unwrap();
        assert_eq!((args.num_prompts, args.random_input_len), (3, 5));
        assert_eq!(args.random_range_ratio, 0.5);
        assert_eq!(hyphenate("a_b".into()), "a_b");
        assert_eq!(hyphenate("--output_file=a_b".into()), "--output-file=a_b");
    }

    #[test]
    fn senseless_values_are_refused() {
        for line in ["--num-prompts 0", "--request-rate 0", "--random-range-ratio 2", "--backend x"]
        {
            assert!(parse(&format!("x {line}")).is_err(), "{line}");
        }
    }
}
