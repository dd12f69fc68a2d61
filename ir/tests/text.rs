//! Properties of the text form: printing and parsing are inverse, and no text makes the parser
//! panic.

use precast_ir::{DType, Dim, Func, Layout, Op, TensorType, ValueId, op::Dims, text};
use proptest::prelude::*;
use std::{fs, path::Path};

/// Every file test of the repository.
fn corpus() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/filetests");
    let mut texts = Vec::new();
    for folder in fs::read_dir(root).expect("the file tests") {
        let Ok(entries) = fs::read_dir(folder.expect("a folder").path()) else { continue };
        for entry in entries {
            let path = entry.expect("a file").path();
            if path.extension().is_some_and(|e| e == "ir") {
                texts.extend(
                    fs::read_to_string(path).expect("UTF-8").split("; ====").map(str::to_owned),
                );
            }
        }
    }
    texts
}

/// A function of random ops: each step names an op and picks operands, and is left out when the
/// operands break its typing rule.
fn random_func(steps: &[(u8, usize, usize, usize)]) -> Func {
    let mut func = Func::new("random");
    let dims = |d: &[&str]| format!("[{}]", d.join(",")).parse::<Dims>().expect("dimensions").0;
    let mut values = vec![
        func.param("x", TensorType::new(DType::F32, dims(&["T", "4"]))),
        func.param("p", TensorType::new(DType::I32, dims(&["T"]))),
        func.param("heads", TensorType::new(DType::F32, dims(&["T", "2", "4"]))),
    ];
    values.push(func.weight("w", TensorType::new(DType::F32, dims(&["4", "4"]))));
    values.push(func.weight("x", TensorType::new(DType::F32, dims(&["4"]))));
    values.push(func.weight("h", TensorType::new(DType::BF16, dims(&["4", "4"]))));
    let mut state = func.param("s", TensorType::state(DType::F32, dims(&["R", "4"])));
    for &(which, a, b, c) in steps {
        let pick = |i: usize| values[i % values.len()];
        let (a, b, c) = (pick(a), pick(b), pick(c));
        let (op, args) = step(which, a, b, c, state);
        let writes = !op.writes().is_empty();
        let Ok(node) = func.append(op, &args, if which % 2 == 0 { "" } else { "v" }) else {
            continue;
        };
        let outs = func.nodes[node].outs.clone();
        if writes {
            state = outs[0];
        } else {
            values.extend(outs);
        }
    }
    let last = *values.last().expect("parameters");
    func.set_results(vec![last, state]);
    func
}

fn step(which: u8, a: ValueId, b: ValueId, c: ValueId, state: ValueId) -> (Op, Vec<ValueId>) {
    let out = if which < 128 { DType::F32 } else { DType::BF16 };
    let eps = f32::from(which) / 7.0;
    match which % 16 {
        0 => (Op::Add {}, vec![a, b]),
        1 => (Op::Silu {}, vec![a]),
        2 => (Op::Cast { to: out }, vec![a]),
        3 => (Op::Matmul { out }, vec![a, b]),
        4 => (Op::RmsNorm { eps, out }, vec![a, b]),
        5 => (Op::AddRmsNorm { eps, out }, vec![a, b, c]),
        6 => (Op::SiluMulPairs { block: 2, out }, vec![a]),
        7 => (Op::StoreRows {}, vec![state, a]),
        8 => (Op::Concat { axis: 1 }, vec![a, b]),
        9 => (Op::Slice { axis: 1, start: 1, len: 2 }, vec![a]),
        10 => (Op::Reshape { dims: Dims(vec![Dim::sym("T"), 2.into(), 2.into()]) }, vec![a]),
        11 => (Op::Rotary { interleaved: which < 128 }, vec![a, b]),
        12 => {
            let spec = format!("rope(theta={},dim=4,linear={eps})", f32::from(which) * 1e4);
            (Op::RopeTable { spec: spec.parse().expect("a specification") }, vec![a])
        }
        13 => (Op::Relayout { layout: Layout::Panels }, vec![a]),
        14 => (Op::AllReduce { group: "tp".to_owned() }, vec![a]),
        _ => (Op::AddBias {}, vec![a, b]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_printed_parses_to_the_same(
        steps in prop::collection::vec(any::<(u8, usize, usize, usize)>(), 0..40),
    ) {
        let func = random_func(&steps);
        let printed = text::print(&func);
        let module = text::parse("random.ir", &printed).map_err(|e| {
            TestCaseError::fail(format!("{e}\n{printed}"))
        })?;
        prop_assert_eq!(text::print_module(&module), printed);
        prop_assert_eq!(module.funcs[0].verify(), func.verify());
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[ -~\n]{0,200}|\\PC{0,60}") {
        let _ = text::parse("noise.ir", &text);
    }

    #[test]
    fn mutated_programs_parse_or_fail_with_a_place(
        which in any::<usize>(),
        edits in prop::collection::vec((any::<usize>(), any::<usize>(), 0..4u8, "\\PC|[%@{}\\[\\]():;,=0-9\n]"), 1..6),
    ) {
        let corpus = corpus();
        let mut text: Vec<char> = corpus[which % corpus.len()].chars().collect();
        for (at, other, kind, insert) in edits {
            let len = text.len().max(1);
            let (at, other) = ((at % len).min(text.len()), (other % len).min(text.len()));
            let (low, high) = (at.min(other), at.max(other));
            match kind {
                0 => text.splice(at..at, insert.chars()).for_each(drop),
                1 => text.drain(low..high.min(low + 8)).for_each(drop),
                2 => {
                    let copy: Vec<char> = text[low..high.min(low + 40)].to_vec();
                    text.splice(at..at, copy).for_each(drop);
                }
                _ => text.truncate(high),
            }
        }
        let text: String = text.into_iter().collect();
        match text::parse("mutated.ir", &text) {
            Ok(module) => {
                let printed = text::print_module(&module);
                let again = text::parse("printed.ir", &printed).map_err(|e| {
                    TestCaseError::fail(format!("{e}\n{printed}"))
                })?;
                prop_assert_eq!(text::print_module(&again), printed);
            }
            Err(e) => {
                prop_assert!((1..=text.lines().count() + 1).contains(&e.line), "{e}");
                prop_assert!(e.column >= 1);
            }
        }
    }
}

/// `tests/filetests/ops` holds functions that verify, as the printer writes them below their first
/// line, which says what they are.
#[test]
fn op_files_verify_and_print_as_they_are() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/filetests/ops");
    let mut files = 0;
    for entry in fs::read_dir(folder).expect("the op files") {
        let path = entry.expect("a file").path();
        let text = fs::read_to_string(&path).expect("UTF-8");
        let module = text::parse(&path.to_string_lossy(), &text).unwrap_or_else(|e| panic!("{e}"));
        for func in &module.funcs {
            func.verify().unwrap_or_else(|e| panic!("{}: {e:?}", path.display()));
        }
        let body = text.split_once('\n').map(|(_, rest)| rest);
        assert_eq!(Some(text::print_module(&module).as_str()), body, "{}", path.display());
        files += 1;
    }
    assert!(files >= 5);
}

/// Every mnemonic occurs in the corpus, so that the properties above reach every op.
#[test]
fn the_corpus_has_every_op() {
    let corpus = corpus().concat();
    let missing: Vec<&&str> =
        Op::MNEMONICS.iter().filter(|m| !corpus.contains(&format!("= {m} "))).collect();
    assert!(missing.is_empty(), "no file test has {missing:?}");
}
