//! The test device: it runs nothing, records every call and checks their order.

use crate::{Device, DeviceError, Launch, MemoryRequest};
use artifact::BufferRef;

/// Something that was asked of a [`RecordingDevice`].
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// [`Device::begin_capture`].
    Begin,
    /// [`Device::launch`].
    Launch(String),
    /// [`Device::begin_chain`] with its rows.
    BeginChain(u32),
    /// [`Device::end_chain`].
    EndChain,
    /// [`Device::end_capture`].
    End,
    /// [`Device::abort_capture`] of an open capture.
    Abort,
    /// [`Device::write`].
    Write(BufferRef, Vec<u8>),
    /// [`Device::read`].
    Read(BufferRef),
    /// [`Device::replay`] of the graph with this number.
    Replay(usize),
}

/// Fills the output of a read: where it reads, and the calls so far.
type Answer = Box<dyn FnMut(BufferRef, &mut [u8], &[Call]) + Send>;

/// A device that executes nothing.
#[derive(Default)]
pub struct RecordingDevice {
    /// Everything asked of it, in order.
    pub calls: Vec<Call>,
    /// Makes [`Device::launch`] fail for kernels of this name.
    pub refuse: Option<String>,
    /// What reads return; zeros without it.
    pub answer: Option<Answer>,
    capturing: bool,
    in_chain: bool,
    graphs: usize,
}

impl Device for RecordingDevice {
    type Graph = usize;

    fn name(&self) -> String {
        "recording".into()
    }

    fn runs_beside_host(&self) -> bool {
        false
    }

    fn load(&mut self, _: MemoryRequest) -> Result<(), DeviceError> {
        Ok(())
    }

    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        if self.capturing {
            return Err(DeviceError::Misuse("a capture is already open"));
        }
        self.capturing = true;
        self.calls.push(Call::Begin);
        Ok(())
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let kernel = launch.kernel;
        if !self.capturing {
            return Err(DeviceError::Misuse("launch outside a capture"));
        }
        if self.refuse.as_deref() == Some(kernel) {
            return Err(DeviceError::UnknownKernel { device: self.name(), kernel: kernel.into() });
        }
        self.calls.push(Call::Launch(kernel.into()));
        Ok(())
    }

    fn begin_chain(&mut self, rows: u32, _: u64) -> Result<(), DeviceError> {
        if !self.capturing || self.in_chain {
            return Err(DeviceError::Misuse("a chain outside a capture or inside a chain"));
        }
        self.in_chain = true;
        self.calls.push(Call::BeginChain(rows));
        Ok(())
    }

    fn end_chain(&mut self) -> Result<(), DeviceError> {
        if !self.in_chain {
            return Err(DeviceError::Misuse("no chain is open"));
        }
        self.in_chain = false;
        self.calls.push(Call::EndChain);
        Ok(())
    }

    fn end_capture(&mut self) -> Result<usize, DeviceError> {
        if !self.capturing || self.in_chain {
            return Err(DeviceError::Misuse("no capture is open, or a chain is"));
        }
        self.capturing = false;
        self.calls.push(Call::End);
        self.graphs += 1;
        Ok(self.graphs - 1)
    }

    fn abort_capture(&mut self) {
        self.in_chain = false;
        if self.capturing {
            self.capturing = false;
            self.calls.push(Call::Abort);
        }
    }

    fn write(&mut self, at: BufferRef, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= at.bytes, "write past the end of a buffer");
        self.calls.push(Call::Write(at, bytes.to_vec()));
    }

    fn read(&mut self, at: BufferRef, out: &mut [u8]) -> Result<(), DeviceError> {
        assert!(out.len() as u64 <= at.bytes, "read past the end of a buffer");
        self.calls.push(Call::Read(at));
        out.fill(0);
        if let Some(answer) = &mut self.answer {
            answer(at, out, &self.calls);
        }
        Ok(())
    }

    fn replay(&mut self, graph: &usize) -> Result<(), DeviceError> {
        if self.capturing {
            return Err(DeviceError::Misuse("replay during a capture"));
        }
        if *graph >= self.graphs {
            return Err(DeviceError::Misuse("no such graph"));
        }
        self.calls.push(Call::Replay(*graph));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Recording, capture};
    use artifact::{Chain, Phase, Plan, Step};

    #[test]
    fn a_failed_launch_aborts_the_capture() {
        let mut device = RecordingDevice { refuse: Some("k".into()), ..Default::default() };
        let result = (|| {
            let mut recording = Recording::begin(&mut device)?;
            recording.launch(&Launch::new("k", &[], &[]))?;
            recording.finish()
        })();
        assert!(result.is_err());
        assert_eq!(device.calls, [Call::Begin, Call::Abort]);
        assert!(Recording::begin(&mut device).is_ok(), "the device is usable again");
    }

    #[test]
    fn the_steps_of_a_chain_are_launched_inside_it() {
        let step = |kernel| Step { kernel, ..Step::default() };
        let chain = |first, steps| Chain { first, steps, rows: 7, ..Default::default() };
        let plan = Plan {
            name: "p".into(),
            phase: Phase::Decode,
            rows: 7,
            context_tokens: 0,
            arena_bytes: 0,
            inputs: vec![],
            outputs: vec![],
            placements: vec![],
            kernels: ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec(),
            operators: vec![],
            steps: (0..5).map(step).collect(),
            chains: vec![chain(1, 2), chain(3, 1)],
        };
        let mut device = RecordingDevice::default();
        capture(&mut device, &plan).unwrap();
        let launch = |kernel: &str| Call::Launch(kernel.into());
        let (begin, end) = (Call::BeginChain(7), Call::EndChain);
        let first =
            [Call::Begin, launch("a"), begin.clone(), launch("b"), launch("c"), end.clone()];
        let second = [begin, launch("d"), end, launch("e"), Call::End];
        assert_eq!(device.calls, [&first[..], &second[..]].concat());
    }
}
