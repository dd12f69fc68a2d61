//! A file of recorded conversations, and the prompts that are its own texts.

use super::{Prompt, Row, Sources};
use crate::{error::BenchError, random::PythonRandom};
use serde::Deserialize;
use std::path::Path;

/// The first question and its answer.
pub(super) struct Turns {
    pub(super) question: String,
    answer: String,
}

#[derive(Deserialize)]
struct Conversation {
    #[serde(default, alias = "conversation")]
    conversations: Vec<Turn>,
}

#[derive(Deserialize)]
struct Turn {
    value: String,
}

/// The conversations of a file that have two turns, shuffled.
pub(super) fn read(path: &Path, python: &mut PythonRandom) -> Result<Vec<Turns>, BenchError> {
    let bytes = std::fs::read(path).map_err(|e| BenchError::file(path, e))?;
    let all: Vec<Conversation> = serde_json::from_slice(&bytes).map_err(|e| {
        BenchError::file(
            path,
            format!("{e}; it must be a list of {{\"conversations\": [{{\"value\": TEXT}}, ..]}}"),
        )
    })?;
    let mut turns: Vec<Turns> = all
        .into_iter()
        .filter_map(|conversation| {
            let mut turns = conversation.conversations.into_iter();
            Some(Turns { question: turns.next()?.value, answer: turns.next()?.value })
        })
        .collect();
    python.shuffle(&mut turns);
    Ok(turns)
}

impl Sources<'_> {
    /// The file of conversations.
    pub(super) fn conversations(
        &self,
        python: &mut PythonRandom,
    ) -> Result<Vec<Turns>, BenchError> {
        let path = self.args.dataset_path.as_deref().ok_or_else(|| {
            let name = self.args.dataset_name.name();
            let problem = format!(
                "is needed for `--dataset-name {name}`: a ShareGPT file; or use `--dataset-name \
                 random-ids`, which needs none"
            );
            BenchError::option("dataset-path", problem)
        })?;
        read(path, python)
    }

    pub(super) fn sharegpt(&self, python: &mut PythonRandom) -> Result<Vec<Row>, BenchError> {
        let tokenizer = self.tokenizer()?;
        let args = self.args;
        let mut rows = Vec::new();
        for turns in self.conversations(python)? {
            if rows.len() == args.num_prompts {
                break;
            }
            let prompt = match self.chat {
                Some(chat) => chat(&turns.question)
                    .map_err(|why| BenchError::option("apply-chat-template", why))?,
                None => turns.question,
            };
            let prompt_len = tokenizer.encode(&prompt).len();
            let output_len = match args.sharegpt_output_len {
                Some(fixed) => fixed as usize,
                None => tokenizer.encode(&turns.answer).len(),
            };
            let is_long =
                args.sharegpt_context_len.is_some_and(|most| prompt_len + output_len > most);
            if prompt_len >= 2 && output_len >= 2 && !is_long {
                rows.push(Row { prompt: Prompt::Text(prompt), prompt_len, output_len });
            }
        }
        Ok(rows)
    }
}
