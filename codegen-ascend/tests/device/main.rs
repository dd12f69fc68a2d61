//! The device over the software device: loaded, like the vendor's runtime, at run time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod failures;
mod kernel;
mod latent;
mod probe;
mod steps;
mod support;
