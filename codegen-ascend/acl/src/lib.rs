//! The Ascend interface as declarations: what the runtime library is called with, and the library
//! operators with their parameters. Written from the public documentation of the interface; holds
//! names, orders and numbers, and no behaviour.
//!
//! Two lists say everything, and all else is derived from them: [`for_each_function`] has the
//! functions of the runtime, made from `include/precast_acl.h`, and [`for_each_operator`] the
//! operators.

#[allow(non_snake_case, reason = "parameters are named as in the C interface")]
mod api;
mod errors;
mod functions;
mod operators;
mod table;

pub mod sys;

pub use api::{Api, FUNCTIONS, Function, Library};
pub use errors::{ErrorCode, error_code};
pub use operators::{Kind, OPERATORS, Parameter, Release, Signature, Value, operator, typed};
