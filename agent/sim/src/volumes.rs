//! Volumes in the simulated world: the mounts of each pod, and the objects from which volumes are made.
//!
//! In: set-ups and tear-downs. Out: mounts that survive the agent (a reboot removes them), answers, the input of the
//! checkers VOL-HELD, SECRET-SCOPE and LEAK. Objects are created and deleted until all is healed. A run without volumes
//! draws no random number here, so that other seeds do not change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult, Mounted};
use agent_types::failure::Class;
use agent_types::ids::{PodKey, PodUid};
use agent_types::objects::{Fetched, ObjectData, ObjectKind, ObjectRef, Objects};
use agent_types::pod;
use agent_volumes::bound::{Bound, Source};
use agent_volumes::claim::ClaimRef;
use agent_volumes::csi::source::CsiSource;
use agent_volumes::csi::unregistered;
use agent_volumes::payload::{SourceValues, payload};
use agent_volumes::{FileSource, SetUp, Work};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::csi::Drivers;
use crate::node::NodeEvent;
use crate::ownership::Ownership;
use crate::rng::Rng;
use crate::world::World;

/// Number of names of objects; few, so that pods share objects.
const NAMES: u64 = 4;
/// Claims of a CSI driver: `DEVICE` is a block device, `DISK` has a file system. The volumes of other claims are directories.
const DEVICE: &str = "o3";
const DISK: &str = "o2";
/// Lifetime of a token in this world.
const TOKEN_LIFE: Duration = Duration::from_secs(300);

/// Objects, and the pods that may use them.
#[derive(Debug)]
pub(crate) struct Volumes {
    pub(crate) rng: Rng,
    /// Volumes of a CSI driver.
    pub(crate) drivers: Drivers,
    /// Objects that do not exist.
    missing: BTreeSet<ObjectRef>,
    /// The objects that each volume may use; names of volumes are used once.
    planned: BTreeMap<String, BTreeSet<ObjectRef>>,
    /// The claim that each volume may use; true if the claim belongs to the pod (a generic ephemeral volume).
    pub(crate) claims: BTreeMap<String, (String, bool)>,
    /// Claims that are not bound, and drivers that are not registered.
    loose: BTreeSet<String>,
    /// The objects that a container's environment may use, and the RuntimeClass of its pod; names of containers are used once.
    environments: BTreeMap<String, BTreeSet<ObjectRef>>,
    /// The same objects by pod, once the pod has a UID.
    of_pods: BTreeMap<PodUid, BTreeSet<ObjectRef>>,
    /// Changes of ownership of volumes; `None` for a run in which they take no time.
    pub(crate) ownership: Option<Ownership>,
    pub(crate) calm: bool,
}

fn object(kind: ObjectKind, number: u64) -> ObjectRef {
    ObjectRef { kind, namespace: "default".to_owned(), name: format!("o{number}") }
}

impl Volumes {
    fn add(&mut self, pod: &mut Value) {
        let mut volumes = Vec::new();
        for _ in 0..self.rng.below(7) {
            let name = format!("v{}", self.planned.len());
            let (config_map, secret) = (self.rng.below(NAMES), self.rng.below(NAMES));
            let (map, secret) =
                (object(ObjectKind::ConfigMap, config_map), object(ObjectKind::Secret, secret));
            let (source, objects) = match self.rng.below(8) {
                7 => {
                    let driver = format!("o{}", self.rng.below(NAMES));
                    (json!({ "csi": { "driver": driver } }), vec![])
                }
                5 => (self.claim(&name), vec![]),
                6 => {
                    self.claims.insert(name.clone(), (String::new(), true));
                    (json!({ "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }), vec![])
                }
                0 => (json!({ "emptyDir": {} }), vec![]),
                1 => (json!({ "emptyDir": { "medium": "Memory" } }), vec![]),
                2 => (json!({ "configMap": { "name": map.name } }), vec![map]),
                3 => (json!({ "secret": { "secretName": secret.name } }), vec![secret]),
                _ => {
                    let sources = json!([{ "serviceAccountToken": { "path": "token" } },
                        { "configMap": { "name": map.name, "optional": true } }, { "secret": { "name": secret.name } }]);
                    (json!({ "projected": { "sources": sources } }), vec![map, secret])
                }
            };
            let mut volume = source;
            volume["name"] = json!(name);
            volumes.push(volume);
            self.planned.insert(name, objects.into_iter().collect());
        }
        for volume in &volumes {
            let claim = volume["persistentVolumeClaim"]["claimName"].as_str();
            let (name, container) = (&volume["name"], &mut pod["spec"]["containers"][0]);
            if claim == Some(DEVICE) {
                let path = format!("/dev/{}", name.as_str().unwrap_or_default());
                let device = json!({ "name": name, "devicePath": path });
                match container["volumeDevices"].as_array_mut() {
                    Some(all) => all.push(device),
                    None => container["volumeDevices"] = json!([device]),
                }
            }
        }
        pod["spec"]["volumes"] = json!(volumes);
        if self.rng.chance(400) {
            let from = object(ObjectKind::ConfigMap, self.rng.below(NAMES));
            let key = object(ObjectKind::Secret, self.rng.below(NAMES));
            let container = &mut pod["spec"]["containers"][0];
            container["envFrom"] = json!([{ "configMapRef": { "name": from.name } }]);
            let reference = json!({ "name": key.name, "key": "k", "optional": true });
            container["env"] = json!([{ "name": "K", "valueFrom": { "secretKeyRef": reference } }]);
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            self.environments.insert(name, BTreeSet::from([from, key]));
        }
        self.classify(pod);
    }

    fn claim(&mut self, volume: &str) -> Value {
        let name = format!("o{}", self.rng.below(NAMES));
        self.claims.insert(volume.to_owned(), (name.clone(), false));
        json!({ "persistentVolumeClaim": { "claimName": name } })
    }

    /// Gives a RuntimeClass to some pods.
    fn classify(&mut self, pod: &mut Value) {
        if !self.rng.chance(150) {
            return;
        }
        let name = format!("o{}", self.rng.below(NAMES));
        pod["spec"]["runtimeClassName"] = json!(name);
        let class = ObjectRef { kind: ObjectKind::RuntimeClass, namespace: String::new(), name };
        let container = pod["spec"]["containers"][0]["name"].as_str().unwrap_or_default().to_owned();
        self.environments.entry(container).or_default().insert(class);
    }

    fn fetched(&self, of: &ObjectRef) -> Fetched {
        if self.missing.contains(of) { Fetched::Missing } else { Fetched::Found(ObjectData::default()) }
    }
}

impl World {
    /// From now on pods have volumes.
    pub fn mount(&mut self, seed: u64) {
        let rng = Rng::new(seed ^ 0x766f_6c75);
        self.volumes = Some(Box::new(Volumes {
            rng,
            missing: BTreeSet::new(),
            planned: BTreeMap::new(),
            claims: BTreeMap::new(),
            loose: BTreeSet::new(),
            environments: BTreeMap::new(),
            of_pods: BTreeMap::new(),
            drivers: Drivers::default(),
            ownership: None,
            calm: false,
        }));
    }

    /// Adds volumes to a pod, if this run has them.
    pub(crate) fn add_volumes(&mut self, pod: &mut Value) {
        if let Some(volumes) = &mut self.volumes {
            volumes.add(pod);
            if let Some(ownership) = &mut volumes.ownership {
                ownership.give_group(pod);
            }
        }
    }

    /// A pod was created: the checkers get its containers and the objects that it may use.
    pub(crate) fn pod_planned(&mut self, pod: &Pod) {
        self.checks.planned(self.queue.now(), pod);
        self.note_limits(pod);
        let Some(volumes) = &mut self.volumes else { return };
        let names = pod::containers(pod).iter().map(|c| &c.name);
        let objects = names.filter_map(|name| volumes.environments.get(name)).flatten().cloned().collect();
        volumes.of_pods.insert(PodUid::from(pod::uid(pod)), objects);
    }

    /// Sometimes an object is created or deleted, and the agent is notified.
    pub(crate) fn objects_change(&mut self) {
        let Some(volumes) = &mut self.volumes else { return };
        if volumes.calm || !volumes.rng.chance(60) {
            return;
        }
        if volumes.rng.chance(250) {
            // The agent does not watch claims.
            let one = format!("o{}", volumes.rng.below(NAMES));
            if !volumes.loose.remove(&one) {
                volumes.loose.insert(one);
            }
            return;
        }
        let kind = match volumes.rng.below(3) {
            0 => ObjectKind::Secret,
            1 => ObjectKind::ConfigMap,
            _ => ObjectKind::RuntimeClass,
        };
        let mut one = object(kind, volumes.rng.below(NAMES));
        if one.kind == ObjectKind::RuntimeClass {
            one.namespace.clear();
        }
        if !volumes.missing.remove(&one) {
            volumes.missing.insert(one);
        }
        self.tell_of_objects();
    }

    /// From now on every object exists.
    pub(crate) fn calm_objects(&mut self) {
        let Some(volumes) = &mut self.volumes else { return };
        volumes.missing.clear();
        volumes.loose.clear();
        volumes.calm = true;
        self.tell_of_objects();
    }

    fn tell_of_objects(&mut self) {
        let pods: BTreeSet<PodUid> = self.disk.dirs.iter().cloned().collect();
        self.tell(NodeEvent::Sources(pods));
    }

    pub(crate) fn set_up_volume(&mut self, key: &PodKey, volume: &SetUp) -> EffectResult {
        if let Some(giving) = self.still_walks(&key.uid, volume) {
            return Ok(giving);
        }
        let Some(volumes) = &self.volumes else {
            return Ok(EffectOk::Volume(Mounted::default()));
        };
        let mut known = SourceValues::default();
        let mut asked = Vec::new();
        let mut renew_after = None;
        if let Work::Files { sources, projected, .. } = &volume.work {
            for source in sources {
                match source {
                    FileSource::Known(_) | FileSource::Anchors { .. } | FileSource::Certificate { .. } => {}
                    FileSource::Object { object, .. } => {
                        let own = volumes.planned.get(&volume.name).is_some_and(|o| o.contains(object));
                        asked.push(TraceEvent::ApiAsked { what: format!("{object}"), own });
                        known.objects.insert(object.clone(), volumes.fetched(object));
                    }
                    FileSource::Token { token, .. } => {
                        let own = token.uid == key.uid.as_str();
                        asked.push(TraceEvent::ApiAsked { what: format!("token of {}", token.uid), own });
                        known.tokens.insert(token.clone(), Ok("token".to_owned()));
                        renew_after = Some(TOKEN_LIFE);
                    }
                }
            }
            let files = payload(sources, *projected, &known);
            if let Err(message) = files {
                return Err(EffectError { class: Class::Retryable { after_ms: 0 }, message });
            }
        }
        if let Work::Csi(inline) = &volume.work
            && volumes.loose.contains(&inline.driver)
        {
            let message = unregistered("mounter.SetUpAt", &inline.driver);
            return Err(EffectError { class: Class::Retryable { after_ms: 0 }, message });
        }
        if let Work::Csi(csi) = &volume.work
            && csi.persistent.is_some()
            && let Some(answer) = self.set_up_drivers(&key.uid, &csi.key())?
        {
            return Ok(answer);
        }
        let now = self.queue.now();
        for event in asked {
            self.checks.note(now, &event);
        }
        self.disk.dirs.insert(key.uid.clone());
        self.disk.mounts.entry(key.uid.clone()).or_default().insert(volume.name.clone());
        if let Some(giving) = self.walk(&key.uid, volume) {
            return Ok(giving);
        }
        let mounted = TraceEvent::VolumeMounted { pod: key.uid.clone(), volume: volume.name.clone() };
        self.checks.note(now, &mounted);
        Ok(EffectOk::Volume(Mounted { renew_after, ..Mounted::default() }))
    }

    /// Resolves a claim: it is bound to a directory of the node or to a volume of a driver, unless it is in `loose`.
    pub(crate) fn resolve_claim(&mut self, key: &PodKey, claim: &ClaimRef) -> EffectResult {
        let Some(volumes) = &self.volumes else { return Ok(EffectOk::Claim(Err(claim.unprocessed("none")))) };
        let own = match (volumes.claims.get(&claim.volume), &claim.owner) {
            (Some((name, false)), None) => *name == claim.name,
            (Some((_, true)), Some((uid, _))) => uid == key.uid.as_str(),
            _ => false,
        };
        let loose = volumes.loose.contains(&claim.name);
        let asked = TraceEvent::ApiAsked { what: format!("claim {}", claim.name), own };
        self.checks.note(self.queue.now(), &asked);
        if loose {
            return Ok(EffectOk::Claim(Err(claim.unprocessed("PVC is not bound"))));
        }
        let source = match claim.name.as_str() {
            DEVICE | DISK => Source::Csi(Box::new(CsiSource {
                driver: "disks".to_owned(),
                handle: claim.name.clone(),
                ..CsiSource::default()
            })),
            _ => Source::Local { path: "/mnt/disk".to_owned(), fs_type: String::new() },
        };
        let bound = Bound {
            volume: format!("pv-{}", claim.name),
            source,
            read_only: claim.read_only,
            options: Vec::new(),
            one_pod: false,
            block: claim.name == DEVICE,
            group: None,
            labelled: false,
        };
        Ok(EffectOk::Claim(Ok(Box::new(bound))))
    }

    pub(crate) fn fetch_objects(&mut self, key: &PodKey, objects: &BTreeSet<ObjectRef>) -> Objects {
        let Some(volumes) = &self.volumes else { return Objects::new() };
        let now = self.queue.now();
        for object in objects {
            // The world does not know the references of hostile pods.
            let own = volumes.of_pods.get(&key.uid).is_none_or(|planned| planned.contains(object));
            self.checks.note(now, &TraceEvent::ApiAsked { what: format!("{object}"), own });
        }
        objects.iter().map(|of| (of.clone(), volumes.fetched(of))).collect()
    }

    pub(crate) fn tear_down_volumes(&mut self, uid: &PodUid) {
        self.unmount(uid);
        self.release_drivers(uid);
    }

    fn unmount(&mut self, uid: &PodUid) {
        let now = self.queue.now();
        if let Some(ownership) = self.volumes.as_mut().and_then(|volumes| volumes.ownership.as_mut()) {
            ownership.end(now, uid);
        }
        if self.disk.mounts.remove(uid).is_some() {
            self.look();
            self.checks.note(self.queue.now(), &TraceEvent::VolumesGone { pod: uid.clone() });
        }
    }

    /// A reboot unmounts all volumes.
    pub(crate) fn forget_mounts(&mut self) {
        let pods: Vec<PodUid> = self.disk.mounts.keys().cloned().collect();
        for pod in pods {
            self.unmount(&pod);
        }
        if let Some(volumes) = &mut self.volumes {
            volumes.drivers.power_lost();
        }
    }
}
