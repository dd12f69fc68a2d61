//! Where programs keep what they can make again.

use std::path::PathBuf;

/// The folder: `PRECAST_CACHE`, or `precast` in the user's cache directory; `None` where the environment
/// names neither of them nor a home.
pub fn cache_folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    var("PRECAST_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("precast")))
        .or_else(|| var("HOME").map(|d| d.join(".cache/precast")))
}
