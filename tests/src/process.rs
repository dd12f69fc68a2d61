//! What the system says about a process, and processes with less than they want.

use std::{fs, io, os::unix::process::CommandExt, process::Command};

/// Bytes of memory that a process has in use: its resident set.
///
/// # Panics
/// When there is no such process.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("memory is listed");
    let kib = line.split_whitespace().next().expect("a number");
    kib.parse::<u64>().expect("a number") * 1024
}

/// File descriptors that a process has open.
///
/// # Panics
/// When there is no such process.
pub fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").count()
}

/// A limit of a process.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Open files; the soft limit alone, the hard one stays.
    SoftFiles(u64),
    /// Open files, for good.
    Files(u64),
    /// Bytes of a file that is written. Going beyond is an error, not a signal.
    FileBytes(u64),
    /// Bytes of address space.
    AddressSpace(u64),
    /// Bytes of private writable memory.
    Data(u64),
}

/// Puts `limit` on the process that `command` starts.
pub fn limit(command: &mut Command, limit: Limit) -> &mut Command {
    let apply = move || match limit {
        Limit::SoftFiles(n) => set(libc::RLIMIT_NOFILE, n, false),
        Limit::Files(n) => set(libc::RLIMIT_NOFILE, n, true),
        Limit::FileBytes(n) => {
            // SAFETY: no handler is installed; the disposition is inherited by the program.
            unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
            set(libc::RLIMIT_FSIZE, n, true)
        }
        Limit::AddressSpace(n) => set(libc::RLIMIT_AS, n, true),
        Limit::Data(n) => set(libc::RLIMIT_DATA, n, true),
    };
    // SAFETY: between fork and exec only system calls are made; nothing is allocated.
    unsafe { command.pre_exec(apply) }
}

/// Raises the limit of open files of this process as far as it goes, and returns it.
///
/// # Panics
/// When the system does not say what the limit is.
pub fn raise_open_files() -> u64 {
    let hard = get(libc::RLIMIT_NOFILE).expect("the limit can be read").rlim_max;
    set(libc::RLIMIT_NOFILE, hard, false).expect("a soft limit can be raised to the hard one");
    hard
}

fn get(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is live and writable.
    match unsafe { libc::getrlimit(resource, &mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(resource: libc::__rlimit_resource_t, n: u64, is_hard: bool) -> io::Result<()> {
    let hard = if is_hard { n } else { get(resource)?.rlim_max };
    let limit = libc::rlimit { rlim_cur: n, rlim_max: hard };
    // SAFETY: the structure is live.
    match unsafe { libc::setrlimit(resource, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
