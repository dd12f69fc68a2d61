//! The trace that a request belongs to, from its header `traceparent` (W3C Trace Context).

use axum::http::HeaderMap;

/// Where a request stands in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    /// 32 hexadecimal digits.
    pub(crate) trace_id: String,
    /// The span of whoever sent the request, 16 hexadecimal digits.
    pub(crate) parent: Option<String>,
}

impl Context {
    /// The trace of a request; `None` when its sender decided not to record it. Without a header that is
    /// well formed it begins the trace `new`.
    pub(crate) fn of(headers: &HeaderMap, new: impl FnOnce() -> String) -> Option<Self> {
        let given = headers.get("traceparent").and_then(|value| value.to_str().ok());
        match given.and_then(parse) {
            Some((context, is_recorded)) => is_recorded.then_some(context),
            None => Some(Self { trace_id: new(), parent: None }),
        }
    }
}

/// A version, a trace, a span and flags in hexadecimal digits. Later versions may have more behind.
fn parse(text: &str) -> Option<(Context, bool)> {
    let mut parts = text.trim().split('-');
    let (version, trace_id, span_id, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, length: usize| {
        let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        part.len() == length && part.bytes().all(is_digit)
    };
    let is_some_id = |id: &str, length: usize| is_hex(id, length) && id.bytes().any(|b| b != b'0');
    let is_whole = version != "00" || parts.next().is_none();
    if !is_hex(version, 2) || version == "ff" || !is_hex(flags, 2) || !is_whole {
        return None;
    }
    if !is_some_id(trace_id, 32) || !is_some_id(span_id, 16) {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let context = Context { trace_id: trace_id.to_owned(), parent: Some(span_id.to_owned()) };
    Some((context, flags & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn of(header: &str) -> Option<Context> {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", header.parse().unwrap());
        Context::of(&headers, || "new".into())
    }

    #[test]
    fn a_trace_goes_on_as_its_sender_decided() {
        let known = Context { trace_id: TRACE.into(), parent: Some(SPAN.into()) };
        assert_eq!(of(&format!("00-{TRACE}-{SPAN}-01")), Some(known.clone()));
        assert_eq!(of(&format!("00-{TRACE}-{SPAN}-03")), Some(known.clone()));
        assert_eq!(of(&format!("cc-{TRACE}-{SPAN}-01-what")), Some(known));
        assert_eq!(of(&format!("00-{TRACE}-{SPAN}-00")), None);
    }

    #[test]
    fn a_header_that_is_not_well_formed_begins_a_trace() {
        let zeros = "0".repeat(32);
        for header in [
            String::new(),
            "00".into(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
        ] {
            assert_eq!(of(&header), Some(Context { trace_id: "new".into(), parent: None }));
        }
    }
}
