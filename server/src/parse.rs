//! What a model's output means: reasoning, content and tool calls, told apart as the text arrives.
//!
//! Each format is a state machine that takes one character or one whole tag at a time, so what it
//! finds cannot depend on how the text is cut into pieces. A call that has not begun when it turns
//! out to be malformed is content; one that has begun ends where it breaks.

mod deepseek;
mod detect;
mod endpoints;
mod envelope;
mod event;
mod force;
mod harmony;
mod hermes;
mod json;
mod lexer;
mod llama;
mod markup;
mod message;
mod strict;
mod think;
mod tools;

#[cfg(test)]
mod tests;

pub(crate) use detect::Formats;
pub use detect::{ParserOption, ReasoningFormat, ToolFormat, UnknownParser};
pub(crate) use endpoints::{parse_function_call, separate_reasoning};
pub(crate) use event::Event;
pub(crate) use message::{Call, Message};
pub(crate) use think::Opening;
pub(crate) use tools::{ToolChoice, ToolSet, Tools};

use event::Out;
use lexer::Lexer;
use std::sync::Arc;
use think::Think;

/// A format as a state machine. `tags` never come in pieces: the lexer holds back what could still
/// become one.
trait Machine: Send {
    fn tags(&self) -> &'static [&'static str];
    fn text(&mut self, c: char, out: &mut Out);
    fn tag(&mut self, tag: &'static str, out: &mut Out);
    /// The text is over.
    fn finish(&mut self, out: &mut Out);
    /// Whether the model is reasoning.
    fn in_reasoning(&self) -> bool {
        false
    }
}

/// How the output of one answer is read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) tools: Option<ToolFormat>,
    pub(crate) reasoning: Option<ReasoningFormat>,
    /// What the prompt left open.
    pub(crate) opening: Opening,
    /// Whether reasoning is told apart from content.
    pub(crate) separates_reasoning: bool,
    /// Functions that may be called; none turns the search for calls off.
    pub(crate) offered: Arc<ToolSet>,
}

impl Reading {
    /// What ends the reasoning that the output begins with, if it does.
    pub(crate) fn reasoning_end(&self) -> Option<&'static str> {
        let format = self.reasoning.filter(|format| *format != ReasoningFormat::GptOss)?;
        Think::new(format, self.opening, true).is_inside().then_some(think::CLOSE)
    }
}

/// Reads the output of one answer.
pub(crate) struct Parser {
    think: Option<Think>,
    calls: Option<(Lexer, Box<dyn Machine>)>,
    out: Out,
}

impl Parser {
    pub(crate) fn new(reading: &Reading) -> Self {
        let Reading { tools, reasoning, opening, separates_reasoning, offered } = reading;
        let calls = machine(reading);
        let may_call = tools.is_some() && !offered.is_empty();
        let is_harmony = *tools == Some(ToolFormat::GptOss) || harmony_reasons(*reasoning);
        let think = reasoning
            .filter(|_| !is_harmony)
            .map(|format| Think::new(format, *opening, *separates_reasoning));
        let calls = calls.map(|machine| (Lexer::new(machine.tags()), machine));
        Self { think, calls, out: Out::new(may_call && !is_harmony) }
    }

    /// Takes the next piece of the output.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Event> {
        for c in text.chars() {
            self.character(c);
        }
        self.out.take()
    }

    /// The output is over.
    pub(crate) fn finish(&mut self) -> Vec<Event> {
        let mut rest = String::new();
        if let Some(think) = &mut self.think {
            think.finish(&mut self.out, &mut rest);
        }
        for c in rest.chars() {
            self.after_reasoning(c);
        }
        if let Some((lexer, machine)) = &mut self.calls {
            lexer.finish(machine.as_mut(), &mut self.out);
            machine.finish(&mut self.out);
        }
        self.out.finish();
        self.out.take()
    }

    /// Whether the model is reasoning at the end of what was pushed.
    pub(crate) fn in_reasoning(&self) -> bool {
        self.think.as_ref().is_some_and(Think::is_inside)
            || self.calls.as_ref().is_some_and(|(_, machine)| machine.in_reasoning())
    }

    fn character(&mut self, c: char) {
        let Some(think) = self.think.as_mut().filter(|think| !think.is_over()) else {
            return self.after_reasoning(c);
        };
        let mut rest = String::new();
        think.push(c, &mut self.out, &mut rest);
        for c in rest.chars() {
            self.after_reasoning(c);
        }
    }

    fn after_reasoning(&mut self, c: char) {
        match &mut self.calls {
            Some((lexer, machine)) => lexer.push(c, machine.as_mut(), &mut self.out),
            None => self.out.text(c),
        }
    }
}

fn harmony_reasons(format: Option<ReasoningFormat>) -> bool {
    format == Some(ReasoningFormat::GptOss)
}

fn machine(reading: &Reading) -> Option<Box<dyn Machine>> {
    let offered = || Arc::clone(&reading.offered);
    if reading.tools == Some(ToolFormat::GptOss) || harmony_reasons(reading.reasoning) {
        let separates = reading.separates_reasoning && harmony_reasons(reading.reasoning);
        return Some(Box::new(harmony::Harmony::new(offered(), separates)));
    }
    if reading.offered.is_empty() {
        return None;
    }
    Some(match reading.tools? {
        ToolFormat::Hermes => Box::new(hermes::Hermes::new(offered())),
        ToolFormat::Qwen3Coder => Box::new(markup::Markup::new(&markup::QWEN3_CODER, offered())),
        ToolFormat::DeepSeekV3 | ToolFormat::DeepSeekV31 => {
            Box::new(deepseek::DeepSeek::new(offered()))
        }
        ToolFormat::DeepSeekV32 => Box::new(markup::Markup::new(&markup::DSML, offered())),
        ToolFormat::Llama3 | ToolFormat::Json => Box::new(llama::Llama::new(offered())),
        ToolFormat::GptOss => return None,
    })
}
