//! An answer of the server beside what is recorded of its prompt.

use crate::{
    answer::{Answer, TOP},
    oracle::{Matrix, Step},
};

/// Which positions count when bfloat16 is judged.
#[derive(Clone, Copy, PartialEq)]
pub enum Positions {
    /// Every one.
    All,
    /// All but one in so many, those furthest away, of ours and of the oracle's: there another key
    /// or expert was chosen, for scores that are nearly equal.
    AllButOneIn(usize),
}

/// The answer to a prompt and what is recorded of it.
pub struct Prompt {
    /// What the server answered.
    pub answer: Answer,
    /// Recorded logits in float32.
    pub exact: Matrix,
    /// Recorded logits in bfloat16.
    pub coarse: Matrix,
    /// The recorded continuation, as far as it is compared.
    pub steps: Vec<Step>,
}

impl Prompt {
    /// Tokens of the prompt.
    pub fn positions(&self) -> usize {
        self.answer.prompt().len()
    }

    /// The largest distance of a log-probability after each position: of the alternatives and of
    /// the prompt's next token.
    pub fn worst(&self) -> Vec<f32> {
        let next = self.answer.of_prompt();
        let worst = |i: usize| {
            let exact = self.exact.log_softmax(i);
            let all = self.answer.after_position(i).into_iter().chain(next.get(i).copied());
            all.map(|(logprob, token)| (logprob - exact[token]).abs()).fold(0.0, f32::max)
        };
        (0..self.positions()).map(worst).collect()
    }

    /// The squared distance of the alternatives after each position, ours and that of the oracle's
    /// own bfloat16.
    fn squares(&self) -> Vec<(f64, f64)> {
        let squares = |i| {
            let (exact, coarse) = (self.exact.log_softmax(i), self.coarse.log_softmax(i));
            let square = |a: f32, b: f32| f64::from(a - b).powi(2);
            let all = self.answer.after_position(i).into_iter();
            all.fold((0.0, 0.0), |(ours, theirs), (logprob, token)| {
                let exact = exact[token];
                (ours + square(logprob, exact), theirs + square(coarse[token], exact))
            })
        };
        (0..self.positions()).map(squares).collect()
    }

    /// Differences of the five best tokens of each step of the continuation.
    ///
    /// # Panics
    /// When one of them is not among the alternatives.
    pub fn step_differences(&self) -> Vec<f32> {
        let steps = self.steps.iter().enumerate();
        let differences = steps.flat_map(|(i, step)| {
            let got = self.answer.at_step(i);
            step.best.iter().map(move |&(logprob, token)| {
                let found = got.iter().find(|(_, t)| *t == token);
                (found.expect("it is an alternative").0 - logprob).abs()
            })
        });
        differences.collect()
    }
}

/// Roots of the mean square distances to float32: ours, and the oracle's own bfloat16.
pub fn distances(prompts: &[Prompt], positions: Positions) -> (f64, f64) {
    let squares = prompts.iter().flat_map(Prompt::squares);
    let (mut ours, mut theirs): (Vec<f64>, Vec<f64>) = squares.unzip();
    let mean = |squares: &mut Vec<f64>| {
        squares.sort_by(f64::total_cmp);
        if let Positions::AllButOneIn(n) = positions {
            squares.truncate(squares.len() * (n - 1) / n);
        }
        (squares.iter().sum::<f64>() / (squares.len() * TOP) as f64).sqrt()
    };
    (mean(&mut ours), mean(&mut theirs))
}
