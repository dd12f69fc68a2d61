//! Where the server is, and short questions to it.

use crate::{connection::Connection, error::BenchError, options::ServingArgs};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Method, Request, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue},
};
use serde_json::Value;
use std::{io, net::SocketAddr};

/// The server.
pub(crate) struct Endpoint {
    base: String,
    /// What comes before paths.
    prefix: String,
    pub(crate) addresses: Vec<SocketAddr>,
    headers: HeaderMap,
}

impl Endpoint {
    pub(crate) async fn new(args: &ServingArgs) -> Result<Self, BenchError> {
        let base = match &args.base_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None if args.host.contains(':') => format!("http://[{}]:{}", args.host, args.port),
            None => format!("http://{}:{}", args.host, args.port),
        };
        let wrong = |why: &str| {
            let problem = format!("`{base}` {why}; give one such as http://127.0.0.1:8000");
            BenchError::option("base-url", problem)
        };
        let uri: Uri = base.parse().map_err(|_| wrong("is no URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong("does not begin with http://"));
        }
        let host = uri.host().ok_or_else(|| wrong("has no host"))?;
        let port = uri.port_u16().unwrap_or(80);
        let authority = uri.authority().map_or("", |a| a.as_str());
        let mut headers = headers(args)?;
        let host_header = HeaderValue::from_str(authority).map_err(|_| wrong("has no host"))?;
        headers.insert(HOST, host_header);
        let host = host.trim_matches(['[', ']']);
        let found = tokio::net::lookup_host((host, port)).await;
        let addresses = match found {
            Ok(addresses) => addresses.collect(),
            Err(source) => return Err(BenchError::NoServer { url: base, source }),
        };
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { base, prefix, addresses, headers })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A request as it is sent.
    pub(crate) fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.headers_mut() = self.headers.clone();
        // A prefix and a path of ours are a path.
        if let Ok(uri) = format!("{}{path}", self.prefix).parse() {
            *request.uri_mut() = uri;
        }
        request
    }

    /// Asks for `path` and reads the whole answer.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
    ) -> Result<(StatusCode, Bytes), BenchError> {
        let opened = Connection::open(&self.addresses).await;
        let mut connection = opened
            .map_err(|source: io::Error| BenchError::NoServer { url: self.base.clone(), source })?;
        let failed =
            |e: hyper::Error| BenchError::Question { url: self.url(path), why: e.to_string() };
        let answer =
            connection.send(self.request(method, path, Bytes::new())).await.map_err(failed)?;
        let status = answer.status();
        let body = connection.run(answer.into_body().collect()).await.map_err(failed)?;
        Ok((status, body.to_bytes()))
    }

    /// What `path` says, if it says anything.
    pub(crate) async fn info(&self, path: &str) -> Result<Option<Value>, BenchError> {
        let (status, body) = self.ask(Method::GET, path).await?;
        Ok((status == StatusCode::OK).then(|| serde_json::from_slice(&body).ok()).flatten())
    }
}

/// Those of --header, and the key that the environment has for clients.
fn headers(args: &ServingArgs) -> Result<HeaderMap, BenchError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let variable = |name| std::env::var(name).ok().filter(|key| !key.is_empty());
    let key = variable("OPENAI_API_KEY").map(|key| format!("Bearer {key}"));
    if let Some(key) = key.or_else(|| variable("API_KEY"))
        && let Ok(key) = HeaderValue::from_str(&key)
    {
        headers.insert(AUTHORIZATION, key);
    }
    for header in &args.header {
        let parsed = header.split_once('=').and_then(|(name, value)| {
            let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
            Some((name, HeaderValue::from_str(value).ok()?))
        });
        let (name, value) = parsed.ok_or_else(|| {
            let problem = format!("`{header}` is no header; write NAME=VALUE");
            BenchError::option("header", problem)
        })?;
        headers.insert(name, value);
    }
    Ok(headers)
}
