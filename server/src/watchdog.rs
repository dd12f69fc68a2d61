//! Notices a step of the engine that does not end.

use crate::app::AppState;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Looks for ever whether a step takes longer than `timeout`. While one does, its requests and all
/// others fail, and no new one is taken; when it ends after all, requests are taken again.
pub(crate) async fn watch(AppState(app): AppState, timeout: Duration) {
    let period = (timeout / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
    let mut check = tokio::time::interval(period);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        check.tick().await;
        let step = app.engine.current_step().filter(|time| *time >= timeout);
        let was_stuck = app.set_stuck(step.is_some());
        if step.is_some() {
            let seconds = timeout.as_secs_f64();
            let why = format!("a step of the engine has not ended within {seconds} seconds");
            // Again and again: a request may have come while the flag was set.
            let failed = app.requests.fail_all(&why);
            if !was_stuck {
                tracing::error!(
                    failed,
                    device = app.engine.device_name(),
                    "{why}: requests fail, new ones are refused, and /health says so until it ends"
                );
            }
        } else if was_stuck && !app.engine.is_stopped() {
            tracing::warn!("the step that was stuck has ended; requests are taken again");
        }
    }
}
