//! The bodies of requests.

use crate::{
    dataset::{Prompt, Row},
    options::{Api, ServingArgs},
};
use bytes::Bytes;
use serde_json::{Map, Value, json};

/// The body that asks for `output_len` tokens after the prompt of `row`.
pub(crate) fn body(
    args: &ServingArgs,
    model: &str,
    extra: &Map<String, Value>,
    row: &Row,
    output_len: usize,
) -> Bytes {
    let (stream, ignore_eos) = (!args.disable_stream, !args.disable_ignore_eos);
    let prompt = match &row.prompt {
        Prompt::Text(text) => json!(text),
        Prompt::Ids(ids) => json!(ids),
    };
    let mut body = match args.backend.api() {
        Api::Generate => json!({
            if_text(&row.prompt, "text", "input_ids"): prompt,
            "sampling_params": {
                "temperature": 0.0, "max_new_tokens": output_len, "ignore_eos": ignore_eos,
            },
            "stream": stream,
            "lora_path": null,
            "return_logprob": args.return_logprob,
            "logprob_start_len": -1,
        }),
        Api::Completions => json!({
            "model": model, "prompt": prompt, "temperature": 0.0, "best_of": 1,
            "max_tokens": output_len, "stream": stream, "ignore_eos": ignore_eos,
        }),
        Api::Chat => json!({
            "model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0.0,
            "max_completion_tokens": output_len, "stream": stream, "ignore_eos": ignore_eos,
        }),
    };
    if let (true, Api::Completions | Api::Chat) = (args.return_logprob, args.backend.api()) {
        let is_chat = args.backend.api() == Api::Chat;
        body["logprobs"] = if is_chat { json!(true) } else { json!(1) };
    }
    if let Value::Object(body) = &mut body {
        body.extend(extra.clone());
    }
    body.to_string().into()
}

fn if_text(prompt: &Prompt, text: &'static str, ids: &'static str) -> &'static str {
    if matches!(prompt, Prompt::Text(_)) { text } else { ids }
}
