//! What models choose, on the interpreter: experts, and keys that attention looks at. Every choice that
//! the reference recorded, of both prompts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/recorded.rs"]
mod recorded;
#[path = "support/run.rs"]
mod run;
mod support;

use precast_models::{Attention, Checkpoint, FeedForward};
use recorded::Oracle;
use run::{Session, distance};
use std::{collections::BTreeSet, fs};
use support::{F32, fixture};

/// Share of the largest weight of a row that weights of experts may be off by.
const TOLERANCE: f64 = 2e-4;
/// In this prompt the reference rounds an input of token 35 the other way in single precision, by its
/// own record; weights of later rows may be off by [`FLIPPED`].
const FLIP: (&str, &str, usize) = ("qwen3_next_w8a8", "a", 35);
const FLIPPED: f64 = 2e-2;

/// Layers of a model that choose.
struct Choosers {
    routed: Vec<usize>,
    selected: Vec<usize>,
}

impl Choosers {
    fn of(checkpoint: &Checkpoint) -> Self {
        let layers = || checkpoint.config().layers.iter().enumerate();
        let selects = |a: &Attention| matches!(a, Attention::Latent(a) if a.indexer.is_some());
        let routes = |f: &FeedForward| matches!(f, FeedForward::Experts(_));
        Self {
            routed: layers().filter(|(_, l)| routes(&l.feed_forward)).map(|(i, _)| i).collect(),
            selected: layers().filter(|(_, l)| selects(&l.attention)).map(|(i, _)| i).collect(),
        }
    }

    fn names(&self) -> Vec<String> {
        let of = |layers: &[usize], what: &str| -> Vec<String> {
            layers.iter().map(|i| format!("layers.{i}.{what}")).collect()
        };
        let (ids, weights) = (of(&self.routed, "route_ids"), of(&self.routed, "route_weights"));
        [ids, weights, of(&self.selected, "selected")].concat()
    }
}

/// The fixtures with a tensor of this name.
fn recorded_in(tensor: &str) -> BTreeSet<String> {
    let names = fs::read_dir(fixture("")).unwrap().map(|e| e.unwrap().file_name());
    let names = names.map(|n| n.into_string().unwrap()).filter(|n| n != "README.md");
    names.filter(|n| Oracle::of(n).has(tensor)).collect()
}

fn choices_match(name: &str) {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let (oracle, choosers) = (Oracle::of(name), Choosers::of(&checkpoint));
    for prompt in ["a", "b"] {
        let get = |what: &str| oracle.get(&format!("{what}_f32_{prompt}"));
        let mut session = Session::new(&checkpoint, &F32);
        session.expose(&choosers.names());
        let tokens = oracle.ids(&format!("input_ids_{prompt}"));
        let mut found = session.prefill(&tokens).into_iter();
        let mut take = |layers: &[usize]| -> Vec<f64> {
            found.by_ref().take(layers.len()).flat_map(|t| t.data().to_vec()).collect()
        };
        let rows = tokens.len();
        let (ids, weights) = (take(&choosers.routed), take(&choosers.routed));
        assert_eq!(ids, get("route_ids"), "{name} {prompt}");
        let per_row = ids.len() / rows / choosers.routed.len();
        let pairs = weights.chunks(per_row).zip(get("route_weights").chunks(per_row));
        for (i, (found, expected)) in pairs.enumerate() {
            let flipped = FLIP.0 == name && FLIP.1 == prompt && i % rows >= FLIP.2;
            let (off, bound) = (distance(found, expected, per_row), [TOLERANCE, FLIPPED]);
            assert!(off < bound[usize::from(flipped)], "{name} {prompt} row {}: {off}", i % rows);
        }
        if choosers.selected.is_empty() {
            continue;
        }
        let keys = take(&choosers.selected);
        let keys = keys.chunks(keys.len() / rows / choosers.selected.len());
        let mask = |keys: &[f64]| {
            (0..rows).map(|j| f64::from(u8::from(keys.contains(&(j as f64))))).collect::<Vec<_>>()
        };
        let selected: Vec<f64> = keys.flat_map(mask).collect();
        assert_eq!(selected, get("dsa_selected"), "{name} {prompt}");
        let causal = |(i, &s): (usize, &f64)| s == 0.0 && i % rows <= i / rows % rows;
        assert!(selected.iter().enumerate().any(causal), "{name} {prompt}: some key is left out");
    }
}

macro_rules! fixtures {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(#[test] fn $name() {
            choices_match(stringify!($name));
        })*
    };
}

fixtures! {
    qwen3_moe qwen3_moe_w8a8 qwen3_moe_w8a8_dynamic qwen3_moe_w4a8_dynamic qwen3_moe_w4a8_mixed
    qwen3_next qwen3_next_w8a8 gpt_oss
    deepseek_v3 deepseek_v3_fp8 deepseek_v3_w8a8 deepseek_v3_w8a8_dynamic deepseek_v3_w4a8_dynamic
    deepseek_v32 deepseek_v32_fp8 deepseek_v32_w8a8
}

#[test]
fn every_recorded_choice_is_compared() {
    let all: BTreeSet<String> = NAMES.iter().map(|&n| n.to_owned()).collect();
    assert_eq!(recorded_in("route_ids_f32_a"), all);
    let selecting: Vec<String> = recorded_in("dsa_selected_f32_b").into_iter().collect();
    assert_eq!(selecting, ["deepseek_v32", "deepseek_v32_fp8", "deepseek_v32_w8a8"]);
}
