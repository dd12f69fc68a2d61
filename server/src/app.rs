//! What all handlers share.

use crate::{
    ApiError, Backend, Model, SamplingDefaults, ServerOptions, abort::Requests, grammar::Grammars,
    metrics::Metrics, model::GenerationDefaults, parse::Formats, text::Tokenizer, traces::Traces,
};
use runtime::RequestId;
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// What all handlers share. Clones are the same.
#[derive(Clone)]
pub struct AppState(pub(crate) Arc<App>);

/// The shared part of [`AppState`].
pub(crate) struct App {
    pub(crate) engine: Arc<dyn Backend>,
    pub(crate) model: Model,
    pub(crate) options: ServerOptions,
    /// How the model writes tool calls and reasoning.
    pub(crate) formats: Formats,
    pub(crate) metrics: Metrics,
    pub(crate) requests: Requests,
    pub(crate) grammars: Grammars,
    pub(crate) traces: Traces,
    /// When the server started, in seconds since 1970.
    pub(crate) started_unix: u64,
    pub(crate) started: Instant,
    draining: AtomicBool,
    /// A step of the engine does not end.
    stuck: AtomicBool,
    next_id: AtomicU64,
    id_hash: RandomState,
}

impl AppState {
    /// Joins an engine, its model and the options.
    pub fn new(engine: Arc<dyn Backend>, mut model: Model, options: ServerOptions) -> Self {
        if let Some(name) = &options.served_model_name {
            model.name.clone_from(name);
        }
        let formats = Formats::new(options.tool_call_parser, options.reasoning_parser, &model);
        let grammars = Grammars::new(
            Arc::clone(&model.tokenizer),
            model.info.vocab_size,
            model.info.eos_token_ids.clone(),
        );
        let traces = Traces::new(options.otlp_traces_url.as_deref());
        Self(Arc::new(App {
            engine,
            model,
            options,
            formats,
            metrics: Metrics::default(),
            requests: Requests::default(),
            grammars,
            traces,
            started_unix: unix_seconds(),
            started: Instant::now(),
            draining: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
            id_hash: RandomState::new(),
        }))
    }

    /// Answers new requests with 503 from now on; running ones go on.
    pub fn drain(&self) {
        self.0.draining.store(true, SeqCst);
        self.0.engine.drain();
    }
}

impl App {
    /// A number for the engine; not used before.
    pub(crate) fn next_request_id(&self) -> RequestId {
        RequestId(self.next_id.fetch_add(1, Relaxed))
    }

    /// A name for a response that no other has: 32 hexadecimal digits.
    pub(crate) fn unique_name(&self) -> String {
        let id = self.next_id.fetch_add(1, Relaxed);
        let half = |salt: u64| {
            let mut hasher = self.id_hash.build_hasher();
            hasher.write_u64(id);
            hasher.write_u64(salt);
            hasher.finish()
        };
        format!("{:016x}{:016x}", half(0), half(1))
    }

    /// A name for a span that no other of its trace has: 16 hexadecimal digits.
    pub(crate) fn span_name(&self) -> String {
        self.unique_name()[..16].to_owned()
    }

    /// The most tokens of prompt and answer together.
    pub(crate) fn context_tokens(&self) -> usize {
        self.model.info.max_context.min(self.engine.context_tokens())
    }

    /// Defaults of the OpenAI endpoints.
    pub(crate) fn sampling_defaults(&self) -> GenerationDefaults {
        match self.options.sampling_defaults {
            SamplingDefaults::Model => self.model.defaults,
            SamplingDefaults::OpenAi => GenerationDefaults::default(),
        }
    }

    /// Why no request is taken at present.
    pub(crate) fn check_ready(&self) -> Result<(), ApiError> {
        if self.draining.load(SeqCst) {
            return Err(ApiError::Unavailable("the server is shutting down".into()));
        }
        if self.engine.is_stopped() {
            let why = self.engine.failure().map_or(String::new(), |why| format!(": {why}"));
            return Err(ApiError::Unavailable(format!("the engine has stopped{why}")));
        }
        if self.stuck.load(SeqCst) {
            return Err(ApiError::Unavailable("a step of the engine does not end".into()));
        }
        Ok(())
    }

    /// Says whether the engine is stuck; returns what was said before.
    pub(crate) fn set_stuck(&self, is_stuck: bool) -> bool {
        self.stuck.swap(is_stuck, SeqCst)
    }

    /// Runs `encode` on the tokenizer: here when `text` is short, else on a thread for such work.
    pub(crate) async fn tokenize(
        &self,
        text: String,
        encode: fn(&Tokenizer, &str) -> Result<Vec<u32>, String>,
    ) -> Result<Vec<u32>, ApiError> {
        let tokenizer = Arc::clone(&self.model.tokenizer);
        let ids = if Tokenizer::is_long(&text) {
            tokio::task::spawn_blocking(move || encode(&tokenizer, &text))
                .await
                .map_err(|e| ApiError::Failed(format!("the tokenizer failed: {e}")))?
        } else {
            encode(&tokenizer, &text)
        };
        ids.map_err(|e| ApiError::Failed(format!("the tokenizer failed: {e}")))
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
