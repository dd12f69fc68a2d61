//! What became of a request.

/// What became of a request. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Tokens of the prompt as the dataset counts them.
    pub prompt_len: usize,
    /// When it was sent, since the first could be.
    pub start: f64,
    /// From then to the last line of the answer.
    pub latency: f64,
    /// From then to the first text; 0 when none came.
    pub ttft: f64,
    /// Between tokens that follow: the time between two chunks, once for each token of the later one
    /// and divided by their number where the server counts them.
    pub itl: Vec<f64>,
    /// Tokens of the answer: as the server counts them where it does in a chunk with text, else as
    /// many as were asked for.
    pub output_len: usize,
    /// The answer.
    pub text: String,
    /// Ends of the chunks in `text`.
    pub chunk_ends: Vec<usize>,
    /// Tokens as the server counts them.
    pub usage: Usage,
    /// What the socket saw.
    pub socket: SocketTimes,
    /// Why it failed; `None` when it succeeded.
    pub failure: Option<Failure>,
}

/// Tokens as the server counts them; `None` where it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: Option<u64>,
    /// Of these, those that it did not compute again.
    pub cached: Option<u64>,
    /// Of the answer.
    pub completion: Option<u64>,
}

/// What the socket saw. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SocketTimes {
    /// To open the connection.
    pub connect: f64,
    /// From sending to the first byte of the answer.
    pub first_byte: f64,
    /// Between reads that brought bytes of the answer.
    pub gaps: Vec<f32>,
    /// From the arrival of bytes to when this program had dealt with them.
    pub lags: Vec<f32>,
    /// Bytes that arrived.
    pub bytes: u64,
    /// From when the request could be sent to when it was: without a limit of concurrency the
    /// delay of this program.
    pub late: f64,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Where.
    pub kind: FailureKind,
    /// What was said.
    pub message: String,
}

/// Where a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The connection was not made, or ended before an answer began.
    Connection,
    /// The answer was not 200.
    Status,
    /// The answer broke off, could not be read or ended with an error.
    Stream,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl ToString) -> Self {
        Self { kind, message: message.to_string() }
    }
}
