//! The text form of the IR: what dumps show and what tests are written in.
//!
//! ```text
//! func @last(%ids: i32[T], %kv: state f32[N,2,1,4,8]) {
//!   weight %table : f32[32,8]
//!   %h = embed %ids, %table {out = f32} : f32[T,8]
//!   return %h, %kv
//! }
//! ```
//!
//! A tensor whose name is taken by another value is written `weight %w_1 = w : f32[8]`. A comment
//! runs from `;` to the end of the line.

mod cursor;
mod parse;
mod print;

pub use parse::{ParseError, parse};
pub use print::{print, print_module};

/// Whether `c` may stand in a name.
pub(crate) fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}
