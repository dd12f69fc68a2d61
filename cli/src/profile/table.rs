//! A profile as text.

use super::report::{Bucket, Part, Report};
use std::io::{self, Write};

/// What was profiled, where, and how fast the machine multiplies.
pub(super) fn head(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(out, "{} on {}", report.model, report.device)?;
    let mut said = Vec::new();
    for rate in &report.peaks {
        if !said.contains(&rate.instruction) {
            writeln!(out, "  {:<18} {:>8.1} GOP/s", rate.instruction, rate.gops)?;
            said.push(rate.instruction);
        }
    }
    Ok(())
}

/// One bucket.
pub(super) fn bucket(out: &mut impl Write, b: &Bucket, slowest: usize) -> io::Result<()> {
    let (ms, rows) = (b.step_us / 1e3, f64::from(b.rows));
    let context = if b.context > 0 { format!(", context {}", b.context) } else { String::new() };
    writeln!(out, "\n{}: {} rows{context}, median of {} replays", b.plan, b.rows, b.replays)?;
    writeln!(
        out,
        "  step   {ms:>9.3} ms, {:.1} tok/s ({:.3} ms with every launch timed)",
        rows / ms * 1e3,
        b.timed_step_us / 1e3
    )?;
    let by = if b.memory_us >= b.arithmetic_us { "memory" } else { "arithmetic" };
    writeln!(
        out,
        "  limit  {:>9.3} ms by {by} ({:.1} GB/s just before); the step reaches {:.2} of it",
        b.memory_us.max(b.arithmetic_us) / 1e3,
        b.gbs,
        b.of_limit()
    )?;
    writeln!(
        out,
        "{:>10} {:>6} {:>5} {:>9} {:>8} {:>9} {:>7} {:>7} {:>6} {:>8} {:>8}  kernel",
        "us",
        "share",
        "calls",
        "weight MB",
        "state MB",
        "GOP",
        "GB/s",
        "GOP/s",
        "limit",
        "wait us",
        "gap us"
    )?;
    let all = b.total.us;
    for kind in &b.kinds {
        let one = kind.shapes.first().filter(|of| kind.shapes.len() == 1 && !of.shape.is_empty());
        let shape = one.map_or(String::new(), |of| format!(": {}", of.shape));
        line(out, all, kind.launches, &kind.part, &format!("{}{shape}", kind.kernel))?;
        if kind.shapes.len() > 1 {
            for of in &kind.shapes {
                line(out, all, of.launches, &of.part, &format!("  {}", of.shape))?;
            }
        }
    }
    line(out, all, b.launches.len(), &b.total, "all")?;
    if slowest > 0 {
        writeln!(out, "  the slowest launches, of {}", b.launches.len())?;
        let mut order: Vec<usize> = (0..b.launches.len()).collect();
        order.sort_by(|&x, &y| b.launches[y].part.us.total_cmp(&b.launches[x].part.us));
        for &i in order.iter().take(slowest) {
            let launch = &b.launches[i];
            line(out, all, 1, &launch.part, &format!("#{i} {}: {}", launch.kernel, launch.shape))?;
        }
    }
    Ok(())
}

fn line(out: &mut impl Write, all: f64, calls: usize, p: &Part, name: &str) -> io::Result<()> {
    // Nothing rather than a zero where nothing is known to be needed.
    let known = |value: f64, digits: usize| match value {
        0.0 => String::new(),
        value => format!("{value:.digits$}"),
    };
    let bytes = p.weight_bytes + p.state_bytes;
    let limit = p.of_limit().map_or(String::new(), |share| format!("{share:.2}"));
    writeln!(
        out,
        "{:>10.1} {:>5.1}% {calls:>5} {:>9} {:>8} {:>9} {:>7} {:>7} {limit:>6} {:>8.1} {:>8.1}  {name}",
        p.us,
        p.us / all * 100.0,
        known(p.weight_bytes / 1e6, 2),
        known(p.state_bytes / 1e6, 2),
        known(p.ops / 1e9, 3),
        known(bytes / p.us / 1e3, 1),
        known(p.ops / p.us / 1e3, 1),
        p.wait_us,
        p.gap_us,
    )
}
