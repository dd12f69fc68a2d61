//! The OpenAI endpoints.

mod chat;
mod chat_request;
mod chat_stream;
mod completion_stream;
mod completions;
mod logprobs;
mod models;
mod not_offered;
mod reader;
mod types;

pub(crate) use chat::chat_completions;
pub(crate) use completions::completions;
pub(crate) use models::{model, models};
pub(crate) use not_offered::not_offered;

/// Fields of features that this build does not have.
const UNSUPPORTED: &[&str] = &[
    "lora_path",
    "return_hidden_states",
    "custom_logit_processor",
    "session_params",
    "bootstrap_host",
    "bootstrap_room",
    "functions",
    "function_call",
    "audio",
];
