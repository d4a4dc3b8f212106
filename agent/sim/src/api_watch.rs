//! The two watches of an incarnation, with the rules of the driver in agent-apiserver: list, watch, resume, list again.
//!
//! ```text
//! list ─► Listed ─► open(version) ─news─► Applied, Deleted     closed ─► resumed at its version, or 410 ─► list
//! ```
//! In: the fake API server. Out: [`WatchDelivery`] in order. Invariants, as the driver's: the agent gets every change
//! after the last `Listed`, or another `Listed`; a `Listed` follows `Lost`; an object that cannot be decoded keeps its
//! last state.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use agent_types::api::WatchEvent;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster::NODE;
use crate::fake_api::resource::text;
use crate::fake_api::{FakeApi, Resource, Selector, Status, WatchLine};

/// An event of one of the two watches.
#[derive(Clone)]
pub enum WatchDelivery {
    /// The watch on the node's pods.
    Pods(WatchEvent<Pod>),
    /// The watch on the own Node.
    Node(WatchEvent<Node>),
}

impl fmt::Debug for WatchDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WatchDelivery::Pods(event) => brief(f, "pods", event, |p| {
                let phase = p.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("");
                let m = &p.metadata;
                let deleting = if m.deletion_timestamp.is_some() { " deleting" } else { "" };
                let text = |t: &Option<String>| t.clone().unwrap_or_default();
                format!("{} {} v{} {phase}{deleting}", text(&m.name), text(&m.uid), text(&m.resource_version))
            }),
            WatchDelivery::Node(event) => {
                brief(f, "node", event, |n| n.metadata.uid.clone().unwrap_or_default())
            }
        }
    }
}

fn brief<T>(
    f: &mut fmt::Formatter<'_>,
    of: &str,
    event: &WatchEvent<T>,
    name: impl Fn(&T) -> String,
) -> fmt::Result {
    match event {
        WatchEvent::Listed(all) => {
            let names: Vec<String> = all.iter().map(|o| name(o)).collect();
            write!(f, "{of} listed [{}]", names.join(", "))
        }
        WatchEvent::Applied(o) => write!(f, "{of} applied {}", name(o)),
        WatchEvent::Deleted(o) => write!(f, "{of} deleted {}", name(o)),
        WatchEvent::Lost(why) => write!(f, "{of} lost: {why}"),
    }
}

/// Which watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchKind {
    /// The watch on the node's pods.
    Pods,
    /// The watch on the own Node.
    Node,
}

/// Both watches of one incarnation.
pub struct Watches {
    pods: Watch<Pod>,
    node: Watch<Node>,
}

impl Default for Watches {
    fn default() -> Self {
        Watches {
            pods: Watch::new(Resource::Pods, Selector::node(NODE)),
            node: Watch::new(Resource::Nodes, Selector::name(NODE)),
        }
    }
}

impl Watches {
    /// Lists the objects of `server`, and opens the watch at the version of the list.
    pub fn list(&mut self, which: WatchKind, server: &FakeApi) -> WatchDelivery {
        match which {
            WatchKind::Pods => WatchDelivery::Pods(self.pods.list(server)),
            WatchKind::Node => WatchDelivery::Node(self.node.list(server)),
        }
    }

    /// Events since the last delivery; none for a watch that is not open.
    ///
    /// # Errors
    /// 410: list again. The watch is closed.
    pub fn news(&mut self, which: WatchKind, server: &FakeApi) -> Result<Vec<WatchDelivery>, Status> {
        Ok(match which {
            WatchKind::Pods => self.pods.news(server)?.into_iter().map(WatchDelivery::Pods).collect(),
            WatchKind::Node => self.node.news(server)?.into_iter().map(WatchDelivery::Node).collect(),
        })
    }

    /// Opens the watch at the version where it was closed.
    pub fn resume(&mut self, which: WatchKind, version: u64) {
        *self.open(which) = Some(version);
    }

    /// Closes the watch. Returns its version if it was open.
    pub fn close(&mut self, which: WatchKind) -> Option<u64> {
        self.open(which).take()
    }

    /// The watch gets a bookmark: it has every change up to now.
    pub fn bookmark(&mut self, which: WatchKind, server: &FakeApi) {
        if let Some(version) = self.open(which) {
            *version = (*version).max(server.version());
        }
    }

    /// Time of the next delivery of this watch: not before `at`, and not before the last delivery.
    pub fn in_order(&mut self, which: WatchKind, at: Mono) -> Mono {
        let last = match which {
            WatchKind::Pods => &mut self.pods.delivered,
            WatchKind::Node => &mut self.node.delivered,
        };
        *last = at.max(*last);
        *last
    }

    fn open(&mut self, which: WatchKind) -> &mut Option<u64> {
        match which {
            WatchKind::Pods => &mut self.pods.open,
            WatchKind::Node => &mut self.node.open,
        }
    }
}

struct Watch<T> {
    resource: Resource,
    selector: Selector,
    /// Version of the last delivery; `None` while the watch is closed.
    open: Option<u64>,
    delivered: Mono,
    /// Last delivered objects, by namespace and name.
    known: BTreeMap<(String, String), Arc<T>>,
}

fn name_of(object: &Value) -> (String, String) {
    (text(object, "/metadata/namespace").to_owned(), text(object, "/metadata/name").to_owned())
}

impl<T: DeserializeOwned> Watch<T> {
    fn new(resource: Resource, selector: Selector) -> Watch<T> {
        Watch { resource, selector, open: None, delivered: Mono(0), known: BTreeMap::new() }
    }

    fn list(&mut self, server: &FakeApi) -> WatchEvent<T> {
        let (objects, version) = server.list(self.resource, &self.selector);
        let mut before = std::mem::take(&mut self.known);
        for object in objects {
            let name = name_of(&object);
            let decoded = T::deserialize(&*object).ok().map(Arc::new);
            if let Some(object) = decoded.or_else(|| before.remove(&name)) {
                self.known.insert(name, object);
            }
        }
        self.open = Some(version);
        WatchEvent::Listed(self.known.values().cloned().collect())
    }

    fn news(&mut self, server: &FakeApi) -> Result<Vec<WatchEvent<T>>, Status> {
        let Some(from) = self.open else { return Ok(Vec::new()) };
        let lines = server.changes_since(self.resource, &self.selector, from).inspect_err(|_| {
            self.open = None;
        })?;
        let mut events = Vec::new();
        for line in lines {
            self.open = Some(line.version());
            match line {
                WatchLine::Added(object) | WatchLine::Modified(object) => {
                    if let Ok(decoded) = T::deserialize(&*object) {
                        let decoded = Arc::new(decoded);
                        self.known.insert(name_of(&object), decoded.clone());
                        events.push(WatchEvent::Applied(decoded));
                    }
                }
                WatchLine::Deleted(object) => {
                    let known = self.known.remove(&name_of(&object));
                    let last = T::deserialize(&*object).ok().map(Arc::new).or(known);
                    events.extend(last.map(WatchEvent::Deleted));
                }
                WatchLine::Bookmark(_) => {}
            }
        }
        Ok(events)
    }
}
