//! Every pass there is, by name, with its place in the pipeline.

use crate::{
    BrokenPass, pipelines,
    pipelines::{Stage, Step},
    rewrite::Rewrite,
    sources,
};
use std::{fmt, sync::Arc};

/// The passes that a program can run: the built-in ones, and those that were registered.
#[derive(Clone)]
pub struct Catalog {
    stages: Vec<Stage>,
    registered: Vec<&'static str>,
    sources: Vec<(String, String)>,
}

/// Where a registered pass stands in the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Right before the first run of the pass of this name, in its stage.
    Before(&'static str),
    /// Right after the last run of the pass of this name, in its stage.
    After(&'static str),
}

/// A pass that cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Another pass has its name.
    #[error("there is a pass called `{0}` already; choose another name")]
    Taken(&'static str),
    /// No pass has the name that its place refers to.
    #[error("`{pass}` cannot stand next to `{anchor}`: no pass is called so; the passes are {}", known.join(", "))]
    NoAnchor {
        /// Pass.
        pass: &'static str,
        /// Name in its place.
        anchor: &'static str,
        /// Names there are.
        known: Vec<&'static str>,
    },
}

impl Default for Catalog {
    fn default() -> Self {
        Self::builtin()
    }
}

impl Catalog {
    /// The passes of this crate.
    pub fn builtin() -> Self {
        Self { stages: pipelines::default_pipeline(), registered: Vec::new(), sources: Vec::new() }
    }

    /// Adds `pass` to the pipeline at `place`; `why` says in a line why it stands there. A pass that
    /// is registered at the place of an earlier one comes after it.
    ///
    /// # Errors
    /// [`RegisterError`] when the name is taken or that of the place is unknown.
    pub fn register(
        &mut self,
        pass: impl Rewrite + 'static,
        place: Place,
        why: &'static str,
    ) -> Result<(), RegisterError> {
        let name = pass.name();
        if self.pass(name).is_some() {
            return Err(RegisterError::Taken(name));
        }
        let (Place::Before(anchor) | Place::After(anchor)) = place;
        let is_anchor = |s: &Step| s.pass.name() == anchor;
        let found = match place {
            Place::Before(_) => self
                .stages
                .iter()
                .enumerate()
                .find_map(|(i, stage)| Some((i, stage.steps.iter().position(is_anchor)?))),
            Place::After(_) => self.stages.iter().enumerate().rev().find_map(|(i, stage)| {
                let at = stage.steps.iter().rposition(is_anchor)? + 1;
                let is_registered = |s: &&Step| self.registered.contains(&s.pass.name());
                Some((i, at + stage.steps[at..].iter().take_while(is_registered).count()))
            }),
        };
        let Some((stage, at)) = found else {
            return Err(RegisterError::NoAnchor { pass: name, anchor, known: self.names() });
        };
        self.stages[stage].steps.insert(at, Step { pass: Arc::new(pass), why });
        self.registered.push(name);
        Ok(())
    }

    /// Adds a text that says what registered passes do, so that caches of compiled artifacts see
    /// when it changes; `name` keeps it apart from others.
    pub fn add_source(&mut self, name: &str, text: &str) {
        self.sources.push((name.to_owned(), text.to_owned()));
    }

    /// Names of every pass, in the order of their first run.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for step in self.stages.iter().flat_map(|s| &s.steps) {
            if !names.contains(&step.pass.name()) {
                names.push(step.pass.name());
            }
        }
        names
    }

    /// The pass called `name`.
    pub fn pass(&self, name: &str) -> Option<&Arc<dyn Rewrite>> {
        let mut steps = self.stages.iter().flat_map(|s| &s.steps);
        steps.find(|s| s.pass.name() == name).map(|s| &s.pass)
    }

    /// From a model definition to the last phase: every pass at its place.
    pub fn pipeline(&self) -> Vec<Stage> {
        self.stages.clone()
    }

    /// One stage of the named passes, for tests and for `precast opt`.
    ///
    /// # Errors
    /// [`BrokenPass::Unknown`] for a name that no pass has.
    pub fn pipeline_of(&self, names: &[&str]) -> Result<Vec<Stage>, BrokenPass> {
        let step = |name: &&str| match self.pass(name) {
            Some(pass) => Ok(Step { pass: Arc::clone(pass), why: "asked for by name" }),
            None => Err(self.unknown(name)),
        };
        let steps = names.iter().map(step).collect::<Result<_, _>>()?;
        Ok(vec![Stage { phase: None, steps }])
    }

    /// Every text with a say in what passes do, each with a name.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        let registered = self.sources.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        sources::sources().iter().copied().chain(registered)
    }

    pub(crate) fn unknown(&self, name: &str) -> BrokenPass {
        BrokenPass::Unknown { name: name.to_owned(), known: self.names() }
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.stages.iter().flat_map(|s| &s.steps).map(|s| s.pass.name()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Decline, Phase, Replacement};
    use ir::{Func, NodeId};

    struct Idle(&'static str);

    impl Rewrite for Idle {
        fn name(&self) -> &'static str {
            self.0
        }
        fn apply(&self, _: &mut Func, _: NodeId, _: &Context<'_>) -> Result<Replacement, Decline> {
            Err(Decline::NoMatch)
        }
    }

    /// Names of the pipeline from one pass on, with the phase of the stage that each is in.
    fn run_order(catalog: &Catalog) -> Vec<(&'static str, Option<Phase>)> {
        let stages = catalog.pipeline();
        stages.iter().flat_map(|s| s.steps.iter().map(|p| (p.pass.name(), s.phase))).collect()
    }

    #[test]
    fn places_are_relative_to_first_and_last_runs() {
        let mut catalog = Catalog::builtin();
        let builtin = run_order(&catalog);
        catalog.register(Idle("first"), Place::Before("canonicalise"), "tested").unwrap();
        catalog.register(Idle("last"), Place::After("canonicalise"), "tested").unwrap();
        catalog.register(Idle("later"), Place::After("canonicalise"), "tested").unwrap();
        let order = run_order(&catalog);
        let first = order.iter().position(|(n, _)| *n == "canonicalise").unwrap();
        assert_eq!(order[first - 1], ("first", Some(Phase::Imported)));
        let runs = |name| order.iter().rposition(|(n, _)| *n == name).unwrap();
        let last = runs("canonicalise");
        assert_eq!(order[last + 1], ("last", order[last].1));
        assert_eq!(order[last + 2], ("later", order[last].1));
        let ours = ["first", "last", "later"];
        let rest: Vec<_> = order.into_iter().filter(|(n, _)| !ours.contains(n)).collect();
        assert_eq!(rest, builtin, "the others stay where they were");
        assert_eq!(catalog.names().len(), Catalog::builtin().names().len() + 3);
        assert!(catalog.pass("last").is_some() && catalog.pipeline_of(&["last"]).is_ok());
    }

    #[test]
    fn a_name_is_given_once_and_places_exist() {
        let mut catalog = Catalog::builtin();
        let error = catalog.register(Idle("fuse-qkv"), Place::After("fuse-qkv"), "tested");
        assert_eq!(error, Err(RegisterError::Taken("fuse-qkv")));
        let error = catalog.register(Idle("mine"), Place::After("fuse-kqv"), "tested").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`mine`") && text.contains("`fuse-kqv`"), "{text}");
        assert!(text.contains("fuse-qkv"), "{text}");
        assert_eq!(catalog.names(), Catalog::builtin().names());
    }

    #[test]
    fn registered_passes_are_listed_where_names_are() {
        let mut catalog = Catalog::builtin();
        catalog.register(Idle("mine"), Place::After("fuse-qkv"), "tested").unwrap();
        let error = catalog.pipeline_of(&["mime"]).err().unwrap().to_string();
        assert!(error.contains("`mime`") && error.contains("mine"), "{error}");
        catalog.add_source("mine.rs", "text");
        assert_eq!(catalog.sources().last(), Some(("mine.rs", "text")));
        assert_eq!(catalog.sources().count(), sources::sources().len() + 1);
    }
}
