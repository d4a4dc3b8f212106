//! Planted defects of the agent, to prove that each checker can fail.
//!
//! In: actions of the correct machines. Out: the same actions with the additions, changes and omissions of a
//! [`Defect`].

use agent_core::pod_worker::effect::Effect;
use agent_types::api::{ApiCall, ObjectName};
use agent_types::ids::PodKey;
use agent_types::machine::EffectId;
use agent_types::objects::{ObjectKind, ObjectRef};
use agent_types::time::Mono;
use agent_volumes::plugin::Plugin;
use agent_volumes::{FileSource, Medium, SetUp, Work};
use serde_json::json;

use crate::cluster::Owner;
use crate::node::{Node, NodeRequest};

/// A deliberate fault in the agent, one for each checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Starts a second instance next to the first (ONE-LIVE).
    StartsTwice,
    /// Runs a second sandbox next to the first (ONE-SANDBOX).
    SandboxTwice,
    /// Runs an init container again after regular containers have started (ORDER).
    RunsInitAgain,
    /// Gives a container 30 seconds more than the rest of the grace period (GRACE).
    GivesMore,
    /// Removes a container immediately after its start (GC-SAFE).
    RemovesTheNewest,
    /// Starts a container of a pod that terminates (ABSORB-TERM).
    StartsWhileTerminating,
    /// Reports a pod as finished while it still runs (NO-OUTLIVE).
    FinishesEarly,
    /// Restarts exited containers without back-off (BACKOFF).
    IgnoresBackOff,
    /// Stops a container at each start of the agent (RESTART-TRANSPARENT).
    StopsOnStart,
    /// Sends calls without bound (BOUNDED).
    AsksForEver,
    /// Uses the answer of one probe for another probe (PROBE-OWN).
    MixesProbes,
    /// Does not subtract the time of hooks from the grace period (HOOK-GRACE).
    StopsWithMoreGrace,
    /// Runs an ephemeral container again after its end (EPHEMERAL-ONCE).
    RestartsDebuggers,
    /// Removes the container whose exit triggered RestartAllContainers before the others (RESTART-ALL).
    RemovesTheOneThatAsked,
    /// Unmounts volumes before containers have ended (VOL-HELD).
    TearsDownEarly,
    /// Mounts a volume again after its tear-down (LEAK).
    LeavesMounts,
    /// Unstages volumes that pods use (VOL-HELD).
    UnstagesUnderPods,
    /// Never unstages a volume (LEAK).
    KeepsStages,
    /// Reports a volume as mounted before all its files belong to the pod's group (VOL-OWNED).
    StartsDuringWalks,
    /// Starts a new change of ownership with each effect (VOL-OWNED).
    WalksAgain,
    /// Makes an effect wait for the whole change of ownership, which ends with the effect and starts again (VOL-OWNED).
    WaitsForWalks,
    /// Makes a volume from a Secret of another namespace (SECRET-SCOPE).
    MountsForeign,
    /// Passes allocations to workers before they are on disk (ALLOC-DURABLE).
    ActsBeforeItIsWritten,
    /// Gives containers ten times the resources that their pods were allocated (ALLOC-CAP).
    GivesTooMuch,
    /// Starts pods whose claims no driver has prepared (CLAIM-PREPARED).
    PreparesNothing,
    /// Unprepares claims before containers have ended (CLAIM-HELD).
    GivesClaimsBackEarly,
    /// Never unprepares a claim (LEAK).
    KeepsClaims,
    /// Ends the work on a claim while its driver still works on it (CLAIM-TURN).
    EndsTurnsEarly,
    /// Counts a pod as ended while its containers are being ended, so that its claims, devices and processors are free (CLAIM-HELD,
    /// ALLOC-DURABLE, ALLOC-EXCL).
    FreesPartsEarly,
    /// Moves all running containers to one processor (ALLOC-EXCL).
    MovesAllToOne,
    /// Never moves running containers to other processors (LIVENESS).
    MovesNoContainer,
    /// Counts processors and devices that do not exist (ALLOC-CAP).
    CountsTooMuch,
    /// Asks plugins for devices of another pod (ALLOC-EXCL).
    GivesDevicesTwice,
    /// Forgets the devices of a pod when it starts (ALLOC-DURABLE).
    ForgetsDevices,
    /// Continues before the checkpoint of devices is written (ALLOC-DURABLE).
    StartsBeforeTheCheckpoint,
    /// Uses a plugin's answer to an old question for the newest question (ASK-OWN).
    TakesOldAnswers,
    /// Creates containers without their devices (ALLOC-CAP).
    StartsWithoutDevices,
    /// Lets all pods wait while a plugin does not answer (LIVENESS).
    WaitsForAllPlugins,
    /// Does not report resizes that are deferred or in progress (RESIZE-TOLD).
    HidesResizes,
    /// Makes no cgroups for pods (CGROUP-MATCH).
    ForgetsCgroups,
    /// Never changes a pod's cgroup after its creation (CGROUP-MATCH, at rest).
    KeepsOldWeights,
    /// Never changes the memory limit of a pod's cgroup after its creation (CGROUP-MATCH).
    KeepsOldLimits,
    /// Writes `Running` after a terminal phase (STATUS-MONO).
    TakesBackTheEnd,
    /// Writes `Failed` while containers run (STATUS-TRUTH).
    ReportsEarly,
    /// Writes no status at all (STATUS-TRUTH, at rest).
    SaysNothing,
    /// Deletes the object of a pod whose deletion no client requested (DELETE-LAST).
    DeletesEarly,
    /// Reads a pod of another node (SECRET-SCOPE).
    ReadsForeign,
    /// Never deletes a mirror pod (MIRROR-ONE).
    KeepsMirrors,
    /// Writes no node status (NODE-READY).
    NeverReports,
    /// Writes a status again that the API already shows (IDLE).
    RepeatsItself,
    /// Terminates all pods at the same time when the machine stops (SHUTDOWN-ORDER).
    EndsAllAtOnce,
    /// Never releases the delay lock (SHUTDOWN-BUDGET).
    KeepsTheLock,
    /// Admits pods while the machine stops (SHUTDOWN-CLOSED).
    LetsIn,
    /// Records all pods as ended (RECEIPT-TRUE).
    SignsBlindly,
    /// Does not withdraw its receipt when the shutdown is cancelled (RECEIPT-TRUE).
    KeepsItsReceipt,
    /// Does not delete the pods that a shutdown ended (LEFT-OVER).
    LeavesTheEnded,
    /// Stops as if only its own unit stopped, although the machine stops (STOP-AWAITED).
    LeavesItsPods,
}

impl Defect {
    /// True for defects of the calls to the API server, and for those that need its pods.
    #[must_use]
    pub fn needs_api(self) -> bool {
        matches!(
            self,
            Defect::RestartsDebuggers
                | Defect::MovesAllToOne
                | Defect::FreesPartsEarly
                | Defect::ActsBeforeItIsWritten
                | Defect::GivesTooMuch
                | Defect::HidesResizes
                | Defect::KeepsOldWeights
                | Defect::KeepsOldLimits
                | Defect::TakesBackTheEnd
                | Defect::ReportsEarly
                | Defect::SaysNothing
                | Defect::DeletesEarly
                | Defect::ReadsForeign
                | Defect::KeepsMirrors
                | Defect::NeverReports
                | Defect::RepeatsItself
                | Defect::LeavesTheEnded
        )
    }
}

impl Node {
    /// Sends the additional effects of the configured defect, next to a correct `effect`.
    pub(crate) fn misbehave(&mut self, key: &PodKey, effect: &Effect, deadline: Option<Mono>) {
        // No worker uses these ids: workers ignore the answers.
        let mut also = |effect: Effect| {
            let id = EffectId(u64::MAX);
            self.out.push(NodeRequest::Effect { key: key.clone(), id, effect, deadline });
        };
        match (self.defect, effect) {
            (Some(Defect::SandboxTwice), Effect::RunSandbox { config }) => {
                let mut config = config.clone();
                config.attempt += 1;
                also(Effect::RunSandbox { config });
            }
            (Some(Defect::StartsWhileTerminating), Effect::StopContainer { container, .. }) => {
                also(Effect::StartContainer { container: container.clone() });
            }
            (Some(Defect::GivesClaimsBackEarly), Effect::StopContainer { .. }) => {
                also(Effect::UnprepareClaims)
            }
            (Some(Defect::TearsDownEarly), Effect::StopContainer { .. }) => also(Effect::TearDownVolumes),
            (Some(Defect::LeavesMounts), Effect::RemovePodDirs { .. }) => {
                let medium = Medium::Disk;
                let volume = Box::new(SetUp {
                    name: "left".to_owned(),
                    plugin: Plugin::EmptyDir,
                    path: String::new(),
                    work: Work::EmptyDir { medium, marker: String::new(), counted: false },
                    nested: Vec::new(),
                    fs_group: None,
                });
                also(Effect::SetUpVolume { volume });
            }
            (Some(Defect::GivesMore), Effect::StopContainer { container, grace_s }) => {
                also(Effect::StopContainer { container: container.clone(), grace_s: grace_s + 30 });
            }
            (Some(Defect::RemovesTheNewest), Effect::StartContainer { container }) => {
                also(Effect::RemoveContainer { container: container.clone(), log: None });
            }
            (Some(Defect::FinishesEarly), Effect::StopContainer { .. }) => {
                let uid = key.uid.clone();
                self.out.push(NodeRequest::Worker { uid, state: "finished", in_flight: 0 });
            }
            (Some(Defect::AsksForEver), Effect::RunSandbox { .. }) => {
                let looks = (0..20_000).map(|_| NodeRequest::Inspect(key.uid.clone()));
                self.out.extend(looks);
            }
            _ => {}
        }
    }

    /// Changes an effect according to the configured defect.
    pub(crate) fn distort(&self, effect: &mut Effect) {
        self.strip_devices(effect);
        if let (Some(Defect::StopsWithMoreGrace), Effect::StopContainer { grace_s, .. }) =
            (self.defect, &mut *effect)
        {
            *grace_s += 30;
        }
        if let (Some(Defect::MountsForeign), Effect::SetUpVolume { volume }) = (self.defect, effect)
            && let Work::Files { sources, .. } = &mut volume.work
        {
            let (namespace, name) = ("kube-system".to_owned(), "other".to_owned());
            let object = ObjectRef { kind: ObjectKind::Secret, namespace, name };
            sources.push(FileSource::Object { object, items: Vec::new(), optional: true, mode: 0o644 });
        }
    }

    /// Sends a call, changed according to the configured defect.
    pub(crate) fn call(&mut self, owner: Owner, id: EffectId, mut call: ApiCall) {
        let phase = |phase: &str| json!({ "status": { "phase": phase } });
        let mut also = None;
        if let (Some(Defect::HidesResizes), ApiCall::PatchPodStatus { patch, .. }) = (self.defect, &mut call)
        {
            for list in ["/status/conditions", "/status/$setElementOrder~1conditions"] {
                let conditions = patch.pointer_mut(list).and_then(serde_json::Value::as_array_mut);
                conditions.into_iter().for_each(|all| {
                    all.retain(|c| !c["type"].as_str().is_some_and(|name| name.starts_with("PodResize")));
                });
            }
        }
        match (self.defect, owner, &call) {
            (Some(Defect::SaysNothing), Owner::Status, ApiCall::PatchPodStatus { .. })
            | (Some(Defect::KeepsMirrors), Owner::Mirrors, ApiCall::DeletePod { .. })
            | (Some(Defect::NeverReports), Owner::Node, ApiCall::CreateNode(_)) => return,
            (Some(defect), Owner::Status, ApiCall::PatchPodStatus { pod, patch }) => {
                let terminal = matches!(patch["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
                let pod = pod.clone();
                also = match defect {
                    Defect::TakesBackTheEnd if terminal => {
                        Some(ApiCall::PatchPodStatus { pod, patch: phase("Running") })
                    }
                    Defect::ReportsEarly => Some(ApiCall::PatchPodStatus { pod, patch: phase("Failed") }),
                    Defect::DeletesEarly => patch["metadata"]["uid"].as_str().map(|uid| ApiCall::DeletePod {
                        pod,
                        uid: uid.to_owned(),
                        resource_version: None,
                        grace_s: 0,
                    }),
                    _ => None,
                };
            }
            (Some(Defect::RepeatsItself), Owner::Lease, ApiCall::ReplaceLease(_)) => {
                let name = self.workers.values().next().map(|w| w.key());
                also = name.map(|key| ApiCall::PatchPodStatus {
                    pod: ObjectName { namespace: key.namespace.clone(), name: key.name.clone() },
                    patch: json!({ "status": {} }),
                });
            }
            _ => {}
        }
        self.out.push(NodeRequest::Api { owner, id, call });
        if let Some(call) = also {
            self.also_call(Owner::Status, call);
        }
    }

    /// Sends a call for which no machine waits.
    pub(crate) fn also_call(&mut self, owner: Owner, call: ApiCall) {
        self.out.push(NodeRequest::Api { owner, id: EffectId(u64::MAX), call });
    }
}
