//! Restricting the tokens of a request, such as to those that continue a text of a grammar.

use std::time::Duration;

/// Decides which tokens may come next in one request. The engine thread calls it, so nothing is
/// worked out in its methods: that is left to other threads, while the device computes.
pub trait Constraint: Send {
    /// Takes the token that was chosen. Returns at once and allocates nothing.
    fn advance(&mut self, token: u32);

    /// What may come next. If that is still being worked out it waits for at most `patience`. While
    /// it is [`Allowed::Pending`], others are served and the engine asks again before each step.
    fn allowed(&mut self, patience: Duration) -> Allowed<'_>;
}

/// What may come next in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed<'a> {
    /// It is not known yet.
    Pending,
    /// Token `t` may come next if bit `t % 32` of word `t / 32` is set; tokens past the end may
    /// not.
    Tokens(&'a [u32]),
    /// Nothing may follow: the output is complete.
    Complete,
    /// It cannot be known; the text says why.
    Failed(&'a str),
}
