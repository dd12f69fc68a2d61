//! Capture in the types: leaving a capture open is not the caller's job to avoid.

use crate::{Device, DeviceError};
use artifact::{BufferRef, Plan, Scalar};

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
    pub fn launch(
        &mut self,
        kernel: &str,
        args: &[BufferRef],
        scalars: &[Scalar],
    ) -> Result<(), DeviceError> {
        self.device.as_mut().expect("present until finish").launch(kernel, args, scalars)
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

/// Captures every call of `plan`.
///
/// # Errors
/// As [`Device::begin_capture`], [`Device::launch`] and [`Device::end_capture`];
/// [`DeviceError::BadCall`] for a kernel that the plan does not list.
pub fn capture<D: Device>(device: &mut D, plan: &Plan) -> Result<D::Graph, DeviceError> {
    let mut recording = Recording::begin(device)?;
    for step in &plan.steps {
        let kernel = plan.kernels.get(step.kernel as usize).ok_or_else(|| {
            let (kernel, why) = (format!("#{}", step.kernel), "the plan does not list it".into());
            DeviceError::BadCall { kernel, why }
        })?;
        recording.launch(kernel, &step.args, &step.scalars)?;
    }
    recording.finish()
}
