//! The model's tokenizer, to make prompts and to count what comes back.

use crate::error::BenchError;
use std::path::Path;

/// A tokenizer.
pub(crate) struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    /// Reads `tokenizer.json` in `path`, or `path` itself.
    pub(crate) fn load(path: &Path) -> Result<Self, BenchError> {
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let mut inner =
            tokenizers::Tokenizer::from_file(&file).map_err(|e| BenchError::file(&file, e))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| BenchError::file(&file, e))?;
        Ok(Self(inner))
    }

    /// The ids of a prompt, with those the tokenizer puts around a text.
    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        self.0.encode_fast(text, true).map(|e| e.get_ids().to_vec()).unwrap_or_default()
    }

    /// Tokens of a piece of text.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.0.encode_fast(text, false).map_or(0, |e| e.len())
    }

    /// The text of `ids`, special ones included.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        self.0.decode(ids, false).unwrap_or_default()
    }

    /// Ids of the model proper, without those that were added.
    pub(crate) fn vocab_size(&self) -> usize {
        self.0.get_vocab_size(false)
    }

    /// Every id, in ascending order.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.0.get_vocab(true).into_values().collect();
        ids.sort_unstable();
        ids
    }
}
