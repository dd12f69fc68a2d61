//! `generate`: one completion on the terminal, through the same handlers as over HTTP.

use crate::{Precast, args::GenerateArgs, engine::load_engine};
use anyhow::{Context, bail};
use artifact::Artifact;
use axum::{
    body::{Body, BodyDataStream},
    http::{Request, header},
};
use futures_util::StreamExt;
use runtime::EngineOptions;
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    sync::Arc,
};
use tower::ServiceExt;

pub(crate) fn generate(precast: &Precast, args: &GenerateArgs) -> anyhow::Result<()> {
    let artifact = Artifact::open(&args.artifact)?;
    let model = server::Model::from_artifact(&artifact, None)?;
    let options =
        EngineOptions { check_weights: !args.engine.no_checksum, ..EngineOptions::default() };
    let engine = load_engine(precast, &artifact, &args.engine, options, false)?.spawn()?;
    let state =
        server::AppState::new(Arc::new(engine.clone()), model, server::ServerOptions::default());
    let (path, body) = request(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(stream(server::router(state), path, &body));
    engine.shutdown();
    result
}

fn request(args: &GenerateArgs) -> anyhow::Result<(&'static str, Value)> {
    let prompt = if args.prompt == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input")?;
        text
    } else {
        args.prompt.clone()
    };
    let mut body = json!({
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "stream": true,
    });
    if let Some(k) = args.top_k {
        body["top_k"] = k.into();
    }
    if let Some(seed) = args.seed {
        body["seed"] = seed.into();
    }
    if args.raw {
        body["prompt"] = prompt.into();
        return Ok(("/v1/completions", body));
    }
    let system = args.system.iter().map(|s| json!({"role": "system", "content": s}));
    let user = json!({"role": "user", "content": prompt});
    body["messages"] = system.chain([user]).collect();
    Ok(("/v1/chat/completions", body))
}

/// Posts `body` and prints the text of each chunk as it comes.
async fn stream(router: axum::Router, path: &str, body: &Value) -> anyhow::Result<()> {
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()))?;
    let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
    let succeeded = response.status().is_success();
    let mut lines = Lines { body: response.into_body().into_data_stream(), rest: Vec::new() };
    let mut out = std::io::stdout();
    while let Some(line) = lines.next().await? {
        let data = line.strip_prefix("data: ").unwrap_or(&line);
        if data.is_empty() || data == "[DONE]" {
            continue;
        }
        let chunk: Value = serde_json::from_str(data)?;
        let message = chunk["message"].as_str().or_else(|| chunk["error"]["message"].as_str());
        if let Some(message) = message.filter(|_| !succeeded || !chunk["error"].is_null()) {
            bail!("{message}");
        }
        let choice = &chunk["choices"][0];
        let text = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
        out.write_all(text.unwrap_or_default().as_bytes())?;
        out.flush()?;
    }
    writeln!(out)?;
    Ok(())
}

struct Lines {
    body: BodyDataStream,
    rest: Vec<u8>,
}

impl Lines {
    /// The next line without its end; the last one may have none.
    async fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            if let Some(end) = self.rest.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(line.trim_ascii_end()).into_owned()));
            }
            match self.body.next().await {
                Some(bytes) => self.rest.extend_from_slice(&bytes?),
                None if self.rest.is_empty() => return Ok(None),
                None => {
                    let line = std::mem::take(&mut self.rest);
                    return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
                }
            }
        }
    }
}
