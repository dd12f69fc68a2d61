//! Memory, processor time and files of this process, under Prometheus' usual names.

use super::page::Page;
use procfs::{
    WithCurrentSystemInfo,
    process::{LimitValue, Process},
};

/// Adds what `/proc` says; nothing where there is none.
pub(super) fn expose(page: &mut Page) {
    // A file that cannot be read costs its metrics and no more.
    let _ = try_expose(page);
}

fn try_expose(page: &mut Page) -> procfs::ProcResult<()> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let ticks = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
    page.seconds(
        "process_cpu_seconds_total",
        "Processor time of this process in seconds, user and system.",
        ticks,
    );
    page.gauge(
        "process_resident_memory_bytes",
        "Resident memory in bytes.",
        stat.rss_bytes().get() as f64,
    );
    page.gauge("process_virtual_memory_bytes", "Virtual memory in bytes.", stat.vsize as f64);
    page.gauge("process_threads", "Threads of this process.", stat.num_threads as f64);
    let since_boot = stat.starttime as f64 / procfs::ticks_per_second() as f64;
    page.gauge(
        "process_start_time_seconds",
        "Start of this process in seconds since 1970.",
        procfs::boot_time_secs()? as f64 + since_boot,
    );
    page.gauge("process_open_fds", "Open file descriptors.", process.fd_count()? as f64);
    if let LimitValue::Value(most) = process.limits()?.max_open_files.soft_limit {
        page.gauge("process_max_fds", "The most open file descriptors.", most as f64);
    }
    Ok(())
}
