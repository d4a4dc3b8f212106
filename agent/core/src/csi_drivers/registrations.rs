//! Which plugins are registered, by their sockets.
//!
//! In: the sockets that are there, answers, the time. Out: what to register and which driver to forget. Invariants: at most
//! one registration of a socket at a time; one driver has one socket; a socket that was made anew is registered anew; a
//! driver is forgotten only when no socket holds it. Upstream: pkg/kubelet/pluginmanager/reconciler.

use std::collections::BTreeMap;

use agent_types::backoff::Backoff;
use agent_types::time::Mono;

/// Tells a socket from a later one at the same path: inode, and when that changed, nanoseconds.
pub type SocketId = (u64, i64);

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
    /// The driver of this name is not there any more.
    Forget(String),
}

#[derive(Clone, Debug)]
struct PluginRegistration {
    id: SocketId,
    /// The driver that was registered from this path.
    driver: Option<String>,
    busy: bool,
    /// It must be registered.
    stale: bool,
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
        let gone: Vec<String> = self.sockets.keys().filter(|p| !there.contains_key(*p)).cloned().collect();
        for path in gone {
            let driver = self.sockets.remove(&path).and_then(|entry| entry.driver);
            actions.extend(driver.map(Action::Forget));
        }
        for (path, id) in there {
            let new = || PluginRegistration {
                id: *id,
                driver: None,
                busy: false,
                stale: true,
                failures: 0,
                not_before: Mono(0),
            };
            let entry = self.sockets.entry(path.clone()).or_insert_with(new);
            if entry.id != *id {
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
            if entry.stale && !entry.busy && entry.not_before <= now {
                (entry.busy, entry.stale) = (true, false);
                actions.push(Action::Register { path: path.clone(), id: entry.id });
            }
        }
        actions
    }

    /// When to look again.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        self.sockets.values().filter(|e| e.stale && !e.busy).map(|e| e.not_before).min()
    }

    /// The path of another socket whose driver has this name.
    #[must_use]
    pub fn holder(&self, driver: &str, not: &str) -> Option<&str> {
        let held = |entry: &PluginRegistration| entry.driver.as_deref() == Some(driver);
        self.sockets.iter().find(|(path, entry)| *path != not && held(entry)).map(|(path, _)| path.as_str())
    }

    /// The registration of the socket `id` at `path` ended: with the driver's name, or in vain. The socket may have gone
    /// meanwhile.
    pub fn answered(
        &mut self,
        path: &str,
        id: SocketId,
        outcome: Result<String, ()>,
        now: Mono,
    ) -> Vec<Action> {
        let Some(entry) = self.sockets.get_mut(path) else {
            let orphan = outcome.ok().filter(|driver| self.holder(driver, "").is_none());
            return orphan.map(Action::Forget).into_iter().collect();
        };
        entry.busy = false;
        let mut forgotten = None;
        match outcome {
            Ok(driver) => {
                entry.failures = 0;
                forgotten = entry.driver.replace(driver.clone()).filter(|before| *before != driver);
            }
            Err(()) if entry.id == id => {
                let wait = Backoff::OPERATION.next(entry.failures);
                entry.failures = entry.failures.saturating_add(1);
                (entry.stale, entry.not_before) = (true, now.after(wait));
                forgotten = entry.driver.take();
            }
            Err(()) => {}
        }
        let mut actions: Vec<Action> = forgotten.map(Action::Forget).into_iter().collect();
        actions.extend(self.due(now));
        actions
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

    fn forget(driver: &str) -> Action {
        Action::Forget(driver.to_owned())
    }

    fn ok(driver: &str) -> Result<String, ()> {
        Ok(driver.to_owned())
    }

    #[test]
    fn a_socket_is_registered_once_and_forgotten_when_it_goes() {
        let mut all = Registrations::default();
        assert_eq!(all.seen(&there(&[("a", 1), ("b", 2)]), Mono(0)), [register("a", 1), register("b", 2)]);
        assert_eq!(all.seen(&there(&[("a", 1), ("b", 2)]), Mono(0)), []);
        assert_eq!(all.answered("a", (1, 0), ok("x"), Mono(0)), []);
        assert_eq!((all.holder("x", "b"), all.holder("x", "a")), (Some("a"), None));
        assert_eq!(all.seen(&there(&[("b", 2)]), Mono(0)), [forget("x")]);
        assert_eq!(all.seen(&there(&[]), Mono(0)), [], "nobody knows the driver yet");
        assert_eq!(all.answered("b", (2, 0), ok("y"), Mono(0)), [forget("y")], "it came too late");
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
        assert_eq!(all.answered("a", (3, 0), ok("z"), Mono(0)), [forget("x")]);
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
        assert_eq!(all.answered("a", (2, 0), Err(()), now), [forget("x")]);
    }
}
