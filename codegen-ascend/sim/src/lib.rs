//! A software device: a shared library with the symbols of the Ascend runtime and operator libraries
//! and their documented behaviour, so that everything but the silicon can be tested anywhere.
//!
//! State is global to the process, as it is with the real libraries. Tests that link this crate call
//! the exported functions directly and must run one after another; [`api::sim::ascendSimReset`] gives
//! each a fresh device.

pub mod api;
pub mod call;
pub mod capture;
pub mod config;
mod copies;
pub mod error;
pub mod event;
pub mod graph;
pub mod kernel;
pub mod memory;
pub mod objects;
pub mod operators;
pub mod stream;
pub mod world;
