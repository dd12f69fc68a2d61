//! Why a request is refused, and how clients are told.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use runtime::{RequestError, SubmitError};
use serde::Serialize;

/// Seconds after which a refused client may try again.
const RETRY_AFTER_SECONDS: &str = "1";

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ApiError {
    /// The body is not a JSON object.
    #[error("the body must be a JSON object: {0}")]
    Body(String),
    /// A field has the wrong type or value.
    #[error("`{field}` {problem}")]
    Field {
        /// Path of the field, such as `messages[0].content`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A field asks for what this build cannot do.
    #[error("`{0}` is not supported; leave it out")]
    Unsupported(String),
    /// The prompt does not fit.
    #[error("{0}")]
    Prompt(String),
    /// The body is longer than allowed.
    #[error("the body is longer than {limit_bytes} bytes")]
    TooLarge {
        /// The most bytes.
        limit_bytes: usize,
    },
    /// The body does not come.
    #[error("the body did not arrive in time")]
    BodyTimeout,
    /// The body says that it is something else.
    #[error("the body must be JSON, found `{0}`; send `content-type: application/json`")]
    ContentType(String),
    /// No key, or a wrong one.
    #[error("the API key is missing or wrong; send it as `Authorization: Bearer KEY`")]
    Unauthorized,
    /// No such model.
    #[error("the model `{0}` does not exist")]
    NoModel(String),
    /// No such path.
    #[error("there is no {0}")]
    NoPath(String),
    /// A path that does not know the method.
    #[error("{0} does not allow this method")]
    Method(String),
    /// A path that other servers have and this one never will.
    #[error("{0}")]
    NotOffered(String),
    /// Too many requests wait.
    #[error("{0}")]
    QueueFull(String),
    /// The server takes no requests at present.
    #[error("{0}")]
    Unavailable(String),
    /// The engine gave up on the request.
    #[error("{0}")]
    Failed(String),
}

impl ApiError {
    /// `field` has the wrong value.
    pub(crate) fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field { field: field.into(), problem: problem.into() }
    }

    /// The HTTP status.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Body(_) | Self::Field { .. } | Self::Unsupported(_) | Self::Prompt(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::ContentType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::NoModel(_) | Self::NoPath(_) => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotOffered(_) => StatusCode::NOT_IMPLEMENTED,
            Self::QueueFull(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "AuthenticationError",
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            StatusCode::NOT_IMPLEMENTED => "NotImplementedError",
            StatusCode::INTERNAL_SERVER_ERROR => "InternalServerError",
            _ => "BadRequestError",
        }
    }

    /// The body of the OpenAI endpoints.
    pub(crate) fn openai_body(&self) -> OpenAiError {
        let param = match self {
            Self::Field { field, .. } | Self::Unsupported(field) => Some(field.clone()),
            Self::NoModel(_) => Some("model".into()),
            _ => None,
        };
        let code = match self {
            Self::NoModel(_) => Code::Name("model_not_found"),
            _ => Code::Status(self.status().as_u16()),
        };
        OpenAiError { object: "error", message: self.to_string(), kind: self.kind(), param, code }
    }

    /// The body of `/generate`.
    pub(crate) fn generate_body(&self) -> GenerateErrorBody {
        GenerateErrorBody { error: Message { message: self.to_string() } }
    }

    fn respond(&self, body: impl Serialize) -> Response {
        let mut response = (self.status(), Json(body)).into_response();
        if matches!(self, Self::QueueFull(_) | Self::Unavailable(_)) {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond(self.openai_body())
    }
}

impl From<SubmitError> for ApiError {
    fn from(e: SubmitError) -> Self {
        let message = e.to_string();
        match e {
            SubmitError::QueueFull { .. } => Self::QueueFull(message),
            SubmitError::Stopped => Self::Unavailable(message),
            SubmitError::Invalid(RequestError::Sampling(e)) => {
                Self::field(e.field, format!("must be {}, found {}", e.must_be, e.found))
            }
            SubmitError::Invalid(RequestError::BiasToken { token, vocab_size }) => Self::field(
                "logit_bias",
                format!("names token {token}, which is not below the vocabulary size {vocab_size}"),
            ),
            SubmitError::Invalid(_) => Self::Prompt(message),
        }
    }
}

/// Body of an error of the OpenAI endpoints.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OpenAiError {
    object: &'static str,
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: Code,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
enum Code {
    Status(u16),
    Name(&'static str),
}

/// Body of an error of `/generate`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GenerateErrorBody {
    error: Message,
}

#[derive(Clone, Debug, Serialize)]
struct Message {
    message: String,
}

/// An error of `/generate` and its relatives, which spell it differently.
pub(crate) struct GenerateError(pub(crate) ApiError);

impl From<ApiError> for GenerateError {
    fn from(e: ApiError) -> Self {
        Self(e)
    }
}

impl IntoResponse for GenerateError {
    fn into_response(self) -> Response {
        self.0.respond(self.0.generate_body())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_for_an_unknown_token_names_its_field() {
        let refused = RequestError::BiasToken { token: 9, vocab_size: 8 };
        let error = ApiError::from(SubmitError::Invalid(refused.clone()));
        assert_eq!(error.to_string(), refused.to_string());
        assert_eq!(error.openai_body().param.as_deref(), Some("logit_bias"));
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
    }
}
