//! Artifacts that a disk, a network or a person has damaged.

use cli::EngineArgs;
use precast_tests::{
    compile_here, contents,
    engine::{Output, request},
    fixture,
    random::Random,
};
use runtime::{EngineOptions, StepOutcome};
use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tempfile::TempDir;

const MUTATIONS: usize = 1000;
const BUILD: &str =
    "--graph-bs 1 4 --prefill-chunks 16 --max-context 64 --kv-blocks 16 --no-record";

/// Every file is damaged in many ways. The artifact is refused with the name of the file, or the damage
/// does not matter and it gives the same tokens.
#[test]
fn damaged_artifacts_are_refused_or_give_the_same_tokens() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("artifact");
    compile_here(&fixture("qwen2"), &root, BUILD);
    let files: Vec<(PathBuf, Vec<u8>)> = contents(&root).into_iter().collect();
    let manifest = files.iter().position(|(p, _)| p == Path::new("manifest.json")).unwrap();
    let expected = tokens(&root).unwrap();
    let mut random = Random::new(20);
    let (mut refused, mut harmless) = (BTreeMap::<&Path, usize>::new(), 0);
    let mut longest = Duration::ZERO;
    let mut i = 0;
    while i < MUTATIONS {
        // The manifest is where most is decided.
        let any = random.below(files.len());
        let (path, original) = &files[if random.below(3) == 0 { manifest } else { any }];
        let (what, damaged) = damage(&mut random, original);
        if damaged.as_ref() == Some(original) {
            continue;
        }
        i += 1;
        let full = root.join(path);
        match &damaged {
            Some(bytes) => fs::write(&full, bytes).unwrap(),
            None => fs::remove_file(&full).unwrap(),
        }
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| tokens(&root)));
        longest = longest.max(start.elapsed());
        let label = format!("mutation {i}, {} {what}", path.display());
        match result.unwrap_or_else(|_| panic!("{label}: a panic")) {
            Ok(same) => {
                assert_eq!(same, expected, "{label}: other tokens");
                harmless += 1;
            }
            Err(why) => {
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(why.contains(name), "{label}: {why}");
                *refused.entry(path).or_default() += 1;
            }
        }
        fs::write(&full, original).unwrap();
    }
    assert_eq!(tokens(&root).unwrap(), expected);
    println!("refused: {refused:#?}\nharmless: {harmless}\nlongest: {longest:.1?}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    assert_eq!(refused.values().sum::<usize>() + harmless, MUTATIONS);
    assert_eq!(refused.len(), files.len(), "every file is damaged at least once");
    assert_eq!(harmless, 0, "there is no file without a checksum");
}

/// What happens to a file: its bytes afterwards, or none when it is gone.
fn damage(random: &mut Random, original: &[u8]) -> (String, Option<Vec<u8>>) {
    let mut bytes = original.to_vec();
    let length = bytes.len();
    let at = random.below(length);
    let what = match random.below(10) {
        0 => {
            bytes.truncate(at);
            format!("cut to {at} bytes")
        }
        1 => {
            bytes.extend_from_slice(&original[at..(at + 100).min(length)]);
            "made longer".into()
        }
        2 => {
            let end = (at + random.within(1, 4096)).min(length);
            bytes[at..end].fill(0);
            format!("zeros at {at}..{end}")
        }
        3 => {
            let other = random.below(length);
            bytes.swap(at, other);
            format!("bytes {at} and {other} swapped")
        }
        4 if random.below(10) == 0 => return ("removed".into(), None),
        // A digit becomes another, which keeps JSON well-formed.
        4..7 => match bytes[at..].iter().position(u8::is_ascii_digit) {
            Some(digit) => {
                bytes[at + digit] = b'0' + random.below(10) as u8;
                format!("another digit at {}", at + digit)
            }
            None => {
                bytes.remove(at);
                format!("byte {at} lost")
            }
        },
        _ => {
            let bit = random.below(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} flipped")
        }
    };
    (what, Some(bytes))
}

/// Everything that `serve` reads, and some tokens.
fn tokens(root: &Path) -> Result<Vec<(u32, f32)>, String> {
    let artifact = artifact::Artifact::open(root).map_err(|e| e.to_string())?;
    server::Model::from_artifact(&artifact, None).map_err(|e| e.to_string())?;
    for file in &artifact.manifest().files {
        artifact.file(&file.path).map_err(|e| e.to_string())?;
    }
    let args = EngineArgs { threads: Some(1), ..EngineArgs::default() };
    let options = EngineOptions { check_weights: true, ..EngineOptions::default() };
    let mut engine =
        cli::load_engine(&artifact, &args, options, false).map_err(|e| format!("{e:#}"))?;
    let output = Output::default();
    engine.add(request(1, &[1, 2, 3, 4, 5], 6, &output)).map_err(|e| e.to_string())?;
    while engine.step().map_err(|e| e.to_string())? != StepOutcome::Idle {}
    Ok(output.tokens())
}
