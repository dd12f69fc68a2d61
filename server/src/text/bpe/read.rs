//! What reads a [`Bpe`] from the object `model` of `tokenizer.json`.

use super::{Bpe, Merges, Vocab};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::fmt;

/// Fails on what [`Bpe`] does not do: other models, options that
/// are set, merges before the vocabulary.
impl<'de> Deserialize<'de> for Bpe {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ModelVisitor)
    }
}

struct ModelVisitor;

impl<'de> Visitor<'de> for ModelVisitor {
    type Value = Bpe;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a BPE model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Bpe, A::Error> {
        let mut model = Bpe::default();
        let (mut has_vocab, mut has_merges) = (false, false);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "type" => match map.next_value::<String>()?.as_str() {
                    "BPE" => {}
                    other => return Err(A::Error::custom(format!("a model of type {other}"))),
                },
                "ignore_merges" => {
                    model.ignore_merges = map.next_value::<Option<bool>>()?.unwrap_or_default();
                }
                "vocab" => {
                    map.next_value_seed(Fill(&mut model.vocab))?;
                    model.vocab.index().map_err(A::Error::custom)?;
                    has_vocab = true;
                }
                "merges" => {
                    let Bpe { vocab, merges, .. } = &mut model;
                    map.next_value_seed(MergeList { vocab, merges })?;
                    has_merges = true;
                }
                "dropout" => unset(&key, map.next_value::<Option<f32>>()?)?,
                "unk_token" => unset(&key, map.next_value::<Option<String>>()?)?,
                "continuing_subword_prefix" | "end_of_word_suffix" => {
                    let affix = map.next_value::<Option<String>>()?;
                    unset(&key, affix.filter(|affix| !affix.is_empty()))?;
                }
                "byte_fallback" => {
                    unset(&key, map.next_value::<Option<bool>>()?.filter(|is_set| *is_set))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if has_vocab && has_merges {
            Ok(model)
        } else {
            Err(A::Error::custom("`vocab` or `merges` is missing"))
        }
    }
}

fn unset<T, E: Error>(key: &str, value: Option<T>) -> Result<(), E> {
    match value {
        None => Ok(()),
        Some(_) => Err(E::custom(format!("`{key}` is set"))),
    }
}

/// Reads into a table that is there, so that no list of strings is made on the way.
struct Fill<'a, T>(&'a mut T);

impl<'de> DeserializeSeed<'de> for Fill<'_, Vocab> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fill<'_, Vocab> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from tokens to ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut token = String::new();
        while map.next_key_seed(Fill(&mut token))?.is_some() {
            self.0.push(&token, map.next_value()?).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Fill<'_, String> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Fill<'_, String> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }

    fn visit_str<E: Error>(self, token: &str) -> Result<(), E> {
        self.0.clear();
        self.0.push_str(token);
        Ok(())
    }
}

/// Reads the list of merges as pairs of ids.
struct MergeList<'a> {
    vocab: &'a Vocab,
    merges: &'a mut Merges,
}

impl<'de> DeserializeSeed<'de> for MergeList<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for MergeList<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self { vocab, merges } = self;
        // Most tokens of a vocabulary are made by a merge.
        merges.reserve(vocab.ids.len());
        let mut pair = String::new();
        let mut rank = 0;
        while let Some(left) = seq.next_element_seed(Merge(&mut pair))? {
            let Some(left) = left else { continue };
            let id = |token| {
                vocab.id(token).ok_or_else(|| {
                    A::Error::custom(format!("`{token}` of a merge is not in the vocabulary"))
                })
            };
            let ids = (id(&pair[..left])?, id(&pair[left..])?);
            merges.insert(ids, (rank, id(&pair)?));
            rank += 1;
        }
        Ok(())
    }
}

/// One merge, `"a b"` or `["a", "b"]`: puts both tokens into the string, and returns where the second
/// begins; `None` for a line with a version, which is none.
struct Merge<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Merge<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Merge<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("two tokens")
    }

    fn visit_str<E: Error>(self, line: &str) -> Result<Self::Value, E> {
        if line.starts_with("#version") {
            return Ok(None);
        }
        let two = line.split_once(' ').filter(|(_, right)| !right.contains(' '));
        let (left, right) = two.ok_or_else(|| E::custom(format!("merge `{line}`")))?;
        self.0.clear();
        self.0.push_str(left);
        self.0.push_str(right);
        Ok(Some(left.len()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (Some(left), Some(right), None) = (
            seq.next_element::<String>()?,
            seq.next_element::<String>()?,
            seq.next_element::<IgnoredAny>()?,
        ) else {
            return Err(A::Error::custom("a merge that is not of two tokens"));
        };
        self.0.clear();
        self.0.push_str(&left);
        self.0.push_str(&right);
        Ok(Some(left.len()))
    }
}
