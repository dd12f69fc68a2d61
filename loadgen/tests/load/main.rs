//! The load generator beside servers whose answers and times are known.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod engine;
mod formulas;
mod scripted;
mod support;
