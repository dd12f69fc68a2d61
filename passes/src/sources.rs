//! The text of this crate, so that a cache of compiled artifacts is invalidated when a pass changes.

macro_rules! files {
    ($($path:literal),* $(,)?) => { &[$(($path, include_str!($path))),*] };
}

/// Every source file with a say in what passes do: path under `passes/src` and content.
pub fn sources() -> &'static [(&'static str, &'static str)] {
    files![
        "canonicalise.rs",
        "dead.rs",
        "driver.rs",
        "duplicates.rs",
        "manager.rs",
        "phase.rs",
        "pipelines.rs",
        "rewrite.rs",
        "specialise.rs",
        "target.rs",
    ]
}
