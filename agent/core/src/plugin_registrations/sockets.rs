//! Registered plugins by their sockets.
//!
//! In: the existing sockets, answers, the time. Out: plugins to register and registrations to end. Invariants: at most one
//! registration of a path at a time; a socket that replaces another one at the same path is registered again; a plugin that replaces its
//! socket in a loop is asked a few times and then once each ten seconds. The old registration of a DRA plugin ends before the new one
//! begins; that of any other plugin ends after it, so that the volumes of a CSI driver always have a driver. Upstream:
//! pkg/kubelet/pluginmanager/reconciler.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::backoff::Backoff;
use agent_types::time::Mono;
use agent_types::token_bucket::TokenBucket;

use super::PluginKind;

/// Registrations of one path that come at once.
const REGISTRATIONS_BURST: u32 = 8;
/// Time for one more registration of a path.
const REGISTRATION_INTERVAL: Duration = Duration::from_secs(10);
/// Paths without a socket whose registrations are remembered: a loop may also remove its socket between two scans.
const GONE_MAX: usize = 256;

/// Identity of a socket, which differs from that of a later socket at the same path: inode, and its change time in nanoseconds.
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

/// Time of the next attempt after a registration that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After a wait that grows with each failure.
    BackOff,
    /// After this time. It is no failure.
    After(Duration),
}

/// An action for the plugin watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the plugin at this socket, and register it.
    Register {
        /// Path of the socket.
        path: String,
        /// Identity of the socket.
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
    /// Existing sockets.
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
    /// True if the socket must be registered.
    stale: bool,
    /// True if the socket vanished during its registration.
    gone: bool,
    /// The socket was not asked yet.
    is_new: bool,
    failures: u32,
    not_before: Mono,
    /// Bounds the new sockets of the path that are asked. A socket that is asked again has its own wait.
    registrations: TokenBucket,
    /// When the bucket has the next token.
    next_token: Mono,
}

impl PluginRegistration {
    /// A socket that was not there before.
    fn new(id: SocketId) -> PluginRegistration {
        PluginRegistration {
            id,
            plugin: None,
            busy: false,
            stale: true,
            gone: false,
            is_new: true,
            failures: 0,
            not_before: Mono(0),
            registrations: TokenBucket::new(REGISTRATION_INTERVAL, REGISTRATIONS_BURST),
            next_token: Mono(0),
        }
    }

    /// When the socket is to be registered; `None`: it need not be, or is being registered.
    fn due_at(&self) -> Option<Mono> {
        let waits = self.stale && !self.busy && !self.gone;
        waits.then_some(if self.is_new { self.next_token } else { self.not_before })
    }

    /// Its path has no socket, and nothing of it need be remembered.
    fn is_over(&self, now: Mono) -> bool {
        self.gone && !self.busy && self.registrations.is_full(now)
    }
}

/// The plugins of the node.
#[derive(Clone, Debug, Default)]
pub struct Registrations {
    sockets: BTreeMap<String, PluginRegistration>,
}

impl Registrations {
    /// Takes the list of all existing sockets.
    pub fn seen(&mut self, there: &BTreeMap<String, SocketId>, now: Mono) -> Vec<Action> {
        let mut actions = Vec::new();
        for (path, entry) in &mut self.sockets {
            if !there.contains_key(path) {
                entry.gone = true;
                actions
                    .extend(entry.plugin.take().map(|plugin| Action::Forget { path: path.clone(), plugin }));
            }
        }
        // An entry with a registration in progress stays until its answer arrives: two registrations of one path could
        // overtake each other.
        self.sockets.retain(|_, entry| !entry.is_over(now));
        if self.sockets.values().filter(|entry| entry.gone && !entry.busy).count() > GONE_MAX {
            self.sockets.retain(|_, entry| entry.busy || !entry.gone);
        }
        for (path, id) in there {
            let entry = self.sockets.entry(path.clone()).or_insert_with(|| PluginRegistration::new(*id));
            if entry.id != *id || entry.gone {
                entry.gone = false;
                (entry.id, entry.stale, entry.is_new, entry.failures) = (*id, true, true, 0);
            }
        }
        actions.extend(self.due(now));
        actions
    }

    /// Registrations that are due at `now`.
    pub fn due(&mut self, now: Mono) -> Vec<Action> {
        let mut actions = Vec::new();
        for (path, entry) in &mut self.sockets {
            if entry.due_at().is_some_and(|at| at <= now) {
                if std::mem::take(&mut entry.is_new) {
                    entry.registrations.take(now);
                    entry.next_token = now.after(entry.registrations.wait(now));
                }
                let ended = entry.plugin.take_if(|plugin| plugin.kind == PluginKind::Dra);
                actions.extend(ended.map(|plugin| Action::Forget { path: path.clone(), plugin }));
                (entry.busy, entry.stale) = (true, false);
                actions.push(Action::Register { path: path.clone(), id: entry.id });
            }
        }
        actions
    }

    /// Time of the next due registration.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        self.sockets.values().filter_map(PluginRegistration::due_at).min()
    }

    /// The registration of the socket `id` at `path` ended, with the plugin or with a failure. The socket may have vanished in the meantime.
    pub fn answered(
        &mut self,
        path: &str,
        id: SocketId,
        outcome: Result<RegisteredPlugin, Retry>,
        now: Mono,
    ) -> Vec<Action> {
        let forget = |plugin| Action::Forget { path: path.to_owned(), plugin };
        let Some(entry) = self.sockets.get_mut(path) else {
            return outcome.ok().map(forget).into_iter().collect();
        };
        entry.busy = false;
        if entry.gone {
            return outcome.ok().map(forget).into_iter().collect();
        }
        let mut forgotten = None;
        match outcome {
            Ok(plugin) => {
                entry.failures = 0;
                let before = entry.plugin.replace(plugin.clone());
                forgotten =
                    before.filter(|before| (before.kind, &before.name) != (plugin.kind, &plugin.name));
            }
            Err(retry) if entry.id == id => {
                let wait = match retry {
                    Retry::BackOff => {
                        let wait = Backoff::OPERATION.next(entry.failures);
                        entry.failures = entry.failures.saturating_add(1);
                        wait
                    }
                    Retry::After(wait) => wait,
                };
                (entry.stale, entry.not_before) = (true, now.after(wait));
                forgotten = entry.plugin.take();
            }
            Err(_) => {}
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

    fn ok(driver: &str) -> Result<RegisteredPlugin, Retry> {
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
        // The socket changes during its registration.
        assert_eq!(all.seen(&there(&[("a", 2)]), Mono(0)), []);
        assert_eq!(all.answered("a", (1, 0), ok("x"), Mono(0)), [register("a", 2)]);
        assert_eq!(all.answered("a", (2, 0), ok("x"), Mono(0)), []);
        // The socket changes later, and belongs to another driver.
        assert_eq!(all.seen(&there(&[("a", 3)]), Mono(0)), [register("a", 3)]);
        assert_eq!(all.answered("a", (3, 0), ok("z"), Mono(0)), [forget("a", "x")]);
        // The answer for the earlier socket does not affect the later one.
        assert_eq!(all.seen(&there(&[("a", 4)]), Mono(0)), [register("a", 4)]);
        assert_eq!(all.seen(&there(&[("a", 5)]), Mono(0)), []);
        assert_eq!(all.answered("a", (4, 0), Err(Retry::BackOff), Mono(0)), [register("a", 5)]);
    }

    #[test]
    fn a_failure_is_tried_again_more_and_more_seldom() {
        let mut all = Registrations::default();
        let mut now = Mono(0);
        assert_eq!(all.seen(&there(&[("a", 1)]), now), [register("a", 1)]);
        let mut waits = Vec::new();
        for _ in 0..10 {
            assert_eq!(all.answered("a", (1, 0), Err(Retry::BackOff), now), []);
            assert_eq!(all.due(now), []);
            let next = all.deadline().unwrap();
            waits.push((next.0 - now.0) * 2 / SECOND);
            now = next;
            assert_eq!(all.due(now), [register("a", 1)]);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 244, 244]);
        assert_eq!(all.answered("a", (1, 0), ok("x"), now), []);
        // A registered plugin whose new registration fails is forgotten.
        all.seen(&there(&[("a", 2)]), now);
        assert_eq!(all.answered("a", (2, 0), Err(Retry::BackOff), now), [forget("a", "x")]);
    }
    #[test]
    fn a_dra_plugin_is_forgotten_before_its_successor_registers() {
        let dra = |number| plugin(PluginKind::Dra, "x", number);
        let gone = |number| Action::Forget { path: "a".to_owned(), plugin: dra(number) };
        let mut all = Registrations::default();
        all.seen(&there(&[("a", 1)]), Mono(0));
        assert_eq!(all.answered("a", (1, 0), Ok(dra(1)), Mono(0)), []);
        assert_eq!(all.seen(&there(&[("a", 2)]), Mono(0)), [gone(1), register("a", 2)]);
        // Another socket replaces the socket during its registration.
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

    /// A plugin makes its socket again ten times a second, for a minute; the answer arrives at once.
    fn loops(is_seen_gone: bool) -> usize {
        let mut all = Registrations::default();
        let mut registrations = 0;
        for round in 1..=600_u64 {
            let now = Mono(round * SECOND / 10);
            let mut actions = all.seen(&there(&[("a", round)]), now);
            actions.retain(|action| matches!(action, Action::Register { .. }));
            for _ in &actions {
                registrations += 1;
                all.answered("a", (round, 0), ok("x"), now);
            }
            if is_seen_gone {
                all.seen(&there(&[]), now);
            }
        }
        registrations
    }

    #[test]
    fn a_plugin_that_registers_in_a_loop_is_asked_now_and_then() {
        // The burst, and one each ten seconds.
        assert_eq!([loops(false), loops(true)], [13, 13]);
    }

    #[test]
    fn failures_are_no_registrations_of_the_path() {
        let mut all = Registrations::default();
        let mut now = Mono(0);
        all.seen(&there(&[("a", 1)]), now);
        for _ in 0..20 {
            assert_eq!(all.answered("a", (1, 0), Err(Retry::BackOff), now), []);
            now = all.deadline().unwrap();
            assert_eq!(all.due(now), [register("a", 1)]);
        }
        all.answered("a", (1, 0), ok("x"), now);
        // The path has the whole burst.
        for inode in 2..=9 {
            assert_eq!(all.seen(&there(&[("a", inode)]), now), [register("a", inode)]);
            all.answered("a", (inode, 0), ok("x"), now);
        }
        assert_eq!(all.seen(&there(&[("a", 10)]), now), []);
    }

    #[test]
    fn a_path_whose_registrations_are_used_up_has_its_socket_asked_again_in_time() {
        let mut all = Registrations::default();
        for inode in 1..=8 {
            assert_eq!(all.seen(&there(&[("a", inode)]), Mono(0)), [register("a", inode)]);
            all.answered("a", (inode, 0), Err(Retry::BackOff), Mono(0));
        }
        assert_eq!(all.deadline(), Some(Mono(SECOND / 2)), "not after the next token");
    }

    #[test]
    fn a_plugin_that_registers_too_often_is_asked_when_it_may_register_and_that_is_no_failure() {
        let mut all = Registrations::default();
        all.seen(&there(&[("a", 1)]), Mono(0));
        let mut now = Mono(0);
        for seconds in [7, 40, 3] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(all.answered("a", (1, 0), Err(Retry::After(wait)), now), []);
            now = now.after(wait);
            assert_eq!(all.deadline(), Some(now));
            assert_eq!(all.due(now), [register("a", 1)]);
        }
        assert_eq!(all.answered("a", (1, 0), Err(Retry::BackOff), now), []);
        assert_eq!(all.deadline(), Some(now.after(Duration::from_millis(500))), "the first failure");
    }

    #[test]
    fn a_socket_that_had_its_registrations_is_registered_in_time() {
        let mut all = Registrations::default();
        for inode in 1..=8 {
            assert_eq!(all.seen(&there(&[("a", inode)]), Mono(0)).last(), Some(&register("a", inode)));
            all.answered("a", (inode, 0), ok("x"), Mono(0));
        }
        assert_eq!(all.seen(&there(&[("a", 9), ("b", 1)]), Mono(0)), [register("b", 1)], "others go on");
        assert_eq!(all.deadline(), Some(Mono(10 * SECOND)));
        assert_eq!(all.due(Mono(10 * SECOND)), [register("a", 9)]);
    }

    #[test]
    fn paths_that_come_and_go_are_forgotten() {
        let mut all = Registrations::default();
        for round in 0..2_000_u64 {
            let path = format!("s{round}");
            all.seen(&there(&[(path.as_str(), round)]), Mono(0));
            all.answered(&path, (round, 0), Err(Retry::BackOff), Mono(0));
            all.seen(&there(&[]), Mono(0));
            assert!(all.sockets.len() <= GONE_MAX + 1);
        }
        all.seen(&there(&[]), Mono(10 * SECOND));
        assert!(all.sockets.is_empty());
    }
}
