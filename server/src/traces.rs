//! Traces of requests for an OpenTelemetry collector. A request is a span, and so are its time in the queue,
//! its prefill and its decoding; `docs/operations.md` lists their attributes.

mod context;
mod export;
mod request;
mod span;

pub(crate) use export::Traces;
pub(crate) use request::Trace;

/// The URL that spans are sent to: `endpoint` is `HOST:PORT` or `http://HOST:PORT`, with a path if that is
/// not `/v1/traces`.
///
/// # Errors
/// What is wrong with it.
pub fn otlp_traces_url(endpoint: &str) -> Result<String, String> {
    if endpoint.starts_with("https://") {
        return Err("only http is spoken; let a collector on this machine pass spans on".into());
    }
    let rest = endpoint.strip_prefix("http://").unwrap_or(endpoint);
    let (authority, path) = rest.split_once('/').map_or((rest, ""), |(a, path)| (a, path));
    let is_named = !authority.is_empty() && !authority.starts_with(':');
    let is_plain = endpoint.bytes().all(|b| b.is_ascii_graphic()) && !rest.contains("://");
    if !is_named || !is_plain {
        return Err("must be HOST:PORT or http://HOST:PORT, such as localhost:4318".into());
    }
    let authority =
        if authority.contains(':') { authority.to_owned() } else { format!("{authority}:4318") };
    let path = if path.is_empty() { "v1/traces" } else { path };
    Ok(format!("http://{authority}/{path}"))
}

#[cfg(test)]
mod tests {
    use super::otlp_traces_url;

    #[test]
    fn an_endpoint_is_an_address_or_a_url() {
        for (endpoint, url) in [
            ("localhost:4318", "http://localhost:4318/v1/traces"),
            ("collector", "http://collector:4318/v1/traces"),
            ("http://10.0.0.1:99/", "http://10.0.0.1:99/v1/traces"),
            ("http://c:99/otlp/v1/traces", "http://c:99/otlp/v1/traces"),
        ] {
            assert_eq!(otlp_traces_url(endpoint).as_deref(), Ok(url));
        }
        for wrong in ["", "http://", ":4318", "https://c", "grpc://c:4317", "a b"] {
            assert!(otlp_traces_url(wrong).is_err(), "{wrong}");
        }
    }
}
