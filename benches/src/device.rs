//! The device that kernel benchmarks run on, and weights for it.

use crate::probe::{Peak, median, peak_flops, read_bandwidth};
use anyhow::{Context, Result};
use codegen_cpu::{CpuDevice, CpuOptions, InstructionSet};
use hal::Device as _;
use std::{
    io::{BufWriter, Write},
    sync::Arc,
    time::Instant,
};
use tensor::MappedFile;

/// The device that the words of the command line ask for, an instruction set and a number of
/// threads in any order, and how fast as many threads read memory, in GB/s. Prints both.
///
/// # Errors
/// When the machine has no such device.
pub fn from_args() -> Result<(CpuDevice, f64)> {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let instruction_set = words.iter().find_map(|w| w.parse::<InstructionSet>().ok());
    let threads = words.iter().find_map(|w| w.parse::<usize>().ok());
    let device = CpuDevice::new(CpuOptions { threads, instruction_set, ..CpuOptions::default() })?;
    println!("{}", hal::Device::name(&device));
    let bandwidth = read_bandwidth(device.threads());
    println!("read bandwidth        {bandwidth:8.1} GB/s");
    Ok((device, bandwidth))
}

/// Ends the capture and returns the median seconds of `repeats` replays, after one to warm up.
///
/// # Errors
/// What the device has against the calls.
pub fn median_replay(device: &mut CpuDevice, repeats: usize) -> Result<f64> {
    let graph = device.end_capture()?;
    device.replay(&graph)?;
    let mut times = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let began = Instant::now();
        device.replay(&graph)?;
        times.push(began.elapsed().as_secs_f64());
    }
    Ok(median(times))
}

/// The best of the rates of arithmetic `kinds` that the machine has, in GFLOP/s. Prints each.
pub fn best_peak(kinds: impl IntoIterator<Item = Peak>, threads: usize) -> f64 {
    let mut best = f64::MIN_POSITIVE;
    for kind in kinds {
        if let Some(flops) = peak_flops(kind, threads) {
            println!("{:<22}{flops:8.1} GFLOP/s", kind.name());
            best = best.max(flops);
        }
    }
    best
}

/// A file of `mib` MiB of random numbers, mapped and then unlinked: as bf16 between -1 and 1, and
/// finite whatever they are read as.
///
/// # Errors
/// When it cannot be written.
pub fn random_weights(mib: usize) -> Result<Arc<MappedFile>> {
    let path = std::env::temp_dir().join(format!("precast-bench-{}", std::process::id()));
    let write = || -> std::io::Result<MappedFile> {
        let mut file = BufWriter::with_capacity(1 << 20, std::fs::File::create(&path)?);
        let mut state = 1u32;
        let mut block = vec![0u8; 1 << 20];
        for _ in 0..mib {
            for pair in block.chunks_exact_mut(2) {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Sign, an exponent just below 1 and the mantissa.
                let bits = (state >> 16) as u16 & 0x807f | 0x3e80;
                pair.copy_from_slice(&bits.to_le_bytes());
            }
            file.write_all(&block)?;
        }
        file.flush()?;
        MappedFile::open(&path)
    };
    let mapped = write().with_context(|| format!("writing {}", path.display()));
    // It may not exist; the mapping keeps the bytes when it does.
    let _ = std::fs::remove_file(&path);
    Ok(Arc::new(mapped?))
}
