//! How plans are encoded. The codec is named in this module alone.

use crate::{ArtifactError, Plan};
use std::path::Path;

/// Version of the container and of everything in it.
pub const FORMAT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"PRECAST\0";

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_little_endian().with_fixed_int_encoding()
}

/// A plan as bytes: magic, version, body.
pub(crate) fn encode(plan: &Plan) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend(
        bincode::serde::encode_to_vec(plan, config()).expect("a plan is plain data and encodes"),
    );
    bytes
}

/// Reads the fixed-width prefix by hand, so that a file of any version gets a clear answer.
pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Plan, ArtifactError> {
    let (prefix, body) =
        bytes.split_first_chunk::<12>().filter(|(p, _)| p.starts_with(&MAGIC)).ok_or_else(
            || ArtifactError::NotAnArtifact { path: path.into(), why: "no plan header".into() },
        )?;
    let found = u32::from_le_bytes(prefix[8..].try_into().expect("four bytes"));
    if found != FORMAT_VERSION {
        return Err(ArtifactError::Format { path: path.into(), found });
    }
    let damaged = |why: String| ArtifactError::Damaged { path: path.into(), why };
    // A corrupt length must not ask for more memory than the file can describe.
    let limited = config();
    let (plan, read) = bincode::serde::decode_from_slice::<Plan, _>(body, limited)
        .map_err(|e| damaged(format!("does not decode: {e}")))?;
    if read != body.len() {
        return Err(damaged(format!("{} bytes after the plan", body.len() - read)));
    }
    if plan.steps.iter().any(|s| s.kernel as usize >= plan.kernels.len()) {
        return Err(damaged("a step names a kernel that is not listed".into()));
    }
    Ok(plan)
}
