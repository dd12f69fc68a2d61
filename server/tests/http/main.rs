//! The router, called without a port, over an engine whose answers the tests write.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod access;
mod chat;
mod completions;
mod control;
mod errors;
mod generate;
mod hostile;
mod info;
mod live;
mod metrics;
mod openapi;
mod page;
mod scripted;
mod structured;
mod support;
mod tools;
mod traces;
