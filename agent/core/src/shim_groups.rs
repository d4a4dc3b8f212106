//! Which pods share a shim: containerd's process that holds their containers.
//!
//! containerd's shim for runc puts all containers with the same annotation [`SHIM_GROUP`] into one process, if the handler passes
//! the annotation on (`pod_annotations` of containerd's configuration). So a group is a name that several sandboxes carry. The
//! agent gives the names, and reads them again from the runtime's list: a restarted agent goes on with the same groups, and there
//! is no record of them. docs/decisions/shim.md.
//!
//! In: the runtime's list, and pods whose sandboxes are about to be made. Out: names of groups. Invariants: a group has at most
//! `pods_per_shim` pods that run or start; all of them are of one [`ShimSharing`]; a pod of [`ShimSharing::Alone`] has no group; a
//! group whose pods have all stopped gets no further pod, because its shim ends; the annotation of a user is never passed on.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::{PodUid, SandboxId};
use agent_types::pod::CONFIG_SOURCE;
use agent_types::runtime::config::{NamespaceMode, SandboxConfig};
use agent_types::runtime::labels::SHIM_GROUP;
use agent_types::runtime::observed::ListedSandbox;

/// All names of groups that the agent gives begin like this.
const PREFIX: &str = "orlop";
/// `kubernetes.io/config.source` of a pod that the API server has.
const OF_THE_API: &str = "api";

/// The pods with which a pod may share a shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShimSharing {
    /// None: a static pod, and a pod with a RuntimeClass, whose handler may have another shim or pass no annotation on.
    Alone,
    /// Pods in the host's user namespace that share nothing else with the host.
    Plain,
    /// Pods with a user namespace of their own.
    OwnUsers,
    /// Pods with a privileged container, or in the host's network, process or IPC namespace.
    Host,
}

impl ShimSharing {
    /// The part of a group's name; `None` without a group.
    const fn word(self) -> Option<&'static str> {
        match self {
            ShimSharing::Alone => None,
            ShimSharing::Plain => Some("plain"),
            ShimSharing::OwnUsers => Some("users"),
            ShimSharing::Host => Some("host"),
        }
    }
}

/// The pods with which the pod of this sandbox may share a shim.
#[must_use]
pub fn sharing(config: &SandboxConfig) -> ShimSharing {
    let is_static = config.annotations.get(CONFIG_SOURCE).is_some_and(|source| source != OF_THE_API);
    if is_static || !config.runtime_handler.is_empty() {
        return ShimSharing::Alone;
    }
    let security = &config.security;
    let namespaces = security.namespaces;
    let is_host = |mode: NamespaceMode| mode == NamespaceMode::Node;
    if security.privileged || [namespaces.network, namespaces.pid, namespaces.ipc].into_iter().any(is_host) {
        return ShimSharing::Host;
    }
    if security.users.is_some() { ShimSharing::OwnUsers } else { ShimSharing::Plain }
}

/// Gives the sandbox this group, and takes away what the pod's user wrote.
pub fn set(config: &mut SandboxConfig, group: Option<&str>) {
    config.annotations.remove(SHIM_GROUP);
    if let Some(group) = group {
        config.annotations.insert(SHIM_GROUP.to_owned(), group.to_owned());
    }
}

/// The annotation's value as the name of a group that the agent gave; `None` for any other text.
fn own(group: Option<&str>) -> Option<&str> {
    group.filter(|name| name.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with('-')))
}

/// A sandbox before it has an id: the pod and the number of the attempt.
pub type Attempt = (PodUid, u32);

/// Number of a list that the runtime was asked for: the lists are in the order of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListNumber(u64);

/// Group of a sandbox that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It carries this name.
    Of(String),
    /// It has none.
    None,
    /// The runtime must be asked: the sandbox is of an earlier run of the agent, and pods share shims.
    Unknown,
}

/// A sandbox that was given a group and may not be listed yet.
#[derive(Clone, Debug)]
struct Starting {
    group: String,
    /// The last list that was asked for before the call ended; `None` while the call is under way.
    ended: Option<ListNumber>,
}

/// The groups.
#[derive(Clone, Debug)]
pub struct ShimGroups {
    pods_per_shim: usize,
    looks: u64,
    starting: BTreeMap<Attempt, Starting>,
    /// Sandboxes with a group, and the last list before that was known.
    members: BTreeMap<SandboxId, (String, ListNumber)>,
    /// The runtime's list was read: a sandbox that is not in `members` has no group.
    has_list: bool,
}

impl ShimGroups {
    /// No groups are known. With one pod for each shim no new ones are made.
    #[must_use]
    pub fn new(pods_per_shim: u32) -> ShimGroups {
        ShimGroups {
            pods_per_shim: usize::try_from(pods_per_shim).unwrap_or(usize::MAX),
            looks: 0,
            starting: BTreeMap::new(),
            members: BTreeMap::new(),
            has_list: false,
        }
    }

    /// True if a pod of this kind gets a group.
    #[must_use]
    pub fn shares(&self, sharing: ShimSharing) -> bool {
        self.pods_per_shim > 1 && sharing.word().is_some()
    }

    /// To be called before the runtime is asked for a list.
    pub fn begin_look(&mut self) -> ListNumber {
        self.looks += 1;
        ListNumber(self.looks)
    }

    /// Takes the runtime's list.
    pub fn listed(&mut self, look: ListNumber, listed: &[ListedSandbox]) {
        // A sandbox whose call ended before the list was asked for is in the list, or was never made.
        self.starting.retain(|_, starting| starting.ended.is_none_or(|ended| ended >= look));
        let there: BTreeSet<&SandboxId> = listed.iter().map(|sandbox| &sandbox.id).collect();
        self.members.retain(|id, (_, known)| there.contains(id) || *known >= look);
        for sandbox in listed {
            if let Some(group) = own(sandbox.shim_group.as_deref()) {
                self.members.insert(sandbox.id.clone(), (group.to_owned(), look));
            }
        }
        self.has_list = true;
    }

    /// The group for a sandbox that is about to be made, after [`ShimGroups::listed`] with the same list; `None` without one.
    /// The caller says when the call has ended.
    pub fn place(
        &mut self,
        listed: &[ListedSandbox],
        attempt: &Attempt,
        sharing: ShimSharing,
    ) -> Option<String> {
        let word = sharing.word().filter(|_| self.shares(sharing))?;
        let is_this = |sandbox: &&ListedSandbox| (&sandbox.uid, sandbox.attempt) == (&attempt.0, attempt.1);
        if let Some(made) = listed.iter().find(is_this) {
            // An earlier call made it, and its answer was lost: the runtime answers with it again.
            return own(made.shim_group.as_deref()).map(str::to_owned);
        }
        let pods = self.pods(listed, &format!("{PREFIX}-{word}-"), attempt);
        let has_room = pods.iter().filter(|(_, pods)| pods.len() < self.pods_per_shim);
        // The fullest one: groups that empty are left alone, and their shims end.
        let fullest = has_room.max_by_key(|(_, pods)| pods.len()).map(|(group, _)| (*group).to_owned());
        let (uid, number) = attempt;
        // A group that this attempt has founded before may be full by now.
        let mut fresh = (0_u32..).map(|n| format!("{PREFIX}-{word}-{uid}-{number}.{n}"));
        let group = fullest.or_else(|| fresh.find(|name| !pods.contains_key(name.as_str())))?;
        self.starting.insert(attempt.clone(), Starting { group: group.clone(), ended: None });
        Some(group)
    }

    /// Pods that run or start by their groups of one kind, without the pod of `except`.
    fn pods<'a>(
        &'a self,
        listed: &'a [ListedSandbox],
        kind: &str,
        except: &Attempt,
    ) -> BTreeMap<&'a str, BTreeSet<&'a PodUid>> {
        let running = listed.iter().filter(|sandbox| sandbox.ready);
        let running = running.filter_map(|sandbox| Some((own(sandbox.shim_group.as_deref())?, &sandbox.uid)));
        let starting = self.starting.iter().map(|((uid, _), starting)| (starting.group.as_str(), uid));
        let mut pods: BTreeMap<&str, BTreeSet<&PodUid>> = BTreeMap::new();
        for (group, uid) in running.chain(starting) {
            if group.starts_with(kind) && *uid != except.0 {
                pods.entry(group).or_default().insert(uid);
            }
        }
        pods
    }

    /// The call that makes the sandbox with this group has ended, with its id if it was made.
    pub fn ended(&mut self, attempt: &Attempt, group: Option<&str>, made: Option<&SandboxId>) {
        let now = ListNumber(self.looks);
        if let Some(starting) = self.starting.get_mut(attempt) {
            starting.ended = Some(now);
        }
        if let (Some(group), Some(id)) = (group, made) {
            self.members.insert(id.clone(), (group.to_owned(), now));
        }
    }

    /// The group of a sandbox that exists, for its containers. With one pod for each shim the runtime is not to be asked: containerd 2
    /// starts a container in the shim of its sandbox, whatever the container's annotation is.
    #[must_use]
    pub fn of(&self, sandbox: &SandboxId) -> Membership {
        match self.members.get(sandbox) {
            Some((group, _)) => Membership::Of(group.clone()),
            None if self.has_list || self.pods_per_shim <= 1 => Membership::None,
            None => Membership::Unknown,
        }
    }
}

#[cfg(test)]
mod tests;
