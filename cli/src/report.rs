//! What `compile` and `inspect` say about an artifact.

use artifact::{Kv, Model, Pool, SequenceMemory, StateEntry, WeightEntry, WindowMemory};
use compiler::Prepared;
use ir::{DType, Layout};
use std::{collections::BTreeMap, fmt::Write};

/// Bytes for people.
pub(crate) fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        10_000..=9_999_999 => format!("{:.1} kB", bytes as f64 / 1e3),
        10_000_000..=9_999_999_999 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// What will be needed, before the long work.
pub(crate) fn plan(model: &Model, prepared: &Prepared) -> String {
    let mut text = format!(
        "{} ({}): {} parameters, {}, context {}\n",
        model.name,
        model.architecture,
        model.parameters,
        model.dtype,
        prepared.buckets.tiers.last().copied().unwrap_or(0),
    );
    for note in &prepared.buckets.notes {
        if note.reason != "requested" {
            let verb = if note.kept { "added" } else { "dropped" };
            let _ = writeln!(text, "  {verb} {} {}: {}", note.phase, note.rows, note.reason);
        }
    }
    let memory = &prepared.memory;
    // The length of a compact weight depends on its elements, which are not read yet.
    let is_most = prepared.weights().iter().any(|w| w.layout == Layout::Compact);
    let most = if is_most { "at most " } else { "" };
    let _ = writeln!(text, "memory: weights {most}{} in", bytes_text(memory.weights_bytes));
    for (kind, Stored { count, bytes }) in by_kind(prepared.weights()) {
        let _ = writeln!(text, "  {kind:<14} {:>11}, {count} tensors", bytes_text(bytes));
    }
    let _ = writeln!(
        text,
        "states {}, arena {}",
        bytes_text(memory.state_bytes),
        bytes_text(memory.arena_bytes)
    );
    for (what, how_much) in memories(prepared) {
        let _ = writeln!(text, "  {what:<14} {how_much}");
    }
    if let Some(used) = prepared.queues {
        let _ = writeln!(
            text,
            "recorded plans hold {} streams and {} events of the device",
            used.streams, used.events
        );
    }
    let _ = writeln!(text, "{:<28} {:>6} {:>12} {:>12}", "plan", "steps", "arena", "unshared");
    for plan in &prepared.plans {
        let _ = writeln!(
            text,
            "{:<28} {:>6} {:>12} {:>12}",
            plan.name,
            plan.steps,
            bytes_text(plan.arena_bytes),
            bytes_text(plan.unshared_bytes),
        );
    }
    text
}

/// Weights of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) count: usize,
    pub(crate) bytes: u64,
}

/// Weights by element type and layout.
pub(crate) fn by_kind(weights: &[WeightEntry]) -> BTreeMap<String, Stored> {
    let mut kinds: BTreeMap<(DType, Layout), Stored> = BTreeMap::new();
    for weight in weights {
        let kind = kinds.entry((weight.dtype, weight.layout)).or_default();
        kind.count += 1;
        kind.bytes += weight.bytes;
    }
    kinds.into_iter().map(|((dtype, layout), s)| (format!("{dtype} {layout}"), s)).collect()
}

fn memories(prepared: &Prepared) -> Vec<(String, String)> {
    states(&prepared.kv, prepared.window, prepared.sequences, prepared.states())
}

/// Each kind of memory that sequences share, in words, and below it the kinds of state that it is
/// made of.
pub(crate) fn states(
    kv: &Kv,
    window: Option<WindowMemory>,
    sequences: Option<SequenceMemory>,
    entries: &[StateEntry],
) -> Vec<(String, String)> {
    let Kv { block_tokens, blocks, bytes_per_token } = kv;
    let mut out = Vec::new();
    let mut add = |pool: Pool, what: &str, how_much: String, each: &dyn Fn(u64) -> String| {
        out.push((what.to_owned(), how_much));
        for (kind, bytes) in by_name(entries, pool) {
            out.push((format!("  {kind}"), each(bytes)));
        }
    };
    let text = format!("{blocks} blocks of {block_tokens} tokens, {bytes_per_token} bytes a token");
    add(Pool::Kv, "KV", text, &|block| {
        format!("{} bytes a token", block / u64::from(*block_tokens))
    });
    if let Some(WindowMemory { tokens, blocks, bytes_per_block }) = window {
        let full = u64::from(tokens.div_ceil(*block_tokens));
        let each = |block: u64| format!("{} bytes a sequence", full * block);
        let text = format!(
            "{tokens} tokens, {}; {blocks} blocks of {bytes_per_block} bytes",
            each(bytes_per_block)
        );
        add(Pool::Window, "sliding window", text, &each);
    }
    if let Some(SequenceMemory { slots, bytes_per_slot }) = sequences {
        let each = |slot: u64| format!("{slot} bytes a sequence");
        let text = format!("{}, {slots} sequences", each(bytes_per_slot));
        add(Pool::Sequences, "recurrent", text, &each);
    }
    out
}

/// Bytes of one block, or slot, of all states of a pool that have a name but for the layer in common,
/// in the order in which they are first mentioned.
fn by_name(entries: &[StateEntry], pool: Pool) -> Vec<(String, u64)> {
    let mut found: Vec<(String, u64)> = Vec::new();
    for entry in entries.iter().filter(|e| e.pool == Some(pool)) {
        let kind = entry.name.split('.').next().unwrap_or_default().replace('_', " ");
        let bytes = entry.bytes / entry.dims.first().copied().unwrap_or(1).max(1);
        match found.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, sum)) => *sum += bytes,
            None => found.push((kind, bytes)),
        }
    }
    found
}

/// What quantising lost, the worst weight first; nothing where nothing was quantised.
pub(crate) fn quantization(weights: &[WeightEntry]) -> String {
    let mut lossy: Vec<(f32, &WeightEntry)> =
        weights.iter().filter_map(|w| Some((w.quantization_error?, w))).collect();
    if lossy.is_empty() {
        return String::new();
    }
    lossy.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mean = lossy.iter().map(|(e, _)| f64::from(*e)).sum::<f64>() / lossy.len() as f64;
    let mut text = format!(
        "quantised {} weights, RMS of the error over that of the weight: mean {:.3} %\n",
        lossy.len(),
        mean * 100.0
    );
    for (error, weight) in lossy {
        let _ = writeln!(
            text,
            "  {:>7.3} %  {}{:?}  {}",
            f64::from(error) * 100.0,
            weight.dtype,
            weight.dims,
            tensors(&weight.recipe)
        );
    }
    text
}

/// The tensors that a recipe names.
fn tensors(recipe: &str) -> String {
    let words = recipe.split(['(', ')', ',', ' ', '[', ']', '*', '+']);
    let is_name = |w: &&str| w.contains('.') && w.starts_with(|c: char| c.is_ascii_alphabetic());
    let names: Vec<&str> = words.filter(is_name).collect();
    if names.is_empty() { recipe.to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(recipe: &str, dtype: DType, layout: Layout, error: Option<f32>) -> WeightEntry {
        WeightEntry {
            recipe: recipe.to_owned(),
            dtype,
            dims: vec![64, 8],
            layout,
            offset: 0,
            bytes: 1000,
            quantization_error: error,
        }
    }

    #[test]
    fn the_worst_weight_comes_first() {
        let codes = |name: &str, error| {
            let recipe = format!("i8_codes8(bf16({name}))");
            weight(&recipe, DType::I8, Layout::Panels, Some(error))
        };
        let weights = [
            codes("model.layers.0.mlp.down_proj.weight", 0.004),
            weight("model.norm.weight", DType::F32, Layout::Nd, None),
            codes("model.layers.1.mlp.experts.{0..7}.down_proj.weight", 0.008),
        ];
        let text = quantization(&weights);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("quantised 2 weights") && lines[0].ends_with("mean 0.600 %"));
        assert_eq!(
            lines[1..],
            [
                "    0.800 %  i8[64, 8]  model.layers.1.mlp.experts.{0..7}.down_proj.weight",
                "    0.400 %  i8[64, 8]  model.layers.0.mlp.down_proj.weight",
            ]
        );
        assert_eq!(quantization(&weights[1..2]), "");
    }

    #[test]
    fn weights_are_counted_by_type_and_layout() {
        let weights = [
            weight("a.b", DType::BF16, Layout::Panels, None),
            weight("a.c", DType::BF16, Layout::Panels, None),
            weight("a.d", DType::BF16, Layout::Nd, None),
        ];
        let kinds = by_kind(&weights);
        assert_eq!(kinds["bf16 panels"], Stored { count: 2, bytes: 2000 });
        assert_eq!(kinds["bf16 nd"], Stored { count: 1, bytes: 1000 });
    }

    #[test]
    fn each_memory_is_told_with_its_unit() {
        let kv = Kv { block_tokens: 16, blocks: 100, bytes_per_token: 49_152 };
        let state = |name: &str, pool, first, bytes| StateEntry {
            name: name.to_owned(),
            dtype: DType::BF16,
            dims: vec![first, bytes / first / 2],
            pool,
            offset: 0,
            bytes,
        };
        let entries = [
            state("latent.0", Some(Pool::Kv), 101, 101 * 16 * 1024),
            state("rope_key.0", Some(Pool::Kv), 101, 101 * 16 * 128),
            state("latent.1", Some(Pool::Kv), 101, 101 * 16 * 1024),
            state("hidden", None, 64, 4096),
            state("conv.2", Some(Pool::Sequences), 9, 9 * 512),
            state("window_kv.3", Some(Pool::Window), 41, 41 * 1000),
        ];
        let told = |window, sequences| -> Vec<String> {
            let all = states(&kv, window, sequences, &entries);
            all.into_iter().map(|(what, how_much)| format!("{what}: {how_much}")).collect()
        };
        let plain = [
            "KV: 100 blocks of 16 tokens, 49152 bytes a token",
            "  latent: 2048 bytes a token",
            "  rope key: 128 bytes a token",
        ];
        assert_eq!(told(None, None), plain);
        let window = WindowMemory { tokens: 128, blocks: 40, bytes_per_block: 393_216 };
        let sequences = SequenceMemory { slots: 8, bytes_per_slot: 77_266_944 };
        let further = [
            "sliding window: 128 tokens, 3145728 bytes a sequence; 40 blocks of 393216 bytes",
            "  window kv: 8000 bytes a sequence",
            "recurrent: 77266944 bytes a sequence, 8 sequences",
            "  conv: 512 bytes a sequence",
        ];
        assert_eq!(told(Some(window), Some(sequences))[3..], further);
    }

    #[test]
    fn recipes_without_names_are_shown_as_they_are() {
        assert_eq!(tensors("rows(a.x, (b.y[rows 0..4 of 8] + 1))"), "a.x, b.y");
        assert_eq!(tensors("i8_codes8(plain)"), "i8_codes8(plain)");
    }
}
