//! How plans are encoded. The codec is named in this module alone.

use crate::{ArtifactError, Plan};
use std::path::Path;

/// Version of the container and of everything in it.
pub const FORMAT_VERSION: u32 = 11;

const MAGIC: [u8; 8] = *b"PRECAST\0";

/// The longest plan that is read. A length inside a damaged plan can ask for no more memory than
/// this; real plans take kilobytes.
const MOST_BYTES: usize = 64 << 20;

fn config() -> impl bincode::config::Config {
    bincode::config::standard()
        .with_little_endian()
        .with_fixed_int_encoding()
        .with_limit::<MOST_BYTES>()
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

/// Bytes of the file of `plan`.
pub fn plan_bytes(plan: &Plan) -> u64 {
    encode(plan).len() as u64
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
    let (plan, read) = bincode::serde::decode_from_slice::<Plan, _>(body, config())
        .map_err(|e| damaged(format!("does not decode: {e}")))?;
    if read != body.len() {
        return Err(damaged(format!("{} bytes after the plan", body.len() - read)));
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BufferRef, Chain, Element, Issue, Operator, Param, Phase, Placement, Port, Scalar, Space,
        Step, TensorParam, check_plan,
    };
    use proptest::prelude::*;
    use tensor::DType;

    fn sample() -> Plan {
        let at = BufferRef { space: Space::Arena, offset: 64, bytes: 16 };
        Plan {
            name: "decode-bs1-ctx16".into(),
            phase: Phase::Decode,
            rows: 1,
            context_tokens: 16,
            arena_bytes: 256,
            inputs: vec![Port { name: "token_ids".into(), dtype: DType::I32, dims: vec![1], at }],
            outputs: vec![],
            placements: vec![Placement { offset: 64, bytes: 64, first: 0, last: 1 }],
            kernels: vec!["copy_f32".into()],
            operators: vec![Operator {
                name: "Muls".into(),
                params: vec![
                    Param::Tensor(TensorParam::dense(0, DType::F32, &[4])),
                    Param::Scalar(Element::Of(DType::F32), 0.5),
                    Param::Absent,
                ],
            }],
            steps: vec![Step {
                kernel: 0,
                args: vec![at, at],
                scalars: vec![Scalar::Int(1), Scalar::Float(0.5)],
                issue: Issue { stream: 1, waits: vec![0], blocks: 8, operator: Some(0) },
            }],
            chains: vec![Chain {
                first: 0,
                steps: 1,
                rows: 1,
                private_bytes: 64,
                placements: vec![Placement { offset: 0, bytes: 64, first: 0, last: 0 }],
            }],
        }
    }

    /// Reads `body` as a plan and checks it when it is one.
    fn read(body: &[u8]) -> Result<Plan, ArtifactError> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(body);
        let plan = decode(Path::new("p.plan"), &bytes)?;
        // Whether it is refused depends on the mutation; it must not panic.
        let _ = check_plan(&plan);
        Ok(plan)
    }

    #[test]
    fn a_plan_survives_the_round_trip() {
        assert_eq!(decode(Path::new("p.plan"), &encode(&sample())).unwrap(), sample());
    }

    #[test]
    fn lengths_cannot_ask_for_more_than_the_limit() {
        for length in [MOST_BYTES as u64, 1 << 40, u64::MAX / 2, u64::MAX] {
            // The name comes first.
            let error = read(&length.to_le_bytes()).unwrap_err().to_string();
            assert!(error.contains("p.plan: does not decode: LimitExceeded"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn altered_plans_never_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            cut in any::<Option<prop::sample::Index>>(),
        ) {
            let mut body = encode(&sample()).split_off(MAGIC.len() + 4);
            for (at, value) in changes {
                *at.get_mut(&mut body) = value;
            }
            if let Some(cut) = cut {
                body.truncate(cut.index(body.len()));
            }
            let _ = read(&body);
        }

        #[test]
        fn absurd_numbers_never_panic(
            [offset, bytes, arena_bytes] in any::<[u64; 3]>(),
            [first, last, kernel] in any::<[u32; 3]>(),
            space in prop::sample::select(vec![
                Space::Arena,
                Space::Weights,
                Space::State,
                Space::Private,
            ]),
            extreme in prop::sample::select(vec![0, u64::MAX - 63, u64::MAX]),
        ) {
            let mut plan = sample();
            plan.arena_bytes = arena_bytes;
            plan.placements.push(Placement { offset, bytes, first, last });
            plan.placements.push(Placement { offset: extreme, bytes: extreme, first: last, last: first });
            plan.inputs[0].at = BufferRef { space, offset: extreme, bytes };
            plan.steps[0].args.push(BufferRef { space, offset, bytes: extreme });
            plan.steps[0].kernel = kernel;
            let placements = plan.placements.clone();
            let private_bytes = arena_bytes;
            plan.chains.push(Chain { first, steps: last, rows: kernel, private_bytes, placements });
            let _ = check_plan(&plan);
            prop_assert_eq!(decode(Path::new("p.plan"), &encode(&plan)).unwrap(), plan);
        }
    }
}
