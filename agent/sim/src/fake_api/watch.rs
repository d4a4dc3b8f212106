//! Events of a watch: the changes since a resource version, within a window of history.
//!
//! In: every change of the store. Out: [`WatchLine`]s for one selector, or 410. Invariant: an object that enters the
//! selection is ADDED, one that leaves it is DELETED, with the version of that change; a bookmark carries the newest
//! version, so that a quiet watch does not fall out of the window.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};

use super::resource::{Resource, Selector};
use super::status::Status;

/// One change.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) resource: Resource,
    pub(super) before: Option<Arc<Value>>,
    /// The object after the change; for a removal its last state, with the version of the removal.
    pub(super) after: Arc<Value>,
    pub(super) removed: bool,
}

/// One line of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchLine {
    /// The object is new, or newly selected.
    Added(Arc<Value>),
    /// The object changed.
    Modified(Arc<Value>),
    /// The last state of an object that is gone or not selected any more.
    Deleted(Arc<Value>),
    /// Everything up to this version was delivered.
    Bookmark(u64),
}

impl WatchLine {
    /// The version at which a watch continues after this line.
    #[must_use]
    pub fn version(&self) -> u64 {
        match self {
            WatchLine::Added(o) | WatchLine::Modified(o) | WatchLine::Deleted(o) => version_of(o),
            WatchLine::Bookmark(version) => *version,
        }
    }

    /// The line as the server writes it: `{"type": …, "object": …}`.
    #[must_use]
    pub fn body(&self, resource: Resource) -> Value {
        let (kind, object) = match self {
            WatchLine::Added(o) => ("ADDED", Value::clone(o)),
            WatchLine::Modified(o) => ("MODIFIED", Value::clone(o)),
            WatchLine::Deleted(o) => ("DELETED", Value::clone(o)),
            WatchLine::Bookmark(version) => {
                let meta = json!({ "resourceVersion": version.to_string(), "creationTimestamp": null });
                let (kind, api) = (resource.kind(), resource.api_version());
                ("BOOKMARK", json!({ "kind": kind, "apiVersion": api, "metadata": meta }))
            }
        };
        json!({ "type": kind, "object": object })
    }
}

/// `metadata.resourceVersion` as a number; 0 if there is none.
#[must_use]
pub fn version_of(object: &Value) -> u64 {
    super::resource::text(object, "/metadata/resourceVersion").parse().unwrap_or(0)
}

/// The remembered changes.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    changes: VecDeque<Change>,
    /// Changes up to this version are forgotten.
    forgotten: u64,
}

impl History {
    /// A history without changes, which starts at `version`.
    pub(super) fn starting_at(version: u64) -> History {
        History { changes: VecDeque::new(), forgotten: version }
    }

    pub(super) fn push(&mut self, change: Change, window: usize) {
        self.changes.push_back(change);
        self.shrink(window);
    }

    pub(super) fn shrink(&mut self, window: usize) {
        while self.changes.len() > window {
            if let Some(gone) = self.changes.pop_front() {
                self.forgotten = gone.version;
            }
        }
    }

    pub(super) fn since(
        &self,
        resource: Resource,
        selector: &Selector,
        version: u64,
    ) -> Result<Vec<WatchLine>, Status> {
        if version < self.forgotten {
            return Err(Status::expired(version, self.forgotten));
        }
        let new = self.changes.iter().rev().take_while(|c| c.version > version);
        let mut lines: Vec<WatchLine> =
            new.filter(|c| c.resource == resource).filter_map(|c| line(c, selector)).collect();
        lines.reverse();
        Ok(lines)
    }
}

fn line(change: &Change, selector: &Selector) -> Option<WatchLine> {
    let was = change.before.as_deref().is_some_and(|b| selector.matches(b));
    let is = !change.removed && selector.matches(&change.after);
    let object = Arc::clone(&change.after);
    match (was, is) {
        (false, true) => Some(WatchLine::Added(object)),
        (true, true) => Some(WatchLine::Modified(object)),
        (true, false) if change.removed => Some(WatchLine::Deleted(object)),
        (true, false) => change.before.as_deref().map(|before| {
            let mut last = before.clone();
            let version = Value::String(change.version.to_string());
            super::resource::put(&mut last, "metadata", "resourceVersion", Some(version));
            WatchLine::Deleted(Arc::new(last))
        }),
        (false, false) => None,
    }
}
