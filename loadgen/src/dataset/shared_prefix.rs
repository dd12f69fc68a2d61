//! Groups of prompts that begin alike, for prefix caches.

use super::{Prompt, Row, Sources, lengths};
use crate::{
    error::BenchError,
    random::{NumpyRandom, PythonRandom},
};

impl Sources<'_> {
    pub(super) fn shared_prefix(
        &self,
        numpy: &mut NumpyRandom,
        python: &mut PythonRandom,
    ) -> Result<Vec<Row>, BenchError> {
        let tokenizer = self.tokenizer()?;
        let args = self.args;
        let (groups, all) = (args.gsp_num_groups, args.gsp_num_groups * args.gsp_prompts_per_group);
        let mut draw = |full, n| lengths(numpy, full, args.gsp_range_ratio, n);
        let prefix_lengths = draw(args.gsp_system_prompt_len, groups);
        let question_lengths = draw(args.gsp_question_len, all);
        let output_lengths = draw(args.gsp_output_len, all);

        let vocabulary = tokenizer.ids();
        let mut text = |len: usize| {
            let ids = std::iter::repeat_with(|| vocabulary[python.choice(vocabulary.len())]);
            tokenizer.decode(&ids.take(len).collect::<Vec<u32>>())
        };
        let prefixes: Vec<String> = prefix_lengths.into_iter().map(&mut text).collect();
        let questions: Vec<String> = question_lengths.into_iter().map(&mut text).collect();
        let prefixes =
            prefixes.iter().flat_map(|p| std::iter::repeat_n(p, args.gsp_prompts_per_group));
        let mut rows: Vec<Row> = prefixes
            .zip(questions)
            .zip(output_lengths)
            .map(|((prefix, question), output_len)| {
                let prompt = format!("{prefix}\n\n{question}");
                let prompt_len = tokenizer.encode(&prompt).len();
                Row { prompt: Prompt::Text(prompt), prompt_len, output_len }
            })
            .collect();
        python.shuffle(&mut rows);
        Ok(rows)
    }
}
