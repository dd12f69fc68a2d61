//! Which formats a model speaks: by name, or found in its chat template and vocabulary.

use super::{Opening, Reading, ToolSet};
use crate::{
    Model,
    text::{ChatTemplate, Tokenizer},
};
use std::{fmt, str::FromStr, sync::Arc};

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>` around a JSON object: Hermes, Qwen2.5, Qwen3.
    Hermes,
    /// `<function=..>` with `<parameter=..>`.
    Qwen3Coder,
    /// DeepSeek V3 and R1: arguments in a code fence.
    DeepSeekV3,
    /// DeepSeek V3.1: bare arguments. Each of the two reads the other's calls.
    DeepSeekV31,
    /// DeepSeek V3.2: parameters in DSML tags.
    DeepSeekV32,
    /// gpt-oss: messages in a channel of their own.
    GptOss,
    /// Llama 3: a JSON object in place of an answer.
    Llama3,
    /// A JSON object in place of an answer, whatever the model; what a forced call looks like.
    Json,
}

/// How a model writes its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>` tags; reasoning begins where the prompt or the answer opens it.
    Qwen3,
    /// `<think>` tags; an answer begins with reasoning unless the prompt closes it.
    DeepSeekR1,
    /// gpt-oss: the `analysis` channel.
    GptOss,
}

/// A parser as it is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParserOption<F> {
    /// Found in the chat template and the vocabulary.
    #[default]
    Auto,
    /// Output stays as it is.
    None,
    /// This one.
    Format(F),
}

/// There is no parser of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no parser {name}; use {known}")]
pub struct UnknownParser {
    name: String,
    known: String,
}

impl UnknownParser {
    /// As it follows the name of a field.
    pub(crate) fn problem(&self) -> String {
        format!("must be one of {}, found {}", self.known, self.name)
    }
}

/// Formats with their names; the first name of each is shown.
type Names<F> = &'static [(&'static str, F)];

const TOOL_NAMES: Names<ToolFormat> = &[
    ("qwen25", ToolFormat::Hermes),
    ("qwen", ToolFormat::Hermes),
    ("qwen3", ToolFormat::Hermes),
    ("hermes", ToolFormat::Hermes),
    ("qwen3_coder", ToolFormat::Qwen3Coder),
    ("qwen3_xml", ToolFormat::Qwen3Coder),
    ("deepseekv3", ToolFormat::DeepSeekV3),
    ("deepseek_v3", ToolFormat::DeepSeekV3),
    ("deepseekv31", ToolFormat::DeepSeekV31),
    ("deepseek_v31", ToolFormat::DeepSeekV31),
    ("deepseekv32", ToolFormat::DeepSeekV32),
    ("deepseek_v32", ToolFormat::DeepSeekV32),
    ("gpt-oss", ToolFormat::GptOss),
    ("openai", ToolFormat::GptOss),
    ("llama3", ToolFormat::Llama3),
    ("llama3_json", ToolFormat::Llama3),
    ("json", ToolFormat::Json),
];

const REASONING_NAMES: Names<ReasoningFormat> = &[
    ("qwen3", ReasoningFormat::Qwen3),
    ("deepseek-v3", ReasoningFormat::Qwen3),
    ("deepseek-r1", ReasoningFormat::DeepSeekR1),
    ("qwen3-thinking", ReasoningFormat::DeepSeekR1),
    ("gpt-oss", ReasoningFormat::GptOss),
    ("openai_gptoss", ReasoningFormat::GptOss),
];

impl ToolFormat {
    /// The name under which it is shown.
    pub fn name(self) -> &'static str {
        TOOL_NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }
}

impl ReasoningFormat {
    /// The name under which it is shown.
    pub fn name(self) -> &'static str {
        REASONING_NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }
}

/// Dashes and underlines are the same.
fn find<F: Copy>(name: &str, names: Names<F>) -> Result<ParserOption<F>, UnknownParser> {
    let spelled = |name: &str| name.to_ascii_lowercase().replace('_', "-");
    let wanted = spelled(name);
    match wanted.as_str() {
        "auto" => Ok(ParserOption::Auto),
        "none" => Ok(ParserOption::None),
        _ => match names.iter().find(|(name, _)| spelled(name) == wanted) {
            Some((_, format)) => Ok(ParserOption::Format(*format)),
            None => {
                let names = names.iter().map(|(name, _)| *name);
                let known: Vec<&str> = ["auto", "none"].into_iter().chain(names).collect();
                Err(UnknownParser { name: name.into(), known: known.join(", ") })
            }
        },
    }
}

impl FromStr for ParserOption<ToolFormat> {
    type Err = UnknownParser;

    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        find(name, TOOL_NAMES)
    }
}

impl FromStr for ParserOption<ReasoningFormat> {
    type Err = UnknownParser;

    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        find(name, REASONING_NAMES)
    }
}

impl<F> ParserOption<F> {
    fn or_detect(self, detect: impl FnOnce() -> Option<F>) -> Option<F> {
        match self {
            Self::Auto => detect(),
            Self::None => None,
            Self::Format(format) => Some(format),
        }
    }
}

/// The formats of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Formats {
    pub(crate) tools: Option<ToolFormat>,
    pub(crate) reasoning: Option<ReasoningFormat>,
    /// Special tokens that the parsers must see.
    pub(crate) shown_tokens: Arc<[u32]>,
}

impl Formats {
    pub(crate) fn new(
        tools: ParserOption<ToolFormat>,
        reasoning: ParserOption<ReasoningFormat>,
        model: &Model,
    ) -> Self {
        let templates = [model.template(true), model.template(false)];
        let template: String = templates.into_iter().flatten().map(ChatTemplate::source).collect();
        let tokenizer = &model.tokenizer;
        let mut formats = Self {
            tools: tools.or_detect(|| tool_format(&template, tokenizer)),
            reasoning: reasoning.or_detect(|| reasoning_format(&template, tokenizer)),
            shown_tokens: Arc::default(),
        };
        formats.shown_tokens = formats.tags().filter_map(|tag| tokenizer.token_id(tag)).collect();
        formats
    }

    /// Tags of the formats, whatever is asked for.
    fn tags(&self) -> impl Iterator<Item = &'static str> {
        let any = serde_json::json!({"function": {"name": "any"}});
        let reading = Reading {
            tools: self.tools,
            reasoning: self.reasoning,
            opening: Opening::Free,
            separates_reasoning: true,
            offered: Arc::new(ToolSet::parse(&[any]).unwrap_or_default()),
        };
        let think = self.reasoning.map(|_| super::think::TAGS).unwrap_or_default();
        let calls = super::machine(&reading).map(|machine| machine.tags()).unwrap_or_default();
        think.iter().chain(calls).copied()
    }
}

impl fmt::Display for Formats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools = self.tools.map_or("none", ToolFormat::name);
        let reasoning = self.reasoning.map_or("none", ReasoningFormat::name);
        write!(f, "tool calls: {tools}, reasoning: {reasoning}")
    }
}

fn is_harmony(tokenizer: &Tokenizer) -> bool {
    ["<|channel|>", "<|message|>"].iter().all(|tag| tokenizer.token_id(tag).is_some())
}

/// What the template shows the model counts for more than what the vocabulary could say.
fn tool_format(template: &str, tokenizer: &Tokenizer) -> Option<ToolFormat> {
    let has = |token: &str| tokenizer.token_id(token).is_some();
    let shows = |text: &str| template.contains(text);
    if is_harmony(tokenizer) {
        return Some(ToolFormat::GptOss);
    }
    if shows("｜DSML｜") {
        return Some(ToolFormat::DeepSeekV32);
    }
    if shows("<function=") {
        return Some(ToolFormat::Qwen3Coder);
    }
    if shows("<tool_call>") {
        return Some(ToolFormat::Hermes);
    }
    if shows("<｜tool▁call▁begin｜>") && !shows("```json") {
        return Some(ToolFormat::DeepSeekV31);
    }
    if has("｜DSML｜") {
        return Some(ToolFormat::DeepSeekV32);
    }
    if has("<｜tool▁call▁begin｜>") {
        return Some(ToolFormat::DeepSeekV3);
    }
    (shows("<|python_tag|>") || has("<|python_tag|>")).then_some(ToolFormat::Llama3)
}

fn reasoning_format(template: &str, tokenizer: &Tokenizer) -> Option<ReasoningFormat> {
    if is_harmony(tokenizer) {
        return Some(ReasoningFormat::GptOss);
    }
    let thinks = template.contains("</think>") || tokenizer.token_id("</think>").is_some();
    thinks.then_some(ReasoningFormat::Qwen3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_a_name_are_known() {
        let hermes = Ok(ParserOption::Format(ToolFormat::Hermes));
        assert_eq!("qwen25".parse(), hermes);
        assert_eq!("Hermes".parse(), hermes);
        let coder = Ok(ParserOption::Format(ToolFormat::Qwen3Coder));
        assert_eq!("qwen3-coder".parse(), coder);
        assert_eq!("deepseek_r1".parse(), Ok(ParserOption::Format(ReasoningFormat::DeepSeekR1)));
        assert_eq!("none".parse(), Ok(ParserOption::<ReasoningFormat>::None));
        let e = "klingon".parse::<ParserOption<ToolFormat>>().unwrap_err().to_string();
        assert!(e.starts_with("there is no parser klingon; use auto, none, qwen25"), "{e}");
    }
}
