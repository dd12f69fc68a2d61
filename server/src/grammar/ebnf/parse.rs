//! Reading GBNF.

use std::{collections::HashMap, iter::Peekable, str::Chars};

/// Parentheses within parentheses.
const MAX_DEPTH: usize = 24;
/// The most repetitions that can be asked for.
const MAX_REPEAT: u32 = 100_000;

/// A rule of a grammar.
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) body: Node,
}

/// What a rule is made of.
pub(super) enum Node {
    Text(String),
    /// A character of a class, as a regular expression.
    Class(String),
    /// A rule, by its position.
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// At least, and at most.
    Repeat(Box<Node>, u32, Option<u32>),
}

impl Node {
    /// Calls `visit` for each rule that is named.
    pub(super) fn each_rule(&self, visit: &mut impl FnMut(usize)) {
        match self {
            Self::Text(_) | Self::Class(_) => {}
            Self::Rule(rule) => visit(*rule),
            Self::Sequence(nodes) | Self::Choice(nodes) => {
                for node in nodes {
                    node.each_rule(visit);
                }
            }
            Self::Repeat(node, ..) => node.each_rule(visit),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Is,
    Text(String),
    Class(String),
    Repeat(u32, Option<u32>),
    Open,
    Close,
    Or,
}

/// Reads a grammar; every rule that is named is there.
pub(super) fn parse(grammar: &str) -> Result<Vec<Rule>, String> {
    let tokens = Lexer { chars: grammar.chars().peekable(), line: 1 }.tokens()?;
    let is_head = |i: usize| {
        matches!(tokens[i].0, Token::Name(_))
            && tokens.get(i + 1).is_some_and(|next| next.0 == Token::Is)
    };
    let heads: Vec<usize> = (0..tokens.len()).filter(|&i| is_head(i)).collect();
    if heads.first() != Some(&0) {
        return Err("must begin with a rule, `root ::= ...`".into());
    }
    let mut positions = HashMap::new();
    for (position, &head) in heads.iter().enumerate() {
        let (Token::Name(name), line) = &tokens[head] else { continue };
        if positions.insert(name.as_str(), position).is_some() {
            return Err(format!("defines `{name}` again in line {line}"));
        }
    }
    let ends = heads.iter().skip(1).copied().chain([tokens.len()]);
    let mut rules = Vec::with_capacity(heads.len());
    for (&head, end) in heads.iter().zip(ends) {
        let (Token::Name(name), line) = &tokens[head] else { continue };
        let mut parser = Parser { tokens: &tokens[head + 2..end], positions: &positions };
        let body = parser.choice(0, *line)?;
        if let Some((token, line)) = parser.tokens.first() {
            return Err(format!("has `{token:?}` in line {line} where nothing fits"));
        }
        rules.push(Rule { name: name.clone(), body });
    }
    Ok(rules)
}

struct Parser<'a> {
    tokens: &'a [(Token, usize)],
    positions: &'a HashMap<&'a str, usize>,
}

impl Parser<'_> {
    fn choice(&mut self, depth: usize, line: usize) -> Result<Node, String> {
        if depth > MAX_DEPTH {
            return Err(format!("has more than {MAX_DEPTH} levels of parentheses in line {line}"));
        }
        let mut options = vec![self.sequence(depth)?];
        while let Some(((Token::Or, _), rest)) = self.tokens.split_first() {
            self.tokens = rest;
            options.push(self.sequence(depth)?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Node::Choice(options) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        let mut nodes: Vec<Node> = Vec::new();
        while let Some(((token, line), rest)) = self.tokens.split_first() {
            let node = match token {
                Token::Or | Token::Close => break,
                Token::Text(text) => Node::Text(text.clone()),
                Token::Class(class) => Node::Class(class.clone()),
                Token::Name(name) => match self.positions.get(name.as_str()) {
                    Some(rule) => Node::Rule(*rule),
                    None => return Err(format!("names `{name}` in line {line}, which is no rule")),
                },
                Token::Repeat(min, max) => {
                    let Some(last) = nodes.pop() else {
                        return Err(format!("repeats nothing in line {line}"));
                    };
                    Node::Repeat(Box::new(last), *min, *max)
                }
                Token::Open => {
                    self.tokens = rest;
                    nodes.push(self.choice(depth + 1, *line)?);
                    let Some(((Token::Close, _), rest)) = self.tokens.split_first() else {
                        return Err(format!("has a `(` in line {line} that is not closed"));
                    };
                    self.tokens = rest;
                    continue;
                }
                Token::Is => return Err(format!("has `::=` in line {line} without a name")),
            };
            self.tokens = rest;
            nodes.push(node);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Sequence(nodes) })
    }
}

struct Lexer<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
}

impl Lexer<'_> {
    fn tokens(mut self) -> Result<Vec<(Token, usize)>, String> {
        let mut tokens = Vec::new();
        while let Some(c) = self.chars.next() {
            let line = self.line;
            let token = match c {
                '\n' => {
                    self.line += 1;
                    continue;
                }
                c if c.is_whitespace() => continue,
                '#' => {
                    while self.chars.next_if(|c| *c != '\n').is_some() {}
                    continue;
                }
                '|' => Token::Or,
                '(' => Token::Open,
                ')' => Token::Close,
                '*' => Token::Repeat(0, None),
                '+' => Token::Repeat(1, None),
                '?' => Token::Repeat(0, Some(1)),
                '.' => Token::Class(r"[\s\S]".into()),
                '{' => self.braces()?,
                '"' => self.text()?,
                '[' => self.class()?,
                ':' => {
                    if self.chars.next() != Some(':') || self.chars.next() != Some('=') {
                        return Err(format!("has a `:` in line {line} that is not `::=`"));
                    }
                    Token::Is
                }
                c if is_name(c) => {
                    let mut name = String::from(c);
                    while let Some(c) = self.chars.next_if(|c| is_name(*c)) {
                        name.push(c);
                    }
                    Token::Name(name)
                }
                c => return Err(format!("has `{c}` in line {line}, which means nothing")),
            };
            tokens.push((token, line));
        }
        Ok(tokens)
    }

    fn braces(&mut self) -> Result<Token, String> {
        let line = self.line;
        let wrong = || format!("has braces in line {line} that are not {{m}}, {{m,}} or {{m,n}}");
        let mut inner = String::new();
        loop {
            match self.chars.next() {
                Some('}') => break,
                Some(c) if inner.len() < 32 => inner.push(c),
                _ => return Err(wrong()),
            }
        }
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let (min, max) = match inner.split_once(',') {
            None => (number(&inner)?, Some(number(&inner)?)),
            Some((min, max)) => {
                let min = if min.trim().is_empty() { 0 } else { number(min)? };
                let max = if max.trim().is_empty() { None } else { Some(number(max)?) };
                (min, max)
            }
        };
        if min.max(max.unwrap_or(0)) > MAX_REPEAT {
            return Err(format!("repeats more than {MAX_REPEAT} times in line {line}"));
        }
        if max.is_some_and(|max| max < min) { Err(wrong()) } else { Ok(Token::Repeat(min, max)) }
    }

    fn text(&mut self) -> Result<Token, String> {
        let line = self.line;
        let mut text = String::new();
        loop {
            match self.chars.next() {
                Some('"') => return Ok(Token::Text(text)),
                Some('\\') => text.push(self.escape()?),
                Some('\n') | None => {
                    return Err(format!("has a text in line {line} that is not closed"));
                }
                Some(c) => text.push(c),
            }
        }
    }

    fn class(&mut self) -> Result<Token, String> {
        let line = self.line;
        let mut class = String::from("[");
        if self.chars.next_if_eq(&'^').is_some() {
            class.push('^');
        }
        let mut is_empty = true;
        loop {
            match self.chars.next() {
                Some(']') if is_empty => return Err(format!("has an empty class in line {line}")),
                Some(']') => break,
                // Between two characters, or last, where it stands for itself.
                Some('-') if !is_empty && self.chars.peek() != Some(&']') => class.push('-'),
                Some('\\') => {
                    let c = self.escape()?;
                    push_escaped(c, &mut class);
                }
                Some('\n') | None => {
                    return Err(format!("has a class in line {line} that is not closed"));
                }
                Some(c) => push_escaped(c, &mut class),
            }
            is_empty = false;
        }
        class.push(']');
        Ok(Token::Class(class))
    }

    fn escape(&mut self) -> Result<char, String> {
        let line = self.line;
        let c = self.chars.next();
        let digits = match c {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if !c.is_alphanumeric() => return Ok(c),
            _ => return Err(format!("has an escape in line {line} that is not known")),
        };
        let code: String = self.chars.by_ref().take(digits).collect();
        let code = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
        code.ok_or_else(|| format!("has an escape in line {line} that is no character"))
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Adds a character so that it stands for itself within a class.
fn push_escaped(c: char, class: &mut String) {
    if c.is_ascii_alphanumeric() {
        class.push(c);
    } else {
        class.push_str(&format!("\\x{{{:X}}}", u32::from(c)));
    }
}
