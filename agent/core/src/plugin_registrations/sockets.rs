//! Which plugins are registered, by their sockets.
//!
//! In: the sockets that are there, answers, the time. Out: plugins to register and registrations to end. Invariants: at most one
//! registration of a path at a time; a socket that was made anew is registered anew; the registration of a DRA plugin ends before, that of
//! others after its successor is there, so that the volumes of a CSI driver keep it. Upstream: pkg/kubelet/pluginmanager/reconciler.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::backoff::Backoff;
use agent_types::time::Mono;

use super::PluginKind;

/// Tells a socket from a later one at the same path: inode, and when that changed, nanoseconds.
pub type SocketId = (u64, i64);

/// A plugin that is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredPlugin {
    /// Kind of the plugin.
    pub kind: PluginKind,
    /// Name of the driver or resource.
    pub name: String,
    /// The number that the kind's owner gave to this registration; 0 where it has no numbers.
    pub number: u64,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the plugin at this socket, and register it.
    Register {
        /// Path of the socket.
        path: String,
        /// Which one it is.
        id: SocketId,
    },
    /// The registration ends.
    Forget {
        /// Path of the socket.
        path: String,
        /// The plugin.
        plugin: RegisteredPlugin,
    },
}

/// The node's plugins for metrics, by the paths of their sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginSockets {
    /// Sockets that are there.
    pub desired: BTreeSet<String>,
    /// Sockets whose plugins are registered.
    pub actual: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct PluginRegistration {
    id: SocketId,
    /// The plugin that was registered from this path.
    plugin: Option<RegisteredPlugin>,
    busy: bool,
    /// It must be registered.
    stale: bool,
    /// The socket went while it was being registered.
    gone: bool,
    failures: u32,
    not_before: Mono,
}

/// The plugins of the node.
#[derive(Clone, Debug, Default)]
pub struct Registrations {
    sockets: BTreeMap<String, PluginRegistration>,
}

impl Registrations {
    /// These sockets are there, and no others.
    pub fn seen(&mut self, there: &BTreeMap<String, SocketId>, now: Mono) -> Vec<Action> {
        let mut actions = Vec::new();
        for (path, entry) in &mut self.sockets {
            if !there.contains_key(path) {
                entry.gone = true;
                actions
                    .extend(entry.plugin.take().map(|plugin| Action::Forget { path: path.clone(), plugin }));
            }
        }
        // An entry that is busy stays until its answer comes: two registrations of one path would overtake each other.
        self.sockets.retain(|_, entry| entry.busy || !entry.gone);
        for (path, id) in there {
            let new = || PluginRegistration {
                id: *id,
                plugin: None,
                busy: false,
                stale: true,
                gone: false,
                failures: 0,
                not_before: Mono(0),
            };
            let entry = self.sockets.entry(path.clone()).or_insert_with(new);
            if entry.id != *id || entry.gone {
                entry.gone = false;
                (entry.id, entry.stale, entry.failures, entry.not_before) = (*id, true, 0, Mono(0));
            }
        }
        actions.extend(self.due(now));
        actions
    }

    /// What is to be registered at `now`.
    pub fn due(&mut self, now: Mono) -> Vec<Action> {
        let mut actions = Vec::new();
        for (path, entry) in &mut self.sockets {
            if entry.stale && !entry.busy && !entry.gone && entry.not_before <= now {
                let ended = entry.plugin.take_if(|plugin| plugin.kind == PluginKind::Dra);
                actions.extend(ended.map(|plugin| Action::Forget { path: path.clone(), plugin }));
                (entry.busy, entry.stale) = (true, false);
                actions.push(Action::Register { path: path.clone(), id: entry.id });
            }
        }
        actions
    }

    /// When to look again.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        self.sockets.values().filter(|e| e.stale && !e.busy && !e.gone).map(|e| e.not_before).min()
    }

    /// The registration of the socket `id` at `path` ended: with the plugin, or in vain. The socket may have gone meanwhile.
    pub fn answered(
        &mut self,
        path: &str,
        id: SocketId,
        outcome: Result<RegisteredPlugin, ()>,
        now: Mono,
    ) -> Vec<Action> {
        let forget = |plugin| Action::Forget { path: path.to_owned(), plugin };
        if self.sockets.get(path).is_none_or(|entry| entry.gone) {
            self.sockets.remove(path);
            return outcome.ok().map(forget).into_iter().collect();
        }
        let Some(entry) = self.sockets.get_mut(path) else { return Vec::new() };
        entry.busy = false;
        let mut forgotten = None;
        match outcome {
            Ok(plugin) => {
                entry.failures = 0;
                let before = entry.plugin.replace(plugin.clone());
                forgotten =
                    before.filter(|before| (before.kind, &before.name) != (plugin.kind, &plugin.name));
            }
            Err(()) if entry.id == id => {
                let wait = Backoff::OPERATION.next(entry.failures);
                entry.failures = entry.failures.saturating_add(1);
                (entry.stale, entry.not_before) = (true, now.after(wait));
                forgotten = entry.plugin.take();
            }
            Err(()) => {}
        }
        let mut actions: Vec<Action> = forgotten.map(forget).into_iter().collect();
        actions.extend(self.due(now));
        actions
    }

    /// The sockets for metrics.
    #[must_use]
    pub fn sockets(&self) -> PluginSockets {
        let mut view = PluginSockets::default();
        for (path, entry) in self.sockets.iter().filter(|(_, entry)| !entry.gone) {
            view.desired.insert(path.clone());
            if entry.plugin.is_some() {
                view.actual.insert(path.clone());
            }
        }
        view
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn there(sockets: &[(&str, u64)]) -> BTreeMap<String, SocketId> {
        sockets.iter().map(|(path, inode)| ((*path).to_owned(), (*inode, 0))).collect()
    }

    fn register(path: &str, inode: u64) -> Action {
        Action::Register { path: path.to_owned(), id: (inode, 0) }
    }

    fn plugin(kind: PluginKind, name: &str, number: u64) -> RegisteredPlugin {
        RegisteredPlugin { kind, name: name.to_owned(), number }
    }

    fn forget(path: &str, driver: &str) -> Action {
        Action::Forget { path: path.to_owned(), plugin: plugin(PluginKind::Csi, driver, 0) }
    }

    fn ok(driver: &str) -> Result<RegisteredPlugin, ()> {
        Ok(plugin(PluginKind::Csi, driver, 0))
    }

    #[test]
    fn a_socket_is_registered_once_and_forgotten_when_it_goes() {
        let mut all = Registrations::default();
        assert_eq!(all.seen(&there(&[("a", 1), ("b", 2)]), Mono(0)), [register("a", 1), register("b", 2)]);
        assert_eq!(all.seen(&there(&[("a", 1), ("b", 2)]), Mono(0)), []);
        assert_eq!(all.answered("a", (1, 0), ok("x"), Mono(0)), []);
        let view = all.sockets();
        assert_eq!(
            (view.desired.len(), view.actual.into_iter().collect::<Vec<_>>()),
            (2, vec!["a".to_owned()])
        );
        assert_eq!(all.seen(&there(&[("b", 2)]), Mono(0)), [forget("a", "x")]);
        assert_eq!(all.seen(&there(&[]), Mono(0)), [], "nobody knows the driver yet");
        assert_eq!(all.answered("b", (2, 0), ok("y"), Mono(0)), [forget("b", "y")], "it came too late");
        assert_eq!(all.deadline(), None);
    }

    #[test]
    fn a_socket_that_was_made_anew_is_registered_anew_and_its_driver_stays() {
        let mut all = Registrations::default();
        all.seen(&there(&[("a", 1)]), Mono(0));
        // While it is being registered.
        assert_eq!(all.seen(&there(&[("a", 2)]), Mono(0)), []);
        assert_eq!(all.answered("a", (1, 0), ok("x"), Mono(0)), [register("a", 2)]);
        assert_eq!(all.answered("a", (2, 0), ok("x"), Mono(0)), []);
        // And later; another driver has taken the path.
        assert_eq!(all.seen(&there(&[("a", 3)]), Mono(0)), [register("a", 3)]);
        assert_eq!(all.answered("a", (3, 0), ok("z"), Mono(0)), [forget("a", "x")]);
        // What the earlier one says does not count against the later.
        assert_eq!(all.seen(&there(&[("a", 4)]), Mono(0)), [register("a", 4)]);
        assert_eq!(all.seen(&there(&[("a", 5)]), Mono(0)), []);
        assert_eq!(all.answered("a", (4, 0), Err(()), Mono(0)), [register("a", 5)]);
    }

    #[test]
    fn a_failure_is_tried_again_more_and_more_seldom() {
        let mut all = Registrations::default();
        let mut now = Mono(0);
        assert_eq!(all.seen(&there(&[("a", 1)]), now), [register("a", 1)]);
        let mut waits = Vec::new();
        for _ in 0..10 {
            assert_eq!(all.answered("a", (1, 0), Err(()), now), []);
            assert_eq!(all.due(now), []);
            let next = all.deadline().unwrap();
            waits.push((next.0 - now.0) * 2 / SECOND);
            now = next;
            assert_eq!(all.due(now), [register("a", 1)]);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 244, 244]);
        assert_eq!(all.answered("a", (1, 0), ok("x"), now), []);
        // What was registered and cannot be again is forgotten.
        all.seen(&there(&[("a", 2)]), now);
        assert_eq!(all.answered("a", (2, 0), Err(()), now), [forget("a", "x")]);
    }
    #[test]
    fn a_dra_plugin_is_forgotten_before_its_successor_registers() {
        let dra = |number| plugin(PluginKind::Dra, "x", number);
        let gone = |number| Action::Forget { path: "a".to_owned(), plugin: dra(number) };
        let mut all = Registrations::default();
        all.seen(&there(&[("a", 1)]), Mono(0));
        assert_eq!(all.answered("a", (1, 0), Ok(dra(1)), Mono(0)), []);
        assert_eq!(all.seen(&there(&[("a", 2)]), Mono(0)), [gone(1), register("a", 2)]);
        // The socket is made anew while it is being registered.
        assert_eq!(all.seen(&there(&[("a", 3)]), Mono(0)), []);
        assert_eq!(all.answered("a", (2, 0), Ok(dra(2)), Mono(0)), [gone(2), register("a", 3)]);
    }

    #[test]
    fn a_path_has_one_registration_at_a_time() {
        let mut all = Registrations::default();
        all.seen(&there(&[("a", 1)]), Mono(0));
        assert_eq!(all.seen(&there(&[]), Mono(0)), []);
        assert_eq!(all.sockets(), PluginSockets::default());
        assert_eq!(all.seen(&there(&[("a", 2)]), Mono(0)), [], "the first one is still asked");
        assert_eq!(all.answered("a", (1, 0), ok("x"), Mono(0)), [register("a", 2)]);
        assert_eq!(all.answered("a", (2, 0), ok("x"), Mono(0)), []);
        assert_eq!(all.sockets().actual.len(), 1);
    }
}
