//! `/parse_function_call` and `/separate_reasoning`: the parsers for text that clients have.

use super::{Formats, Message, Opening, Parser, ParserOption, Reading, ToolSet};
use crate::{
    ApiError,
    app::{App, AppState},
    fields::Fields,
};
use axum::{Json, extract::State};
use serde::Serialize;
use serde_json::Value;
use std::{str::FromStr, sync::Arc};

/// What `/parse_function_call` says.
#[derive(Serialize)]
pub(crate) struct ParsedCalls {
    normal_text: String,
    calls: Vec<ParsedCall>,
}

#[derive(Serialize)]
struct ParsedCall {
    /// Of the call among the calls.
    tool_index: usize,
    name: String,
    parameters: String,
}

/// `POST /parse_function_call`.
pub(crate) async fn parse_function_call(
    State(AppState(app)): State<AppState>,
    mut fields: Fields,
) -> Result<Json<ParsedCalls>, ApiError> {
    let tools: Vec<Value> = fields.get_or("tools", Vec::new())?;
    let format = named(&mut fields, "tool_call_parser")?;
    let Formats { tools: format, .. } = Formats::new(format, ParserOption::None, &app.model);
    let reading = Reading {
        tools: Some(format.ok_or_else(|| unknown(&app, "tool_call_parser"))?),
        reasoning: None,
        opening: Opening::Closed,
        separates_reasoning: false,
        offered: Arc::new(ToolSet::parse(&tools)?),
    };
    let message = Message::of_text(Parser::new(&reading), &text(&mut fields)?);
    let calls = message.calls.into_iter().enumerate().map(|(tool_index, call)| ParsedCall {
        tool_index,
        name: call.name,
        parameters: call.arguments,
    });
    Ok(Json(ParsedCalls { normal_text: message.content, calls: calls.collect() }))
}

/// What `/separate_reasoning` says.
#[derive(Serialize)]
pub(crate) struct Separated {
    reasoning_text: String,
    text: String,
}

/// `POST /separate_reasoning`.
pub(crate) async fn separate_reasoning(
    State(AppState(app)): State<AppState>,
    mut fields: Fields,
) -> Result<Json<Separated>, ApiError> {
    let format = named(&mut fields, "reasoning_parser")?;
    let Formats { reasoning, .. } = Formats::new(ParserOption::None, format, &app.model);
    let reading = Reading {
        tools: None,
        reasoning: Some(reasoning.ok_or_else(|| unknown(&app, "reasoning_parser"))?),
        opening: Opening::Free,
        separates_reasoning: true,
        offered: Arc::default(),
    };
    let message = Message::of_text(Parser::new(&reading), &text(&mut fields)?);
    Ok(Json(Separated { reasoning_text: message.reasoning, text: message.content }))
}

fn text(fields: &mut Fields) -> Result<String, ApiError> {
    fields.get("text")?.ok_or_else(|| ApiError::field("text", "is missing; give the text to read"))
}

/// The parser a client names; without a name the model's.
fn named<F>(fields: &mut Fields, field: &str) -> Result<ParserOption<F>, ApiError>
where
    ParserOption<F>: FromStr<Err = super::UnknownParser>,
{
    let name: String = fields.get_or(field, "auto".into())?;
    name.parse().map_err(|e: super::UnknownParser| ApiError::field(field, e.problem()))
}

fn unknown(app: &App, field: &str) -> ApiError {
    ApiError::field(field, format!("is needed: the format of {} is not known", app.model.name))
}
