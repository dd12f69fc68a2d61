//! What a client may ask of the grammar compiler.

use llguidance::api::ParserLimits;
use std::time::Duration;

/// The longest grammar in bytes: a schema as JSON, or a grammar in its own syntax.
const MAX_TEXT_BYTES: usize = 128 << 10;
/// Stack of a thread that compiles; the compiler recurses over a grammar's rules. Only what is used
/// takes memory.
pub(super) const STACK_BYTES: usize = 256 << 20;
/// Grammars that are compiled at once.
pub(super) const COMPILERS: usize = 2;
/// How long a compilation may take, waiting for its turn included.
pub(super) const COMPILE_TIME: Duration = Duration::from_secs(10);
/// Compiled grammars that are kept.
pub(super) const CACHED: usize = 64;

/// Work and memory that a grammar may take: at compilation, and for each set of tokens. The numbers
/// are of steps; a million is some tens of milliseconds.
pub(super) fn parser() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 500_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Checks the length of a grammar.
pub(super) fn check_text(text: &str) -> Result<(), String> {
    let bytes = text.len();
    if bytes > MAX_TEXT_BYTES {
        return Err(format!(
            "is a grammar of {bytes} bytes, but at most {MAX_TEXT_BYTES} are read"
        ));
    }
    Ok(())
}
