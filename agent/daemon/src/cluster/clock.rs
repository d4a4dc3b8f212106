//! The shell of the machine of the node's clock, on a machine whose clock the agent can have set (the appliance).
//!
//! ```text
//! NTP client's mark ─► Synchronized ─┐             ┌─► Look ─► API server, verified but for dates ─► Looked
//! ClusterProblems ─► Trouble ────────┴─ NodeClock ─┼─► Set ─► <dir>/set ─► orlop-clock.path ─► orlop-init clock
//!                                                  ├─► RefuseNtp ─► <dir>/ntp-refused ─► orlop-ntp-refused.path
//!                                                  └─► Verified ─► identity          Show ─► ClusterProblems
//! ```
//! In: [`Deps`]. Out: whether dates of certificates count; files that systemd acts on, because the agent has no CAP_SYS_TIME.
//! Invariants: a look ends within its limits and sends no credentials; the files are replaced whole. Decisions are in
//! [`agent_core::clock`]. See docs/reference/time.md.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_apiserver::certificates::{Store, facts_of_pem};
use agent_apiserver::kubeconfig::Kubeconfig;
use agent_apiserver::{Options, Server, Trust, pinned_since, server_clock};
use agent_core::clock::{ClockAction, ClockEvent, ClockFact, NodeClock};
use agent_linux::files::{self, Durability};
use agent_linux::path_watch::PathWatch;
use agent_types::api_time::text;
use agent_types::certificates::CertKind;
use agent_types::time::{Now, Wall};
use tokio::sync::watch;

use super::bootstrap_credentials::BootstrapSource;
use crate::node::cluster_problems::{ClusterProblems, Part, Problems};
use crate::pods::pod_dirs::chain;
use crate::settings::ClusterSettings;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::mailbox::{Coalesce, Relation, Sender};

/// Where the agent leaves what systemd shall do about the clock. A unit of the appliance makes the directory; where it is
/// absent the clock is the host's own matter.
pub const DIRECTORY: &str = "/run/orlop/clock";
/// systemd-timesyncd makes this file when it follows a server.
pub const SYNCHRONIZED: &str = "/run/systemd/timesync/synchronized";
/// The time to set, for `orlop-init clock`.
const SET_FILE: &str = "set";
/// While it exists systemd-timesyncd stays stopped.
const REFUSED_FILE: &str = "ntp-refused";
/// Period of looking for the mark of the NTP client without an event, because events can be lost, and where there are none.
const LOOK: Duration = Duration::from_secs(60);
const LOOK_WITHOUT_EVENTS: Duration = Duration::from_secs(5);

/// Inputs of [`start`].
pub struct Deps {
    /// The cluster.
    pub settings: ClusterSettings,
    /// Options of every connection.
    pub options: Options,
    /// Build time of the image.
    pub floor: Wall,
    /// [`DIRECTORY`].
    pub directory: PathBuf,
    /// [`SYNCHRONIZED`].
    pub synchronized: PathBuf,
    /// Receives whether dates of certificates count.
    pub verified: watch::Sender<bool>,
    /// Shows problems with the clock; problems with the cluster cause a look.
    pub cluster_problems: ClusterProblems,
    /// The node's tasks.
    pub tasks: Tasks,
}

/// What a look needs.
struct ClockContext {
    settings: ClusterSettings,
    options: Options,
    directory: PathBuf,
}

/// The machine's surroundings.
struct ClockShell {
    shared: Arc<ClockContext>,
    verified: watch::Sender<bool>,
    cluster_problems: ClusterProblems,
    own: Sender<ClockEvent>,
    tasks: Tasks,
}

/// Starts the machine.
pub fn start(deps: Deps) {
    let Deps { settings, options, floor, directory, synchronized, verified, cluster_problems, tasks } = deps;
    let (own, inbox) = tasks.mailbox();
    own.send(ClockEvent::Tick);
    tasks.start(follow_ntp(synchronized, own.clone(), tasks.clone()));
    tasks.start(follow_problems(cluster_problems.subscribe(), own.clone()));
    let shared = Arc::new(ClockContext { settings, options, directory });
    let shell = ClockShell { shared, verified, cluster_problems, own, tasks: tasks.clone() };
    tasks.own(NodeClock::new(floor), shell, inbox);
}

/// Tells the machine whenever the NTP client begins or ceases to follow a server. The mark is in the client's run-time
/// directory, which comes and goes with it.
async fn follow_ntp(mark: PathBuf, to: Sender<ClockEvent>, tasks: Tasks) {
    let (mut hints, mut told) = (PathWatch::new(&mark).ok(), false);
    loop {
        let is = tokio::fs::try_exists(&mark).await.unwrap_or(false);
        if is != told {
            to.send(ClockEvent::Synchronized(is));
            told = is;
        }
        let now = tasks.now().mono;
        let Some(watch) = &mut hints else {
            tasks.wait_until(now.after(LOOK_WITHOUT_EVENTS)).await;
            continue;
        };
        let failed = tokio::select! {
            // Both only wait, and an event that was not returned comes again.
            changed = watch.changed() => changed.is_err(),
            () = tasks.wait_until(now.after(LOOK)) => false,
        };
        if failed {
            hints = None;
        }
    }
}

/// Tells the machine whenever the problems change: those of the clock itself are no reason to look at it.
async fn follow_problems(mut problems: watch::Receiver<Problems>, to: Sender<ClockEvent>) {
    let mut told = Vec::new();
    loop {
        let now: Vec<(Part, String)> = problems
            .borrow_and_update()
            .iter()
            .filter(|(part, _)| **part != Part::Clock)
            .map(|(part, sentence)| (*part, sentence.clone()))
            .collect();
        if now != told {
            to.send(ClockEvent::Trouble(!now.is_empty()));
            told = now;
        }
        if problems.changed().await.is_err() {
            return;
        }
    }
}

impl ClockContext {
    /// The server and the authorities that the node pins: those of its kubeconfig, or those of its first-boot configuration.
    async fn cluster(&self) -> Result<(Server, Trust), String> {
        if let Ok(read) = Kubeconfig::read(&self.settings.kubeconfig).await
            && let Ok(access) = read.access().await
        {
            return Ok((access.server, access.trust));
        }
        BootstrapSource::read(&self.settings).await?.authority(&self.options).await
    }

    /// Asks the server. The answer is the event for the machine.
    async fn look(&self, tasks: &Tasks) -> ClockEvent {
        let cert_dir = self.settings.cert_dir.clone();
        let own = tasks.blocking(move || own_since(&cert_dir)).await.flatten();
        let (server, trust) = match self.cluster().await {
            Ok(cluster) => cluster,
            Err(why) => return ClockEvent::Looked { pinned: None, own, result: Err(why) },
        };
        let result = server_clock(&server, &trust, &self.options).await.map_err(|e| chain(&e));
        ClockEvent::Looked { pinned: pinned_since(&trust), own, result }
    }
}

/// `notBefore` of the node's own certificate.
fn own_since(cert_dir: &Path) -> Option<Wall> {
    let store = Store::open(cert_dir, CertKind::Client).ok()?;
    let pair = store.current().ok()??;
    facts_of_pem("client certificate", &pair, false).ok().map(|facts| facts.not_before)
}

impl ClockShell {
    /// Writes a file that a path unit of systemd waits for.
    fn leave(&self, file: &'static str, line: String) {
        let path = self.shared.directory.join(file);
        let tasks = self.tasks.clone();
        self.tasks.start(async move {
            let write = move || {
                files::write_atomic(&path, line.as_bytes(), 0o600, Durability::Rebuildable)
                    .map_err(|e| chain(&e))
            };
            if let Some(Err(error)) = tasks.blocking(write).await {
                // The machine notices that nothing happened, and says so.
                tracing::warn!(file, error, "systemd is not told what to do about the clock");
            }
        });
    }
}

/// The line for `orlop-init clock`: the time, and when it was that time; milliseconds since 1970 and of CLOCK_BOOTTIME.
fn set_line(wall: Wall, now: Now) -> String {
    format!("{} {}\n", wall.0.div_euclid(1_000_000), now.mono.0 / 1_000_000)
}

impl Shell for ClockShell {
    type Machine = NodeClock;

    fn tick(&self) -> ClockEvent {
        ClockEvent::Tick
    }

    fn perform(&mut self, now: Now, action: ClockAction) {
        match action {
            ClockAction::Look => {
                let (shared, own, tasks) = (self.shared.clone(), self.own.clone(), self.tasks.clone());
                self.tasks.start(async move {
                    own.send(shared.look(&tasks).await);
                });
            }
            ClockAction::Set(wall) => {
                tracing::warn!(from = text(now.wall), to = text(wall), "the clock is wrong and is being set");
                self.leave(SET_FILE, set_line(wall, now));
            }
            ClockAction::RefuseNtp => {
                self.leave(REFUSED_FILE, "its time and the API server's are too far apart\n".to_owned());
            }
            ClockAction::Verified(is) => {
                self.verified.send_replace(is);
            }
            ClockAction::Show(sentence) => self.cluster_problems.say(Part::Clock, &sentence),
            ClockAction::Fact(ClockFact::Set { from, to }) => {
                tracing::info!(from = text(from), to = text(to), "the clock was set");
            }
        }
    }
}

impl Coalesce for ClockEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (ClockEvent::Synchronized(_), ClockEvent::Synchronized(_))
            | (ClockEvent::Trouble(_), ClockEvent::Trouble(_))
            | (ClockEvent::Tick, ClockEvent::Tick) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}

#[cfg(test)]
mod tests {
    use agent_apiserver::testing::{FakeServer, TestPki, Validity};
    use agent_linux::clock::LinuxClock;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Events that have not happened after this time do not happen.
    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn the_line_names_the_time_and_its_moment() {
        let now = Now { mono: agent_types::time::Mono(7_123_456_789), wall: Wall(0) };
        assert_eq!(set_line(Wall(1_795_262_400_123_456_789), now), "1795262400123 7123\n");
        assert_eq!(set_line(Wall(-1), now), "-1 7123\n");
    }

    /// The client's directory comes with the client and goes with it.
    #[tokio::test]
    async fn the_ntp_client_is_noticed_when_it_follows_a_server_and_when_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("timesync");
        let mark = run_dir.join("synchronized");
        let tasks = Tasks::new(Arc::new(LinuxClock), CancellationToken::new());
        let (own, mut inbox) = tasks.mailbox();
        tasks.start(follow_ntp(mark.clone(), own, tasks.clone()));
        for _ in 0..2 {
            std::fs::create_dir(&run_dir).unwrap();
            std::fs::write(&mark, "").unwrap();
            let event = tokio::time::timeout(LIMIT, inbox.recv()).await.unwrap();
            assert_eq!(event, ClockEvent::Synchronized(true));
            std::fs::remove_dir_all(&run_dir).unwrap();
            let event = tokio::time::timeout(LIMIT, inbox.recv()).await.unwrap();
            assert_eq!(event, ClockEvent::Synchronized(false));
        }
        tasks.stop().cancel();
    }

    /// The host's clock is right and the server's certificate begins tomorrow, so by the chain the clock is early.
    #[tokio::test]
    async fn a_clock_that_the_chain_proves_to_be_early_is_to_be_set() {
        let fake = FakeServer::start(Arc::new(TestPki::new())).await.unwrap();
        let name = fake.server().host;
        fake.set_tls(fake.pki.server_config(&[name.as_str()], Validity(86_400, 2 * 86_400)));
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let join = format!(
            "server: {}\ncaData: {}\ntoken: abcdef.0123456789abcdef\n",
            fake.server(),
            STANDARD.encode(&fake.pki.ca_pem)
        );
        std::fs::write(path("join.yaml"), join).unwrap();
        let settings = ClusterSettings {
            kubeconfig: path("kubeconfig"),
            bootstrap_kubeconfig: None,
            join: Some(path("join.yaml")),
            cert_dir: path("pki"),
        };
        let tasks = Tasks::new(Arc::new(LinuxClock), CancellationToken::new());
        let (verified, _view) = watch::channel(true);
        let cluster_problems = ClusterProblems::default();
        start(Deps {
            settings,
            options: Options::new("test"),
            floor: Wall(0),
            directory: dir.path().to_owned(),
            synchronized: path("synchronized"),
            verified: verified.clone(),
            cluster_problems: cluster_problems.clone(),
            tasks: tasks.clone(),
        });
        let mut view = verified.subscribe();
        tokio::time::timeout(LIMIT, view.wait_for(|is| !is)).await.unwrap().unwrap();
        cluster_problems.say(Part::Identity, "its certificate is not valid yet");
        let line = tokio::time::timeout(LIMIT, async {
            loop {
                match std::fs::read_to_string(path(SET_FILE)) {
                    Ok(line) => return line,
                    Err(_) => tasks.wait_until(tasks.now().mono.after(Duration::from_millis(20))).await,
                }
            }
        });
        let line = line.await.unwrap();
        let numbers: Vec<i64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let tomorrow = tasks.now().wall.0 / 1_000_000 + 86_400_000;
        assert!((numbers[0] - tomorrow).abs() < 60_000, "{line}");
        let age = i64::try_from(tasks.now().mono.0 / 1_000_000).unwrap() - numbers[1];
        assert!((0..60_000).contains(&age), "{line}");
        assert!(!*view.borrow(), "the clock has not been set");
        let seen = fake.seen();
        assert!(seen.iter().all(|s| s.who == "system:anonymous"), "{seen:?}");
        tasks.stop().cancel();
    }
}
