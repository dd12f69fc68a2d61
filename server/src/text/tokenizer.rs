//! The checkpoint's tokenizer.

use super::bpe::Bpe;
use crate::model::ModelError;
use serde::de::DeserializeOwned;
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    TokenizerImpl,
};

/// Texts longer than this many bytes are tokenised away from the threads that serve connections.
const INLINE_BYTES: usize = 4096;

/// `$body` with `$tokenizer` for whichever it is.
macro_rules! either {
    ($inner:expr, $tokenizer:ident => $body:expr) => {
        match $inner {
            Inner::Bpe($tokenizer) => $body,
            Inner::Library($tokenizer) => $body,
        }
    };
}
/// `tokenizer.json`, with what its configuration adds.
pub(crate) struct Tokenizer {
    inner: Inner,
    byte_level: bool,
    /// Put before raw prompts that do not begin with it.
    bos: Option<u32>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`. `bos` is the token that `add_bos_token` of `tokenizer_config.json`
    /// asks for.
    pub(crate) fn new(json: &[u8], bos: Option<&str>) -> Result<Self, ModelError> {
        let inner = parse(json)
            .map_err(|e| ModelError::File { file: "tokenizer.json", why: e.to_string() })?;
        let decoder = either!(&inner, t => t.get_decoder());
        let byte_level = matches!(decoder, Some(DecoderWrapper::ByteLevel(_)));
        let bos = bos.and_then(|token| either!(&inner, t => t.token_to_id(token)));
        Ok(Self { inner, byte_level, bos })
    }

    /// Tokens of a raw prompt, with those the tokenizer adds around a text.
    pub(crate) fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut ids = self.encode(text, true)?;
        if let Some(bos) = self.bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Tokens of a text that already has its special tokens, such as a rendered chat.
    pub(crate) fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, String> {
        self.encode(text, false)
    }

    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let encoding = either!(&self.inner, t => t.encode_fast(text, add_special_tokens))
            .map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Whether tokenising `text` takes long enough to be done elsewhere.
    pub(crate) fn is_long(text: &str) -> bool {
        text.len() > INLINE_BYTES
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        either!(&self.inner, t => t.decode(ids, skip_special_tokens)).unwrap_or_default()
    }

    /// The text of one token, special or not.
    pub(crate) fn token_text(&self, id: u32) -> String {
        match self.token_bytes(id) {
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            None => self.decode(&[id], false),
        }
    }

    /// Whether the text is the concatenation of the tokens' bytes, so that
    /// [`Tokenizer::token_bytes`] knows them.
    pub(crate) fn is_byte_level(&self) -> bool {
        self.byte_level
    }

    /// The bytes of one token; `None` unless [`Tokenizer::is_byte_level`] and `id` exists.
    pub(crate) fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        if !self.byte_level {
            return None;
        }
        let token = self.token(id)?;
        let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
        Some(bytes.unwrap_or_else(|| token.into_bytes()))
    }

    /// A token as the vocabulary has it.
    fn token(&self, id: u32) -> Option<String> {
        either!(&self.inner, t => t.id_to_token(id))
    }

    /// The id of a whole token.
    pub(crate) fn token_id(&self, token: &str) -> Option<u32> {
        either!(&self.inner, t => t.token_to_id(token))
    }

    /// What each id below `vocab_size` adds to a text, in bytes; nothing for ids that are not there
    /// or whose text depends on what is before it.
    pub(crate) fn token_texts(&self, vocab_size: u32) -> Vec<Vec<u8>> {
        if self.byte_level {
            return (0..vocab_size).map(|id| self.token_bytes(id).unwrap_or_default()).collect();
        }
        // Decoders treat the beginning of a text differently, so each token is put behind a letter.
        let is_letter = |id: &u32| {
            let text = self.decode(&[*id], false);
            text.len() == 1 && text.as_bytes()[0].is_ascii_alphabetic()
        };
        let Some(letter) = (0..vocab_size).find(is_letter) else {
            return vec![Vec::new(); vocab_size as usize];
        };
        let before = self.decode(&[letter], false);
        let text = |id: u32| {
            if let Some(byte) = self.token(id).as_deref().and_then(fallback_byte) {
                return vec![byte];
            }
            let text = self.decode(&[letter, id], false);
            text.strip_prefix(&before).unwrap_or_default().as_bytes().to_vec()
        };
        (0..vocab_size).map(text).collect()
    }

    /// Whether `id` is left out when special tokens are skipped.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        let added = either!(&self.inner, t => t.get_added_vocabulary());
        added.simple_id_to_token(id).is_some_and(|token| added.is_special_token(&token))
    }
}

/// A tokenizer of the library with a model of type `M`.
type Of<M> =
    TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// A tokenizer by who has its model.
enum Inner {
    Bpe(Box<Of<Bpe>>),
    Library(Box<Of<ModelWrapper>>),
}

/// Byte-level vocabularies are read by [`Bpe`]; what it does not take is the library's, whose error it is if
/// that cannot either.
fn parse(json: &[u8]) -> tokenizers::Result<Inner> {
    match read(json) {
        Ok(tokenizer) => Ok(Inner::Bpe(Box::new(tokenizer))),
        Err(_) => Ok(Inner::Library(Box::new(read(json)?))),
    }
}

/// Padding and truncation are for batches of training data: prompts are taken as they are.
fn read<M: DeserializeOwned + tokenizers::Model>(json: &[u8]) -> tokenizers::Result<Of<M>> {
    let mut tokenizer: Of<M> = serde_json::from_slice(json)?;
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None)?;
    Ok(tokenizer)
}

/// The byte that a token such as `<0x0A>` stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The byte that a character of a byte-level vocabulary stands for. Printable bytes stand for
/// themselves; the others follow from U+0100 in ascending order.
fn byte_of(c: char) -> Option<u8> {
    let is_printable = |b: u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    match c as u32 {
        code @ 0..=0xFF => is_printable(code).then_some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Inner, byte_of, parse};
    use std::collections::BTreeSet;

    /// The families' own tokenizers do not fall back to the library, which takes longer.
    #[test]
    fn byte_level_vocabularies_are_read_here() {
        for json in [
            &include_bytes!("../../tests/data/deepseek_v3/tokenizer.json")[..],
            include_bytes!("../../tests/data/gpt_oss/tokenizer.json"),
            include_bytes!("../../tests/data/qwen2/tokenizer.json"),
            include_bytes!("../../tests/data/qwen3/tokenizer.json"),
        ] {
            assert!(matches!(parse(json), Ok(Inner::Bpe(_))));
        }
    }

    #[test]
    fn every_byte_has_one_character() {
        let bytes: BTreeSet<u8> =
            (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        assert_eq!(bytes.len(), 256);
        let characters = (0..0x200).filter_map(char::from_u32).filter(|c| byte_of(*c).is_some());
        assert_eq!(characters.count(), 256);
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(byte_of(' '), None);
    }
}
