//! The Ascend interface as declarations: what the runtime library is called with, and the library
//! operators with their parameters. Written from the public documentation of the interface; holds
//! names, orders and numbers, and no behaviour.

mod operators;
mod table;

pub mod sys;

pub use operators::{Kind, OPERATORS, Parameter, Release, Signature, Value, operator, typed};
