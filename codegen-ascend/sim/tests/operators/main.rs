//! The operators against slow formulas, what they refuse, and how long their objects live.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod anything;
mod attention;
mod dense;
mod experts;
mod glue;
mod latent;
mod lifetime;
mod quantised;
mod routing;
mod rows;
mod support;
