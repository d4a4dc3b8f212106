//! Volumes of PersistentVolumes on this node: when a pod may use a volume, the Node's `volumesInUse`, and the
//! volumes to unstage.
//!
//! ```text
//! a pod wants it ─► volumesInUse ─► the controller attaches it ─► volumesAttached ─► staged, once ─► published, for each pod
//!                        └── for as long as a pod wants it, or the disk says that something of it is here ──┘
//! the last pod is gone ─► unstaged (failed: 0.5 s doubling to 2m2s) ─► no longer in use ─► detached
//! ```
//! In: pods' wishes, volumes found on disk, the Node of the API server, answers of drivers, the time. Out:
//! volumes in use, volumes to unstage, pods to sync again. Invariants: a volume is in use before any part of
//! it is on the node and until no part of it is; it is not unstaged while it is recorded for a pod, or wanted
//! (VOL-HELD); the disk alone records the volumes of the node, so a restarted agent continues where the last
//! one was killed. Upstream: pkg/kubelet/volumemanager (`GetVolumesInUse`, reconciler),
//! `VerifyControllerAttachedVolume` of pkg/volume/util/operationexecutor.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::backoff::Backoff;
use agent_types::ids::PodUid;
use agent_types::time::Mono;

use crate::key::VolumeKey;

/// What the disk holds of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeOnDisk {
    /// It is written down for these pods.
    pub pods: BTreeSet<PodUid>,
    /// It is written down that it is staged.
    pub staged: bool,
    /// The PersistentVolumes as which the node keeps it as a block device.
    pub blocks: BTreeSet<String>,
    /// It is one of those that are attached to nodes.
    pub attached: bool,
    /// The SELinux labels with which pods have it; of those without one nothing is said.
    pub labels: BTreeMap<PodUid, String>,
    /// The label with which it is staged; empty without one.
    pub stage_label: String,
}

/// Whether a pod may have a volume with a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fits {
    /// It may.
    Yes,
    /// No pod has it, but it is staged with another one: it has to be staged again.
    Anew,
    /// Another pod has it with this one.
    No(String),
}

impl VolumeOnDisk {
    /// Whether a pod may have the volume with this SELinux label (empty: none): its files have one for all pods.
    #[must_use]
    pub fn fits(&self, pod: &PodUid, label: &str) -> Fits {
        let of = |pod: &PodUid| self.labels.get(pod).map(String::as_str).unwrap_or_default();
        let mut others = self.pods.iter().filter(|other| *other != pod);
        match others.clone().find(|other| of(other) != label) {
            Some(other) => Fits::No(of(other).to_owned()),
            // Its own is what it is mounted with.
            None if !self.staged || self.stage_label == label || self.pods.contains(pod) => Fits::Yes,
            None if others.next().is_some() => Fits::Yes,
            None => Fits::Anew,
        }
    }
}

/// What the disk holds of all volumes.
pub type OnDisk = BTreeMap<VolumeKey, VolumeOnDisk>;

/// Whether a pod may have a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// It is attached, as far as the Node says.
    Yes,
    /// The Node does not say yet that it is in use here.
    NotInUse,
    /// The Node does not say that it is attached.
    No,
}

#[derive(Clone, Debug, Default)]
struct ExpectedVolume {
    pods: BTreeSet<PodUid>,
    attached: bool,
}

#[derive(Clone, Debug, Default)]
struct Retry {
    busy: bool,
    failures: u32,
    not_before: Mono,
}

/// The volumes of PersistentVolumes on this node.
#[derive(Clone, Debug, Default)]
pub struct Staging {
    wanted: BTreeMap<VolumeKey, ExpectedVolume>,
    retries: BTreeMap<VolumeKey, Retry>,
    in_use: BTreeSet<String>,
    attached: BTreeSet<String>,
    devices: BTreeMap<String, String>,
}

impl Staging {
    /// A pod wants a volume; `attached` is whether it has to be attached to the node. True if that was not known.
    pub fn want(&mut self, pod: &PodUid, key: &VolumeKey, attached: bool) -> bool {
        let wanted = self.wanted.entry(key.clone()).or_default();
        let new = wanted.pods.insert(pod.clone()) || wanted.attached != attached;
        wanted.attached = attached;
        new
    }

    /// A pod's volumes were taken away: it wants none any more.
    pub fn forget(&mut self, pod: &PodUid) {
        self.wanted.retain(|_, wanted| {
            wanted.pods.remove(pod);
            !wanted.pods.is_empty()
        });
    }

    /// What the API server's Node says of volumes. The answer is pods that may have one now that they could not before.
    pub fn node_says(&mut self, in_use: BTreeSet<String>, attached: BTreeSet<String>) -> BTreeSet<PodUid> {
        let before: Vec<VolumeKey> =
            self.wanted.keys().filter(|key| self.is_attached(key) != Attached::Yes).cloned().collect();
        (self.in_use, self.attached) = (in_use, attached);
        let now = before.iter().filter(|key| self.is_attached(key) == Attached::Yes);
        now.filter_map(|key| self.wanted.get(key)).flat_map(|wanted| wanted.pods.iter().cloned()).collect()
    }

    /// As which devices volumes are attached, by the names that the API server's Node has of them.
    pub fn devices_are(&mut self, devices: BTreeMap<String, String>) {
        self.devices = devices;
    }

    /// As which device a volume is attached, as far as the Node says; empty: as none.
    #[must_use]
    pub fn device(&self, key: &VolumeKey) -> String {
        self.devices.get(&key.unique_name()).cloned().unwrap_or_default()
    }

    /// Whether a pod may have a volume that has to be attached.
    #[must_use]
    pub fn is_attached(&self, key: &VolumeKey) -> Attached {
        let name = key.unique_name();
        match (self.in_use.contains(&name), self.attached.contains(&name)) {
            (false, _) => Attached::NotInUse,
            (true, false) => Attached::No,
            (true, true) => Attached::Yes,
        }
    }

    /// The volumes for the Node's `volumesInUse`, sorted.
    #[must_use]
    pub fn in_use(&self, disk: &OnDisk) -> Vec<String> {
        let wanted = self.wanted.iter().filter(|(_, wanted)| wanted.attached).map(|(key, _)| key);
        let held = disk.iter().filter(|(_, held)| held.attached).map(|(key, _)| key);
        let names: BTreeSet<String> = wanted.chain(held).map(VolumeKey::unique_name).collect();
        names.into_iter().collect()
    }

    /// No pod has the volume, and none wants it: its driver may be asked to let go.
    #[must_use]
    pub fn is_idle(&self, key: &VolumeKey, disk: &OnDisk) -> bool {
        let held = disk.get(key).is_some_and(|held| !held.pods.is_empty());
        !held && !self.wanted.contains_key(key)
    }

    /// Volumes whose drivers are to be asked now to let go of them; the answer to each is [`Self::unstaged`].
    pub fn unstage(&mut self, disk: &OnDisk, now: Mono) -> Vec<VolumeKey> {
        let here = |held: &VolumeOnDisk| held.staged || !held.blocks.is_empty();
        let staged = disk.iter().filter(|(_, held)| here(held)).map(|(key, _)| key);
        let idle: BTreeSet<VolumeKey> = staged.filter(|key| self.is_idle(key, disk)).cloned().collect();
        self.retries.retain(|key, retry| retry.busy || idle.contains(key));
        let mut due = Vec::new();
        for key in idle {
            let retry = self.retries.entry(key.clone()).or_default();
            if !retry.busy && retry.not_before <= now {
                retry.busy = true;
                due.push(key);
            }
        }
        due
    }

    /// The driver let go of a volume, or did not; or it was found that it may not be asked.
    pub fn unstaged(&mut self, key: &VolumeKey, done: bool, now: Mono) {
        if done {
            self.retries.remove(key);
        } else if let Some(retry) = self.retries.get_mut(key) {
            let wait = Backoff::OPERATION.next(retry.failures);
            retry.failures = retry.failures.saturating_add(1);
            (retry.busy, retry.not_before) = (false, now.after(wait));
        }
    }

    /// When to look again if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        self.retries.values().filter(|r| !r.busy).map(|r| r.not_before).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flex::source::Driver;
    use crate::plugin::Plugin;

    fn key(handle: &str) -> VolumeKey {
        VolumeKey { driver: "d".to_owned(), handle: handle.to_owned() }
    }

    fn held(pods: &[&str], staged: bool) -> VolumeOnDisk {
        let pods = pods.iter().map(|p| PodUid::from(*p)).collect();
        VolumeOnDisk { pods, staged, attached: true, ..VolumeOnDisk::default() }
    }

    fn names(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|h| key(h).unique_name()).collect()
    }

    #[test]
    fn names_and_directories_are_upstreams() {
        assert_eq!(key("h").unique_name(), "kubernetes.io/csi/d^h");
        // printf h | sha256sum
        let sum = "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";
        assert_eq!(key("h").directory(), format!("d/{sum}"));
        let disk = VolumeKey::of_plugin(Plugin::Fc, "[a b]:0".to_owned());
        assert_eq!(disk.unique_name(), "kubernetes.io/fc/[a b]:0");
        assert!(disk.is_network_disk() && !key("h").is_network_disk());
        for name in ["vendor/driver", "driver"] {
            let flex = VolumeKey::of_flex(&Driver::new(name).unwrap(), "pv");
            assert_eq!((flex.unique_name(), flex.flex_driver()), (format!("{name}/pv"), Some(name)));
            assert!(!flex.is_network_disk() && key("h").flex_driver().is_none());
            let mut all = Staging::default();
            assert_eq!(all.device(&flex), "");
            all.devices_are([(flex.unique_name(), "/dev/x".to_owned())].into());
            assert_eq!((all.device(&flex).as_str(), all.device(&key("h")).as_str()), ("/dev/x", ""));
        }
    }

    #[test]
    fn a_volumes_files_have_one_label_for_all_pods() {
        let (own, label) = (PodUid::from("u"), "a");
        let with = |pods: &[&str], labels: &[(&str, &str)], stage: &str| VolumeOnDisk {
            labels: labels.iter().map(|(pod, label)| (PodUid::from(*pod), (*label).to_owned())).collect(),
            stage_label: stage.to_owned(),
            ..held(pods, true)
        };
        for (volume, fits) in [
            (with(&[], &[], "a"), Fits::Yes),
            (with(&[], &[], ""), Fits::Anew),
            (with(&[], &[], "b"), Fits::Anew),
            (VolumeOnDisk { staged: false, ..with(&[], &[], "") }, Fits::Yes),
            (with(&["v"], &[("v", "a")], "a"), Fits::Yes),
            (with(&["v", "w"], &[("v", "a")], "a"), Fits::No(String::new())),
            (with(&["v"], &[("v", "b")], "b"), Fits::No("b".to_owned())),
            // The pod keeps the label that it has, even if it would get another one today.
            (with(&["u"], &[("u", "b")], "b"), Fits::Yes),
            (with(&["u", "v"], &[("u", "a"), ("v", "b")], "a"), Fits::No("b".to_owned())),
        ] {
            assert_eq!(volume.fits(&own, label), fits, "{volume:?}");
        }
        assert_eq!(with(&[], &[], "a").fits(&own, ""), Fits::Anew);
        assert_eq!(with(&["v"], &[], "").fits(&own, ""), Fits::Yes);
    }

    #[test]
    fn a_volume_is_in_use_from_the_wish_until_nothing_of_it_is_here() {
        let (mut all, pod) = (Staging::default(), PodUid::from("u"));
        assert!(all.want(&pod, &key("h"), true) && !all.want(&pod, &key("h"), true));
        assert_eq!(all.in_use(&OnDisk::new()), ["kubernetes.io/csi/d^h"]);
        let disk = OnDisk::from([(key("h"), held(&["u"], true))]);
        all.forget(&pod);
        assert_eq!(all.in_use(&disk), ["kubernetes.io/csi/d^h"], "it is still published");
        let disk = OnDisk::from([(key("h"), held(&[], true))]);
        assert_eq!(all.in_use(&disk), ["kubernetes.io/csi/d^h"], "it is still staged");
        assert!(all.in_use(&OnDisk::new()).is_empty());
        all.want(&pod, &key("h"), false);
        let disk = OnDisk::from([(key("h"), VolumeOnDisk { attached: false, ..held(&["u"], true) })]);
        assert!(all.in_use(&disk).is_empty(), "it is none of those that are attached");
    }

    #[test]
    fn a_pod_waits_until_the_node_says_in_use_and_attached() {
        let (mut all, pod) = (Staging::default(), PodUid::from("u"));
        all.want(&pod, &key("h"), true);
        assert_eq!(all.is_attached(&key("h")), Attached::NotInUse);
        assert!(all.node_says(names(&[]), names(&["h"])).is_empty());
        assert_eq!(all.is_attached(&key("h")), Attached::NotInUse, "attached for somebody before");
        assert!(all.node_says(names(&["h"]), names(&[])).is_empty());
        assert_eq!(all.is_attached(&key("h")), Attached::No);
        assert_eq!(all.node_says(names(&["h"]), names(&["h", "x"])), [pod].into());
        assert_eq!(all.is_attached(&key("h")), Attached::Yes);
        assert!(all.node_says(names(&["h"]), names(&["h"])).is_empty(), "nobody hears it twice");
    }

    #[test]
    fn nothing_is_unstaged_under_a_pod_or_a_wish_and_failures_back_off() {
        let (mut all, pod) = (Staging::default(), PodUid::from("u"));
        let used = OnDisk::from([(key("h"), held(&["u"], true)), (key("p"), held(&[], false))]);
        assert!(all.unstage(&used, Mono(0)).is_empty());
        let free = OnDisk::from([(key("h"), held(&[], true))]);
        all.want(&pod, &key("h"), true);
        assert!(all.unstage(&free, Mono(0)).is_empty(), "a pod is about to have it");
        all.forget(&pod);
        assert_eq!(all.unstage(&free, Mono(0)), [key("h")]);
        assert!(all.unstage(&free, Mono(0)).is_empty(), "once at a time");
        all.unstaged(&key("h"), false, Mono(0));
        let half = Mono(0).after(Backoff::OPERATION.first);
        assert_eq!(all.deadline(), Some(half));
        assert!(all.unstage(&free, Mono(0)).is_empty());
        assert_eq!(all.unstage(&free, half), [key("h")]);
        all.unstaged(&key("h"), false, half);
        assert_eq!(all.deadline(), Some(half.after(Backoff::OPERATION.first * 2)));
        let device = VolumeOnDisk { blocks: ["pv".to_owned()].into(), ..held(&[], false) };
        let other = Staging::default().unstage(&OnDisk::from([(key("b"), device)]), half);
        assert_eq!(other, [key("b")], "a device is given back too");
        // A pod has it again: the trouble is forgotten.
        assert!(all.unstage(&used, half).is_empty() && all.deadline().is_none());
        assert_eq!(all.unstage(&free, half), [key("h")]);
        all.unstaged(&key("h"), true, half);
        assert_eq!(all.deadline(), None);
    }
}
