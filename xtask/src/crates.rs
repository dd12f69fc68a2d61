//! Which crate may know which. A new edge is a design change: it gets its own commit and a reason.

/// Each crate, what it is for, and the workspace crates it may name. `cli`, `tests` and `benches`
/// may name all.
pub(crate) const ALLOWED: &[(&str, &str, &[&str])] = &[
    ("tensor", "element types, layouts, mapped files", &[]),
    ("ir", "the tensor IR: ops, types, text form, verifier, interpreter", &["tensor"]),
    ("passes", "IR to IR: canonicalise, fuse, assign layouts, specialise", &["ir", "tensor"]),
    ("artifact", "plans as data, the container on disk, its checks", &["tensor"]),
    ("hal", "what a device offers: memory, capture, replay", &["artifact", "tensor"]),
    (
        "compiler",
        "buckets, placement, weight packing, plans",
        &["artifact", "ir", "passes", "tensor"],
    ),
    (
        "codegen-cpu",
        "the CPU as target (lowering) and device (kernels, threads, replay)",
        &["artifact", "compiler", "hal", "ir", "passes", "tensor"],
    ),
    ("acl", "the Ascend interface as declarations: runtime functions, library operators", &[]),
    (
        "codegen-ascend",
        "Ascend NPUs as target (lowering, kernels) and device (loader, capture, replay)",
        &["acl", "artifact", "compiler", "hal", "ir", "passes", "tensor"],
    ),
    ("ascend-sim", "a software device with the symbols of the Ascend runtime", &["acl", "tensor"]),
    ("models", "checkpoint to IR and weight bytes", &["ir", "tensor"]),
    (
        "runtime",
        "scheduler, memory of sequences, sampler, the replay loop",
        &["artifact", "hal", "tensor"],
    ),
    ("server", "HTTP, tokenizer, chat templates, streaming, metrics", &["artifact", "runtime"]),
    ("loadgen", "requests at a rate, what became of them, the field's table", &[]),
    ("xtask", "repository chores, this table among them", &[]),
];

/// The table as it stands in `docs/architecture.md`.
pub(crate) fn table() -> String {
    let mut text = String::from("| crate | what for | may name |\n|---|---|---|\n");
    for (name, purpose, names) in ALLOWED {
        let names = if names.is_empty() {
            "none".to_owned()
        } else {
            names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
        };
        text += &format!("| `{name}` | {purpose} | {names} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::process::Command;

    const PREFIX: &str = "precast-";
    const MAY_NAME_ALL: &[&str] = &["cli", "tests", "benches"];

    /// Edges of `cargo metadata` that the table does not allow, as `"from -> to"`.
    fn violations(metadata: &Value) -> Vec<String> {
        let empty = Vec::new();
        let packages = metadata["packages"].as_array().unwrap_or(&empty);
        let mut found = Vec::new();
        for package in packages {
            let Some(from) = package["name"].as_str().and_then(|n| n.strip_prefix(PREFIX)) else {
                continue;
            };
            if MAY_NAME_ALL.contains(&from) {
                continue;
            }
            let Some((_, _, allowed)) = ALLOWED.iter().find(|(name, _, _)| *name == from) else {
                found.push(format!("{from} is not in the table"));
                continue;
            };
            for d in package["dependencies"].as_array().unwrap_or(&empty) {
                let to = d["name"].as_str().and_then(|n| n.strip_prefix(PREFIX));
                if let Some(to) = to.filter(|_| d["kind"] != "dev")
                    && !allowed.contains(&to)
                {
                    found.push(format!("{from} -> {to}"));
                }
            }
        }
        found
    }

    fn metadata() -> Value {
        let out = Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        serde_json::from_slice(&out.stdout).expect("cargo prints JSON")
    }

    #[test]
    fn no_crate_knows_more_than_the_table_says() {
        assert_eq!(violations(&metadata()), Vec::<String>::new());
    }

    #[test]
    fn a_forbidden_edge_is_found() {
        let mut metadata = metadata();
        let packages = metadata["packages"].as_array_mut().unwrap();
        let runtime = packages.iter_mut().find(|p| p["name"] == "precast-runtime").unwrap();
        let edge = serde_json::json!({"name": "precast-ir", "kind": null});
        runtime["dependencies"].as_array_mut().unwrap().push(edge);
        assert_eq!(violations(&metadata), ["runtime -> ir"]);
    }
}
