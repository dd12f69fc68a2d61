//! The spans of one request.

use super::{
    context::Context,
    export::Exporter,
    span::{Attribute, Span},
};
use crate::{access::Facts, app::App};
use axum::{extract::Request, http::HeaderValue};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The trace that a request belongs to, and what makes spans of it.
pub(crate) struct Trace {
    context: Context,
    /// Of the request, and of its parts.
    span_ids: [String; 4],
    started: SystemTime,
    model: String,
    exporter: Exporter,
}

impl Trace {
    /// How a request is traced, if it is.
    pub(crate) fn of(app: &App, request: &Request) -> Option<Self> {
        let exporter = app.traces.exporter()?;
        Some(Self {
            context: Context::of(request.headers(), || app.unique_name())?,
            span_ids: std::array::from_fn(|_| app.span_name()),
            started: SystemTime::now(),
            model: app.model.name.clone(),
            exporter: exporter.clone(),
        })
    }

    /// The request was answered with `status` and took `total`.
    pub(crate) fn end(
        &self,
        name: String,
        id: &HeaderValue,
        facts: &Facts,
        status: u16,
        total: Duration,
    ) {
        self.exporter.send(self.spans(name, id, facts, status, total));
    }

    /// The request, which took `total`, and the parts of it that it came to.
    fn spans(
        &self,
        name: String,
        id: &HeaderValue,
        facts: &Facts,
        status: u16,
        total: Duration,
    ) -> Vec<Span> {
        let began = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = |since: Duration| (began + since).as_nanos();
        let [own, parts @ ..] = &self.span_ids;
        let text = |text: &str| Attribute::Text(text.to_owned());
        let mut attributes = vec![
            ("http.request.method", text(name.split(' ').next().unwrap_or_default())),
            ("http.response.status_code", Attribute::Number(status.into())),
            ("precast.request_id", text(id.to_str().unwrap_or_default())),
            ("gen_ai.response.model", text(&self.model)),
        ];
        if let Some(counts) = facts.counts {
            attributes.extend([
                ("gen_ai.usage.input_tokens", Attribute::Number(counts.prompt_tokens as u64)),
                ("gen_ai.usage.output_tokens", Attribute::Number(counts.completion_tokens as u64)),
                ("precast.cached_tokens", Attribute::Number(counts.cached_tokens as u64)),
                ("precast.retractions", Attribute::Number(counts.retractions as u64)),
            ]);
        }
        if let Some(finish) = facts.finish {
            attributes.push(("gen_ai.response.finish_reason", text(finish)));
        }
        let fails = status >= 500 || facts.finish == Some("error");
        let error = fails.then(|| facts.error.clone().unwrap_or_default());
        let request = Span {
            name,
            trace_id: self.context.trace_id.clone(),
            span_id: own.clone(),
            parent: self.context.parent.clone(),
            is_server: true,
            start: at(Duration::ZERO),
            end: at(total),
            attributes,
            error,
        };
        let started = facts.arrived.zip(facts.queued).map(|(arrived, queued)| arrived + queued);
        let ends = [
            ("queue", facts.arrived, started),
            ("prefill", started, facts.first_token),
            ("decode", facts.first_token, Some(total)),
        ];
        let part = |((name, start, end), span_id): (
            (&str, Option<Duration>, Option<Duration>),
            &String,
        )| {
            // What was begun and not ended took the rest of the time.
            let (start, end) = (start?, end.unwrap_or(total));
            Some(Span {
                name: name.to_owned(),
                span_id: span_id.clone(),
                parent: Some(own.clone()),
                is_server: false,
                start: at(start),
                end: at(end.max(start)),
                attributes: Vec::new(),
                error: None,
                ..request.clone()
            })
        };
        let parts: Vec<Span> = ends.into_iter().zip(parts).filter_map(part).collect();
        [request].into_iter().chain(parts).collect()
    }
}
