//! `random-checkpoint SHAPE DIR` writes a checkpoint of random weights in the shape of a released
//! model, the same on every machine.

use anyhow::Context;
use precast_benches::checkpoint::{Shape, write_random};
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [shape, dir] = &args[..] else {
        anyhow::bail!(
            "usage: random-checkpoint SHAPE DIR, SHAPE one of {}",
            Shape::NAMES.join(", ")
        )
    };
    // What was begun and not finished is not taken for a checkpoint.
    let unfinished = format!("{dir}.unfinished");
    write_random(Path::new(&unfinished), &Shape::named(shape)?, 1)?;
    std::fs::rename(&unfinished, dir).with_context(|| format!("moving the checkpoint to {dir}"))
}
