//! A fusion that is not part of Precast: the output gate of gated attention as one op.

mod fusion;
mod kernel;

pub use fusion::fuse_gated_output;
pub use kernel::GatedOutput;

use precast_cli::Extension;
use precast_passes::Place;

/// The pass and its kernel, to register with `Precast::builder()`.
pub fn extension() -> Extension {
    Extension::new("custom-fusion")
        .source("fusion.rs", include_str!("fusion.rs"))
        .source("kernel.rs", include_str!("kernel.rs"))
        .pass(
            fuse_gated_output(),
            Place::After("assign-layouts"),
            "composites come last: other passes look for plain ops",
        )
        .kernel(GatedOutput)
}
