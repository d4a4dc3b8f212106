//! The steps to an iSCSI disk's device, each from the observed state.
//!
//! ```text
//! show the interface ─► (make one of the volume's own) ─► hosts ─► for each portal: discover ─► log in ─► scan ─► link
//!                                                                     ▲ up to five rounds, while one has no link ┘
//! device that joins several paths, or the first path
//! ```
//! In: answers to [`LoginStep`]s. Out: [`LoginStep`]s, the last of them the device, or upstream's message without one.
//! Invariants: each step has one answer; a portal that fails does not delay another one; with existing
//! sessions there is no login; the caller holds the target's lock, so that no logout happens meanwhile.
//! Upstream: `AttachDisk` of pkg/volume/iscsi/iscsi_util.go.

use std::collections::{BTreeMap, VecDeque};

use super::iscsi::{Chap, Command, Iscsi, Link, SESSION_EXISTS, parameters, transport};

/// So many paths are enough for a disk with several, from the second round on.
const PATHS_MIN: usize = 2;
/// So often at least every portal is tried, if the disk is to have several paths.
const ROUNDS_MIN: u32 = 2;
/// After so many rounds one path has to do.
const ROUNDS_MAX: u32 = 5;
/// How long a device may take to appear, s.
pub const LINK_LIMIT_S: u32 = 30;
/// How long a device that joins several paths may take to appear, s.
const JOINED_LIMIT_S: u32 = 10;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginStep {
    /// Run iscsiadm: [`Login::ended`].
    Run(Command),
    /// See which portals of the target have sessions, and through which SCSI hosts: [`Login::hosts`].
    Hosts,
    /// Have a SCSI host look for the unit: [`Login::scanned`].
    Scan(u32),
    /// Wait at most [`LINK_LIMIT_S`] for a link: [`Login::linked`].
    AwaitLink(Link),
    /// Look at most so many times, a second apart, for a device that joins one of these paths: [`Login::joined`].
    AwaitJoined(Vec<String>, u32),
    /// The disk is this device.
    Done(String),
    /// There is none, and why.
    Failed(String),
}

/// How a program ended that was no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFailure {
    /// Its exit code; `None`: a signal.
    pub code: Option<i32>,
    /// How it ended.
    pub why: String,
    /// What it said.
    pub words: String,
}

/// What a failure of a step means.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    /// Nothing.
    Ignored,
    /// The portal is not to be had now. First this is undone.
    OfPortal(String, Option<Command>),
    /// The disk is not to be had.
    OfDisk(String),
}

#[derive(Clone, Debug)]
struct Planned {
    step: LoginStep,
    failure: Failure,
    /// An exit code that is a success, too.
    also: Option<i32>,
}

impl Planned {
    fn run(command: Command, failure: Failure) -> Planned {
        Planned { step: LoginStep::Run(command), failure, also: None }
    }
}

/// On the way to a disk's device.
#[derive(Clone, Debug)]
pub struct Login {
    iscsi: Iscsi,
    volume: String,
    chap: Chap,
    queue: VecDeque<Planned>,
    /// What was asked for last.
    asked: Option<Planned>,
    transport: String,
    hosts: BTreeMap<String, u32>,
    /// The portal that is being tried, by its number; `None`: none yet.
    portal: Option<usize>,
    round: u32,
    /// By portal.
    devices: BTreeMap<String, String>,
    last_failure: String,
    end: Option<LoginStep>,
}

impl Login {
    /// The way to a disk for the volume `volume`; `chap` is what its Secret holds.
    #[must_use]
    pub fn new(iscsi: &Iscsi, volume: &str, chap: Chap) -> Login {
        let failure = Failure::OfDisk("iscsi: could not read iface".to_owned());
        let mut login = Login {
            iscsi: iscsi.clone(),
            volume: volume.to_owned(),
            chap,
            queue: VecDeque::from([Planned::run(iscsi.show_interface(), failure)]),
            asked: None,
            transport: String::new(),
            hosts: BTreeMap::new(),
            portal: None,
            round: 1,
            devices: BTreeMap::new(),
            last_failure: "no portal".to_owned(),
            end: None,
        };
        if iscsi.initiator().is_some() && iscsi.interface(volume) == iscsi.base() {
            let name = iscsi.interface(volume);
            login.fail(format!("iscsi: cannot clone iface with same name: {name}"));
        }
        login
    }

    fn fail(&mut self, why: String) {
        self.queue.clear();
        self.end = Some(LoginStep::Failed(why));
    }

    /// What is to be done next.
    pub fn step(&mut self) -> LoginStep {
        loop {
            if let Some(planned) = self.queue.pop_front() {
                let step = planned.step.clone();
                self.asked = Some(planned);
                return step;
            }
            if let Some(end) = &self.end {
                return end.clone();
            }
            self.advance();
        }
    }

    /// The next portal, the next round, or the end.
    fn advance(&mut self) {
        let from = self.portal.map_or(0, |at| at + 1);
        let portals = self.iscsi.portals.clone();
        let next = portals.iter().enumerate().skip(from).find(|(_, p)| !self.devices.contains_key(*p));
        if let Some((at, portal)) = next {
            self.portal = Some(at);
            self.visit(portal);
            return;
        }
        let found = self.devices.len();
        if found == 0 {
            self.end = Some(LoginStep::Failed(format!(
                "failed to get any path for iscsi disk, last err seen:\n{}",
                self.last_failure
            )));
            let undo = self.iscsi.delete_interface(&self.volume);
            self.queue.extend(undo.map(|command| Planned::run(command, Failure::Ignored)));
            return;
        }
        let enough = found >= PATHS_MIN && self.round >= ROUNDS_MIN;
        if found < portals.len() && !enough && self.round < ROUNDS_MAX {
            self.round += 1;
            self.portal = None;
            return;
        }
        let paths: Vec<String> = portals.iter().filter_map(|p| self.devices.get(p).cloned()).collect();
        let times = if portals.len() > 1 { JOINED_LIMIT_S } else { 1 };
        // Without one it is the first path.
        self.end = paths.first().cloned().map(LoginStep::Done);
        let step = LoginStep::AwaitJoined(paths, times);
        self.queue.push_back(Planned { step, failure: Failure::Ignored, also: None });
    }

    fn visit(&mut self, portal: &str) {
        if self.hosts.contains_key(portal) {
            self.look(portal);
            return;
        }
        let (iscsi, volume) = (&self.iscsi, &self.volume);
        let of_portal = |what: String, undo| Failure::OfPortal(what, undo);
        let mut plan = vec![Planned::run(iscsi.discovery(volume, portal, &["-o", "new"]), Failure::Ignored)];
        for command in iscsi.chap_of_discovery(volume, portal, &self.chap) {
            let what = format!("iscsi: failed to update discoverydb to portal {portal} error");
            plan.push(Planned::run(command, of_portal(what, None)));
        }
        let forget = iscsi.discovery(volume, portal, &["-o", "delete"]);
        let what = format!("iscsi: failed to sendtargets to portal {portal}");
        let discover = iscsi.discovery(volume, portal, &["--discover"]);
        plan.push(Planned::run(discover, of_portal(what, Some(forget))));
        // Units of other volumes are not to appear here by themselves. Old versions do not know it.
        let scan = ["-o", "update", "-n", "node.session.scan", "-v", "manual"];
        plan.push(Planned::run(iscsi.node(volume, portal, &scan), Failure::Ignored));
        for command in iscsi.chap_of_session(volume, portal, &self.chap) {
            let what = format!("iscsi: failed to update iscsi node to portal {portal} error");
            plan.push(Planned::run(command, of_portal(what, None)));
        }
        let forget = iscsi.node(volume, portal, &["-o", "delete"]);
        let failure = of_portal("iscsi: failed to attach disk".to_owned(), Some(forget));
        let login = iscsi.node(volume, portal, &["--login"]);
        plan.push(Planned { also: Some(SESSION_EXISTS), ..Planned::run(login, failure) });
        plan.push(Planned::run(iscsi.by_hand(portal), Failure::Ignored));
        plan.push(Planned { step: LoginStep::Hosts, failure: Failure::Ignored, also: None });
        self.queue.extend(plan);
    }

    /// There is a session: the unit is looked for. A host that sysfs does not show scans by itself, or its unit never
    /// appears.
    fn look(&mut self, portal: &str) {
        if let Some(host) = self.hosts.get(portal) {
            let failure = Failure::OfDisk(format!("scan of SCSI host {host} failed"));
            self.queue.push_back(Planned { step: LoginStep::Scan(*host), failure, also: None });
        }
        let link = self.iscsi.link(portal, &self.transport);
        self.queue.push_back(Planned {
            step: LoginStep::AwaitLink(link),
            failure: Failure::Ignored,
            also: None,
        });
    }

    fn current(&self) -> Option<String> {
        self.iscsi.portals.get(self.portal?).cloned()
    }

    /// iscsiadm ended, with its output or with no success.
    pub fn ended(&mut self, ended: Result<String, ProgramFailure>) {
        let Some(Planned { step: LoginStep::Run(command), failure, also }) = self.asked.take() else {
            return;
        };
        match ended {
            Ok(output) if command == self.iscsi.show_interface() => self.shown(&output),
            Ok(_) => {}
            Err(e) if also.is_some() && e.code == also => {}
            Err(e) => {
                let words = if command.is_secret() { "" } else { e.words.trim() };
                let words = if words.is_empty() { e.why } else { format!("{words} ({})", e.why) };
                match failure {
                    Failure::Ignored => {}
                    Failure::OfPortal(what, undo) => {
                        self.last_failure = format!("{what}: {words}");
                        self.queue.clear();
                        self.queue.extend(undo.map(|command| Planned::run(command, Failure::Ignored)));
                    }
                    Failure::OfDisk(what) => self.fail(format!("{what}: {words}")),
                }
            }
        }
    }

    /// What the interface is: how its sessions go, and what one of the volume's own has from it.
    fn shown(&mut self, output: &str) {
        let Some(transport) = transport(output) else {
            let why = format!("Could not parse iface file for {}", self.iscsi.interface(&self.volume));
            return self.fail(why);
        };
        self.transport = transport.to_owned();
        if let Some(initiator) = self.iscsi.initiator() {
            let mut all = match parameters(output) {
                Ok(all) => all,
                Err(why) => return self.fail(format!("iscsi: failed to parse iface records: {why}")),
            };
            all.insert("iface.initiatorname".to_owned(), initiator.to_owned());
            let failure = Failure::OfDisk("iscsi: failed to create new iface".to_owned());
            let new = Planned::run(self.iscsi.new_interface(&self.volume), failure);
            self.queue.push_back(Planned { also: Some(SESSION_EXISTS), ..new });
            for (key, value) in all {
                let failure = Failure::OfDisk("iscsi: failed to update iface records".to_owned());
                let command = self.iscsi.set_interface(&self.volume, &key, &value);
                self.queue.push_back(Planned::run(command, failure));
            }
        }
        self.queue.push_back(Planned { step: LoginStep::Hosts, failure: Failure::Ignored, also: None });
    }

    /// Portals of the target that have sessions, and their SCSI hosts.
    pub fn hosts(&mut self, hosts: BTreeMap<String, u32>) {
        self.asked = None;
        self.hosts = hosts;
        if let Some(portal) = self.current() {
            self.look(&portal);
        }
    }

    /// A SCSI host looked for the unit, or could not.
    pub fn scanned(&mut self, done: Result<(), String>) {
        let asked = self.asked.take();
        if let (Err(why), Some(Planned { failure: Failure::OfDisk(what), .. })) = (done, asked) {
            self.fail(format!("{what}: {why}"));
        }
    }

    /// The path of the link, or it did not appear.
    pub fn linked(&mut self, path: Option<String>) {
        let Some(Planned { step: LoginStep::AwaitLink(link), .. }) = self.asked.take() else { return };
        match (path, self.current()) {
            (Some(path), Some(portal)) => {
                self.devices.insert(portal, path);
            }
            _ => {
                self.last_failure =
                    format!("Timed out waiting for device at path {link} after {LINK_LIMIT_S}s");
            }
        }
    }

    /// The device that joins the paths, or there is none.
    pub fn joined(&mut self, device: Option<String>) {
        self.asked = None;
        if let Some(device) = device {
            self.end = Some(LoginStep::Done(device));
        }
    }
}

#[cfg(test)]
mod tests;
