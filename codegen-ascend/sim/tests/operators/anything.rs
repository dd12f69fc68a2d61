//! Calls at random: whatever is passed, a call is refused with a documented code or does its work,
//! and never writes beside its tensors, whose memory is guarded.

use crate::support::*;
use acl::{Kind, Value};
use std::panic::{AssertUnwindSafe, catch_unwind};

const ELEMENTS: [Element; 10] = [F32, F16, BF16, I8, I4, I32, I64, U64, Bool, BF16];
const SIZES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 33];

/// What most tensors of a call have in common, so that they often fit each other.
struct Common<'a> {
    sizes: &'a [usize],
    rank: usize,
    element: Element,
}

impl<'a> Common<'a> {
    fn new(rng: &mut Rng) -> Self {
        Self {
            sizes: &SIZES[..1 + rng.below(8) as usize / 2],
            rank: 1 + rng.below(3) as usize,
            element: ELEMENTS[rng.below(10) as usize],
        }
    }
}

fn tensor(rng: &mut Rng, &Common { sizes, rank, element }: &Common<'_>) -> Tensor {
    let rank = if rng.below(5) == 0 { 1 + rng.below(4) as usize } else { rank };
    let dims: Vec<usize> =
        (0..rank).map(|_| sizes[rng.below(sizes.len() as u64) as usize]).collect();
    let element = if rng.below(5) == 0 { ELEMENTS[rng.below(10) as usize] } else { element };
    let values = rng.codes(dims.iter().product(), 3);
    match rng.below(8) {
        0 if rank >= 2 && !matches!(element, I64 | U64 | Bool) => {
            Tensor::nz(element, &dims, rng.below(2) == 0, &values)
        }
        1 if rank >= 2 => Tensor::transposed(element, &dims, &values),
        _ => Tensor::new(element, &dims, &values),
    }
}

fn value(rng: &mut Rng, kind: Kind, kept: &mut Vec<Tensor>, common: &Common<'_>) -> Value {
    if kind.is_optional() && rng.below(2) == 0 {
        return NONE;
    }
    const TEXTS: [&std::ffi::CStr; 6] =
        [c"TND", c"PA_BSND", c"dynamic", c"static", c"round", c"sum"];
    match kind {
        Kind::tensor | Kind::optional_tensor => {
            kept.push(tensor(rng, common));
            kept[kept.len() - 1].value()
        }
        Kind::tensors | Kind::optional_tensors => {
            let parts: Vec<Tensor> = (0..1 + rng.below(2)).map(|_| tensor(rng, common)).collect();
            let value = lists(&parts.iter().collect::<Vec<_>>());
            kept.extend(parts);
            value
        }
        Kind::optional_ints => {
            let numbers: Vec<i64> = (0..rng.below(4)).map(|_| rng.below(4) as i64 - 1).collect();
            ints(&numbers)
        }
        Kind::scalar => scalar(rng.real() as f32),
        Kind::optional_text => Value::Text(TEXTS[rng.below(6) as usize].as_ptr()),
        Kind::i64 | Kind::i8 => {
            let numbers = [-1, 0, 0, 0, 1, 1, 2, 3, 4, 8, 32];
            Value::Int(numbers[rng.below(numbers.len() as u64) as usize])
        }
        Kind::f64 => Value::Float(rng.real()),
        Kind::bool => Value::Bool(rng.below(2) == 0),
        Kind::dtype => Value::Type(ELEMENTS[rng.below(10) as usize].code()),
    }
}

#[test]
fn calls_at_random_are_done_or_refused() {
    const DOCUMENTED: [i32; 4] = [161001, 161002, 561002, 507015];
    let (mut done, mut failures) = (0, Vec::new());
    for (i, signature) in acl::OPERATORS.iter().enumerate() {
        for round in 0..240 {
            let mut rng = Rng::new((i * 1000 + round + 1) as u64);
            let mut kept = Vec::new();
            let common = Common::new(&mut rng);
            let values: Vec<Value> = signature
                .params
                .iter()
                .map(|p| value(&mut rng, p.kind, &mut kept, &common))
                .collect();
            match call(signature.name, &values) {
                Ok(()) => done += 1,
                Err((code, message)) => {
                    if !DOCUMENTED.contains(&code) || message.contains("defect") {
                        failures.push(format!("{} {round}: {code}: {message}", signature.name));
                    }
                }
            }
            // Freeing looks at the guards around the memory.
            if catch_unwind(AssertUnwindSafe(|| drop(kept))).is_err() {
                failures.push(format!("{} {round} wrote beside a tensor", signature.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(done >= 50, "only {done} calls were taken");
}
