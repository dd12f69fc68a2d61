//! A software device: a shared library with the symbols of the Ascend runtime and operator libraries
//! and their documented behaviour, so that everything but the silicon can be tested anywhere.
//!
//! State is global to the process, as it is with the real libraries. Tests that link this crate call
//! the exported functions directly and must run one after another; [`api::sim::ascendSimReset`] gives
//! each a fresh device. Programs that load the library use the `ascendSim` functions of
//! [`api::sim`] and the variables of [`config`].
//!
//! # What is decided here because the documentation does not say
//!
//! Wherever a device might be more lenient, this one is strict, so that what passes here does not
//! depend on it.
//!
//! - Calls refused because of a capture's mode (107030) or because of the kind of an event (207000) leave
//!   the capture as it is. Looking at what is captured spoils it, as documented, and so does a
//!   dependency that cannot be recorded (107024, 107031, 107032), since the graph would lack an edge.
//! - Waiting for an Ex event that nothing has recorded is refused (107000).
//! - A graph in flight cannot be submitted to another stream (107037); on its own stream replays queue.
//! - A failure is told by the next synchronisation of its stream or device and is then over. The rest
//!   of a replay in which a task fails is dropped, its signals are not.
//! - A write beyond an allocation is told as an exception of a core (507015) by the next
//!   synchronisation, whoever wrote. Memory that a task touches is looked up when the task runs.
//! - A synchronous copy is in no order with any stream.
//! - A binary of the real device is refused with the code for another chip (507008).
//! - A task update may change what a task does, not its name or kind.
//! - An abort lets a task that runs finish, and makes what waits give up.

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
