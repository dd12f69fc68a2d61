//! What the server knows about the model: tokenizer, chat template, defaults, limits.

use crate::text::{ChatTemplate, RenderOptions, Tokenizer};
use artifact::{Artifact, ArtifactError};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Why a model cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The artifact is damaged.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// A file is missing.
    #[error("the artifact has no {0}; add it to the checkpoint and run `precast compile` again")]
    Missing(&'static str),
    /// A file is not what it should be.
    #[error("{file}: {why}; repair it in the checkpoint and run `precast compile` again")]
    File {
        /// The file.
        file: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The chat template does not compile.
    #[error("chat template: {0}; repair it in the checkpoint and run `precast compile` again")]
    Template(String),
}

/// The contents of a checkpoint's text files. All but the first may be absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `generation_config.json`.
    pub generation_config: Option<&'a [u8]>,
    /// `chat_template.jinja`; it goes before the one in `tokenizer_config.json`.
    pub chat_template: Option<&'a [u8]>,
}

/// What the text files come to.
struct Texts {
    tokenizer: Arc<Tokenizer>,
    templates: Templates,
    defaults: GenerationDefaults,
}

impl ModelFiles<'_> {
    /// Whether a server could use the files, so that a compiler can say so before its long work.
    ///
    /// # Errors
    /// [`ModelError`] names the file that is wrong.
    pub fn check(&self) -> Result<(), ModelError> {
        self.read().map(|_| ())
    }

    /// Renders a user's message as a chat whose answer comes next, without the token that the
    /// tokenizer puts before it, for clients that send chats as text.
    ///
    /// # Errors
    /// [`ModelError`] names the file that is wrong or has no chat template.
    pub fn user_turn(&self) -> Result<impl Fn(&str) -> Result<String, String> + use<>, ModelError> {
        let config = parse("tokenizer_config.json", self.tokenizer_config)?;
        let special_tokens = special_tokens(&config);
        let bos = special_tokens.get("bos_token").and_then(Value::as_str).map(str::to_owned);
        let template = Templates::new(self.chat_template, &config, &special_tokens)?;
        let template = template.chat.ok_or(ModelError::Missing("chat template"))?;
        Ok(move |message: &str| {
            let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
            let messages = serde_json::json!([{"role": "user", "content": message}]);
            let text = template.render(&messages, &options)?;
            Ok(match &bos {
                Some(bos) if !bos.is_empty() => text.replace(bos.as_str(), ""),
                _ => text,
            })
        })
    }

    fn read(&self) -> Result<Texts, ModelError> {
        let config = parse("tokenizer_config.json", self.tokenizer_config)?;
        let generation = parse("generation_config.json", self.generation_config)?;
        let special_tokens = special_tokens(&config);
        let bos = special_tokens
            .get("bos_token")
            .and_then(Value::as_str)
            .filter(|_| config["add_bos_token"] == true);
        let tokenizer = Arc::new(Tokenizer::new(self.tokenizer, bos)?);
        let templates = Templates::new(self.chat_template, &config, &special_tokens)?;
        let defaults = GenerationDefaults::new(&generation);
        Ok(Texts { tokenizer, templates, defaults })
    }
}

/// Facts about the model that requests are checked against and clients ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// Where it was loaded from.
    pub path: String,
    /// `model_type` of the checkpoint.
    pub model_type: String,
    /// `architectures[0]` of the checkpoint.
    pub architecture: String,
    /// Prompt tokens must be below this.
    pub vocab_size: u32,
    /// Longest prompt and answer together, in tokens.
    pub max_context: usize,
    /// Ids that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Bytes of packed weights.
    pub weights_bytes: u64,
    /// Bytes of KV blocks and hidden states.
    pub state_bytes: u64,
    /// Bytes of the arena that the graphs share.
    pub arena_bytes: u64,
    /// The most sequences that decode at once.
    pub max_running_requests: u32,
    /// The configuration the artifact was compiled with.
    pub config: Map<String, Value>,
}

/// Sampling values of `generation_config.json`; empty when it says that sampling is off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Probability mass that is kept.
    pub top_p: Option<f32>,
    /// Tokens that are kept; 0 or -1 keeps all.
    pub top_k: Option<i64>,
    /// Least probability relative to the best token.
    pub min_p: Option<f32>,
    /// Factor against repetition.
    pub repetition_penalty: Option<f32>,
}

/// A model as the server sees it.
pub struct Model {
    /// Name under which it is served.
    pub(crate) name: String,
    pub(crate) info: ModelInfo,
    pub(crate) tokenizer: Arc<Tokenizer>,
    templates: Templates,
    pub(crate) defaults: GenerationDefaults,
}

#[derive(Default)]
struct Templates {
    chat: Option<ChatTemplate>,
    tool_use: Option<ChatTemplate>,
}

impl Model {
    /// Reads the text files of `artifact`. `name` is served instead of the artifact's own.
    ///
    /// # Errors
    /// [`ModelError`] names the file that is missing or wrong.
    pub fn from_artifact(artifact: &Artifact, name: Option<&str>) -> Result<Self, ModelError> {
        let manifest = artifact.manifest();
        let tokenizer =
            artifact.file("tokenizer.json")?.ok_or(ModelError::Missing("tokenizer.json"))?;
        let tokenizer_config = artifact.file("tokenizer_config.json")?;
        let generation_config = artifact.file("generation_config.json")?;
        let chat_template = artifact.file("chat_template.jinja")?;
        let files = ModelFiles {
            tokenizer: &tokenizer,
            tokenizer_config: tokenizer_config.as_deref(),
            generation_config: generation_config.as_deref(),
            chat_template: chat_template.as_deref(),
        };
        let model = &manifest.model;
        let info = ModelInfo {
            path: artifact.root().display().to_string(),
            model_type: model.model_type.clone(),
            architecture: model.architecture.clone(),
            vocab_size: model.vocab_size,
            max_context: model.max_context as usize,
            eos_token_ids: model.eos_token_ids.clone(),
            weights_bytes: manifest.memory.weights_bytes,
            state_bytes: manifest.memory.state_bytes,
            arena_bytes: manifest.memory.arena_bytes,
            max_running_requests: manifest.max_running_requests,
            config: manifest.config.clone().into_iter().collect(),
        };
        Self::new(files, info, name.unwrap_or(&model.name))
    }

    /// Puts a model together from its text files.
    ///
    /// # Errors
    /// [`ModelError`] names the file that is wrong.
    pub fn new(files: ModelFiles<'_>, info: ModelInfo, name: &str) -> Result<Self, ModelError> {
        let Texts { tokenizer, templates, defaults } = files.read()?;
        Ok(Self { name: name.to_owned(), info, tokenizer, templates, defaults })
    }

    /// Name under which it is served.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Facts about it.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The chat template for a conversation with or without tools.
    pub(crate) fn template(&self, with_tools: bool) -> Option<&ChatTemplate> {
        let tool_use = self.templates.tool_use.as_ref().filter(|_| with_tools);
        tool_use.or(self.templates.chat.as_ref())
    }
}

fn parse(file: &'static str, bytes: Option<&[u8]>) -> Result<Value, ModelError> {
    let Some(bytes) = bytes else { return Ok(Value::Null) };
    serde_json::from_slice(bytes).map_err(|e| ModelError::File { file, why: e.to_string() })
}

/// `bos_token` and the like; each is a string or an object with its content.
fn special_tokens(config: &Value) -> Map<String, Value> {
    ["bos_token", "eos_token", "pad_token", "unk_token"]
        .into_iter()
        .filter_map(|name| {
            let token = &config[name];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            Some((name.to_owned(), text.into()))
        })
        .collect()
}

impl Templates {
    /// `chat_template` of the configuration is one template or a list of named ones.
    fn new(
        file: Option<&[u8]>,
        config: &Value,
        special_tokens: &Map<String, Value>,
    ) -> Result<Self, ModelError> {
        let compile = |source: &str| ChatTemplate::new(source, special_tokens.clone());
        if let Some(bytes) = file {
            let source = std::str::from_utf8(bytes).map_err(|e| ModelError::File {
                file: "chat_template.jinja",
                why: e.to_string(),
            })?;
            return Ok(Self { chat: Some(compile(source)?), tool_use: None });
        }
        let named = |name: &str| {
            let templates = config["chat_template"].as_array()?;
            templates.iter().find(|t| t["name"] == name)?["template"].as_str()
        };
        let chat = config["chat_template"].as_str().or_else(|| named("default"));
        Ok(Self {
            chat: chat.map(compile).transpose()?,
            tool_use: named("tool_use").map(compile).transpose()?,
        })
    }
}

impl GenerationDefaults {
    fn new(config: &Value) -> Self {
        if config["do_sample"] != true {
            return Self::default();
        }
        let float = |name: &str| config[name].as_f64().map(|v| v as f32);
        Self {
            temperature: float("temperature"),
            top_p: float("top_p"),
            top_k: config["top_k"].as_i64(),
            min_p: float("min_p"),
            repetition_penalty: float("repetition_penalty"),
        }
    }
}
