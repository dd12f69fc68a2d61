//! Prompts, and how long their answers are to be.

mod conversations;
mod random;
mod shared_prefix;

use crate::{
    error::BenchError,
    options::{Api, DatasetName, ServingArgs},
    random::{NumpyRandom, PythonRandom},
    run::Chat,
    tokenizer::Tokenizer,
};
use std::borrow::Cow;

/// A request to make.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) prompt: Prompt,
    /// Tokens of the prompt as the table counts them.
    pub(crate) prompt_len: usize,
    /// Tokens to ask for.
    pub(crate) output_len: usize,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// What prompts are made with.
pub(crate) struct Sources<'a> {
    pub(crate) args: &'a ServingArgs,
    pub(crate) tokenizer: Option<&'a Tokenizer>,
    /// What the server says of its vocabulary.
    pub(crate) vocab_size: Option<u32>,
    /// Renders a user's message as a chat, for --apply-chat-template.
    pub(crate) chat: Option<&'a Chat>,
}

impl Sources<'_> {
    /// The rows, in the order in which they are sent.
    pub(crate) fn rows(
        &self,
        numpy: &mut NumpyRandom,
        python: &mut PythonRandom,
    ) -> Result<Vec<Row>, BenchError> {
        let args = self.args;
        let is_random = matches!(args.dataset_name, DatasetName::Random | DatasetName::RandomIds);
        if args.tokenize_prompt && (!is_random || args.backend.api() == Api::Chat) {
            let problem = "needs `--dataset-name random` or `random-ids` and a back end that takes \
                           token ids: sglang, sglang-oai or vllm";
            return Err(BenchError::option("tokenize-prompt", problem));
        }
        let rows = match args.dataset_name {
            DatasetName::Sharegpt => self.sharegpt(python)?,
            DatasetName::Random => self.random(numpy, python)?,
            DatasetName::RandomIds => self.random_ids(numpy)?,
            DatasetName::GeneratedSharedPrefix => self.shared_prefix(numpy, python)?,
        };
        if rows.is_empty() {
            let problem = "has no conversation that can be used; each needs two turns with text";
            return Err(BenchError::option("dataset-path", problem));
        }
        Ok(rows)
    }

    fn tokenizer(&self) -> Result<&Tokenizer, BenchError> {
        self.tokenizer.ok_or_else(|| {
            let name = self.args.dataset_name.name();
            let problem = format!(
                "is needed for `--dataset-name {name}`; give a directory with tokenizer.json, or use \
                 `--dataset-name random-ids`, which needs none"
            );
            BenchError::option("tokenizer", problem)
        })
    }
}

/// Lengths between `ratio` of `full` and `full`.
fn lengths(numpy: &mut NumpyRandom, full: usize, ratio: f64, n: usize) -> Vec<usize> {
    let least = ((full as f64 * ratio) as usize).max(1);
    std::iter::repeat_with(|| numpy.integer(least, full + 1)).take(n).collect()
}

/// Says what will be sent.
pub(crate) fn describe(rows: &[Row]) -> String {
    let sum = |f: fn(&Row) -> usize| rows.iter().map(f).sum::<usize>();
    let requests: Cow<'_, str> = if rows.len() == 1 {
        "1 request".into()
    } else {
        format!("{} requests", rows.len()).into()
    };
    format!(
        "{requests} with {} input tokens ask for {} output tokens",
        sum(|r| r.prompt_len),
        sum(|r| r.output_len)
    )
}
