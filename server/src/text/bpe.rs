//! Byte pair encoding ([Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)) over tables that are
//! filled while `tokenizer.json` is read.
//!
//! A vocabulary of 150,000 tokens is the longest part of starting a server. The library keeps each token in
//! two strings of its own and looks merges up by text; here all tokens are one text and merges go by
//! id, in a third of the time and with 36 MiB less. Whatever else a tokenizer does stays the library's, as do
//! models with options that byte-level vocabularies do not use.

mod read;
#[cfg(test)]
mod tests;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable, hash_table::Entry};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    hash::BuildHasher,
    ops::Range,
    path::{Path, PathBuf},
};
use tokenizers::{Model, Token, models::bpe::BpeTrainer};

/// Ids from here on are not kept: the table of tokens has a place for each id below the largest.
const MAX_ID: u32 = 1 << 22;

/// The model of a tokenizer: a vocabulary, and which pairs of tokens become one.
#[derive(Default)]
pub(super) struct Bpe {
    vocab: Vocab,
    merges: Merges,
    /// Whether a word that is a token is that token, whatever merges say.
    ignore_merges: bool,
}

/// Of a pair of ids, its place among the merges and the id of both together.
type Merges = HashMap<(u32, u32), (u32, u32)>;

/// Tokens by text and by id.
#[derive(Default)]
struct Vocab {
    /// All tokens, one behind the other.
    text: String,
    /// Where each id's token is in `text`; `None` for ids that are not there.
    spans: Vec<Option<Range<u32>>>,
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Vocab {
    fn token(&self, id: u32) -> Option<&str> {
        let span = self.spans.get(id as usize)?.as_ref()?;
        Some(&self.text[span.start as usize..span.end as usize])
    }

    fn id(&self, token: &str) -> Option<u32> {
        let is_it = |id: &u32| self.token(*id) == Some(token);
        self.ids.find(self.hasher.hash_one(token), is_it).copied()
    }

    /// Takes a token that is not in the table of ids yet, see [`Vocab::index`].
    fn push(&mut self, token: &str, id: u32) -> Result<(), String> {
        let start = self.text.len() as u32;
        self.text.push_str(token);
        let end = u32::try_from(self.text.len()).map_err(|_| "4 GiB of tokens".to_owned())?;
        if id >= MAX_ID {
            return Err(format!("id {id} of token `{token}`"));
        }
        let at = id as usize;
        if self.spans.len() <= at {
            self.spans.resize(at + 1, None);
        }
        match self.spans[at].replace(start..end) {
            None => Ok(()),
            Some(_) => Err(format!("id {id} is that of two tokens")),
        }
    }

    /// Fills the table of ids, which then has its size from the beginning.
    fn index(&mut self) -> Result<(), String> {
        let mut ids = HashTable::with_capacity(self.spans.len());
        let hash = |token: Option<&str>| self.hasher.hash_one(token.unwrap_or_default());
        for id in 0..self.spans.len() as u32 {
            let Some(token) = self.token(id) else { continue };
            let is_it = |other: &u32| self.token(*other) == Some(token);
            match ids.entry(hash(Some(token)), is_it, |id| hash(self.token(*id))) {
                Entry::Vacant(entry) => entry.insert(id),
                Entry::Occupied(_) => return Err(format!("token `{token}` is there twice")),
            };
        }
        self.ids = ids;
        Ok(())
    }
}

/// A piece of a word: the characters of one token. One that a merge has taken has no length.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    bytes: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

impl Bpe {
    /// Merges the pair that comes first among the merges, the leftmost of equals, until no pair is
    /// one of them.
    fn merge(&self, symbols: &mut Vec<Symbol>) {
        let find = |symbols: &[Symbol], at: usize| {
            let pair = (symbols[at].id, symbols[symbols[at].next?].id);
            let (rank, id) = *self.merges.get(&pair)?;
            Some(Reverse((rank, at, id)))
        };
        let mut queue: BinaryHeap<_> =
            (0..symbols.len()).filter_map(|at| find(symbols, at)).collect();
        while let Some(Reverse((_, at, id))) = queue.pop() {
            // Its symbols may have been merged with others since; as in the library, another pair
            // that has come in their place counts if it makes the same token.
            let makes_it = |Reverse((_, _, now))| now == id;
            if symbols[at].bytes == 0 || !find(symbols, at).is_some_and(makes_it) {
                continue;
            }
            let Some(right) = symbols[at].next else { continue };
            let taken = symbols[right];
            symbols[right].bytes = 0;
            symbols[at].id = id;
            symbols[at].bytes += taken.bytes;
            symbols[at].next = taken.next;
            if let Some(next) = taken.next {
                symbols[next].previous = Some(at);
            }
            queue.extend(symbols[at].previous.and_then(|previous| find(symbols, previous)));
            queue.extend(find(symbols, at));
        }
        symbols.retain(|symbol| symbol.bytes != 0);
    }

    /// A symbol for each character of `word` that is a token; others are left out.
    fn symbols(&self, word: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(word.len());
        let mut buffer = [0; 4];
        for c in word.chars() {
            let Some(id) = self.vocab.id(c.encode_utf8(&mut buffer)) else { continue };
            let at = symbols.len();
            if let Some(last) = symbols.last_mut() {
                last.next = Some(at);
            }
            let previous = at.checked_sub(1);
            symbols.push(Symbol { id, bytes: c.len_utf8(), previous, next: None });
        }
        symbols
    }
}

impl Model for Bpe {
    type Trainer = BpeTrainer;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        if self.ignore_merges
            && let Some(id) = self.vocab.id(word)
        {
            return Ok(vec![Token::new(id, word.to_owned(), (0, word.len()))]);
        }
        let mut symbols = self.symbols(word);
        self.merge(&mut symbols);
        let mut start = 0;
        let token = |symbol: Symbol| {
            let offsets = (start, start + symbol.bytes);
            start = offsets.1;
            let text = self.vocab.token(symbol.id).unwrap_or_default();
            Token::new(symbol.id, text.to_owned(), offsets)
        };
        Ok(symbols.into_iter().map(token).collect())
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.vocab.id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.vocab.token(id).map(str::to_owned)
    }

    fn get_vocab(&self) -> std::collections::HashMap<String, u32> {
        self.vocab
            .ids
            .iter()
            .filter_map(|id| Some((self.vocab.token(*id)?.to_owned(), *id)))
            .collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.vocab.ids.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("a tokenizer that serves is not written to files".into())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}
