//! Starting: from an artifact on disk, and refusing plans that the engine cannot drive.

mod support;

use artifact::{Artifact, Manifest, Phase, Plan, SequenceMemory, Space, WindowMemory, Writer};
use hal::{Call, RecordingDevice};
use precast_runtime::testing::FakeModel;
use precast_runtime::{Engine, EngineError, EngineOptions};
use std::{fs, path::PathBuf};
use support::{finish, request};
use tensor::DType;

/// A directory that is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("precast-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write(model: &FakeModel, dir: &Scratch) {
    let writer = Writer::create(&dir.0).expect("a temporary directory is writable");
    let mut manifest = model.manifest();
    for (entry, plan) in manifest.plans.iter_mut().zip(model.plans()) {
        entry.file = writer.plan(&plan).expect("a temporary directory is writable");
    }
    manifest.weights_file =
        writer.file("weights/weights.bin", &[7; 4096]).expect("a temporary directory is writable");
    writer.finish(&manifest).expect("a temporary directory is writable");
}

/// Weights of three pages each, tables and others.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn pages_of_weights_suit_what_is_read_of_them() {
    use artifact::WeightEntry;
    use tensor::Layout;
    if !fs::exists("/sys/kernel/mm/transparent_hugepage").expect("sysfs") {
        eprintln!("left out: this system has no huge pages");
        return;
    }
    const BYTES: u64 = 3 * 4096;
    // With the flag of its pages.
    let kinds = [
        (Layout::Panels, vec![48, 64], "hg"),
        (Layout::Nd, vec![48, 64], "nh"),
        (Layout::Nd, vec![3072], "hg"),
        (Layout::Compact, vec![64, 96], "hg"),
        (Layout::Nd, vec![64, 48], "nh"),
        (Layout::Panels, vec![48, 64], "hg"),
    ];
    let (model, dir) = (FakeModel::default(), Scratch::new("huge"));
    let writer = Writer::create(&dir.0).expect("a temporary directory is writable");
    let mut manifest = model.manifest();
    manifest.plans.clear();
    for (at, (layout, dims, _)) in (0..).zip(&kinds) {
        manifest.weights.push(WeightEntry {
            recipe: "w".into(),
            dtype: DType::F32,
            dims: dims.clone(),
            layout: *layout,
            offset: at * BYTES,
            bytes: BYTES,
            quantization_error: None,
        });
    }
    let zeros = vec![0; kinds.len() * BYTES as usize];
    manifest.weights_file = writer.file("weights/weights.bin", &zeros).unwrap();
    writer.finish(&manifest).unwrap();

    let artifact = Artifact::open(&dir.0).unwrap();
    let weights = artifact.map_weights().unwrap();
    artifact.check_weights(&weights).unwrap();
    for (at, (layout, dims, flag)) in kinds.iter().flat_map(|kind| [kind; 3]).enumerate() {
        let noted = |name| noted_at(weights.as_ptr().addr() + at * 4096, name);
        let (flags, held) = (noted("VmFlags:"), noted("Rss:"));
        assert!(flags.iter().any(|f| f == flag), "{layout:?} {dims:?}, page {at}: {flags:?}");
        assert_eq!(held[0] == "0", *flag == "nh", "{layout:?} {dims:?}, page {at}: {held:?}");
    }
}

/// What the system notes of the mapping that holds `address`: see proc_pid_smaps(5).
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn noted_at(address: usize, name: &str) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/smaps").expect("smaps");
    let at = |hex| usize::from_str_radix(hex, 16).expect("an address");
    let mut inside = false;
    for line in maps.lines() {
        let (first, rest) = line.split_once(' ').expect("words");
        if let Some((from, to)) = first.split_once('-') {
            inside = (at(from)..at(to)).contains(&address);
        } else if inside && first == name {
            return rest.split_whitespace().map(str::to_owned).collect();
        }
    }
    panic!("nothing is mapped there");
}

#[test]
fn an_artifact_is_loaded_timed_and_served() {
    let (model, dir) = (FakeModel::default(), Scratch::new("load"));
    write(&model, &dir);
    let artifact = Artifact::open(&dir.0).unwrap();
    let options = EngineOptions { check_weights: true, ..EngineOptions::default() };
    let mut engine = Engine::load(model.device(), &artifact, options).unwrap();
    let startup = engine.startup();
    let names: Vec<&str> = startup.bind.iter().map(|(name, _)| name.as_str()).collect();
    let plans = model.plans();
    assert_eq!(names, plans.iter().map(|p| p.name.as_str()).collect::<Vec<_>>());
    let parts = startup.map_ms + startup.load_ms + startup.check_ms.unwrap();
    assert!(startup.total_ms >= parts, "{startup:?}");

    let (one, collected) = request(0, &[1, 2, 3], 9);
    engine.add(one).unwrap();
    finish(&mut engine);
    assert_eq!(collected.tokens(), model.greedy(&[1, 2, 3], 9));
}

#[test]
fn altered_weights_are_found_only_when_asked_for() {
    let (model, dir) = (FakeModel::default(), Scratch::new("altered"));
    write(&model, &dir);
    fs::write(dir.0.join("weights/weights.bin"), [8; 4096]).unwrap();
    let artifact = Artifact::open(&dir.0).unwrap();
    let load = |check_weights| {
        let options = EngineOptions { check_weights, ..EngineOptions::default() };
        Engine::load(model.device(), &artifact, options).map(|engine| engine.startup().check_ms)
    };
    assert!(load(false).unwrap().is_none());
    let message = load(true).unwrap_err().to_string();
    assert!(message.contains("weights.bin: was altered"), "{message}");
}

fn refused(change: impl FnOnce(&mut Manifest, &mut Vec<Plan>)) -> String {
    let model = FakeModel::default();
    let (mut manifest, mut plans) = (model.manifest(), model.plans());
    change(&mut manifest, &mut plans);
    match Engine::from_parts(model.device(), &manifest, &plans, EngineOptions::default()) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn plans_that_cannot_be_driven_are_refused_with_the_reason() {
    let expect = |message: String, part: &str| assert!(message.contains(part), "{message}");
    for phase in [Phase::Decode, Phase::Prefill, Phase::Head] {
        let message = refused(|_, plans| plans.retain(|p| p.phase != phase));
        expect(message, &format!("the artifact has no {phase} plan"));
    }
    expect(
        refused(|_, plans| plans[0].inputs.retain(|p| p.name != "slots")),
        "plan `decode-bs1-ctx64`: it has no port `slots`",
    );
    let head = |change: &dyn Fn(&mut Plan)| {
        refused(|_, plans| change(plans.iter_mut().find(|p| p.phase == Phase::Head).unwrap()))
    };
    expect(
        head(&|p| p.inputs.retain(|p| p.name != "positions")),
        "plan `head-bs1`: it has no port `positions`",
    );
    expect(
        head(&|p| p.context_tokens = 0),
        "plan `head-bs1`: its port `positions` is not one that this version writes",
    );
    expect(
        head(&|p| {
            p.context_tokens = 64;
            let table = p.inputs.iter_mut().find(|p| p.name == "block_table").unwrap();
            table.dims = vec![1, 64 / 8];
        }),
        "plan `head-bs1`: its context is shorter than the 256 of prefill",
    );
    let window = WindowMemory { tokens: 8, blocks: 9, bytes_per_block: 64 };
    let sequences = SequenceMemory { slots: 4, bytes_per_slot: 8 };
    expect(
        refused(|manifest, _| manifest.window = Some(window)),
        "plan `decode-bs1-ctx64`: it has no port `window_slots`",
    );
    expect(
        refused(|manifest, _| manifest.sequences = Some(sequences)),
        "plan `decode-bs1-ctx64`: it has no port `sequences`",
    );
    expect(
        refused(|_, plans| plans[0].inputs[2].name = "speed".into()),
        "plan `decode-bs1-ctx64`: it has no port `slots`",
    );
    let added = |name: &str| {
        refused(|_, plans| {
            let mut port = plans[0].inputs[2].clone();
            port.name = name.into();
            plans[0].inputs.push(port);
        })
    };
    expect(added("window_table"), "port `window_table` needs a `window` in the manifest");
    expect(added("sequences"), "port `sequences` needs a `sequences` in the manifest");
    expect(added("speed"), "its port `speed` is not one that this version writes");
    expect(
        refused(|_, plans| plans[0].inputs[0].dtype = DType::I64),
        "port `token_ids` is i64[1], expected i32[1]",
    );
    expect(
        refused(|_, plans| plans[0].outputs[0].dims = vec![1, 255]),
        "port `logits` is f32[1, 255], expected f32[1, 256]",
    );
    expect(
        refused(|_, plans| plans[1].inputs[3].at.offset = 1 << 40),
        "plan `decode-bs2-ctx64`: port `block_table` does not lie in the arena",
    );
    expect(
        refused(|_, plans| {
            let state = plans[0].steps[0].args.iter_mut().find(|a| a.space == Space::State);
            state.unwrap().offset += 1 << 40;
        }),
        "a call reads or writes outside State",
    );
    expect(
        refused(|_, plans| plans.push(plans[0].clone())),
        "another plan has the same phase, rows and context",
    );
    expect(
        refused(|_, plans| plans[0].kernels[0] = "nothing".into()),
        "binding plan `decode-bs1-ctx64`: fake has no kernel `nothing`",
    );
    expect(refused(|manifest, _| manifest.kv.blocks = 0), "`kv.blocks` is 0");
    expect(refused(|manifest, _| manifest.kv.blocks = 1 << 30), "`kv.blocks` is 1073741824");
    let memory = |tokens, window_blocks, sequence_slots| {
        let model = FakeModel {
            sliding_window: Some(tokens),
            window_blocks: Some(window_blocks),
            sequence_slots: Some(sequence_slots),
            ..FakeModel::default()
        };
        // The device is not asked for any of it.
        let (device, plans) = (RecordingDevice::default(), model.plans());
        let options = EngineOptions::default();
        match Engine::from_parts(device, &model.manifest(), &plans, options) {
            Ok(_) => panic!("accepted"),
            Err(error) => error.to_string(),
        }
    };
    expect(memory(9, 3, 4), "`window.blocks` is 3, but must be enough for the window");
    expect(memory(9, 1 << 30, 4), "`window.blocks` is 1073741824");
    expect(memory(9, 40, 0), "`sequences.slots` is 0");
    expect(memory(9, 40, u32::MAX), "`sequences.slots` is 4294967295");
    expect(memory(0, 40, 4), "`window.tokens` is 0");
    expect(refused(|manifest, _| manifest.max_running_requests = 0), "`max_running_requests` is 0");
}

#[test]
fn a_replay_sees_padding_rows_that_name_the_spare_block() {
    let model = FakeModel {
        decode_rows: vec![4],
        blocks: 50,
        sliding_window: Some(3),
        window_blocks: Some(40),
        sequence_slots: Some(6),
        ..FakeModel::default()
    };
    let mut device = RecordingDevice::default();
    // Every row's most probable token is 5.
    device.answer = Some(Box::new(|_, out, _| {
        out.copy_from_slice(&5i32.to_le_bytes().repeat(out.len() / 4));
    }));
    let (manifest, plans) = (model.manifest(), model.plans());
    let mut engine =
        Engine::from_parts(device, &manifest, &plans, EngineOptions::default()).unwrap();
    let (one, collected) = request(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9], 3);
    engine.add(one).unwrap();
    while engine.step().unwrap() != precast_runtime::StepOutcome::Idle {}
    assert_eq!(collected.tokens(), [5, 5, 5]);

    let ints = |bytes: &[u8]| {
        let (values, _) = bytes.as_chunks::<4>();
        values.iter().map(|v| i32::from_le_bytes(*v)).collect::<Vec<_>>()
    };
    let device = engine.into_device();
    let last = device.calls.iter().rposition(|c| matches!(c, Call::Replay(0))).unwrap();
    let decode = plans.iter().find(|p| p.phase == Phase::Decode).unwrap();
    let written = |name: &str| {
        let at = decode.input(name).unwrap().at;
        let write = device.calls[..last].iter().rev().find_map(|call| match call {
            Call::Write(to, bytes) if *to == at => Some(ints(bytes)),
            _ => None,
        });
        write.expect("every input is written")
    };
    // The last decode step feeds the second 5, at position 10 in the second block.
    assert_eq!(written("token_ids"), [5, 0, 0, 0]);
    assert_eq!(written("positions"), [10, 0, 0, 0]);
    assert_eq!(written("slots"), [8 + 2, 50 * 8, 50 * 8, 50 * 8]);
    let mut table = [50; 4 * 8];
    (table[0], table[1]) = (0, 1);
    assert_eq!(written("block_table"), table);
    // It sees places 8 to 10, so the first block of the window went back.
    assert_eq!(written("window_slots"), [8 + 2, 40 * 8, 40 * 8, 40 * 8]);
    let mut window_table = [40; 4 * 8];
    window_table[1] = 1;
    assert_eq!(written("window_table"), window_table);
    assert_eq!(written("sequences"), [0, 6, 6, 6]);
}

#[test]
fn an_unfit_option_is_named() {
    let model = FakeModel::default();
    let options = EngineOptions { max_running_requests: Some(0), ..EngineOptions::default() };
    let result = Engine::from_parts(model.device(), &model.manifest(), &model.plans(), options);
    assert!(matches!(result, Err(EngineError::Range { field: "max_running_requests", .. })));
}
