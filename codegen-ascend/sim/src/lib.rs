//! A software device: a shared library with the symbols of the Ascend runtime and operator libraries
//! and their documented behaviour, so that everything but the silicon can be tested anywhere.

pub mod objects;
pub mod operators;
