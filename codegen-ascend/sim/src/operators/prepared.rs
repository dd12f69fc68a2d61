//! What the check of a call results in.

use crate::objects::Fault;

/// A checked call, or what is wrong with it.
pub(crate) type Outcome<'a> = Result<Prepared<'a>, Fault>;

/// A checked call: how much workspace it takes, and what it does.
pub(crate) struct Prepared<'a> {
    /// Bytes.
    pub(crate) workspace: u64,
    work: Box<dyn FnOnce() -> Result<(), Fault> + 'a>,
}

impl<'a> Prepared<'a> {
    /// A call that does `work` with a workspace of `workspace` bytes.
    pub(crate) fn new(workspace: u64, work: impl FnOnce() -> Result<(), Fault> + 'a) -> Self {
        Self { workspace, work: Box::new(work) }
    }

    /// A call that does `work` without workspace.
    pub(crate) fn done(work: impl FnOnce() -> Result<(), Fault> + 'a) -> Outcome<'a> {
        Ok(Self::new(0, work))
    }

    /// Does it.
    pub(crate) fn run(self) -> Result<(), Fault> {
        (self.work)()
    }
}
