//! `random-checkpoint SHAPE DIR` writes a checkpoint of random weights in the shape of a released
//! model, the same on every machine; SHAPE may be the `config.json` of a supported model
//! whose weights are published in bf16.

use anyhow::Context;
use precast_benches::checkpoint::{Shape, write_config, write_random};
use std::{fs, path::Path};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [shape, dir] = &args[..] else {
        anyhow::bail!(
            "usage: random-checkpoint SHAPE DIR, SHAPE a config.json or one of {}",
            Shape::NAMES.join(", ")
        )
    };
    // What was begun and not finished is not taken for a checkpoint.
    let unfinished = format!("{dir}.unfinished");
    let to = Path::new(&unfinished);
    if shape.ends_with(".json") {
        let text = fs::read(shape).with_context(|| format!("reading {shape}"))?;
        let config = serde_json::from_slice(&text).with_context(|| format!("parsing {shape}"))?;
        write_config(to, &config, None, 1)?;
    } else {
        write_random(to, &Shape::named(shape)?, 1)?;
    }
    std::fs::rename(&unfinished, dir).with_context(|| format!("moving the checkpoint to {dir}"))
}
