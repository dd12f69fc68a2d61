//! `precast doctor`: what this machine has to serve on an Ascend NPU, and what that means.

use crate::{
    args::{DoctorArgs, DoctorDevice},
    device,
};
use codegen_ascend::{chip::CHIPS, device::Probe};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Looks, prints, and fails when nothing could be served.
pub(crate) fn doctor(args: &DoctorArgs) -> anyhow::Result<()> {
    let library = match (&args.library, args.device) {
        (Some(path), _) => Some(path.clone()),
        (None, DoctorDevice::AscendSim) => Some(device::simulator()?),
        (None, DoctorDevice::Ascend) => None,
    };
    let probe = Probe::run(library.as_deref(), args.device_id);
    let findings = findings(&probe);
    if args.json {
        println!("{:#}", as_json(&probe, &findings));
    } else {
        print!("{}", as_text(&probe, &findings));
    }
    match findings.iter().find(|f| f.fatal) {
        Some(finding) => anyhow::bail!("nothing can be served on this device: {}", finding.text),
        None => Ok(()),
    }
}

/// Something that matters, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    text: String,
    /// Nothing can be served.
    fatal: bool,
}

fn findings(probe: &Probe) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |fatal, text: String| findings.push(Finding { text, fatal });
    if let Some(failure) = &probe.failure {
        add(true, failure.clone());
    }
    if probe.files.iter().any(|f| f.failure.is_none()) && !probe.missing_operators.is_empty() {
        let names: Vec<String> = probe
            .missing_operators
            .iter()
            .map(|s| format!("{} (since {})", s.name, s.since.name()))
            .collect();
        add(
            false,
            format!(
                "{} of {} library operators are missing: {}; artifacts that call one of them cannot be \
                 served, install a newer operator package if yours do",
                names.len(),
                acl_operators(probe),
                names.join(", ")
            ),
        );
    }
    if let Some(device) = &probe.device {
        match device.chip {
            Some(chip) => {
                add(false, format!("compile for this device with `--target {}`", chip.target));
                let fewer = device.cube_cores.is_some_and(|n| n < i64::from(chip.cube_cores))
                    || device.vector_cores.is_some_and(|n| n < i64::from(chip.vector_cores));
                if fewer {
                    let text = "it has fewer cores than kernels are made for; a kernel whose cores \
                                wait for each other would never start";
                    add(true, text.to_owned());
                }
            }
            None => {
                let known: Vec<&str> = CHIPS.iter().map(|c| c.target).collect();
                let soc = &device.soc;
                add(
                    true,
                    format!("the chip `{soc}` cannot be compiled for; {} can", known.join(", ")),
                );
            }
        }
        if device.streams.is_some_and(|n| n < 64) {
            let text =
                "few streams are left on the device: stop other processes, or serve fewer sizes";
            add(false, text.to_owned());
        }
        if let Some((free, all)) = device.memory
            && free < all / 2
        {
            let text = "more than half of the device's memory is taken by other processes";
            add(false, text.to_owned());
        }
    }
    findings
}

fn acl_operators(probe: &Probe) -> usize {
    probe.operators + probe.missing_operators.len()
}

fn version(probe: &Probe) -> Option<String> {
    probe.version.map(|(major, minor, patch)| format!("{major}.{minor}.{patch}"))
}

fn as_text(probe: &Probe, findings: &[Finding]) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<18} {value}");
    };
    for file in &probe.files {
        let state = file.failure.as_deref().unwrap_or("found");
        line("library", format!("{}: {state}", file.file.display()));
    }
    if let (Some(version), Some(release)) = (version(probe), probe.release()) {
        line("interface", format!("{version} (toolkit {} or newer)", release.name()));
    }
    for (name, version) in &probe.packages {
        line("package", format!("{name} {version}"));
    }
    if let Some(devices) = probe.devices {
        line("devices", devices.to_string());
    }
    if let Some(device) = &probe.device {
        let known = device.chip.map_or("not known", |c| c.common_name);
        line("chip", format!("{} ({known})", device.soc));
        let count = |n: Option<i64>| n.map_or("unknown".to_owned(), |n| n.to_string());
        let cores = (count(device.cube_cores), count(device.vector_cores));
        line("cores", format!("{} cube, {} vector", cores.0, cores.1));
        if let Some((free, all)) = device.memory {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            line("memory", format!("{:.1} GiB free of {:.1} GiB", gib(free), gib(all)));
        }
        let left = |n: Option<u32>| n.map_or("unknown".to_owned(), |n| n.to_string());
        line("streams left", left(device.streams));
        line("events left", left(device.events));
    }
    line("operators", format!("{} of {}", probe.operators, acl_operators(probe)));
    if !probe.absent.is_empty() && probe.version.is_some() {
        let names: Vec<&str> = probe.absent.iter().map(|f| f.name()).collect();
        line("done without", names.join(", "));
    }
    for finding in findings {
        line(if finding.fatal { "FAILURE" } else { "note" }, finding.text.clone());
    }
    text
}

fn as_json(probe: &Probe, findings: &[Finding]) -> Value {
    let files: Vec<Value> = probe
        .files
        .iter()
        .map(|f| json!({ "file": f.file.display().to_string(), "failure": f.failure }))
        .collect();
    let names = |names: Vec<&str>| json!(names);
    let device = probe.device.as_ref().map(|d| {
        json!({
            "soc": d.soc,
            "target": d.chip.map(|c| c.target),
            "cube_cores": d.cube_cores,
            "vector_cores": d.vector_cores,
            "memory_free_bytes": d.memory.map(|m| m.0),
            "memory_bytes": d.memory.map(|m| m.1),
            "streams_left": d.streams,
            "events_left": d.events,
        })
    });
    let packages: serde_json::Map<String, Value> =
        probe.packages.iter().map(|(n, v)| ((*n).to_owned(), json!(v))).collect();
    let missing = probe.missing_operators.iter();
    let missing: Vec<Value> =
        missing.map(|s| json!({ "name": s.name, "since": s.since.name() })).collect();
    let findings: Vec<Value> =
        findings.iter().map(|f| json!({ "text": f.text, "fatal": f.fatal })).collect();
    json!({
        "libraries": files,
        "interface": version(probe),
        "release": probe.release().map(|r| r.name()),
        "packages": packages,
        "devices": probe.devices,
        "device": device,
        "operators": probe.operators,
        "missing_operators": missing,
        "missing_functions": names(probe.missing.iter().map(|f| f.name()).collect()),
        "absent_functions": names(probe.absent.iter().map(|f| f.name()).collect()),
        "findings": findings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use codegen_ascend::{chip::chip, device::FoundDevice};

    fn found(device: FoundDevice) -> Probe {
        let version = Some((1, 16, 0));
        Probe { version, devices: Some(1), device: Some(device), ..Probe::default() }
    }

    fn texts(probe: &Probe) -> Vec<String> {
        findings(probe).into_iter().map(|f| f.text).collect()
    }

    #[test]
    fn a_known_chip_has_its_target_named() {
        let chip = chip("ascend910_93");
        let device = FoundDevice { soc: "Ascend910_9391".into(), chip, ..FoundDevice::default() };
        let probe = found(device);
        assert_eq!(texts(&probe), ["compile for this device with `--target ascend910_93`"]);
        let text = as_text(&probe, &findings(&probe));
        assert!(text.contains("1.16.0 (toolkit 8.5 or newer)"), "{text}");
        assert_eq!(as_json(&probe, &findings(&probe))["device"]["target"], "ascend910_93");
    }

    #[test]
    fn what_makes_serving_impossible_is_fatal() {
        let unknown = found(FoundDevice { soc: "Ascend310P3".into(), ..FoundDevice::default() });
        assert!(findings(&unknown)[0].fatal);
        assert!(texts(&unknown)[0].contains("Ascend310P3"));
        let chip = chip("ascend910b");
        let small = FoundDevice {
            chip,
            cube_cores: Some(8),
            vector_cores: Some(16),
            ..FoundDevice::default()
        };
        assert!(findings(&found(small)).iter().any(|f| f.fatal && f.text.contains("fewer cores")));
        let nothing = Probe::run(Some(std::path::Path::new("/nowhere.so")), 0);
        let findings = findings(&nothing);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].fatal && findings[0].text.contains("set_env.sh"));
    }

    #[test]
    fn a_device_that_others_use_is_pointed_out() {
        let device = FoundDevice {
            chip: chip("ascend910b"),
            memory: Some((10, 100)),
            streams: Some(3),
            ..FoundDevice::default()
        };
        let texts = texts(&found(device)).join("\n");
        assert!(texts.contains("few streams") && texts.contains("more than half"), "{texts}");
    }
}
