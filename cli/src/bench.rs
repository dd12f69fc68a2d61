//! `bench`: how fast a server answers.

use anyhow::Context;
use loadgen::{BenchError, Chat, ServingArgs};
use server::ModelFiles;
use std::{fs, io, path::Path};

/// Runs `precast bench serving`.
pub(crate) fn serving(args: &ServingArgs) -> anyhow::Result<()> {
    let load_chat = |dir: &Path| load_chat(dir).map_err(|e| format!("cannot be done: {e:#}"));
    let report = loadgen::run(args, &load_chat, &mut io::stdout().lock());
    let report = report.map_err(|e| match e {
        BenchError::Print(e) => e.into(),
        e => anyhow::Error::from(e),
    })?;
    Ok(report.check()?)
}

/// The chat template beside a tokenizer.
fn load_chat(dir: &Path) -> anyhow::Result<Chat> {
    let read = |name: &str| match fs::read(dir.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| dir.join(name).display().to_string()),
    };
    let tokenizer = read("tokenizer.json")?.context("the directory has no tokenizer.json")?;
    let config = read("tokenizer_config.json")?;
    let template = read("chat_template.jinja")?;
    let files = ModelFiles {
        tokenizer: &tokenizer,
        tokenizer_config: config.as_deref(),
        generation_config: None,
        chat_template: template.as_deref(),
    };
    Ok(Box::new(files.user_turn()?))
}
