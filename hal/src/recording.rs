//! Capture in the types: leaving a capture open is not the caller's job to avoid.

use crate::{Device, DeviceError, Launch};
use artifact::{Plan, Step};

/// A capture in progress. Dropping it without [`Recording::finish`] aborts, so an error halfway
/// never leaves the device in capture mode.
pub struct Recording<'d, D: Device> {
    device: Option<&'d mut D>,
}

impl<'d, D: Device> Recording<'d, D> {
    /// Starts a capture.
    ///
    /// # Errors
    /// As [`Device::begin_capture`].
    pub fn begin(device: &'d mut D) -> Result<Self, DeviceError> {
        device.begin_capture()?;
        Ok(Self { device: Some(device) })
    }

    /// Adds a call.
    ///
    /// # Errors
    /// As [`Device::launch`].
    pub fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        self.device.as_mut().expect("present until finish").launch(launch)
    }

    /// Begins a chain of launches.
    ///
    /// # Errors
    /// As [`Device::begin_chain`].
    pub fn begin_chain(&mut self, rows: u32, private_bytes: u64) -> Result<(), DeviceError> {
        self.device.as_mut().expect("present until finish").begin_chain(rows, private_bytes)
    }

    /// Ends the chain.
    ///
    /// # Errors
    /// As [`Device::end_chain`].
    pub fn end_chain(&mut self) -> Result<(), DeviceError> {
        self.device.as_mut().expect("present until finish").end_chain()
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// As [`Device::end_capture`].
    pub fn finish(mut self) -> Result<D::Graph, DeviceError> {
        self.device.take().expect("present until finish").end_capture()
    }
}

impl<D: Device> Drop for Recording<'_, D> {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            device.abort_capture();
        }
    }
}

/// A step with what the plan says of its kernel.
fn launch_of<'a>(plan: &'a Plan, step: &'a Step) -> Result<Launch<'a>, DeviceError> {
    let unlisted = |kernel: String| {
        let why = "the plan does not list it".into();
        DeviceError::BadCall { kernel, why }
    };
    let kernel = plan.kernels.get(step.kernel as usize);
    let kernel = kernel.ok_or_else(|| unlisted(format!("#{}", step.kernel)))?;
    let operator = match step.issue.operator {
        Some(i) => {
            let operator = plan.operators.get(i as usize);
            Some(operator.ok_or_else(|| unlisted(format!("{kernel}, operator #{i}")))?)
        }
        None => None,
    };
    let Step { args, scalars, issue, .. } = step;
    Ok(Launch { kernel, args, scalars, issue, operator })
}

/// Captures every call of `plan`.
///
/// # Errors
/// As [`Device::begin_capture`], [`Device::launch`], [`Device::begin_chain`],
/// [`Device::end_chain`] and [`Device::end_capture`];
/// [`DeviceError::BadCall`] for a kernel that the plan does not list.
pub fn capture<D: Device>(device: &mut D, plan: &Plan) -> Result<D::Graph, DeviceError> {
    let mut recording = Recording::begin(device)?;
    let mut chains = plan.chains.iter().peekable();
    for (i, step) in plan.steps.iter().enumerate() {
        if let Some(chain) = chains.peek().filter(|c| c.first as usize == i) {
            recording.begin_chain(chain.rows, chain.private_bytes)?;
        }
        recording.launch(&launch_of(plan, step)?)?;
        if chains.next_if(|c| c.last() as usize == i).is_some() {
            recording.end_chain()?;
        }
    }
    recording.finish()
}
