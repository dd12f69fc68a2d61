//! The bytes of every token, as a tree that grammars are matched against.

use super::limits;
use crate::text::Tokenizer;
use llguidance::{
    ParserFactory,
    earley::SlicedBiasComputer,
    toktrie::{
        ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
    },
};
use std::sync::Arc;

/// Longer tokens are never chosen under a grammar; the tree is not made for them.
const MAX_TOKEN_BYTES: usize = 1000;

/// What grammars are compiled with. Takes about a second for 150,000 tokens.
pub(super) fn factory(
    tokenizer: &Tokenizer,
    vocab_size: u32,
    eos: &[u32],
) -> Result<ParserFactory, String> {
    let words = words(tokenizer, vocab_size);
    let eos: Vec<u32> = eos.iter().copied().filter(|id| *id < vocab_size).collect();
    let info = TokRxInfo::new(vocab_size, eos.first().copied().unwrap_or(INVALID_TOKEN));
    let mut trie = TokTrie::from(&info, &words);
    if !eos.is_empty() {
        trie = trie.with_eos_tokens(&eos);
    }
    // Tokens are chosen by the model alone: none is forced because it would be the tokenizer's way
    // to write what has to come.
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        .map_err(|e| e.to_string())?;
    factory.quiet();
    *factory.limits_mut() = limits::parser();
    Ok(factory)
}

/// The text of each token. Special tokens have none: they come with a mark in front, so that a
/// grammar can name them but never matches them by their text. Empty words are never chosen.
fn words(tokenizer: &Tokenizer, vocab_size: u32) -> Vec<Vec<u8>> {
    let texts = tokenizer.token_texts(vocab_size);
    let word = |(id, text): (u32, Vec<u8>)| {
        if text.len() > MAX_TOKEN_BYTES {
            return Vec::new();
        }
        if tokenizer.is_special(id) {
            let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
            word.extend_from_slice(&text);
            return word;
        }
        // No text has such a byte, and it would be taken for the mark.
        if text.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) { Vec::new() } else { text }
    };
    (0..vocab_size).zip(texts).map(word).collect()
}
