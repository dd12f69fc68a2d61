//! What a request must satisfy before the engine sees it.

use crate::{Request, RequestError};

/// Facts of an artifact that decide whether a request can ever be served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Token ids are below this.
    pub(crate) vocab_size: u32,
    /// The most tokens of prompt and answer: what the model, the plans and all KV blocks hold.
    pub(crate) context_tokens: usize,
}

/// A request that passed [`Limits::check`].
pub(crate) struct Checked(pub(crate) Request);

impl Limits {
    pub(crate) fn check(&self, request: Request) -> Result<Checked, RequestError> {
        let Limits { vocab_size, context_tokens } = *self;
        if request.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        let out_of_range = request.prompt.iter().position(|&t| t >= vocab_size);
        if let Some(position) = out_of_range {
            let token = request.prompt[position];
            return Err(RequestError::PromptToken { position, token, vocab_size });
        }
        let bias = &request.sampling.logit_bias;
        if let Some(&(token, _)) = bias.iter().find(|(token, _)| *token >= vocab_size) {
            return Err(RequestError::BiasToken { token, vocab_size });
        }
        request.sampling.validate()?;
        let tokens = request.prompt.len();
        if tokens + request.max_tokens.min(1) > context_tokens {
            return Err(RequestError::PromptTooLong { tokens, context: context_tokens });
        }
        Ok(Checked(request))
    }
}
