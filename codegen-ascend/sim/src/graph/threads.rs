//! Threads that run the branches of replays; they wait for the next one when they are done.

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{Sender, channel},
    },
    thread,
};

type Job = Box<dyn FnOnce() + Send>;

/// Threads with nothing to do.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// Runs a job on a thread of its own.
pub(super) fn run(job: Job) {
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let thread = idle.unwrap_or_else(start);
    // The thread lives as long as the process.
    drop(thread.send(job));
}

fn start() -> Sender<Job> {
    let (sender, jobs) = channel::<Job>();
    let own = sender.clone();
    thread::spawn(move || {
        for job in jobs {
            job();
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(own.clone());
        }
    });
    sender
}
