//! A benchmark from its first question to its last line.

mod load;

use crate::{
    answer::Question,
    client::raise_file_limit,
    dataset::{Row, Sources, describe},
    endpoint::Endpoint,
    error::BenchError,
    metrics::{Measured, Metrics},
    options::{DatasetName, ServingArgs},
    output::Output,
    pace,
    random::{NumpyRandom, PythonRandom},
    record,
    socket::SocketMetrics,
    table,
    tokenizer::Tokenizer,
};
use hyper::{Method, StatusCode};
use load::Load;
use serde_json::{Map, Value};
use std::{
    io::Write,
    path::{Path, PathBuf},
    time::Instant,
};

/// Tokens of the answers while warming up.
const WARM_UP_TOKENS: usize = 32;

/// Renders a user's message as a chat.
pub type Chat = Box<dyn Fn(&str) -> Result<String, String>>;

/// Reads the chat template that lies beside a tokenizer.
pub type LoadChat<'a> = &'a dyn Fn(&Path) -> Result<Chat, String>;

/// What was measured.
#[derive(Debug)]
pub struct Report {
    /// The numbers of the table.
    pub metrics: Metrics,
    /// What the socket saw.
    pub socket: SocketMetrics,
    /// What became of each request, in the order in which they were sent.
    pub outputs: Vec<Output>,
}

impl Report {
    /// # Errors
    /// [`BenchError::Failed`] when a request failed.
    pub fn check(&self) -> Result<(), BenchError> {
        let mut failures = self.outputs.iter().filter_map(|o| o.failure.as_ref());
        match failures.next() {
            None => Ok(()),
            Some(first) => Err(BenchError::Failed {
                failed: failures.count() + 1,
                all: self.outputs.len(),
                first: first.message.clone(),
            }),
        }
    }
}

/// Runs a benchmark and prints its table to `out` and notes to standard error. `load_chat` is for
/// `--apply-chat-template`.
///
/// # Errors
/// [`BenchError`]. That requests failed is told by [`Report::check`].
pub fn run(
    args: &ServingArgs,
    load_chat: LoadChat<'_>,
    out: &mut dyn Write,
) -> Result<Report, BenchError> {
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(BenchError::Start)?;
    runtime.block_on(benchmark(args, load_chat, out))
}

async fn benchmark(
    args: &ServingArgs,
    load_chat: LoadChat<'_>,
    out: &mut dyn Write,
) -> Result<Report, BenchError> {
    let extra = extra_fields(args)?;
    let endpoint = Endpoint::new(args).await?;
    let model = model_name(args, &endpoint).await?;
    let about = endpoint.info("/get_model_info").await?.unwrap_or_default();
    let directory = tokenizer_path(args, &about);
    let tokenizer = directory.as_deref().map(Tokenizer::load).transpose()?;
    let chat = match (args.apply_chat_template, &directory) {
        (false, _) => None,
        (true, Some(directory)) => Some(
            load_chat(directory).map_err(|why| BenchError::option("apply-chat-template", why))?,
        ),
        (true, None) => {
            let problem = "needs a `--tokenizer` directory with the model's chat template";
            return Err(BenchError::option("apply-chat-template", problem));
        }
    };

    let mut numpy = NumpyRandom::new(args.seed);
    let sources = Sources {
        args,
        tokenizer: tokenizer.as_ref(),
        vocab_size: about["vocab_size"].as_u64().and_then(|n| u32::try_from(n).ok()),
        chat: chat.as_ref(),
    };
    let rows = sources.rows(&mut numpy, &mut PythonRandom::new(args.seed))?;
    eprintln!("{} ({})", describe(&rows), endpoint.url(args.backend.api().path()));
    let has_all =
        rows.len() >= args.num_prompts || args.dataset_name == DatasetName::GeneratedSharedPrefix;
    if !has_all {
        eprintln!("the dataset has no more than {} of {} prompts", rows.len(), args.num_prompts);
    }

    let load = Load::new(args, &endpoint, &model, &extra);
    warm_up(args, &load, &rows[0]).await?;
    if args.flush_cache {
        command(&endpoint, "/flush_cache").await?;
    }
    let profiles = args.profile && command(&endpoint, "/start_profile").await?;
    let due = pace::schedule(rows.len(), args.request_rate, &mut numpy);
    let run = load.run(&rows, &due).await;
    if profiles {
        command(&endpoint, "/stop_profile").await?;
    }

    let info = endpoint.info("/get_server_info").await.unwrap_or_default();
    let count = tokenizer.as_ref().map(|t| |text: &str| t.count(text));
    let metrics = Metrics::new(Measured {
        outputs: &run.outputs,
        duration: run.cost.wall,
        count: count.as_ref().map(|f| f as &dyn Fn(&str) -> usize),
        accept_length: info.as_ref().and_then(accept_length),
        retokenizes_gaps: args.backend.retokenizes_gaps(),
    });
    let socket = SocketMetrics::new(&run.outputs, run.cost);
    table::print(out, args, &metrics).map_err(BenchError::Print)?;
    table::print_socket(out, &socket).map_err(BenchError::Print)?;
    if let Some(path) = &args.output_file {
        let mut line = record::record(args, info.as_ref(), &metrics, &socket);
        if args.output_details {
            line.extend(record::details(&run.outputs));
        }
        record::append(path, line)?;
    }
    Ok(Report { metrics, socket, outputs: run.outputs })
}

fn extra_fields(args: &ServingArgs) -> Result<Map<String, Value>, BenchError> {
    let text = args.extra_request_body.as_deref().unwrap_or("{}");
    serde_json::from_str(text).map_err(|e| {
        let problem = format!("is no JSON object: {e}; write one such as '{{\"top_k\": 1}}'");
        BenchError::option("extra-request-body", problem)
    })
}

async fn model_name(args: &ServingArgs, endpoint: &Endpoint) -> Result<String, BenchError> {
    // Asked even when the name is given: that nobody is there is best said before prompts are made.
    let models = endpoint.info("/v1/models").await?;
    if let Some(name) = args.served_model_name.as_ref().or(args.model.as_ref()) {
        return Ok(name.clone());
    }
    let first = models.as_ref().and_then(|models| models["data"][0]["id"].as_str());
    first.map(str::to_owned).ok_or_else(|| BenchError::Question {
        url: endpoint.url("/v1/models"),
        why: "names no model; give its name with `--model`".into(),
    })
}

/// Where a tokenizer is: where it is said to be, or where the server has it if that is here.
fn tokenizer_path(args: &ServingArgs, about: &Value) -> Option<PathBuf> {
    let has_one = |path: &PathBuf| path.join("tokenizer.json").is_file();
    args.tokenizer
        .clone()
        .or_else(|| args.model.as_ref().map(PathBuf::from).filter(has_one))
        .or_else(|| about["tokenizer_path"].as_str().map(PathBuf::from).filter(has_one))
}

async fn warm_up(args: &ServingArgs, load: &Load<'_>, row: &Row) -> Result<(), BenchError> {
    if args.warmup_requests == 0 {
        return Ok(());
    }
    let row = Row { output_len: row.output_len.min(WARM_UP_TOKENS), ..row.clone() };
    let started = Instant::now();
    let rows = vec![row; args.warmup_requests];
    let due = vec![std::time::Duration::ZERO; rows.len()];
    let outputs = load.run_unlimited(&rows, &due).await;
    match outputs.iter().filter_map(|o| o.failure.as_ref()).next() {
        Some(failure) if outputs.iter().all(|o| o.failure.is_some()) => {
            Err(BenchError::WarmUp(failure.message.clone()))
        }
        _ => {
            eprintln!("warmed up in {:.2} s", started.elapsed().as_secs_f64());
            Ok(())
        }
    }
}

/// Posts to `path`; whether the server did it. A server that does not know it is no error.
async fn command(endpoint: &Endpoint, path: &str) -> Result<bool, BenchError> {
    let (status, body) = endpoint.ask(Method::POST, path).await?;
    if status != StatusCode::OK {
        let text = String::from_utf8_lossy(&body);
        eprintln!("{}: {status}: {}", endpoint.url(path), text.trim());
    }
    Ok(status == StatusCode::OK)
}

/// Of the first rank; of the decoding server where prefill is elsewhere.
fn accept_length(info: &Value) -> Option<f64> {
    let info = if info["decode"].is_array() { &info["decode"][0] } else { info };
    info["internal_states"][0]["avg_spec_accept_length"].as_f64()
}
