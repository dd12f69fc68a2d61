//! Task updates: tasks of a captured group get new work, in the order of another stream.

use super::Slot;
use crate::{
    error::{Result, code, fail},
    stream::{Item, Role},
    world::{Key, World},
};
use std::{ffi::c_void, mem, sync::Arc};

/// A task group of a graph.
pub(crate) struct Group {
    pub(crate) graph: Key,
    pub(crate) slots: Vec<Arc<Slot>>,
}

/// Starts an update on a stream.
///
/// # Errors
/// 107017 for an unknown group; 107033 while the graph is still being captured or another update is
/// open; 107027 on a capturing stream.
pub(crate) fn begin(world: &mut World, stream: Key, group: *mut c_void) -> Result {
    let key = group as Key;
    let Some(group) = world.groups.get(&key) else {
        return fail(code::INVALID_HANDLE, format!("{group:p} is no live task group"));
    };
    if world.captures.contains_key(&group.graph) {
        return fail(code::GROUP_STATUS, "the capture that the group belongs to is not over");
    }
    match &mut stream_role(world, stream)? {
        role @ Role::Plain => {
            **role = Role::Updating(key, Vec::new());
            Ok(())
        }
        Role::Captured(_) => {
            fail(code::STREAM_CAPTURED, "a task update on a stream that is being captured")
        }
        Role::Updating(..) => {
            fail(code::GROUP_STATUS, "a task update is open on the stream already")
        }
        Role::Bound(_) => fail(code::STREAM_MODEL, "the stream is bound to a graph"),
    }
}

fn stream_role(world: &mut World, stream: Key) -> Result<&mut Role> {
    match world.streams.get_mut(&stream) {
        Some(stream) => Ok(&mut stream.role),
        None => fail(code::INVALID_HANDLE, "the stream is gone"),
    }
}

/// Ends an update: the new work takes effect when the stream comes to it.
///
/// # Errors
/// 107033 when none is open; 207019 when number, names or kinds of the tasks are not those captured,
/// and then nothing changes.
pub(crate) fn end(world: &mut World, stream: Key) -> Result {
    let role = stream_role(world, stream)?;
    let (group, tasks) = match mem::replace(role, Role::Plain) {
        Role::Updating(group, tasks) => (group, tasks),
        other => {
            *role = other;
            return fail(code::GROUP_STATUS, "no task update is open on the stream");
        }
    };
    let Some(group) = world.groups.get(&group).cloned() else {
        return fail(code::INVALID_HANDLE, "the graph of the task group was destroyed meanwhile");
    };
    if tasks.len() != group.slots.len() {
        let message = format!("{} tasks update a group of {}", tasks.len(), group.slots.len());
        return fail(code::TASK_UPDATE, message);
    }
    for (slot, task) in group.slots.iter().zip(&tasks) {
        let old = slot.task();
        if old.kind != task.kind || old.name != task.name {
            let message = format!("task {} cannot become {}", old.name, task.name);
            return fail(code::TASK_UPDATE, message);
        }
    }
    world.enqueue(stream, Item::Update(group.slots.iter().cloned().zip(tasks).collect()));
    Ok(())
}
