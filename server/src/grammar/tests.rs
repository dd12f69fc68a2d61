//! Which texts a grammar has, token by token.

use super::*;
use crate::text::Tokenizer;
use runtime::{Allowed, Constraint};
use std::time::Duration;

const QWEN3: &[u8] = include_bytes!("../../tests/data/qwen3/tokenizer.json");
const VOCAB: u32 = 512;
/// `<|im_end|>`.
const EOS: u32 = 480;
const PATIENCE: Duration = Duration::from_secs(20);

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::new(QWEN3, None).unwrap())
}

fn grammars() -> Grammars {
    Grammars::new(tokenizer(), VOCAB, vec![EOS, 478])
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// What may follow a text.
#[derive(Debug, PartialEq)]
enum After {
    /// Nothing: the text is whole.
    Complete,
    /// The text may end or go on.
    MayEnd,
    /// The text has to go on.
    Open,
    /// It is no beginning of a text; the byte at this position does not fit.
    Wrong(usize),
}

/// Whether `text` is a whole text of `grammar`.
pub(crate) fn has_text(grammar: &Grammar, text: &str) -> bool {
    matches!(Checker::new(grammar).feed(text, false), After::Complete | After::MayEnd)
}

/// The same by the tokens of another tokenizer.
pub(crate) fn has_text_of(json: &[u8], grammar: &Grammar, text: &str) -> bool {
    let tokenizer = Arc::new(Tokenizer::new(json, None).unwrap());
    let eos = tokenizer.token_id("<|return|>").unwrap();
    let mut checker = Checker::of(tokenizer, eos, grammar, false);
    matches!(checker.feed(text, false), After::Complete | After::MayEnd)
}

struct Checker {
    tokens: Vec<Vec<u8>>,
    eos: u32,
    constraint: Box<dyn Constraint>,
}

impl Checker {
    fn new(grammar: &Grammar) -> Self {
        Self::with(grammar, false)
    }

    fn with(grammar: &Grammar, ignore_eos: bool) -> Self {
        Self::of(tokenizer(), EOS, grammar, ignore_eos)
    }

    fn of(tokenizer: Arc<Tokenizer>, eos: u32, grammar: &Grammar, ignore_eos: bool) -> Self {
        let grammars = Grammars::new(Arc::clone(&tokenizer), VOCAB, vec![eos, 478]);
        let compiled = block_on(grammars.compile(grammar)).unwrap_or_else(|e| panic!("{e}"));
        let tokens = tokenizer.token_texts(VOCAB);
        Self { tokens, eos, constraint: compiled.constraint(ignore_eos) }
    }

    fn allowed(&mut self) -> Option<Vec<u32>> {
        match self.constraint.allowed(PATIENCE) {
            Allowed::Tokens(bits) => {
                let is_set = |t: &u32| bits[*t as usize / 32] >> (t % 32) & 1 == 1;
                Some((0..VOCAB).filter(is_set).collect())
            }
            Allowed::Complete => None,
            other => panic!("{other:?}"),
        }
    }

    /// Feeds `text` in the longest tokens that are allowed, or byte by byte.
    fn feed(&mut self, text: &str, by_bytes: bool) -> After {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let Some(allowed) = self.allowed() else {
                return After::Wrong(text.len() - rest.len());
            };
            let fits = |t: &&u32| {
                let token = &self.tokens[**t as usize];
                !token.is_empty() && rest.starts_with(token) && (!by_bytes || token.len() == 1)
            };
            let longest =
                allowed.iter().filter(fits).max_by_key(|t| self.tokens[**t as usize].len());
            let Some(&token) = longest else { return After::Wrong(text.len() - rest.len()) };
            rest = &rest[self.tokens[token as usize].len()..];
            self.constraint.advance(token);
        }
        match self.allowed() {
            None => After::Complete,
            Some(allowed) if allowed.contains(&self.eos) => After::MayEnd,
            Some(_) => After::Open,
        }
    }
}

fn after(grammar: &Grammar, text: &str) -> After {
    let whole = Checker::new(grammar).feed(text, false);
    let bytes = Checker::new(grammar).feed(text, true);
    assert_eq!(whole, bytes, "{text}: long and short tokens mean the same");
    whole
}

fn is_whole(grammar: &Grammar, text: &str) -> bool {
    matches!(after(grammar, text), After::Complete | After::MayEnd)
}

fn check(grammar: &Grammar, good: &[&str], bad: &[&str]) {
    for text in good {
        assert!(is_whole(grammar, text), "{text}: {:?}", after(grammar, text));
    }
    for text in bad {
        assert!(!is_whole(grammar, text), "{text}: {:?}", after(grammar, text));
    }
}

fn refusal(grammar: Result<Grammar, ApiError>) -> String {
    let compile = |grammar: Grammar| block_on(grammars().compile(&grammar)).map(|_| ());
    match grammar.and_then(compile) {
        Err(e) => e.to_string(),
        Ok(()) => panic!("accepted"),
    }
}

#[test]
fn schemas_decide_what_is_written() {
    let schema = json!({
        "type": "object",
        "properties": {
            "kind": {"enum": ["cat", "dög"]},
            "legs": {"type": "integer", "minimum": 0, "maximum": 12},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-c]+$"}, "maxItems": 2}
        },
        "required": ["kind", "legs"],
        "additionalProperties": false
    });
    let grammar = Grammar::json_schema("f", &schema).unwrap();
    check(
        &grammar,
        &[
            r#"{"kind": "cat", "legs": 4}"#,
            r#"{"kind":"dög","legs":12,"tags":["ab","c"]}"#,
            "{\n  \"kind\": \"cat\",\n  \"legs\": 0,\n  \"tags\": []\n}",
        ],
        &[
            r#"{"kind": "cow", "legs": 4}"#,
            r#"{"kind": "cat", "legs": 13}"#,
            r#"{"kind": "cat"}"#,
            r#"{"kind": "cat", "legs": 4, "tags": ["d"]}"#,
            r#"{"kind": "cat", "legs": 4, "tags": ["a", "b", "c"]}"#,
            r#"{"kind": "cat", "legs": 4} "#,
            "[]",
        ],
    );
    assert_eq!(after(&grammar, r#"{"kind": "cat", "legs": 4}"#), After::Complete);
    assert_eq!(after(&grammar, r#"{"kind": "c"#), After::Open);
}

#[test]
fn whitespace_has_an_end() {
    let grammar = Grammar::json_object("f");
    let spaced = |space: &str| format!("{{{space}\"a\":{space}1{space}}}");
    for space in ["", " ", "\n", "\r\n\t", &format!("\n{}", " ".repeat(40))] {
        assert!(is_whole(&grammar, &spaced(space)), "{space:?}");
    }
    for (space, at) in [("  ", 2), ("\n\n", 2), ("\t", 1), (&format!("\n{}", " ".repeat(41)), 42)] {
        assert_eq!(after(&grammar, &spaced(space)), After::Wrong(at), "{space:?}");
    }
    let own = json!({"type": "object", "x-guidance": {"whitespace_flexible": false}});
    let own = Grammar::json_schema("f", &own).unwrap();
    check(&own, &[r#"{"a":1}"#], &[r#"{"a": 1}"#]);
}

#[test]
fn regular_expressions_match_the_whole_text() {
    for regex in ["[a-z]{2,3}/[0-9]+", "^[a-z]{2,3}/[0-9]+$"] {
        let grammar = Grammar::regex("f", regex).unwrap();
        check(&grammar, &["ab/1", "abc/2024"], &["a/1", "abcd/1", "ab/", "ab/1x", " ab/1"]);
        assert_eq!(after(&grammar, "ab/1"), After::MayEnd);
    }
    let dollars = Grammar::regex("f", r"[0-9]+\$").unwrap();
    check(&dollars, &["5$"], &["5"]);
}

#[test]
fn both_notations_of_grammars_are_read() {
    let gbnf = r##"
        # A sum of numbers.
        root ::= term (("+" | "-") term)*
        term ::= factor
               | factor "*" term
        factor ::= num-ber | "(" root ")"
        num-ber ::= [1-9] [0-9]{0,2} | "0" | "\"\u00e9\""
    "##;
    let lark = r#"
        start: term (("+" | "-") term)*
        term: factor | factor "*" term
        factor: NUMBER | "(" start ")"
        NUMBER: /[1-9][0-9]{0,2}/ | "0" | "\"é\""
    "#;
    for text in [gbnf, lark] {
        let grammar = Grammar::ebnf("f", text).unwrap();
        check(
            &grammar,
            &["7", "1+2-3", "2*(3+(4))*999", "0+\"é\""],
            &["", "+", "1+", "01", "1000", "(1", "1)", "e"],
        );
    }
}

#[test]
fn what_is_not_recursive_is_matched_without_greed() {
    // A terminal that takes all it can would swallow the last letter.
    let grammar = Grammar::ebnf("f", "root ::= word \"b\" \"c\"?\nword ::= [a-z]*").unwrap();
    check(&grammar, &["b", "abb", "xbc", "bcb"], &["", "ac", "bca"]);
}

#[test]
fn json_as_gbnf_is_json() {
    let grammar = Grammar::ebnf(
        "f",
        r#"
        root   ::= object
        value  ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
        array  ::= "[" ws ( value ("," ws value)* )? "]" ws
        string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}) )* "\"" ws
        number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
        ws ::= | " " | "\n" [ \t]{0,20}
        "#,
    )
    .unwrap();
    check(
        &grammar,
        &["{}", r#"{"a": [1, -2.5e3, "x\n", {"b": null}], "c": true}"#, "{\n  \"a\": []}"],
        &["", "[]", "{", r#"{"a"}"#, r#"{"a": 1,}"#, r#"{"a": tru}"#],
    );
}

#[test]
fn tags_begin_pieces_of_free_text() {
    let call = |name: &str, schema| Tag {
        begin: format!("<call>{{\"name\": \"{name}\", \"arguments\": "),
        schema,
        end: "}</call>".into(),
    };
    let number = json!({
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": false
    });
    let mut tagged = Tagged {
        tags: vec![call("add", number), call("now", json!({"type": "object", "maxProperties": 0}))],
        triggers: vec!["<call>".into()],
        ..Tagged::default()
    };
    let add = r#"<call>{"name": "add", "arguments": {"n": 5}}</call>"#;
    let now = r#"<call>{"name": "now", "arguments": {}}</call>"#;
    let free = Grammar::tagged("f", &tagged).unwrap();
    let (both, wrong) = (format!("Well: {add}\n{now} <b>"), format!("a{add}<call>{{\"name\": \"x"));
    check(&free, &["", "no call", "a < b", add, &both], &["<call>", "<call>x", &wrong]);
    assert_eq!(after(&free, "see <call>{\"name\": \"q"), After::Wrong(20));

    tagged.at_least_one = true;
    let forced = Grammar::tagged("f", &tagged).unwrap();
    check(&forced, &[add, &both], &["", "no call"]);
    tagged.at_most_one = true;
    let single = Grammar::tagged("f", &tagged).unwrap();
    assert_eq!(after(&single, add), After::Complete);
    check(&single, &[add, &format!("I think {now}")], &["", &both]);
}

#[test]
fn special_tokens_are_no_text() {
    let grammar = Grammar::regex("f", r"(<\|im_end\|>|<\|endoftext\|>|x)+").unwrap();
    let mut checker = Checker::new(&grammar);
    let tokenizer = tokenizer();
    let special: Vec<u32> = (0..VOCAB).filter(|id| tokenizer.is_special(*id)).collect();
    assert!(special.contains(&EOS));
    let allowed = checker.allowed().unwrap();
    assert!(!allowed.iter().any(|id| special.contains(id)), "{allowed:?}");
    assert_eq!(checker.feed("x<|im_end|>", true), After::MayEnd, "spelt out it is text");
    let named = Grammar::lark("f", "start: <|im_start|> \"x\"").unwrap();
    let mut checker = Checker::new(&named);
    let allowed = checker.allowed().unwrap();
    assert_eq!(allowed.len(), 1);
    assert!(tokenizer.is_special(allowed[0]));
}

#[test]
fn without_an_end_of_sequence_a_text_goes_on_until_nothing_fits() {
    let grammar = Grammar::regex("f", "[a-z]{1,3}").unwrap();
    assert_eq!(Checker::new(&grammar).feed("ab", true), After::MayEnd);
    assert_eq!(Checker::with(&grammar, true).feed("ab", true), After::Open);
    assert_eq!(Checker::with(&grammar, true).feed("abc", true), After::Complete);
}

#[test]
fn what_cannot_be_used_is_refused_with_a_reason() {
    let schema = |schema: Value| refusal(Grammar::json_schema("field", &schema));
    for (why, part) in [
        (schema(json!({"type": "objekt"})), "objekt"),
        (schema(json!({"$ref": "https://example.com/schema"})), "$ref"),
        (schema(json!({"$ref": "#/$defs/missing"})), "missing"),
        (schema(json!(false)), "nothing is valid"),
        (schema(json!([])), "must be a JSON schema"),
        (schema(json!({"type": "string", "pattern": "("})), "regex"),
        (schema(json!({"type": "integer", "minimum": 5, "maximum": 4})), "minimum"),
        (schema(json!({"enum": vec!["x".repeat(1000); 200]})), "at most 131072"),
        (refusal(Grammar::regex("field", "(a")), "regex"),
        (refusal(Grammar::regex("field", &"(".repeat(70_000))), "regex"),
        (refusal(Grammar::regex("field", r"(?=a)b")), "look-around"),
        (refusal(Grammar::ebnf("field", "start: missing")), "missing"),
        (refusal(Grammar::ebnf("field", "top ::= \"a\"")), "`root`"),
        (refusal(Grammar::ebnf("field", "root ::= other")), "`other` in line 1"),
        (refusal(Grammar::ebnf("field", "root ::= (\"a\"")), "not closed"),
        (refusal(Grammar::ebnf("field", "root ::= \"a\" )")), "Close"),
        (refusal(Grammar::ebnf("field", "root ::= root")), "no text"),
    ] {
        assert!(why.starts_with("`field` "), "{why}");
        assert!(why.contains(part), "{why}");
        assert!(!why.contains("<state>") && why.len() < 400, "{why}");
    }
}

#[test]
fn hostile_grammars_are_bounded_in_time() {
    let chain = |n: usize| {
        let rules: Vec<String> = (0..n).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
        format!("start: r0\n{}r{n}: \"a\"", rules.concat())
    };
    let doubled: Vec<String> = (0..40).map(|i| format!("T{i}: T{0} T{0}\n", i + 1)).collect();
    let alternatives: Vec<Value> = (0..16)
        .map(|i| {
            let one = |name: String| json!({"type": "object", "properties": {name: {}}});
            json!({"anyOf": [one(format!("a{i}")), one(format!("b{i}"))]})
        })
        .collect();
    let mut deep = json!({"type": "string"});
    for _ in 0..60 {
        deep = json!({"type": "object", "properties": {"a": deep}, "required": ["a"]});
    }
    let defs: serde_json::Map<String, Value> = (0..2000)
        .map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", (i + 1) % 2000)})))
        .collect();
    for grammar in [
        Grammar::regex("f", "(a{1000}){1000}"),
        Grammar::regex("f", "(.|a)*a(.|a){200}b"),
        Grammar::lark("f", &chain(8000)),
        Grammar::lark("f", &format!("start: T0\n{}T40: \"a\"", doubled.concat())),
        Grammar::json_schema("f", &json!({"allOf": alternatives})),
        Grammar::json_schema("f", &deep),
        Grammar::json_schema("f", &json!({"$ref": "#/$defs/d0", "$defs": defs})),
        Grammar::ebnf("f", &format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000))),
        Grammar::ebnf("f", "root ::= (([a-z]{1,90000}){1,90000}){1,90000}"),
    ] {
        let start = std::time::Instant::now();
        let compiled = grammar.and_then(|g| block_on(grammars().compile(&g)).map(|_| ()));
        assert!(start.elapsed() < 2 * limits::COMPILE_TIME, "{compiled:?}");
        if let Err(e) = compiled {
            assert!(matches!(e, ApiError::Field { .. }), "{e}");
        }
    }
}

#[test]
fn equal_grammars_are_compiled_once_and_few_are_kept() {
    let grammars = grammars();
    let regex = |i: usize| Grammar::regex(format!("field{i}"), &format!("a{{{}}}", i + 1)).unwrap();
    let first = block_on(grammars.compile(&regex(0))).unwrap();
    let again = Grammar { field: "elsewhere".into(), ..regex(0) };
    assert!(Arc::ptr_eq(&first, &block_on(grammars.compile(&again)).unwrap()));
    for i in 1..=limits::CACHED {
        block_on(grammars.compile(&regex(i))).unwrap();
    }
    assert!(!Arc::ptr_eq(&first, &block_on(grammars.compile(&again)).unwrap()));
}
