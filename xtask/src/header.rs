//! Just enough of C to read declarations: functions, and numbers of enums, constants and macros.

use std::collections::BTreeMap;

/// A declared function. Types are spelled with one space between words and `*` apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) returns: String,
    pub(crate) params: Vec<String>,
    /// Lines of the `///` comment before it.
    pub(crate) doc: Vec<String>,
    /// What `ACL_FUNC(...)` before it says.
    pub(crate) annotation: Option<[String; 3]>,
}

/// `text` without comments, directives kept.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        out.push_str(&rest[..at]);
        let tail = &rest[at..];
        if tail.starts_with("//") {
            rest = tail.find('\n').map_or("", |end| &tail[end..]);
        } else if tail.starts_with("/*") {
            out.push(' ');
            rest = tail.find("*/").map_or("", |end| &tail[end + 2..]);
        } else {
            out.push('/');
            rest = &tail[1..];
        }
    }
    out + rest
}

/// Words and signs of `text`; directives, strings and remarks on deprecation are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = words(text);
    while let Some(at) = tokens.iter().position(|t| t == "ACL_DEPRECATED_MESSAGE") {
        tokens.drain(at..(at + 3).min(tokens.len()));
    }
    tokens
}

fn words(text: &str) -> Vec<String> {
    let text = without_comments(text).replace("\\\n", " ");
    let lines = text.lines().filter(|l| !l.trim_start().starts_with('#'));
    let mut tokens = Vec::new();
    for line in lines {
        let mut word = String::new();
        for c in line.split('"').step_by(2).flat_map(str::chars) {
            if c.is_alphanumeric() || c == '_' {
                word.push(c);
                continue;
            }
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            if !c.is_whitespace() {
                tokens.push(c.to_string());
            }
        }
        if !word.is_empty() {
            tokens.push(word);
        }
    }
    tokens
}

/// Words that say nothing about a type.
const NOISE: &[&str] = &["ACL_FUNC_VISIBILITY", "extern", "struct", "enum", "union", "visibility"];

/// The type of a parameter: without its name, and without a `const` that binds the parameter itself.
fn parameter(words: &[String]) -> String {
    let words: Vec<&str> =
        words.iter().map(String::as_str).filter(|w| !NOISE.contains(w)).collect();
    let named = words.len() > 1 && !matches!(words.last(), Some(&"*" | &"const"));
    let mut kept = &words[..words.len() - usize::from(named)];
    if kept.first() == Some(&"const") && !kept.contains(&"*") {
        kept = &kept[1..];
    }
    kept.join(" ")
}

/// Every function that `text` declares, in order.
pub(crate) fn functions(text: &str) -> Result<Vec<Function>, String> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let mut annotation = None;
    let (mut i, mut start) = (0, 0);
    while i < tokens.len() {
        match tokens[i].as_str() {
            "ACL_FUNC" => {
                let part = |n: usize| tokens.get(i + n).cloned().ok_or("ACL_FUNC without an end");
                annotation = Some([part(2)?, part(4)?, part(6)?]);
                i += 8;
                start = i;
            }
            "{" | "}" | ";" => {
                i += 1;
                start = i;
            }
            "typedef" => {
                let mut depth = 0;
                while i < tokens.len() && (depth > 0 || tokens[i] != ";") {
                    depth += i32::from(tokens[i] == "{") - i32::from(tokens[i] == "}");
                    i += 1;
                }
            }
            "(" => {
                let close =
                    tokens[i..].iter().position(|t| t == ")").ok_or("a `(` without its `)`")? + i;
                let plain = tokens[i + 1..close].iter().all(|t| t != "(");
                if plain && i > start + 1 && tokens.get(close + 1).is_some_and(|t| t == ";") {
                    let inside = &tokens[i + 1..close];
                    let params = inside.split(|t| t == ",").filter(|p| !p.is_empty());
                    let mut params: Vec<String> = params.map(parameter).collect();
                    params.retain(|p| p != "void");
                    let mut returns = tokens[start..i - 1].to_vec();
                    returns.push("name".into());
                    found.push(Function {
                        name: tokens[i - 1].clone(),
                        returns: parameter(&returns),
                        params,
                        doc: Vec::new(),
                        annotation: annotation.take(),
                    });
                }
                i = close + 1;
            }
            _ => i += 1,
        }
    }
    document(text, &mut found);
    Ok(found)
}

/// Adds the `///` lines before each function.
fn document(text: &str, functions: &mut [Function]) {
    let mut lines = text.lines();
    for f in functions {
        let mut doc = Vec::new();
        for line in lines.by_ref() {
            if let Some(text) = line.trim_start().strip_prefix("///") {
                doc.push(text.trim().to_owned());
            } else if line.contains(&format!("{}(", f.name)) {
                f.doc = doc;
                break;
            } else if !line.starts_with("ACL_FUNC(") {
                doc.clear();
            }
        }
    }
}

/// A number in C.
fn number(text: &str) -> Option<i64> {
    let text = text.trim().trim_end_matches(['u', 'U', 'l', 'L']);
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |d| (-1, d));
    let value = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => i64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(sign * value)
}

/// Every number that `text` names: enumerators, `static const` integers and macros.
pub(crate) fn numbers(text: &str) -> Result<BTreeMap<String, i64>, String> {
    let mut found = BTreeMap::new();
    for line in without_comments(text).lines() {
        let mut words = line.split_whitespace();
        if words.next() == Some("#define")
            && let (Some(name), Some(value)) = (words.next(), words.next().and_then(number))
        {
            found.insert(name.to_owned(), value);
        }
    }
    let tokens = tokens(text);
    let mut i = 0;
    while i < tokens.len() {
        if tokens[i] == "static" {
            let end =
                tokens[i..].iter().position(|t| t == ";").ok_or("a constant without an end")? + i;
            if let Some(at) = tokens[i..end].iter().position(|t| t == "=").map(|at| at + i)
                && let Some(value) = number(&tokens[at + 1..end].concat())
            {
                found.insert(tokens[at - 1].clone(), value);
            }
            i = end;
        } else if tokens[i] == "enum" {
            let open = i + tokens[i..].iter().take(3).position(|t| t == "{").unwrap_or(0);
            if tokens[open] == "{" {
                let close =
                    tokens[open..].iter().position(|t| t == "}").ok_or("an open enum")? + open;
                enumerators(&tokens[open + 1..close], &mut found);
                i = close;
            }
        }
        i += 1;
    }
    Ok(found)
}

/// The enumerators between braces. A value that refers to another is left out, and so are those
/// counted on from it.
fn enumerators(tokens: &[String], found: &mut BTreeMap<String, i64>) {
    let mut next = Some(0);
    for entry in tokens.split(|t| t == ",") {
        let Some(name) = entry.first() else { continue };
        if let Some(at) = entry.iter().position(|t| t == "=") {
            next = number(&entry[at + 1..].concat());
        }
        if let Some(value) = next {
            found.insert(name.clone(), value);
            next = Some(value + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_read() {
        let text = "/* a; b(c); */ ACL_DEPRECATED_MESSAGE(\"f(x), g\") typedef void (*fn_t)(void *);\n#define IGNORED(x) f(x);\n\
            extern \"C\" {\n/// One.\n/// Two.\nACL_FUNC(lib, V9, optional)\n\
            VISIBLE const char *first(void);\n\
            aclTensor *second(const int64_t *dims, const size_t n, const T *const *list,\n  uint32_t);\n}";
        let found = functions(&text.replace("VISIBLE", "ACL_FUNC_VISIBILITY")).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), found[0].returns.as_str()), ("first", "const char *"));
        assert_eq!(found[0].params, Vec::<String>::new());
        assert_eq!(found[0].doc, ["One.", "Two."]);
        assert_eq!(found[0].annotation, Some(["lib", "V9", "optional"].map(String::from)));
        assert_eq!(found[1].returns, "aclTensor *");
        assert_eq!(found[1].params, ["const int64_t *", "size_t", "const T * const *", "uint32_t"]);
        assert_eq!(found[1].annotation, None);
    }

    #[test]
    fn numbers_are_read() {
        let text = "#define A 0x10U // sixteen\nstatic const int B = -7;\ntypedef enum x { C, D = 5, E, } x;\n\
            typedef enum { F ACL_DEPRECATED_MESSAGE(\"no, not\") = 2, G = D, H } y;\n#define NOT_A_NUMBER (A)";
        let found = numbers(text).unwrap();
        let found: Vec<(&str, i64)> = found.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        assert_eq!(found, [("A", 16), ("B", -7), ("C", 0), ("D", 5), ("E", 6), ("F", 2)]);
    }
}
