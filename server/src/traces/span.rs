//! A span, and how OTLP spells it in JSON.

use serde_json::{Value, json};

/// What took time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) trace_id: String,
    /// 16 hexadecimal digits.
    pub(crate) span_id: String,
    pub(crate) parent: Option<String>,
    /// It answers somebody else's request.
    pub(crate) is_server: bool,
    /// Nanoseconds since 1970.
    pub(crate) start: u128,
    pub(crate) end: u128,
    pub(crate) attributes: Vec<(&'static str, Attribute)>,
    /// Why it failed.
    pub(crate) error: Option<String>,
}

/// What is known of a span.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attribute {
    Text(String),
    Number(u64),
}

/// A body for a collector.
pub(super) fn body(spans: &[Span]) -> Value {
    let service = json!({"key": "service.name", "value": {"stringValue": "precast"}});
    json!({"resourceSpans": [{
        "resource": {"attributes": [service]},
        "scopeSpans": [{
            "scope": {"name": "precast-server", "version": env!("CARGO_PKG_VERSION")},
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }]})
}

fn span(span: &Span) -> Value {
    /// `SPAN_KIND_SERVER` and `SPAN_KIND_INTERNAL`.
    const KINDS: [u8; 2] = [2, 1];
    /// `STATUS_CODE_ERROR`.
    const ERROR: u8 = 2;
    let attribute = |(key, value): &(&str, Attribute)| {
        let value = match value {
            Attribute::Text(text) => json!({"stringValue": text}),
            // 64-bit numbers are strings in JSON.
            Attribute::Number(number) => json!({"intValue": number.to_string()}),
        };
        json!({"key": key, "value": value})
    };
    json!({
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent.as_deref().unwrap_or_default(),
        "name": span.name,
        "kind": if span.is_server { KINDS[0] } else { KINDS[1] },
        "startTimeUnixNano": span.start.to_string(),
        "endTimeUnixNano": span.end.to_string(),
        "attributes": span.attributes.iter().map(attribute).collect::<Vec<_>>(),
        "status": match &span.error {
            Some(why) => json!({"code": ERROR, "message": why}),
            None => json!({}),
        },
    })
}
