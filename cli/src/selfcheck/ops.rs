//! Each op of an artifact on a device, beside the interpreter.

use super::{
    cases::{Case, results},
    values::{Difference, compare, decode, encode},
};
use artifact::{BufferRef, Space};
use compiler::{Single, Target};
use hal::{Device, MemoryRequest};
use ir::{Bindings, Func, Storage, interp};
use serde::Serialize;
use std::{path::Path, sync::Arc, time::Instant};
use tensor::MappedFile;

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// As the interpreter says, within the bound.
    Agrees,
    /// Something else.
    Differs,
    /// It could not be tried, and why.
    Skipped(String),
    /// The device refused or failed, and what it said.
    Failed(String),
}

/// A line of the report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    pub(super) op: String,
    pub(super) at: String,
    pub(super) calls: Vec<String>,
    pub(super) worst: f64,
    pub(super) bound: f64,
    /// Of one replay, in microseconds.
    pub(super) replay_us: f64,
    pub(super) outcome: Outcome,
}

/// Runs every case on the device that `open` opens, one after the other. `root` is the artifact with
/// the kernels. Unless `exact`, what is made of operands in 16 bits may be rounded to them.
pub(super) fn check<D: Device>(
    cases: &[Case],
    target: &dyn Target,
    root: &Path,
    exact: bool,
    open: &mut dyn FnMut() -> anyhow::Result<D>,
) -> anyhow::Result<Vec<Line>> {
    let plans: Vec<_> = cases.iter().map(|case| compiler::single(&case.func, target)).collect();
    let most = |of: fn(&Single) -> u64| plans.iter().flatten().map(of).max().unwrap_or(0);
    let request = MemoryRequest {
        root: root.to_owned(),
        weights: Arc::new(no_weights()?),
        arena_bytes: most(|s| s.plan.arena_bytes),
        state_bytes: most(|s| s.state_bytes),
    };
    let mut device = open()?;
    device.load(request)?;
    let mut lines = Vec::new();
    for (case, plan) in cases.iter().zip(plans) {
        let mut line = Line {
            op: case.op.clone(),
            at: case.at.clone(),
            calls: Vec::new(),
            worst: 0.0,
            bound: 0.0,
            replay_us: 0.0,
            outcome: Outcome::Agrees,
        };
        match plan {
            Err(why) => line.outcome = Outcome::Skipped(why.to_string()),
            Ok(single) => try_one(case, &single, exact, &mut device, &mut line),
        }
        lines.push(line);
    }
    Ok(lines)
}

/// An empty weight file.
fn no_weights() -> anyhow::Result<MappedFile> {
    let mut file = std::env::temp_dir();
    file.push(format!("precast-selfcheck-{}", std::process::id()));
    std::fs::write(&file, [])?;
    let mapped = MappedFile::open(&file);
    std::fs::remove_file(&file)?;
    Ok(mapped?)
}

fn try_one<D: Device>(case: &Case, single: &Single, exact: bool, device: &mut D, line: &mut Line) {
    let name = |s: &artifact::Step| single.plan.kernels[s.kernel as usize].clone();
    line.calls = single.plan.steps.iter().map(name).collect();
    let expected = case.inputs(1).and_then(|inputs| {
        let results = interp::run(
            &case.func,
            &inputs,
            &|_| unreachable!("a case has no weights"),
            &Bindings::new(),
        )?;
        Ok((inputs, results))
    });
    let (inputs, expected) = match expected {
        Ok(both) => both,
        Err(why) => {
            line.outcome = Outcome::Skipped(format!("{why:#}"));
            return;
        }
    };
    match run(&case.func, single, device, &inputs, line) {
        Err(why) => line.outcome = Outcome::Failed(why.to_string()),
        Ok(found) => {
            let mut all = Difference::default();
            for (found, expected) in found.iter().zip(&expected) {
                let rounded = !exact && case.is_narrow();
                all = all.or(compare(found, expected.data(), expected.dtype(), rounded));
            }
            (line.worst, line.bound) = (all.worst, all.bound);
            if !all.holds() {
                line.outcome = Outcome::Differs;
            }
        }
    }
}

/// The results of one replay.
fn run<D: Device>(
    func: &Func,
    single: &Single,
    device: &mut D,
    inputs: &[interp::Tensor],
    line: &mut Line,
) -> Result<Vec<Vec<f64>>, hal::DeviceError> {
    let graph = hal::capture(device, &single.plan)?;
    let (mut ports, mut states) = (single.plan.inputs.iter(), single.states.iter());
    for (&param, input) in func.params.iter().zip(inputs) {
        let ty = &func.values[param].ty;
        let at = match ty.storage {
            Storage::State => states.next().map(|s| at_state(s.offset, s.bytes)),
            _ => ports.next().map(|p| p.at),
        };
        device.write(at.expect("each parameter has a place"), &encode(input, ty));
    }
    let start = Instant::now();
    device.replay(&graph)?;
    let mut outputs = single.plan.outputs.iter();
    let mut found = Vec::new();
    for (result, state) in results(func) {
        let ty = &func.values[result].ty;
        let at = match state {
            Some(state) => {
                let is_state = |v: &&ir::ValueId| func.values[**v].ty.storage == Storage::State;
                let index = func.params.iter().filter(is_state).position(|&p| p == state);
                let entry = &single.states[index.expect("a state is a parameter")];
                at_state(entry.offset, entry.bytes)
            }
            None => outputs.next().expect("each result has a place").at,
        };
        let count: u64 = ty.const_dims().expect("dimensions are numbers").iter().product();
        let mut bytes = vec![0; ty.dtype.bytes_for(count) as usize];
        device.read(BufferRef { bytes: bytes.len() as u64, ..at }, &mut bytes)?;
        if found.is_empty() {
            line.replay_us = start.elapsed().as_secs_f64() * 1e6;
        }
        found.push(decode(&bytes, ty.dtype, count as usize));
    }
    Ok(found)
}

fn at_state(offset: u64, bytes: u64) -> BufferRef {
    BufferRef { space: Space::State, offset, bytes }
}
