//! Prompts of random lengths.

use super::{Prompt, Row, Sources, lengths};
use crate::{
    error::BenchError,
    options::Api,
    random::{NumpyRandom, PythonRandom},
};

impl Sources<'_> {
    fn random_lengths(&self, numpy: &mut NumpyRandom) -> impl Iterator<Item = (usize, usize)> {
        let args = self.args;
        let mut draw =
            |full| lengths(numpy, full, args.random_range_ratio, args.num_prompts).into_iter();
        let inputs = draw(args.random_input_len);
        inputs.zip(draw(args.random_output_len))
    }

    /// Recorded questions, cut or repeated.
    pub(super) fn random(
        &self,
        numpy: &mut NumpyRandom,
        python: &mut PythonRandom,
    ) -> Result<Vec<Row>, BenchError> {
        let tokenizer = self.tokenizer()?;
        let lengths = self.random_lengths(numpy);
        let questions = self.conversations(python)?.into_iter();
        let ids = questions.map(|t| tokenizer.encode(&t.question)).filter(|ids| !ids.is_empty());
        Ok(lengths
            .zip(ids)
            .map(|((prompt_len, output_len), ids)| {
                let ids: Vec<u32> = ids.into_iter().cycle().take(prompt_len).collect();
                self.row(ids, output_len)
            })
            .collect())
    }

    /// Consecutive ids.
    pub(super) fn random_ids(&self, numpy: &mut NumpyRandom) -> Result<Vec<Row>, BenchError> {
        let vocab_size = self.vocabulary()?;
        let lengths: Vec<_> = self.random_lengths(numpy).collect();
        let offsets: Vec<usize> = lengths.iter().map(|_| numpy.integer(0, vocab_size)).collect();
        let rows = lengths.into_iter().zip(offsets).enumerate();
        Ok(rows
            .map(|(index, ((prompt_len, output_len), offset))| {
                let first = offset + index;
                let ids = (first..first + prompt_len).map(|id| (id % vocab_size) as u32);
                self.row(ids.collect(), output_len)
            })
            .collect())
    }

    fn row(&self, ids: Vec<u32>, output_len: usize) -> Row {
        let prompt_len = ids.len();
        let prompt = match self.tokenizer {
            Some(tokenizer) if !self.args.tokenize_prompt => Prompt::Text(tokenizer.decode(&ids)),
            _ => Prompt::Ids(ids),
        };
        Row { prompt, prompt_len, output_len }
    }

    fn vocabulary(&self) -> Result<usize, BenchError> {
        let args = self.args;
        if self.tokenizer.is_none() && args.backend.api() == Api::Chat {
            let problem = "is needed to send a chat, which has no place for token ids; give a \
                           directory with tokenizer.json, or use another `--backend`";
            return Err(BenchError::option("tokenizer", problem));
        }
        let known = args.vocab_size.or(match self.tokenizer {
            Some(tokenizer) => u32::try_from(tokenizer.vocab_size()).ok(),
            None => self.vocab_size,
        });
        match known {
            Some(size) if size > 0 => Ok(size as usize),
            _ => {
                let problem = "is needed, for the server does not say how large its vocabulary is; \
                               give it, or a `--tokenizer`";
                Err(BenchError::option("vocab-size", problem))
            }
        }
    }
}
