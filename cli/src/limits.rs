//! What the system lets this process have.

use crate::report::bytes_text;
use anyhow::bail;
use artifact::Manifest;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Lets this process open as many files as it may: every connection is one, and the usual soft limit
/// of 1024 is for programs that call `select`.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if limit.current == limit.maximum {
        return;
    }
    let count = |n: Option<u64>| n.map_or("any number of".to_owned(), |n| n.to_string());
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!("up to {} files may be open", count(limit.maximum)),
        Err(e) => {
            let now = count(limit.current);
            tracing::warn!("{now} files may be open, which limits connections: {e} (ulimit -n)");
        }
    }
}

/// The most memory that this process may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    /// How much.
    pub(crate) bytes: u64,
    /// What sets the limit.
    pub(crate) source: String,
}

impl MemoryLimit {
    /// The least of what the machine has, what the control groups of this process allow, and what its
    /// own limits are; `None` where the system tells none of them.
    pub(crate) fn of_this_process() -> Option<Self> {
        let own = [(Resource::As, "ulimit -v"), (Resource::Data, "ulimit -d")];
        let own = own.into_iter().filter_map(|(resource, name)| {
            let bytes = getrlimit(resource).current?;
            Some(Self { bytes, source: name.into() })
        });
        own.chain(Self::of_system(Path::new("/"))).min_by_key(|limit| limit.bytes)
    }

    /// Limits that files below `root` tell.
    fn of_system(root: &Path) -> Vec<Self> {
        let mut limits = Vec::new();
        if let Some(bytes) = physical(root) {
            limits.push(Self { bytes, source: "this machine's memory".into() });
        }
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        for line in groups.lines() {
            // ID:CONTROLLERS:PATH; version 2 has no controllers here.
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let (mount, file) = match controllers {
                "" => ("sys/fs/cgroup", "memory.max"),
                _ if controllers.split(',').any(|c| c == "memory") => {
                    ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
                }
                _ => continue,
            };
            // A limit of any group above holds too.
            for group in Path::new(path.trim_start_matches('/')).ancestors() {
                let file: PathBuf = root.join(mount).join(group).join(file);
                let text = fs::read_to_string(&file).unwrap_or_default();
                // `max` is no limit.
                if let Ok(bytes) = text.trim().parse() {
                    limits.push(Self { bytes, source: file.display().to_string() });
                }
            }
        }
        limits
    }

    /// Refuses an artifact whose memory plan is beyond the limit: it would start, and be killed when
    /// its KV memory fills.
    ///
    /// # Errors
    /// Says what is needed, what there is, and what to do.
    pub(crate) fn check(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let memory = &manifest.memory;
        let parts = [memory.weights_bytes, memory.state_bytes, memory.arena_bytes];
        let needed = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
        if needed <= self.bytes {
            return Ok(());
        }
        let [weights, states, arena] = parts.map(bytes_text);
        let (needed, limit, source) = (bytes_text(needed), bytes_text(self.bytes), &self.source);
        bail!(
            "the artifact needs {needed} of memory (weights {weights}, KV cache and other states \
             {states}, arena {arena}), and this process may have {limit} ({source}); raise the limit, \
             or run `precast compile` again with `--memory {}` or fewer `--kv-blocks`",
            self.bytes
        )
    }
}

/// Bytes of memory of this machine.
fn physical(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> Vec<u64> {
        let dir = std::env::temp_dir().join(format!("precast-limits-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&dir)).expect("the directory is writable");
            fs::write(path, text).expect("the directory is writable");
        }
        let mut limits: Vec<u64> =
            MemoryLimit::of_system(&dir).iter().map(|limit| limit.bytes).collect();
        let _ = fs::remove_dir_all(&dir);
        limits.sort_unstable();
        limits
    }

    #[test]
    fn control_groups_of_both_versions_limit_memory() {
        let machine = ("proc/meminfo", "MemFree: 1 kB\nMemTotal:    8 kB\n");
        assert!(system(&[]).is_empty());
        assert_eq!(system(&[machine]), [8192]);
        let second = [
            machine,
            ("proc/self/cgroup", "0::/pods/a\n"),
            ("sys/fs/cgroup/pods/a/memory.max", "max\n"),
            ("sys/fs/cgroup/pods/memory.max", "5000\n"),
            ("sys/fs/cgroup/memory.max", "7000\n"),
        ];
        assert_eq!(system(&second), [5000, 7000, 8192]);
        let first = [
            machine,
            ("proc/self/cgroup", "4:cpu,cpuacct:/x\n3:memory:/x\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "6000\n"),
            ("sys/fs/cgroup/memory.max", "1\n"),
        ];
        assert_eq!(system(&first), [6000, 8192]);
    }
}
