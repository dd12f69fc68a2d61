//! Responses that are being generated, by the name clients know them under.

use crate::{ApiError, generation::End, sink::Incoming};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::mpsc::WeakUnboundedSender;

/// The responses that are being generated.
#[derive(Default)]
pub(crate) struct Requests(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    next: u64,
    entries: HashMap<u64, Entry>,
}

struct Entry {
    names: Vec<String>,
    events: WeakUnboundedSender<Incoming>,
}

/// Keeps a response in the table as long as it exists.
pub(crate) struct Registration {
    table: Arc<Mutex<Table>>,
    key: u64,
}

impl Requests {
    /// Adds a response that is known under `names`.
    pub(crate) fn register(
        &self,
        names: Vec<String>,
        events: WeakUnboundedSender<Incoming>,
    ) -> Registration {
        let mut table = lock(&self.0);
        let key = table.next;
        table.next += 1;
        table.entries.insert(key, Entry { names, events });
        Registration { table: Arc::clone(&self.0), key }
    }

    /// Ends the response known as `name`, or all; returns how many there were.
    pub(crate) fn abort(&self, name: Option<&str>) -> usize {
        self.end(name, &End::Cancelled)
    }

    /// Ends every response as failed; returns how many there were.
    pub(crate) fn fail_all(&self, why: &str) -> usize {
        self.end(None, &End::Failed(ApiError::Failed(why.to_owned())))
    }

    fn end(&self, name: Option<&str>, end: &End) -> usize {
        let table = lock(&self.0);
        table
            .entries
            .values()
            .filter(|entry| name.is_none_or(|name| entry.names.iter().any(|n| n == name)))
            .filter_map(|entry| entry.events.upgrade())
            .filter(|events| events.send(Incoming::End(end.clone())).is_ok())
            .count()
    }

    /// Responses that are being generated.
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).entries.len()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&self.table).entries.remove(&self.key);
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
