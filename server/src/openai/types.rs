//! Responses of the OpenAI endpoints.

use super::logprobs::{ChatLogprobs, CompletionLogprobs};
use crate::generation::{Counts, End, Matched};
use serde::Serialize;

/// Why a choice ended, as clients are told.
pub(super) fn finish_reason(end: &End) -> &'static str {
    match end {
        End::StopToken(_) | End::StopText(_) | End::Complete => "stop",
        End::Length => "length",
        End::Cancelled | End::Failed(_) => "abort",
    }
}

/// Tokens that a response took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) completion_tokens: usize,
    pub(super) total_tokens: usize,
    prompt_tokens_details: PromptTokens,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionTokens>,
    /// The same as in the details, where other clients look for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_tokens: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct CompletionTokens {
    reasoning_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct PromptTokens {
    cached_tokens: usize,
}

impl Usage {
    /// Sums over choices of which each `per_prompt` share a prompt.
    pub(super) fn sum(counts: impl Iterator<Item = Counts>, per_prompt: usize) -> Self {
        let mut usage = Self::default();
        for (index, counts) in counts.enumerate() {
            usage.completion_tokens += counts.completion_tokens;
            if index % per_prompt == 0 {
                usage.prompt_tokens += counts.prompt_tokens;
                usage.prompt_tokens_details.cached_tokens += counts.cached_tokens;
            }
        }
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        usage
    }

    /// Of the completion tokens, those that are reasoning.
    pub(super) fn with_reasoning(self, reasoning_tokens: usize) -> Self {
        let completion_tokens_details = Some(CompletionTokens { reasoning_tokens });
        Self { completion_tokens_details, reasoning_tokens: Some(reasoning_tokens), ..self }
    }
}

/// A response or a chunk of one.
#[derive(Serialize)]
pub(super) struct Envelope<'a, C> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    pub(super) choices: C,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Usage>,
}

/// A choice of a text completion, whole or a piece.
#[derive(Serialize)]
pub(super) struct CompletionChoice<'a> {
    pub(super) index: usize,
    pub(super) text: &'a str,
    pub(super) logprobs: Option<CompletionLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
    pub(super) matched_stop: Option<Matched>,
}

/// A whole choice of a chat.
#[derive(Serialize)]
pub(super) struct ChatChoice<'a> {
    pub(super) index: usize,
    pub(super) message: ChatMessage<'a>,
    pub(super) logprobs: Option<ChatLogprobs>,
    pub(super) finish_reason: &'static str,
    pub(super) matched_stop: Option<Matched>,
}

/// The model's answer.
#[derive(Serialize)]
pub(super) struct ChatMessage<'a> {
    pub(super) role: &'static str,
    pub(super) content: Option<&'a str>,
    pub(super) reasoning_content: Option<&'a str>,
    pub(super) tool_calls: Option<Vec<ToolCall<'a>>>,
}

/// A call, whole or a piece.
#[derive(Serialize)]
pub(super) struct ToolCall<'a> {
    /// In a stream, which call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    pub(super) function: FunctionCall<'a>,
}

#[derive(Serialize)]
pub(super) struct FunctionCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    pub(super) arguments: &'a str,
}

/// A piece of a choice of a chat.
#[derive(Serialize)]
pub(super) struct ChatChunkChoice<'a> {
    pub(super) index: usize,
    pub(super) delta: Delta<'a>,
    pub(super) logprobs: Option<ChatLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
    pub(super) matched_stop: Option<Matched>,
}

/// What a chunk adds to the message.
#[derive(Default, Serialize)]
pub(super) struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_calls: Option<[ToolCall<'a>; 1]>,
}

/// What a stream reports about usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamUsage {
    /// In a chunk of its own at the end.
    pub(super) at_end: bool,
    /// In every chunk.
    pub(super) continuous: bool,
}
