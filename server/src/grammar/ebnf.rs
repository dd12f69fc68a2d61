//! Grammars in GBNF, the notation with `::=` that `ebnf` is given in, rewritten as Lark.
//!
//! Lark texts are cut into terminals first, greedily; GBNF knows no such step. So whatever is not
//! recursive becomes part of a terminal as a whole, where the two mean the same.

mod parse;

use parse::{Node, Rule, parse};
use std::fmt::Write;

/// Whether `grammar` is written in GBNF, not in Lark.
pub(super) fn is_gbnf(grammar: &str) -> bool {
    grammar.contains("::=")
}

/// Rewrites a GBNF grammar as Lark.
pub(super) fn to_lark(grammar: &str) -> Result<String, String> {
    let rules = parse(grammar)?;
    let root = rules
        .iter()
        .position(|rule| rule.name == "root")
        .ok_or("has no rule `root`, with which a text begins")?;
    let mut writer =
        Writer { is_regular: regular(&rules), terminals: Vec::new(), lark: String::new() };
    let start = writer.name(root);
    // Writing to a string does not fail.
    let _ = writeln!(writer.lark, "start: {start}");
    for (i, rule) in rules.iter().enumerate() {
        let body = if writer.is_regular[i] {
            writer.terminal(&rule.body)
        } else {
            writer.rule(&rule.body)
        };
        let _ = writeln!(writer.lark, "{}: {body}", writer.name(i));
    }
    for (i, body) in writer.terminals.iter().enumerate() {
        let _ = writeln!(writer.lark, "P{i}: {body}");
    }
    Ok(writer.lark)
}

/// Which rules never come back to a rule that was entered already. Rules are settled once all that
/// they name are; what is left has a way round.
fn regular(rules: &[Rule]) -> Vec<bool> {
    let mut named_by = vec![Vec::new(); rules.len()];
    let mut open = vec![0usize; rules.len()];
    for (i, rule) in rules.iter().enumerate() {
        rule.body.each_rule(&mut |named| {
            named_by[named].push(i);
            open[i] += 1;
        });
    }
    let mut settled: Vec<usize> = (0..rules.len()).filter(|&i| open[i] == 0).collect();
    let mut is_regular = vec![false; rules.len()];
    while let Some(rule) = settled.pop() {
        is_regular[rule] = true;
        for &by in &named_by[rule] {
            open[by] -= 1;
            if open[by] == 0 {
                settled.push(by);
            }
        }
    }
    is_regular
}

struct Writer {
    is_regular: Vec<bool>,
    /// Regular parts of rules that are not.
    terminals: Vec<String>,
    lark: String,
}

impl Writer {
    fn name(&self, rule: usize) -> String {
        if self.is_regular[rule] { format!("T{rule}") } else { format!("r{rule}") }
    }

    fn is_regular(&self, node: &Node) -> bool {
        let mut all = true;
        node.each_rule(&mut |rule| all &= self.is_regular[rule]);
        all
    }

    /// A node that is regular, within a terminal.
    fn terminal(&self, node: &Node) -> String {
        match node {
            Node::Text(text) => quoted(text),
            Node::Class(class) => format!("/{class}/"),
            Node::Rule(rule) => self.name(*rule),
            Node::Sequence(nodes) => self.joined(nodes, " ", |node| self.terminal(node)),
            Node::Choice(nodes) => self.joined(nodes, " | ", |node| self.terminal(node)),
            Node::Repeat(node, min, max) => repeated(&self.terminal(node), *min, *max),
        }
    }

    fn joined(&self, nodes: &[Node], by: &str, write: impl Fn(&Node) -> String) -> String {
        let parts: Vec<String> = nodes.iter().map(write).collect();
        if parts.is_empty() { quoted("") } else { format!("({})", parts.join(by)) }
    }

    /// A node within a rule: its regular parts become terminals, as large as possible.
    fn rule(&mut self, node: &Node) -> String {
        if let Node::Rule(rule) = node {
            return self.name(*rule);
        }
        if self.is_regular(node) {
            return self.part(self.terminal(node));
        }
        match node {
            Node::Sequence(nodes) => {
                let mut parts = Vec::new();
                let mut rest = &nodes[..];
                while let Some(first) = rest.first() {
                    let run = rest.iter().take_while(|node| self.is_regular(node)).count();
                    if run == 0 {
                        parts.push(self.rule(first));
                        rest = &rest[1..];
                    } else {
                        let text = self.joined(&rest[..run], " ", |node| self.terminal(node));
                        parts.push(self.part(text));
                        rest = &rest[run..];
                    }
                }
                format!("({})", parts.join(" "))
            }
            Node::Choice(nodes) => {
                let parts: Vec<String> = nodes.iter().map(|node| self.rule(node)).collect();
                format!("({})", parts.join(" | "))
            }
            Node::Repeat(node, min, max) => repeated(&self.rule(node), *min, *max),
            // Regular, see above.
            Node::Text(_) | Node::Class(_) | Node::Rule(_) => String::new(),
        }
    }

    fn part(&mut self, terminal: String) -> String {
        self.terminals.push(terminal);
        format!("P{}", self.terminals.len() - 1)
    }
}

fn repeated(text: &str, min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => format!("({text})*"),
        (1, None) => format!("({text})+"),
        (0, Some(1)) => format!("({text})?"),
        (min, None) => format!("(({text}){{{min},{min}}} ({text})*)"),
        (_, Some(0)) => quoted(""),
        (min, Some(max)) => format!("({text}){{{min},{max}}}"),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
