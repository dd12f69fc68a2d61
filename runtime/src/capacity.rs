//! Which sizes of memory an engine takes, and how many sequences may run at once.

use crate::{EngineError, costs::Costs};
use artifact::{Manifest, WindowMemory};

/// Checks every size that the engine divides by or hands to the device.
///
/// # Errors
/// [`EngineError::Range`] names the first that is out of range.
pub(crate) fn check(manifest: &Manifest, max_running: u32) -> Result<(), EngineError> {
    let kv = manifest.kv;
    at_least_1("max_running_requests", max_running)?;
    at_least_1("kv.block_tokens", kv.block_tokens)?;
    at_least_1("kv.blocks", kv.blocks)?;
    at_least_1("model.vocab_size", manifest.model.vocab_size)?;
    places("kv.blocks", kv.blocks, kv.block_tokens)?;
    if let Some(window) = manifest.window {
        at_least_1("window.tokens", window.tokens)?;
        places("window.blocks", window.blocks, kv.block_tokens)?;
    }
    if let Some(sequences) = manifest.sequences {
        at_least_1("sequences.slots", sequences.slots)?;
        places("sequences.slots", sequences.slots, 1)?;
    }
    Ok(())
}

/// KV blocks that an engine uses: those of the artifact, or as many as `max_total_tokens` tokens fill.
/// The manifest passed [`check`].
///
/// # Errors
/// [`EngineError::TotalTokens`] when that is no block, or more than the artifact has.
pub(crate) fn kv_blocks(
    manifest: &Manifest,
    max_total_tokens: Option<u32>,
) -> Result<u32, EngineError> {
    let Some(asked) = max_total_tokens else { return Ok(manifest.kv.blocks) };
    let block = manifest.kv.block_tokens;
    // A prompt's token and one of its answer.
    let least = block.max(2).next_multiple_of(block);
    let most = manifest.kv.blocks * block;
    if (least..=most).contains(&asked) {
        Ok(asked / block)
    } else {
        Err(EngineError::TotalTokens { asked, least, most })
    }
}

pub(crate) fn at_least_1(field: &'static str, found: u32) -> Result<(), EngineError> {
    let must_be = "at least 1";
    if found > 0 { Ok(()) } else { Err(EngineError::Range { field, found: found.into(), must_be }) }
}

/// Checks the most prompt tokens of a step. Warns when no plan takes so many.
///
/// # Errors
/// [`EngineError::Range`] when it is none.
pub(crate) fn chunk(costs: &Costs, asked: Option<u32>) -> Result<(), EngineError> {
    let Some(asked) = asked else { return Ok(()) };
    at_least_1("chunked_prefill_size", asked)?;
    let largest = costs.max_chunk();
    if asked > largest {
        tracing::warn!(
            "`--chunked-prefill-size {asked}` has no effect: the largest prefill plan takes {largest} \
             tokens, and so does a step; compile with `--prefill-chunks` ... {asked}"
        );
    }
    Ok(())
}

/// Places are 32-bit on the device, and the spare block has the last of them.
fn places(field: &'static str, blocks: u32, block_tokens: u32) -> Result<(), EngineError> {
    let must_be = "few enough for 2147483647 places";
    let found = blocks.into();
    let fits = (u64::from(blocks) + 1) * u64::from(block_tokens) <= i32::MAX as u64;
    if fits { Ok(()) } else { Err(EngineError::Range { field, found, must_be }) }
}

/// The most sequences that run at once on `blocks` KV blocks when `asked` are asked for: no more than can hold the
/// memories that must not run out. A prefill feeds up to `chunk` tokens of a sequence that has up to
/// `context` tokens. Warns when that is fewer. The manifest passed [`check`].
///
/// # Errors
/// [`EngineError::Range`] when the manifest's window does not hold one sequence.
pub(crate) fn max_running(
    manifest: &Manifest,
    blocks: u32,
    asked: u32,
    context: u32,
    chunk: u32,
) -> Result<u32, EngineError> {
    let mut running = asked;
    let mut limit = |room: u32, of: &str| {
        if running > room {
            tracing::warn!("at most {room} of {asked} requests run at once: {of}");
            running = room;
        }
    };
    limit(blocks, "there are no more KV blocks");
    if let Some(sequences) = &manifest.sequences {
        limit(sequences.slots, "recurrent memory has no more slots (`sequences.slots`)");
    }
    if let Some(window) = &manifest.window {
        let room = window_room(window, manifest.kv.block_tokens, context, chunk);
        if room == 0 {
            let must_be = "enough for the window and the longest prefill chunk of one request";
            let found = window.blocks.into();
            return Err(EngineError::Range { field: "window.blocks", found, must_be });
        }
        limit(room, "sliding-window memory holds no more (`window.blocks`)");
    }
    Ok(running)
}

/// Sequences whose window blocks always suffice: one that prefills, all others with a window each.
///
/// `n` places that follow each other lie in at most `ceil((n - 1) / block_tokens) + 1` blocks. A
/// token and the window behind it are `window.tokens` places, a chunk and the window behind its
/// first token `window.tokens - 1 + chunk`.
fn window_room(window: &WindowMemory, block_tokens: u32, context: u32, chunk: u32) -> u32 {
    let whole = u64::from(context.div_ceil(block_tokens));
    let blocks = |places: u64| whole.min((places - 1).div_ceil(block_tokens.into()) + 1);
    let tokens = u64::from(window.tokens);
    let (each, prefill) = (blocks(tokens), blocks(tokens - 1 + u64::from(chunk.max(1))));
    match u64::from(window.blocks).checked_sub(prefill) {
        Some(rest) => u32::try_from(1 + rest / each.max(1)).unwrap_or(u32::MAX),
        None => 0,
    }
}

/// What a decode step costs when as many requests run as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ceiling {
    pub(crate) replays: u32,
    pub(crate) padded_rows: u32,
}

/// The decode step of `max_running` requests. Warns when that is not one replay of as many rows.
pub(crate) fn ceiling(costs: &Costs, max_running: u32) -> Ceiling {
    let largest = costs.decode_rows().max().unwrap_or(1);
    let last = (max_running - 1) % largest + 1;
    let rows = costs.decode_rows().filter(|&rows| rows >= last).min().unwrap_or(last);
    let ceiling = Ceiling { replays: max_running.div_ceil(largest), padded_rows: rows - last };
    let cost = match ceiling {
        Ceiling { replays: 1, padded_rows: 0 } => return ceiling,
        Ceiling { replays: 1, padded_rows } => format!("{padded_rows} of {rows} rows are padding"),
        Ceiling { replays, .. } => format!(
            "takes {replays} replays, each of which reads all weights; the largest has {largest} rows"
        ),
    };
    tracing::warn!(
        "no decode plan has exactly {max_running} rows, the most requests that run at once: a full \
         batch {}{cost}; compile with `--graph-bs` ... {max_running}",
        if ceiling.replays == 1 { "is padded, " } else { "" },
    );
    ceiling
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeModel;

    #[test]
    fn the_scarcest_memory_decides() {
        let model = FakeModel {
            blocks: 50,
            block_tokens: 4,
            sliding_window: Some(9),
            window_blocks: Some(20),
            sequence_slots: Some(7),
            ..FakeModel::default()
        };
        let running = |model: &FakeModel, asked| max_running(&model.manifest(), 50, asked, 100, 16);
        // The one in prefill spans 24 places and thus up to 7 blocks, every other one 3.
        assert_eq!(running(&model, 99).unwrap(), 5);
        assert_eq!(running(&model, 4).unwrap(), 4);
        let roomy = FakeModel { window_blocks: Some(1000), ..model.clone() };
        assert_eq!(running(&roomy, 99).unwrap(), 7);
        let endless = FakeModel { sequence_slots: None, ..roomy.clone() };
        assert_eq!(running(&endless, 99).unwrap(), 50);
        let one = FakeModel { window_blocks: Some(7), ..model.clone() };
        assert_eq!(running(&one, 99).unwrap(), 1);

        let none = FakeModel { window_blocks: Some(6), ..model };
        let message = running(&none, 1).unwrap_err().to_string();
        assert!(message.starts_with("`window.blocks` is 6, but must be enough for"), "{message}");
    }

    #[test]
    fn no_sequence_needs_more_blocks_than_its_context_has() {
        let window = WindowMemory { tokens: u32::MAX, blocks: 12, bytes_per_block: 1 };
        assert_eq!(window_room(&window, 16, 64, 2048), 3);
    }
}
