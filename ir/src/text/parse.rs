//! Text to functions. Every error has a place and a remedy; no input makes it panic.

use super::cursor::Cursor;
use crate::{
    attr::Dims,
    body::Body,
    entity::ValueId,
    func::{Func, Module},
    op::{AttrMap, Op, ParseOpError, TypeError},
    types::{Storage, TensorType},
};
use std::collections::HashMap;
use tensor::{DType, Layout};

/// Text that is no module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct ParseError {
    /// Name of the file as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong, and the remedy.
    pub message: String,
}

/// The functions in `text`; `file` only names it in errors.
///
/// # Errors
/// [`ParseError`] at the first place where the text is malformed, names something unknown, or
/// writes a type that the operation does not have.
pub fn parse(file: &str, text: &str) -> Result<Module, ParseError> {
    let mut parser = Parser { cursor: Cursor::new(text), file, bodies: HashMap::new() };
    let mut module = Module::default();
    while !parser.cursor.at_end() {
        let at = parser.cursor.next_offset();
        if parser.cursor.take_word("fused") {
            parser.body(at)?;
            continue;
        }
        let func = parser.func()?;
        if module.func(&func.name).is_some() {
            let what = format!("function `@{}` is defined twice; rename one of them", func.name);
            return Err(parser.error(at, what));
        }
        module.funcs.push(func);
    }
    Ok(module)
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    file: &'a str,
    /// Bodies of composites by label.
    bodies: HashMap<&'a str, Body>,
}

/// Names of a function that is being read.
type Scope = HashMap<String, ValueId>;

impl<'a> Parser<'a> {
    fn error(&self, offset: usize, message: String) -> ParseError {
        let (line, column) = self.cursor.place(offset);
        ParseError { file: self.file.to_owned(), line, column, message }
    }

    fn expect(&mut self, token: char, remedy: &str) -> Result<(), ParseError> {
        let at = self.cursor.next_offset();
        if self.cursor.take(token) {
            return Ok(());
        }
        let found = self.cursor.peek().map_or("the end".to_owned(), |c| format!("`{c}`"));
        Err(self.error(at, format!("expected `{token}`, found {found}; {remedy}")))
    }

    fn name(&mut self, sigil: char, what: &str) -> Result<(usize, &'a str), ParseError> {
        let at = self.cursor.next_offset();
        self.expect(sigil, &format!("{what} is written `{sigil}name`"))?;
        let name = self.cursor.name();
        if name.is_empty() {
            let what = format!(
                "{what} has no name after `{sigil}`; use letters, digits, `_`, `.` and `-`"
            );
            return Err(self.error(at, what));
        }
        Ok((at, name))
    }

    fn func(&mut self) -> Result<Func, ParseError> {
        let at = self.cursor.next_offset();
        if !self.cursor.take_word("func") {
            let what = "expected a function; begin it with `func @name(`".to_owned();
            return Err(self.error(at, what));
        }
        let (_, name) = self.name('@', "a function")?;
        self.rest_of_func(name)
    }

    /// The body of composites, after `fused`.
    fn body(&mut self, at: usize) -> Result<(), ParseError> {
        let (_, label) = self.name('@', "a body")?;
        let func = self.rest_of_func(label)?;
        let body = Body::new(func).map_err(|errors| {
            let rules: Vec<String> = errors.iter().map(ToString::to_string).collect();
            self.error(at, format!("{}; change the body", rules.join("; ")))
        })?;
        if self.bodies.insert(label, body).is_some() {
            let what = format!("body `@{label}` is defined twice; rename one of them");
            return Err(self.error(at, what));
        }
        Ok(())
    }

    fn rest_of_func(&mut self, name: &str) -> Result<Func, ParseError> {
        let (mut func, mut scope) = (Func::new(name), Scope::new());
        self.params(&mut func, &mut scope)?;
        self.expect('{', "the body follows the parameters in braces")?;
        loop {
            if self.cursor.take_word("return") {
                break;
            } else if self.cursor.take_word("weight") {
                self.weight(&mut func, &mut scope)?;
            } else if self.cursor.peek() == Some('%') {
                self.node(&mut func, &mut scope)?;
            } else {
                let at = self.cursor.next_offset();
                let what = "expected `weight`, `%name = ..` or `return`; \
                            end every function with `return` and its results";
                return Err(self.error(at, what.to_owned()));
            }
        }
        let results = self.operands(&scope)?;
        func.set_results(results);
        self.expect('}', "`return` is the last line of a function")?;
        Ok(func)
    }

    fn params(&mut self, func: &mut Func, scope: &mut Scope) -> Result<(), ParseError> {
        self.expect('(', "parameters stand in parentheses, which may be empty")?;
        while self.cursor.peek() != Some(')') {
            let (at, name) = self.name('%', "a parameter")?;
            self.expect(':', "write the type of the parameter")?;
            let ty = self.ty()?;
            self.undefined(at, name, scope)?;
            scope.insert(name.to_owned(), func.param(name, ty));
            if !self.cursor.take(',') {
                break;
            }
        }
        self.expect(')', "separate parameters with `,`")
    }

    fn weight(&mut self, func: &mut Func, scope: &mut Scope) -> Result<(), ParseError> {
        let (at, name) = self.name('%', "a weight")?;
        self.undefined(at, name, scope)?;
        let mut tensor = name;
        if self.cursor.take('=') {
            tensor = self.cursor.name();
        }
        self.expect(':', "write the type of the weight")?;
        let ty = self.ty()?;
        if tensor.is_empty() || func.weight_of(tensor).is_some() {
            let what =
                format!("tensor `{tensor}` is declared twice or has no name; declare it once");
            return Err(self.error(at, what));
        }
        let id = func.weight(tensor, ty);
        func.rename(id, name);
        scope.insert(name.to_owned(), id);
        Ok(())
    }

    fn node(&mut self, func: &mut Func, scope: &mut Scope) -> Result<(), ParseError> {
        let mut names = vec![self.name('%', "a result")?];
        while self.cursor.take(',') {
            names.push(self.name('%', "a result")?);
        }
        for (i, (at, name)) in names.iter().enumerate() {
            self.undefined(*at, name, scope)?;
            if names[..i].iter().any(|(_, n)| n == name) {
                return Err(self.error(*at, redefined(name)));
            }
        }
        self.expect('=', "write `%result = operation operands`")?;
        let at = self.cursor.next_offset();
        let mnemonic = self.cursor.name();
        let args = self.operands(scope)?;
        let op = self.op(at, mnemonic)?;
        self.expect(':', "write the types of the results after `:`")?;
        let types_at = self.cursor.next_offset();
        let mut types = vec![self.ty()?];
        while self.cursor.take(',') {
            types.push(self.ty()?);
        }
        let inferred = func.infer(&op, &args).map_err(|e| match e {
            TypeError::Arity { .. } => self.error(at, format!("{e}; write every operand")),
            TypeError::Rule { .. } => {
                self.error(at, format!("{mnemonic}: {e}; change the operand"))
            }
        })?;
        if names.len() != inferred.len() {
            let what = format!(
                "`{mnemonic}` has {} results, found {} names; name every result",
                inferred.len(),
                names.len()
            );
            return Err(self.error(names[0].0, what));
        }
        if types != inferred {
            let what = format!(
                "`{mnemonic}` has type {}, found {}; write the former",
                list(&inferred),
                list(&types)
            );
            return Err(self.error(types_at, what));
        }
        let results = names.iter().map(|(_, name)| (*name).to_owned()).zip(inferred);
        let node = func.create_node(op, &args, results);
        func.insert(node, None);
        let outs = func.nodes[node].outs.iter().copied();
        scope.extend(names.iter().map(|(_, name)| (*name).to_owned()).zip(outs));
        Ok(())
    }

    fn op(&mut self, at: usize, mnemonic: &str) -> Result<Op, ParseError> {
        let mut attrs = AttrMap::new();
        if self.cursor.take('{') {
            while self.cursor.peek() != Some('}') {
                let at = self.cursor.next_offset();
                let name = self.cursor.name();
                self.expect('=', "attributes are written `{name = value}`")?;
                if attrs.insert(name.to_owned(), self.cursor.attribute_value().to_owned()).is_some()
                {
                    let what = format!("attribute `{name}` is written twice; remove one");
                    return Err(self.error(at, what));
                }
                if !self.cursor.take(',') {
                    break;
                }
            }
            self.expect('}', "separate attributes with `,`")?;
        }
        if let ("fused", Some(label)) = (mnemonic, attrs.get("body")) {
            let body = label.strip_prefix('@').and_then(|l| self.bodies.get(l)).cloned();
            let body = body.ok_or_else(|| {
                let what = format!("no body `{label}` is defined; define `fused {label}(` above");
                self.error(at, what)
            })?;
            attrs.remove("body");
            return self.without_more(at, mnemonic, attrs, Op::Fused { body });
        }
        let op = Op::parse(mnemonic, &mut attrs).map_err(|e| {
            let remedy = match &e {
                ParseOpError::UnknownOp(name) => match nearest(name) {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => format!("the operations are {}", Op::MNEMONICS.join(", ")),
                },
                ParseOpError::MissingAttr { attr, .. } => format!("add `{{{attr} = ..}}`"),
                ParseOpError::BadAttr { .. } => "write one".to_owned(),
            };
            self.error(at, format!("{e}; {remedy}"))
        })?;
        self.without_more(at, mnemonic, attrs, op)
    }

    fn without_more(
        &self,
        at: usize,
        mnemonic: &str,
        attrs: AttrMap,
        op: Op,
    ) -> Result<Op, ParseError> {
        if let Some(name) = attrs.keys().next() {
            let what = format!("`{mnemonic}` has no attribute `{name}`; remove it");
            return Err(self.error(at, what));
        }
        Ok(op)
    }

    fn operands(&mut self, scope: &Scope) -> Result<Vec<ValueId>, ParseError> {
        let mut args = Vec::new();
        if self.cursor.peek() != Some('%') {
            return Ok(args);
        }
        loop {
            let (at, name) = self.name('%', "an operand")?;
            let value = scope.get(name).copied();
            args.push(value.ok_or_else(|| {
                self.error(at, format!("`%{name}` is not defined; define it above its use"))
            })?);
            if !self.cursor.take(',') {
                return Ok(args);
            }
        }
    }

    fn undefined(&self, at: usize, name: &str, scope: &Scope) -> Result<(), ParseError> {
        match scope.contains_key(name) {
            true => Err(self.error(at, redefined(name))),
            false => Ok(()),
        }
    }

    fn ty(&mut self) -> Result<TensorType, ParseError> {
        let storage = match self.cursor.take_word("state") {
            true => Storage::State,
            false => Storage::Tensor,
        };
        let at = self.cursor.next_offset();
        let word = self.cursor.name();
        let dtype = word.parse::<DType>().map_err(|e| {
            let known: Vec<&str> = DType::ALL.iter().map(|t| t.name()).collect();
            self.error(at, format!("{e}; use one of {}", known.join(", ")))
        })?;
        let at = self.cursor.next_offset();
        let remedy = format!("write `{dtype}[T,64]`, a scalar as `{dtype}[]`");
        if self.cursor.peek() != Some('[') {
            let what = format!("`{dtype}` has no dimensions; {remedy}");
            return Err(self.error(at, what));
        }
        let dims: Dims = self
            .cursor
            .through(']')
            .parse()
            .map_err(|e| self.error(at, format!("{e}; {remedy}")))?;
        let (at, word) = self.cursor.name_on_this_line();
        let layout = match word {
            "" => Layout::Nd,
            word => word.parse().map_err(|e: String| self.error(at, e))?,
        };
        Ok(TensorType { storage, ..TensorType::new(dtype, dims.0).with_layout(layout) })
    }
}

fn redefined(name: &str) -> String {
    format!("`%{name}` is defined twice; rename one of them")
}

fn list(types: &[TensorType]) -> String {
    types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The mnemonic that fewest edits turn `word` into, if few enough do.
fn nearest(word: &str) -> Option<&'static str> {
    let limit = (word.len() / 3).max(2);
    Op::MNEMONICS
        .iter()
        .map(|known| (edits(word, known), *known))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, known)| known)
}

/// Levenshtein distance in bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
