//! A request body, read field by field so that every complaint names its field.

use crate::{ApiError, ServerOptions, app::AppState};
use axum::{
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequest, Request, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::error::Error;
use tower_http::timeout::{RequestBodyTimeoutLayer, TimeoutError};

/// The limit as a layer of the router.
pub(crate) fn body_limit(options: &ServerOptions) -> DefaultBodyLimit {
    DefaultBodyLimit::max(options.max_body_bytes)
}

/// Ends the wait for a body that does not come.
pub(crate) fn body_timeout(options: &ServerOptions) -> RequestBodyTimeoutLayer {
    RequestBodyTimeoutLayer::new(options.stall_timeout)
}

/// A JSON object. A field that is `null` counts as absent; fields nobody asks for are ignored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Where the object lies in the body: empty, or a path that ends in a dot.
    path: String,
}

impl FromRequest<AppState> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_content_type(request.headers())?;
        let bytes = Bytes::from_request(request, state).await.map_err(|e| match e {
            BytesRejection::FailedToBufferBody(e)
                if e.status() == StatusCode::PAYLOAD_TOO_LARGE =>
            {
                ApiError::TooLarge { limit_bytes: state.0.options.max_body_bytes }
            }
            e if is_timeout(&e) => ApiError::BodyTimeout,
            other => ApiError::Body(other.body_text()),
        })?;
        Self::parse(&bytes)
    }
}

/// Refuses what cannot be JSON. What clients send that do not think of it, such as `curl -d`, may be.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(found) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let found = String::from_utf8_lossy(found.as_bytes()).to_ascii_lowercase();
    let kind = found.split(';').next().unwrap_or_default().trim();
    let thoughtless =
        ["", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream"];
    if kind.ends_with("json") || thoughtless.contains(&kind) {
        return Ok(());
    }
    Err(ApiError::ContentType(kind.chars().take(64).collect()))
}

fn is_timeout(e: &(dyn Error + 'static)) -> bool {
    e.is::<TimeoutError>() || e.source().is_some_and(is_timeout)
}

impl Fields {
    /// Reads a whole body.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let map = serde_json::from_slice(bytes).map_err(|e| ApiError::Body(e.to_string()))?;
        Ok(Self { map, path: String::new() })
    }

    /// Whether the field is there and not `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Whether the field is a list.
    pub(crate) fn is_list(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(Value::is_array)
    }

    /// Takes a field as it is.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.swap_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field of a type.
    pub(crate) fn get<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let value = serde_path_to_error::deserialize(value).map_err(|e| {
            let inner = match e.path().to_string() {
                path if path == "." => String::new(),
                path if path.starts_with('[') => path,
                path => format!(".{path}"),
            };
            let field = format!("{}{name}{inner}", self.path);
            ApiError::field(field, format!("is wrong: {}", in_words(&e.into_inner().to_string())))
        })?;
        Ok(Some(value))
    }

    /// Takes a field, or its default.
    pub(crate) fn get_or<T: DeserializeOwned>(
        &mut self,
        name: &str,
        default: T,
    ) -> Result<T, ApiError> {
        Ok(self.get(name)?.unwrap_or(default))
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        let path = format!("{}{name}.", self.path);
        Ok(self.get::<Map<String, Value>>(name)?.map(|map| Fields { map, path }))
    }

    /// An object found elsewhere in the body, at `path`.
    pub(crate) fn nested(value: Value, path: &str) -> Result<Fields, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, path: format!("{path}.") }),
            _ => Err(ApiError::field(path, "must be an object")),
        }
    }

    /// Full path of a field.
    pub(crate) fn path_of(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// Refuses features that are not there. Values that switch a feature off are welcome.
    pub(crate) fn refuse(&self, names: &[&str]) -> Result<(), ApiError> {
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty() || items.iter().all(Value::is_null),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        match names.iter().find(|name| self.map.get(**name).is_some_and(|v| !is_off(v))) {
            Some(name) => Err(ApiError::Unsupported(self.path_of(name))),
            None => Ok(()),
        }
    }
}

/// A type error of serde's with the expected type as clients know it.
fn in_words(error: &str) -> String {
    let Some((start, expected)) = error.rsplit_once("expected ") else { return error.to_owned() };
    let expected = match expected {
        "usize" | "u64" | "u32" | "u16" | "u8" => "an integer of 0 or more",
        "isize" | "i64" | "i32" => "an integer",
        "f32" | "f64" => "a number",
        other => other,
    };
    format!("{start}expected {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn a_wrong_type_names_the_path() {
        let mut body = fields(r#"{"stream_options": {"include_usage": 3}, "ids": [1, "x"]}"#);
        let e = body.get::<Vec<u32>>("ids").unwrap_err();
        assert!(e.to_string().starts_with("`ids[1]` is wrong: invalid type: string"), "{e}");
        let e = body.object("stream_options").unwrap().unwrap().get::<bool>("include_usage");
        let e = e.unwrap_err().to_string();
        assert!(e.starts_with("`stream_options.include_usage` is wrong"), "{e}");
    }

    #[test]
    fn a_wrong_type_is_told_in_words() {
        let mut body = fields(r#"{"a": -1, "b": "hot", "c": 0.5, "d": "yes"}"#);
        let told = |e: ApiError| e.to_string();
        assert_eq!(
            body.get::<usize>("a").map_err(told),
            Err("`a` is wrong: invalid value: integer `-1`, expected an integer of 0 or more"
                .into())
        );
        let e = body.get::<f32>("b").map_err(told).unwrap_err();
        assert!(e.ends_with("expected a number"), "{e}");
        let e = body.get::<i64>("c").map_err(told).unwrap_err();
        assert!(e.ends_with("expected an integer"), "{e}");
        let e = body.get::<bool>("d").map_err(told).unwrap_err();
        assert!(e.ends_with("expected a boolean"), "{e}");
    }

    #[test]
    fn null_is_absent() {
        let mut body = fields(r#"{"a": null, "b": 1}"#);
        assert_eq!(body.get::<u32>("a").unwrap(), None);
        assert!(!body.has("a") && body.has("b"));
        assert_eq!(body.get_or("c", 7).unwrap(), 7);
    }

    #[test]
    fn only_features_that_are_asked_for_are_refused() {
        let body = fields(r#"{"regex": "", "lora_path": [null], "json_schema": "{}", "x": false}"#);
        assert_eq!(body.refuse(&["regex", "lora_path", "x", "y"]), Ok(()));
        let refused = body.refuse(&["regex", "json_schema"]);
        assert_eq!(refused, Err(ApiError::Unsupported("json_schema".into())));
    }
}
