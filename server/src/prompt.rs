//! Prompts as clients give them: text or token ids, one or several.

use crate::{ApiError, app::App, text::Tokenizer};
use serde_json::Value;

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// The prompts of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prompts {
    pub(crate) items: Vec<Prompt>,
    /// Whether the client gave a list, even of one.
    pub(crate) is_list: bool,
}

impl Prompts {
    /// Reads a string, a list of strings, a list of ids or a list of such lists.
    pub(crate) fn parse(value: Value, field: &str) -> Result<Self, ApiError> {
        let wrong = || {
            let problem = "must be a string, a list of strings, a list of token ids or a list of \
                           lists of token ids";
            ApiError::field(field, problem)
        };
        match value {
            Value::String(text) => Ok(Self { items: vec![Prompt::Text(text)], is_list: false }),
            Value::Array(items) if items.is_empty() => {
                Err(ApiError::field(field, "is an empty list; give at least one token"))
            }
            Value::Array(items) if items.iter().all(Value::is_number) => {
                Ok(Self { items: vec![Prompt::Ids(ids(&items, field)?)], is_list: false })
            }
            Value::Array(items) => {
                let items = items.into_iter().enumerate().map(|(i, item)| match item {
                    Value::String(text) => Ok(Prompt::Text(text)),
                    Value::Array(item) => Ok(Prompt::Ids(ids(&item, &format!("{field}[{i}]"))?)),
                    _ => Err(wrong()),
                });
                Ok(Self { items: items.collect::<Result<_, _>>()?, is_list: true })
            }
            _ => Err(wrong()),
        }
    }
}

fn ids(items: &[Value], field: &str) -> Result<Vec<u32>, ApiError> {
    let id = |(i, item): (usize, &Value)| {
        item.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
            ApiError::field(format!("{field}[{i}]"), format!("must be a token id, found {item}"))
        })
    };
    items.iter().enumerate().map(id).collect()
}

impl Prompt {
    /// The tokens.
    pub(crate) async fn tokens(&self, app: &App) -> Result<Vec<u32>, ApiError> {
        match self {
            Self::Text(text) => app.tokenize(text.clone(), Tokenizer::encode_prompt).await,
            Self::Ids(ids) => Ok(ids.clone()),
        }
    }

    /// The text.
    pub(crate) fn text(&self, tokenizer: &Tokenizer) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Ids(ids) => tokenizer.decode(ids, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn four_shapes_are_known() {
        let text = |s: &str| Prompt::Text(s.into());
        for (value, items, is_list) in [
            (json!("a"), vec![text("a")], false),
            (json!(["a", "b"]), vec![text("a"), text("b")], true),
            (json!([1, 2]), vec![Prompt::Ids(vec![1, 2])], false),
            (json!([[1], [2, 3]]), vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])], true),
        ] {
            assert_eq!(Prompts::parse(value, "prompt").unwrap(), Prompts { items, is_list });
        }
    }

    #[test]
    fn others_are_refused_where_they_are_wrong() {
        for (value, field) in [
            (json!([]), "prompt"),
            (json!(3), "prompt"),
            (json!(["a", {}]), "prompt"),
            (json!([1, -2]), "prompt[1]"),
            (json!([[1], [2, "x"]]), "prompt[1][1]"),
        ] {
            let Err(ApiError::Field { field: found, .. }) = Prompts::parse(value, "prompt") else {
                panic!("accepted");
            };
            assert_eq!(found, field);
        }
    }
}
