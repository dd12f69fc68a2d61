use super::{
    flags::{ROUTER, SERVER},
    script, shell,
    shell::Word,
    table::{Arity, Verdict},
    translate::{Note, Translation},
    translated,
    variables::VARIABLES,
};
use std::ffi::OsString;

const RECIPES: &str = include_str!("../../tests/data/launch_lines.sh");

fn one(line: &str) -> Translation {
    let (_, mut all) = translated(line, None);
    assert_eq!(all.len(), 1, "{line}");
    all.remove(0)
}

/// Our command lines, joined.
fn commands(t: &Translation) -> [String; 2] {
    let joined =
        |words: &Vec<Word>| words.iter().map(|w| w.text.as_str()).collect::<Vec<_>>().join(" ");
    [joined(&t.commands[0]), joined(&t.commands[1])]
}

fn note<'a>(t: &'a Translation, name: &str) -> &'a Note {
    let found = t.notes.iter().find(|n| n.name == name);
    found.unwrap_or_else(|| panic!("{name} in {:?}", t.notes))
}

/// Refuses a command line that our own parser refuses. Variables stand for a number.
fn check_parses(t: &Translation) {
    for words in &t.commands {
        let text = |w: &Word| if w.expands() { "3".to_owned() } else { w.text.clone() };
        let words = words.iter().map(|w| OsString::from(text(w)));
        let parsed = crate::parse([OsString::from("precast")].into_iter().chain(words));
        assert!(parsed.is_ok(), "{}: {:?}", parsed.unwrap_err(), commands(t));
    }
}

fn values(command: &str, flag: &str) -> Vec<String> {
    let words = command.split(' ').skip_while(|w| *w != flag).skip(1);
    words.take_while(|w| !w.starts_with("--")).map(str::to_owned).collect()
}

#[test]
fn every_published_line_is_translated() {
    let ranks: Vec<&str> =
        RECIPES.lines().filter_map(|l| l.trim().strip_prefix("# rank: ")).collect();
    let (script, all) = translated(RECIPES, None);
    let servers: Vec<_> =
        all.iter().zip(&script.launches).filter(|(t, _)| t.role != "router").collect();
    assert_eq!((servers.len(), ranks.len(), all.len()), (36, 36, 43));
    for ((t, launch), rank) in servers.into_iter().zip(ranks) {
        check_parses(t);
        let [compile, serve] = commands(t);
        assert_eq!(values(&compile, "--max-running-requests"), [rank], "{compile}");
        assert_eq!(values(&compile, "--target"), ["ascend910_93"]);
        let given = |flag: &str| {
            let words = launch.arguments.iter().skip_while(|w| w.text != flag).skip(1);
            words
                .take_while(|w| !w.text.starts_with('-'))
                .map(|w| w.text.clone())
                .collect::<Vec<_>>()
        };
        match (t.role, &given("--cuda-graph-bs")[..]) {
            ("prefill", _) => assert_eq!(values(&compile, "--graph-bs"), [rank]),
            (_, []) => assert_eq!(values(&compile, "--graph-bs"), ["auto"]),
            (_, list) => assert_eq!(values(&compile, "--graph-bs"), list),
        }
        assert_eq!(values(&compile, "--mem-fraction"), given("--mem-fraction-static"));
        assert_eq!(values(&serve, "--port"), given("--port"));
        assert_eq!(values(&serve, "--host"), given("--host"));
        assert!(compile.ends_with(|c: char| c.is_ascii_alphanumeric()), "{compile}");
        // Every word of the line is spoken of, and every variable.
        let flags = launch.arguments.iter().filter(|w| w.text.starts_with("--")).count();
        let noted = |kind: &str| t.notes.iter().filter(|n| n.kind == kind).count();
        assert_eq!(noted("flag"), flags);
        assert_eq!(noted("variable"), launch.environment.len());
        let unknown: Vec<&str> = t
            .notes
            .iter()
            .filter(|n| n.verdict == Verdict::Unknown)
            .map(|n| &n.written[..])
            .collect();
        let slip = launch.arguments.iter().any(|w| w.text.ends_with("quantization="));
        assert_eq!(unknown, if slip { vec!["unquant"] } else { vec![] });
        assert!(t.notes.iter().all(|n| !n.note.is_empty() || n.verdict == Verdict::TakenOver));
    }
    for t in all.iter().filter(|t| t.role == "router") {
        assert!(t.commands.is_empty());
        assert_eq!(t.notes.iter().filter(|n| n.name == "--prefill").count(), 2);
        assert!(t.notes.iter().all(|n| n.verdict != Verdict::Unknown), "{:?}", t.notes);
    }
    let dead = |name: &str| {
        all.iter()
            .flat_map(|t| &t.notes)
            .any(|n| n.name == name && n.verdict == Verdict::IgnoredBySglang)
    };
    for name in
        ["ENABLE_MOE_NZ", "DISABLE_EAGLE3_QUANT", "SGLANG_DP_ROUND_ROBIN", "SGLANG_USE_FIA_NZ"]
    {
        assert!(dead(name), "{name}");
    }
}

#[test]
fn what_is_per_rank_is_divided() {
    let line = "python -m sglang.launch_server --model-path /m/x --tp 16 --dp 4 --device npu --max-run 144 \
                --cuda-graph-bs 6 8 40 --chunked-prefill-size 32768";
    let t = one(line);
    let [compile, _] = commands(&t);
    assert_eq!(values(&compile, "--max-running-requests"), ["144"], "replicas are not divided for");
    let t = one(&format!("{line} --enable-dp-attention"));
    let [compile, serve] = commands(&t);
    assert_eq!(values(&compile, "--max-running-requests"), ["36"]);
    assert_eq!(values(&compile, "--graph-bs"), ["6", "8", "40"]);
    assert_eq!(values(&compile, "--prefill-chunks"), ["16", "64", "256", "1024", "4096", "8192"]);
    assert!(serve.starts_with("serve artifacts/x "), "{serve}");
    assert_eq!(values(&serve, "--chunked-prefill-size"), ["8192"]);
    check_parses(&t);
    let list = &note(&t, "--cuda-graph-bs").note;
    for part in ["SGLang drops 6, no", "40 can never fill with 36", "compile adds 36"] {
        assert!(list.contains(part), "{part}: {list}");
    }
    let t = one(
        "python -m sglang.launch_server --model m --dp ${DP} --enable-dp-attention --max-running-requests 32",
    );
    let [compile, _] = commands(&t);
    assert!(compile.contains("--max-running-requests $((32 / DP))"), "{compile}");
    check_parses(&t);
    let alone = one("sglang serve --model m --dp 1 --enable-dp-attention");
    assert_eq!(note(&alone, "--enable-dp-attention").verdict, Verdict::IgnoredBySglang);
}

#[test]
fn values_decide_what_is_said() {
    let verdict = |flags: &str, name: &str| {
        let t = one(&format!("sglang serve --model-path m {flags}"));
        check_parses(&t);
        note(&t, name).verdict
    };
    assert_eq!(verdict("--tp 1", "--tp-size"), Verdict::NotNeeded);
    assert_eq!(verdict("--tp 2", "--tp-size"), Verdict::NotSupportedYet);
    assert_eq!(verdict("--tp-size=1", "--tp-size"), Verdict::NotNeeded);
    assert_eq!(verdict("--device cuda", "--device"), Verdict::NotSupportedYet);
    assert_eq!(verdict("--device cpu", "--device"), Verdict::TakenOver);
    assert_eq!(verdict("--dtype float16", "--dtype"), Verdict::NotSupportedYet);
    assert_eq!(verdict("--dtype bfloat1", "--dtype"), Verdict::Unknown);
    assert_eq!(verdict("--quantization modelslim", "--quantization"), Verdict::NotNeeded);
    assert_eq!(verdict("--chunked-prefill-size -1", "--chunked-prefill-size"), Verdict::NotNeeded);
    assert_eq!(verdict("--chunked-prefill-size 100", "--chunked-prefill-size"), Verdict::TakenOver);
    assert_eq!(
        verdict("--speculative-num-steps 3", "--speculative-num-steps"),
        Verdict::IgnoredBySglang
    );
    assert_eq!(verdict("--port 99999", "--port"), Verdict::NotSupportedYet);
    assert_eq!(verdict("--watchdog-time 9", "--watchdog-timeout"), Verdict::TakenOver);
    assert_eq!(verdict("--base-gpu-id 4", "--base-gpu-id"), Verdict::NotNeeded);
    assert_eq!(verdict("--device npu --base-gpu-id 4", "--base-gpu-id"), Verdict::TakenOver);
    assert_eq!(verdict("--max_running_requests 4", "--max_running_requests"), Verdict::Unknown);
    let twice = one("sglang serve --model a --port 1 --port 2");
    assert!(commands(&twice)[1].contains("--port 2") && !commands(&twice)[1].contains("--port 1"));
    let padded = one("sglang serve --model a --disable-cuda-graph-padding --cuda-graph-max-bs 3");
    assert_eq!(values(&commands(&padded)[0], "--graph-bs"), ["1", "2", "3"]);
}

/// What the tables send a flag to is a flag of ours.
#[test]
fn our_flags_exist() {
    for flag in SERVER.iter().filter(|f| f.verdict == Verdict::TakenOver) {
        let ours = flag.ours.split(' ').next().unwrap();
        assert!(super::ours::command_of(ours).is_some(), "{ours}");
    }
    for flag in SERVER.iter().chain(ROUTER) {
        assert_eq!(flag.verdict == Verdict::TakenOver, !flag.ours.is_empty(), "{flag:?}");
        assert!(!flag.note.contains("--") || flag.arity != Arity::Each || flag.ours.is_empty());
    }
    let mut names: Vec<&str> = VARIABLES.iter().map(|v| v.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|w| w[0] != w[1]), "{names:?}");
}

#[test]
fn what_is_not_taken_over_has_a_reason() {
    for flag in SERVER.iter().chain(ROUTER).filter(|f| f.verdict != Verdict::TakenOver) {
        assert!(flag.note.len() > 5, "{}: {:?}", flag.names[0], flag.note);
    }
    for variable in VARIABLES.iter().filter(|v| v.verdict != Verdict::TakenOver) {
        assert!(variable.note.len() > 5, "{}: {:?}", variable.name, variable.note);
    }
}

#[test]
fn printed_commands_read_as_they_were_meant() {
    let (script, all) = translated(
        "python -m sglang.launch_server --model-path \"$M\" --api-key 'a b'",
        Some("ascend910b"),
    );
    let text = super::show::text(&script, &all);
    let words: Vec<Vec<String>> = shell::commands(&text)
        .into_iter()
        .map(|c| c.into_iter().skip(1).map(|w| w.text).collect())
        .collect();
    let meant: Vec<Vec<String>> =
        all[0].commands.iter().map(|c| c.iter().map(|w| w.text.clone()).collect()).collect();
    assert_eq!(words, meant, "{text}");
    assert!(text.contains("--model \"$M\"") && text.contains("--api-key 'a b'"), "{text}");
    assert!(text.contains("--target ascend910b"), "{text}");
    let json = super::show::json(&script, &all);
    assert_eq!(json["launches"][0]["commands"][0]["argv"][0], "precast");
    assert_eq!(json["launches"][0]["notes"][0]["verdict"], "taken_over");
    let (script, all) = translated(RECIPES, None);
    let text = super::show::text(&script, &all);
    assert!(
        text.contains("other commands of the script")
            && text.contains("sysctl -w vm.swappiness=0: as")
    );
    let again = script::read(&text);
    assert!(again.launches.is_empty(), "what is printed is ours alone");
}
