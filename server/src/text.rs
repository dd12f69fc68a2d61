//! Text to tokens and back: tokenizer, chat template, incremental decoding, stop strings.

mod bpe;
mod detokenize;
#[cfg(test)]
mod oracle;
mod pattern;
mod stop;
mod template;
mod tojson;
mod tokenizer;

pub(crate) use detokenize::Detokenizer;
pub(crate) use pattern::StopPatterns;
pub(crate) use stop::{StopMatcher, Stops};
pub(crate) use template::{ChatTemplate, RenderOptions};
pub(crate) use tokenizer::Tokenizer;
