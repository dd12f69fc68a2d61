//! Chat templates, rendered as the checkpoint's own library renders them.

use super::tojson::{JsonStyle, to_json};
use crate::model::ModelError;
use minijinja::{
    Environment, Error, ErrorKind, Value,
    value::{Kwargs, ViaDeserialize},
};
use serde_json::{Map, Value as Json};
use std::time::{SystemTime, UNIX_EPOCH};

const NAME: &str = "chat";

/// A compiled chat template.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// `bos_token` and the like, as the template sees them.
    special_tokens: Map<String, Json>,
}

/// What is rendered.
#[derive(Default)]
pub(crate) struct RenderOptions {
    /// Whether the beginning of an answer follows the messages.
    pub(crate) add_generation_prompt: bool,
    /// Whether the text ends inside the last message, which the answer then continues.
    pub(crate) continue_final_message: bool,
    /// Functions the model may call, as the client gave them.
    pub(crate) tools: Option<Json>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Json>,
}

impl ChatTemplate {
    /// Compiles `source`.
    pub(crate) fn new(source: &str, special_tokens: Map<String, Json>) -> Result<Self, ModelError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment
            .add_template_owned(NAME, without_generation_marks(source))
            .map_err(|e| ModelError::Template(format!("{e:#}")))?;
        Ok(Self { environment, source: source.into(), special_tokens })
    }

    /// The template's text.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Renders `messages`.
    ///
    /// # Errors
    /// What the template complains about, in its own words.
    pub(crate) fn render(
        &self,
        messages: &Json,
        options: &RenderOptions,
    ) -> Result<String, String> {
        let mut variables = self.special_tokens.clone();
        variables.insert("messages".into(), messages.clone());
        variables.insert("tools".into(), options.tools.clone().unwrap_or(Json::Null));
        variables.insert("documents".into(), Json::Null);
        variables.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        variables.extend(options.variables.clone());
        let template = self.environment.get_template(NAME).expect("added when it was compiled");
        let text =
            template.render(Value::from_serialize(variables)).map_err(|e| match e.detail() {
                Some(detail) => detail.to_owned(),
                None => e.to_string(),
            })?;
        if options.continue_final_message { cut_after_final(text, messages) } else { Ok(text) }
    }
}

/// Drops what the template puts after the last message.
fn cut_after_final(mut text: String, messages: &Json) -> Result<String, String> {
    let content = messages
        .as_array()
        .and_then(|messages| messages.last())
        .and_then(|message| message["content"].as_str())
        .ok_or("the last message has no text to continue")?;
    let (start, len) = match text.rfind(content) {
        Some(start) => (start, content.len()),
        None => {
            let trimmed = content.trim();
            let start = text
                .rfind(trimmed)
                .ok_or("the chat template does not render the last message as it is")?;
            (start, trimmed.len())
        }
    };
    text.truncate(start + len);
    Ok(text)
}

/// Some templates mark the answers for training with a tag that renders nothing.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + len];
        let end = start + len + 2;
        let name = tag.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        if matches!(name, "generation" | "endgeneration") {
            out.push_str(&rest[..start]);
            let left = if tag.starts_with('-') { "{%-" } else { "{%" };
            let right = if tag.ends_with('-') { "-%}" } else { "%}" };
            out.push_str(left);
            out.push_str(if name == "generation" { " if true " } else { " endif " });
            out.push_str(right);
        } else {
            out.push_str(&rest[..end]);
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn tojson(value: ViaDeserialize<Json>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut style = JsonStyle {
        indent: kwargs.get("indent")?,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        ..JsonStyle::default()
    };
    if let Some(separators) = kwargs.get::<Option<Vec<String>>>("separators")?
        && let [item, key] = separators.as_slice()
    {
        style.item_separator = Some(item.clone());
        style.key_separator = key.clone();
    }
    let mut value = value.0;
    if kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false) {
        value.sort_all_objects();
    }
    kwargs.assert_all_used()?;
    let text = to_json(&value, &style)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(Value::from_safe_string(text))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The present time in UTC.
fn strftime_now(format: String) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(&format, seconds)
}

/// `seconds` after 1970 in UTC, with the directives that templates use.
fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] =
        ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let days = seconds / 86_400;
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let unpadded = chars.next_if_eq(&'-').is_some();
        let number = |value: u64| {
            if unpadded { value.to_string() } else { format!("{value:02}") }
        };
        let text = match chars.next() {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100),
            Some('m') => number(month),
            Some('d') => number(day),
            Some('e') => format!("{day:2}"),
            Some('H') => number(hour),
            Some('I') => number((hour + 11) % 12 + 1),
            Some('M') => number(minute),
            Some('S') => number(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('B') => month_name.into(),
            Some('b') => month_name[..3].into(),
            Some('A') => day_name.into(),
            Some('a') => day_name[..3].into(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".into(),
            Some(other) => format!("%{other}"),
            None => "%".into(),
        };
        out.push_str(&text);
    }
    out
}

/// Year, month and day of a day counted from 1970-01-01 in the Gregorian calendar.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut rest = days;
    let mut year = 1970;
    while rest >= 365 + u64::from(is_leap(year)) {
        rest -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while rest >= lengths[month] {
        rest -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, messages: Json, options: RenderOptions) -> Result<String, String> {
        ChatTemplate::new(source, Map::new()).unwrap().render(&messages, &options)
    }

    #[test]
    fn dates_are_gregorian() {
        assert_eq!(strftime("%Y-%m-%d %H:%M:%S %A", 0), "1970-01-01 00:00:00 Thursday");
        assert_eq!(strftime("%d %b %Y, %-I:%M %p", 951_827_696), "29 Feb 2000, 12:34 PM");
        assert_eq!(strftime("%a %-d %B %y 100%%", 1_735_689_599), "Tue 31 December 24 100%");
    }

    #[test]
    fn a_template_may_refuse() {
        let source = "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}ok";
        let two = json!([{"role": "user"}, {"role": "user"}]);
        assert_eq!(render(source, two, RenderOptions::default()), Err("one only".into()));
    }

    #[test]
    fn blocks_leave_no_lines_behind() {
        let source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n";
        let messages = json!([{"content": "a"}, {"content": "b"}]);
        assert_eq!(render(source, messages, RenderOptions::default()).unwrap(), "a\nb\n");
    }

    #[test]
    fn an_answer_is_continued_where_its_text_ends() {
        let source = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}<end>{% endfor %}";
        let messages = json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi the"},
        ]);
        let options = RenderOptions { continue_final_message: true, ..RenderOptions::default() };
        assert_eq!(render(source, messages, options).unwrap(), "<user>Hi<end><assistant>Hi the");
    }

    #[test]
    fn marks_for_training_render_nothing() {
        let source = "a{%- generation %} b {% endgeneration -%} c{% if x %}{% endif %}";
        assert_eq!(render(source, json!([]), RenderOptions::default()).unwrap(), "a b c");
    }

    #[test]
    fn tojson_does_not_escape_for_html() {
        let source = "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}";
        let messages = json!([{"a": "<é>", "b": 1.0}]);
        assert_eq!(
            render(source, messages, RenderOptions::default()).unwrap(),
            "[{\"a\": \"<é>\", \"b\": 1.0}]{\n  \"a\": \"<é>\",\n  \"b\": 1.0\n}"
        );
    }
}
