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
//! The bodies of composite ops come first, `fused` in the place of `func`; equal ones are written once:
//!
//! ```text
//! fused @rows(%x: f32[T,8], %w: f32[8]) {
//!   %n = rms_norm %x, %w {eps = 0.000001, out = f32} : f32[T,8]
//!   %y = silu %n : f32[T,8]
//!   return %y
//! }
//!
//! func @f(%x: f32[T,8]) {
//!   weight %w : f32[8]
//!   %y = fused %x, %w {body = @rows} : f32[T,8]
//!   return %y
//! }
//! ```
//!
//! A tensor whose name is taken by another value is written `weight %w_1 = w : f32[8]`. A comment
//! runs from `;` to the end of the line.

mod cursor;
mod parse;
mod print;

pub use parse::{ParseError, parse};
pub(crate) use print::print_body;
pub use print::{print, print_module};

/// Whether `c` may stand in a name.
pub(crate) fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}
