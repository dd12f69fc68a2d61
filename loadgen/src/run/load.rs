//! Sends requests at their times and gathers what becomes of them.

use super::Question;
use crate::{
    client::{ClientCost, Meter},
    dataset::Row,
    endpoint::Endpoint,
    options::ServingArgs,
    output::Output,
    payload,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use serde_json::{Map, Value};
use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// How often the count of finished requests is shown.
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// What all requests share.
pub(super) struct Load<'a> {
    args: &'a ServingArgs,
    endpoint: &'a Endpoint,
    model: &'a str,
    extra: &'a Map<String, Value>,
}

/// What became of requests.
pub(super) struct Run {
    pub(super) outputs: Vec<Output>,
    pub(super) cost: ClientCost,
}

impl<'a> Load<'a> {
    pub(super) fn new(
        args: &'a ServingArgs,
        endpoint: &'a Endpoint,
        model: &'a str,
        extra: &'a Map<String, Value>,
    ) -> Self {
        Self { args, endpoint, model, extra }
    }

    /// Sends each row when it is due, at most as many at once as the options say.
    pub(super) async fn run(&self, rows: &[Row], due: &[Duration]) -> Run {
        let shows = !self.args.disable_tqdm && std::io::stderr().is_terminal();
        self.send(rows, due, self.args.max_concurrency, shows).await
    }

    /// Sends each row when it is due.
    pub(super) async fn run_unlimited(&self, rows: &[Row], due: &[Duration]) -> Vec<Output> {
        self.send(rows, due, None, false).await.outputs
    }

    async fn send(&self, rows: &[Row], due: &[Duration], limit: Option<usize>, shows: bool) -> Run {
        let body =
            |row: &Row| payload::body(self.args, self.model, self.extra, row, row.output_len);
        // Written before the clock starts.
        let bodies: Vec<Bytes> = rows.iter().map(body).collect();
        let turns = limit.map(|most| Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        let (meter, epoch) = (Meter::start(), Instant::now());
        let mut pending: FuturesUnordered<_> = rows
            .iter()
            .zip(bodies)
            .zip(due)
            .enumerate()
            .map(|(index, ((row, body), &due))| {
                let turns = turns.as_ref();
                async move { (index, self.one(row, body, due, turns, epoch).await) }
            })
            .collect();
        let mut outputs = vec![Output::default(); rows.len()];
        let (mut finished, mut shown) = (0, epoch);
        while let Some((index, output)) = pending.next().await {
            outputs[index] = output;
            finished += 1;
            if shows && (shown.elapsed() >= SHOW_EVERY || finished == rows.len()) {
                shown = Instant::now();
                let end = if finished == rows.len() { "\n" } else { "" };
                eprint!("\r{finished} of {} requests are finished{end}", rows.len());
                // Only a display.
                let _ = std::io::stderr().flush();
            }
        }
        Run { outputs, cost: meter.stop() }
    }

    async fn one(
        &self,
        row: &Row,
        body: Bytes,
        due: Duration,
        turns: Option<&Semaphore>,
        epoch: Instant,
    ) -> Output {
        if !due.is_zero() {
            tokio::time::sleep_until((epoch + due).into()).await;
        }
        let has_room = turns.is_none_or(|turns| turns.available_permits() > 0);
        let _turn = match turns {
            // It is never closed.
            Some(turns) => turns.acquire().await.ok(),
            None => None,
        };
        let question = Question {
            endpoint: self.endpoint,
            api: self.args.backend.api(),
            streams: !self.args.disable_stream,
            body,
            prompt_len: row.prompt_len,
            output_len: row.output_len,
        };
        let mut output = question.ask(epoch).await;
        if has_room {
            output.socket.late = (output.start - due.as_secs_f64()).max(0.0);
        }
        output
    }
}
