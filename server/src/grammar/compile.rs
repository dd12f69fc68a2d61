//! Compiling grammars, and keeping those that were compiled.

use super::{
    Grammar, Source,
    constraint::{GrammarConstraint, Next, plain},
    limits::{CACHED, COMPILE_TIME, COMPILERS, STACK_BYTES},
    vocabulary,
    workers::{MaskTimes, Workers},
};
use crate::{ApiError, text::Tokenizer};
use llguidance::{Matcher, ParserFactory};
use runtime::Constraint;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
};
use tokio::sync::{OnceCell, Semaphore, oneshot};

/// Compiles the grammars of one model.
pub(crate) struct Grammars {
    model: Arc<ModelTokens>,
    cache: Mutex<Cache>,
    turns: Arc<Semaphore>,
    workers: OnceLock<Result<Workers, String>>,
    pub(crate) mask_times: Arc<MaskTimes>,
}

/// What grammars are compiled against.
struct ModelTokens {
    tokenizer: Arc<Tokenizer>,
    vocab_size: u32,
    eos: Vec<u32>,
    /// Built for the first grammar: most servers never see one.
    factory: OnceLock<Result<ParserFactory, String>>,
}

/// A grammar that is ready to use.
pub(crate) struct Compiled {
    /// At the start; never moved on.
    matcher: Mutex<Matcher>,
    first: Next,
    eos: Vec<u32>,
    workers: Workers,
}

impl Compiled {
    /// A constraint for one answer. With `ignore_eos` no end-of-sequence id is ever allowed: the
    /// answer ends when nothing else may follow.
    pub(crate) fn constraint(&self, ignore_eos: bool) -> Box<dyn Constraint> {
        // Answers share no memory that grows, so that none can use up what another needs.
        let matcher = lock(&self.matcher).deep_clone();
        let hidden = if ignore_eos { self.eos.clone() } else { Vec::new() };
        let workers = self.workers.clone();
        Box::new(GrammarConstraint::new(matcher, self.first.clone(), hidden, workers))
    }
}

type Slot = Arc<OnceCell<Arc<Compiled>>>;

/// The grammars that were asked for last.
#[derive(Default)]
struct Cache {
    /// With the time of their last use.
    entries: HashMap<Source, (u64, Slot)>,
    clock: u64,
}

impl Cache {
    fn slot(&mut self, source: &Source) -> Slot {
        self.clock += 1;
        if let Some((used, slot)) = self.entries.get_mut(source) {
            *used = self.clock;
            return Arc::clone(slot);
        }
        if self.entries.len() >= CACHED {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(source, _)| source.clone()) {
                self.entries.remove(&oldest);
            }
        }
        let slot = Slot::default();
        self.entries.insert(source.clone(), (self.clock, Arc::clone(&slot)));
        slot
    }
}

impl Grammars {
    /// For a model with this tokenizer; token ids are below `vocab_size`, and `eos` end a sequence.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, vocab_size: u32, eos: Vec<u32>) -> Self {
        let factory = OnceLock::new();
        Self {
            model: Arc::new(ModelTokens { tokenizer, vocab_size, eos, factory }),
            cache: Mutex::default(),
            turns: Arc::new(Semaphore::new(COMPILERS)),
            workers: OnceLock::new(),
            mask_times: Arc::default(),
        }
    }

    /// Compiles `grammar`, or finds it compiled.
    ///
    /// # Errors
    /// [`ApiError::Field`] when it cannot be used; [`ApiError::QueueFull`] when too many are
    /// being compiled.
    pub(crate) async fn compile(&self, grammar: &Grammar) -> Result<Arc<Compiled>, ApiError> {
        let slot = lock(&self.cache).slot(&grammar.source);
        let compiled = slot.get_or_try_init(|| self.compile_now(grammar)).await?;
        Ok(Arc::clone(compiled))
    }

    async fn compile_now(&self, grammar: &Grammar) -> Result<Arc<Compiled>, ApiError> {
        let workers = self.workers.get_or_init(|| Workers::start(&self.mask_times));
        let workers = workers.clone().map_err(ApiError::Failed)?;
        let deadline = tokio::time::Instant::now() + COMPILE_TIME;
        let turn = Arc::clone(&self.turns).acquire_owned();
        let turn = match tokio::time::timeout_at(deadline, turn).await {
            Ok(Ok(turn)) => turn,
            _ => {
                let busy = "too many grammars are being compiled; try again later";
                return Err(ApiError::QueueFull(busy.into()));
            }
        };
        let (sender, receiver) = oneshot::channel();
        let model = Arc::clone(&self.model);
        let source = grammar.source.clone();
        thread::Builder::new()
            .name("grammar-compile".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // Fails when the client has left; the grammar is dropped here then.
                let _ = sender.send(model.compile(&source));
                drop(turn);
            })
            .map_err(|e| ApiError::Failed(format!("cannot start a thread: {e}")))?;
        let (matcher, first) = match tokio::time::timeout_at(deadline, receiver).await {
            Ok(Ok(Ok(compiled))) => compiled,
            Ok(Ok(Err(why))) => return Err(grammar.refused(&why)),
            Ok(Err(_)) => return Err(grammar.refused("the compiler failed")),
            Err(_) => {
                let seconds = COMPILE_TIME.as_secs();
                let why = format!("it is too complex to be compiled within {seconds} seconds");
                return Err(grammar.refused(&why));
            }
        };
        let eos = self.model.eos.clone();
        Ok(Arc::new(Compiled { matcher: Mutex::new(matcher), first, eos, workers }))
    }
}

impl ModelTokens {
    /// A matcher at the start of a grammar, and what may come first.
    fn compile(&self, source: &Source) -> Result<(Matcher, Next), String> {
        let factory = self
            .factory
            .get_or_init(|| vocabulary::factory(&self.tokenizer, self.vocab_size, &self.eos));
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let mut matcher = Matcher::new(factory.create_parser(source.to_llguidance()?));
        if let Some(why) = matcher.get_error() {
            return Err(plain(&why));
        }
        match Next::of(&mut matcher) {
            Next::Tokens(tokens) if !tokens.is_zero() => Ok((matcher, Next::Tokens(tokens))),
            Next::Tokens(_) | Next::Complete => Err("no text matches it".into()),
            Next::Failed(why) if why == "NoExtensionBias" => Err("no text matches it".into()),
            Next::Failed(why) => Err(why),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
