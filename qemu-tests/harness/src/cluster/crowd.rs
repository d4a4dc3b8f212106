//! Pods of many kinds, and the expected end of each. Pure.
//!
//! In: a kind, a name, a node. Out: a pod for the API, and [`Kind::is_settled`]: whether a pod of that kind
//! has reached its expected end.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};

use super::fixture::{STAYS, api_pod, container};
use super::ready;

/// The ConfigMap and the Secret that some of the pods use; each has a key `k`.
pub const OBJECTS: &str = "crowd";
/// Label of pods whose containers never end by themselves.
pub const QUIET: &str = "quiet";

/// Expected end of a kind's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodOutcome {
    /// Runs, and never ends by itself.
    Quiet,
    /// Runs and is Ready; a container may have been restarted (because of a hook that ran while the runtime was away).
    Runs,
    /// Is restarted again and again.
    Crashes,
    /// Succeeds.
    Succeeds,
    /// Fails.
    Fails,
    /// Waits, with this reason.
    Waits(&'static str),
}

/// One kind of pods.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Name of the kind, a prefix of its pods' names.
    pub name: &'static str,
    /// Expected end of its pods.
    pub comes: PodOutcome,
    spec: fn(&mut Value),
}

/// All kinds.
pub const KINDS: [Kind; 16] = [
    kind("plain", PodOutcome::Quiet, |_| {}),
    kind("init", PodOutcome::Quiet, |spec| {
        spec["initContainers"] = json!([named("a", "exit 0"), named("b", "sleep 0.2")])
    }),
    kind("sidecar", PodOutcome::Quiet, |spec| {
        spec["initContainers"] = json!([named("a", "exit 0"), sidecar("beside")]);
    }),
    kind("probes", PodOutcome::Quiet, probes),
    kind("volumes", PodOutcome::Quiet, volumes),
    kind("two", PodOutcome::Quiet, |spec| push(spec, named("d", STAYS))),
    kind("deaf", PodOutcome::Quiet, |spec| {
        spec["containers"][0]["command"] = json!(["deaf"]);
        spec["terminationGracePeriodSeconds"] = json!(2);
    }),
    kind("hooks", PodOutcome::Runs, |spec| {
        let run = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}});
        spec["containers"][0]["lifecycle"] = json!({"postStart": run("exit 0"), "preStop": run("sleep 0.2")});
        spec["terminationGracePeriodSeconds"] = json!(3);
    }),
    kind("crashes", PodOutcome::Crashes, |spec| script(spec, "sleep 0.3; exit 3")),
    kind("crashes-beside", PodOutcome::Crashes, |spec| {
        spec["initContainers"] = json!([sidecar("beside")]);
        push(spec, named("d", "exit 4"));
    }),
    kind("unhealthy", PodOutcome::Crashes, |spec| {
        let asks = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1});
        spec["containers"][0]["livenessProbe"] = asks;
    }),
    kind("job", PodOutcome::Succeeds, |spec| {
        spec["restartPolicy"] = json!("Never");
        script(spec, "sleep 0.5");
    }),
    kind("job-again", PodOutcome::Succeeds, |spec| {
        spec["restartPolicy"] = json!("OnFailure");
        script(spec, "[ -e /m/once ] || { touch /m/once; exit 1; }");
        spec["volumes"] = json!([{"name": "m", "emptyDir": {}}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "m", "mountPath": "/m"}]);
    }),
    kind("job-fails", PodOutcome::Fails, |spec| {
        spec["restartPolicy"] = json!("Never");
        script(spec, "exit 5");
    }),
    kind("init-fails", PodOutcome::Fails, |spec| {
        spec["restartPolicy"] = json!("Never");
        spec["initContainers"] = json!([named("a", "exit 6")]);
    }),
    kind("no-image", PodOutcome::Waits("ErrImageNeverPull"), |spec| {
        spec["containers"][0]["image"] = json!("127.0.0.1:5001/e2e/none:1");
        spec["containers"][0]["imagePullPolicy"] = json!("Never");
    }),
];

const fn kind(name: &'static str, comes: PodOutcome, spec: fn(&mut Value)) -> Kind {
    Kind { name, comes, spec }
}

impl Kind {
    /// A pod of this kind.
    #[must_use]
    pub fn pod(self, name: &str, node: &str) -> Value {
        let mut pod = api_pod(name, node, STAYS, 1);
        (self.spec)(&mut pod["spec"]);
        // No back-off is short enough for a test: crash loops are observed, not awaited.
        pod["metadata"]["labels"]["kind"] = json!(self.name);
        if self.comes == PodOutcome::Quiet {
            pod["metadata"]["labels"][QUIET] = json!("yes");
        }
        pod
    }

    /// True if the pod has reached its kind's expected end. A dying runtime may end a container that it is just
    /// starting (exit code 255 or 128): a pod that runs once may fail because of that.
    #[must_use]
    pub fn is_settled(self, pod: &Pod) -> bool {
        if pod.metadata.deletion_timestamp.is_some() {
            return false;
        }
        let mut all = statuses(pod);
        match self.comes {
            PodOutcome::Quiet | PodOutcome::Runs => ready::pod(pod) && ready::phase(pod) == "Running",
            PodOutcome::Crashes => ready::phase(pod) == "Running" && all.any(|c| c.restart_count > 0),
            PodOutcome::Succeeds => {
                let phase = ready::phase(pod);
                phase == "Succeeded" || (phase == "Failed" && all.any(was_lost))
            }
            PodOutcome::Fails => ready::phase(pod) == "Failed",
            PodOutcome::Waits(reason) => {
                let waits = |c: &ContainerStatus| {
                    c.state.as_ref()?.waiting.as_ref()?.reason.as_deref().map(|r| r == reason)
                };
                ready::phase(pod) == "Pending" && all.any(|c| waits(c) == Some(true))
            }
        }
    }
}

fn was_lost(status: &ContainerStatus) -> bool {
    let ended = status.state.as_ref().and_then(|s| s.terminated.as_ref());
    ended.is_some_and(|t| [128, 255].contains(&t.exit_code))
}

/// Statuses of init, sidecar and regular containers.
pub fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|s| s.init_container_statuses.as_ref());
    let regular = status.and_then(|s| s.container_statuses.as_ref());
    init.into_iter().flatten().chain(regular.into_iter().flatten())
}

fn named(name: &str, script: &str) -> Value {
    let mut one = container(script);
    one["name"] = json!(name);
    one
}

fn sidecar(name: &str) -> Value {
    let mut one = named(name, STAYS);
    one["restartPolicy"] = json!("Always");
    one
}

fn script(spec: &mut Value, text: &str) {
    spec["containers"][0]["command"] = json!(["sh", "-c", text]);
}

fn push(spec: &mut Value, container: Value) {
    if let Some(all) = spec["containers"].as_array_mut() {
        all.push(container);
    }
}

fn probes(spec: &mut Value) {
    let probe = |period: u32| json!({"exec": {"command": ["true"]}, "periodSeconds": period, "timeoutSeconds": 20, "failureThreshold": 3});
    for (kind, period) in [("startupProbe", 1), ("livenessProbe", 2), ("readinessProbe", 2)] {
        spec["containers"][0][kind] = probe(period);
    }
}

fn volumes(spec: &mut Value) {
    spec["volumes"] = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "map", "configMap": {"name": OBJECTS}},
        {"name": "secret", "secret": {"secretName": OBJECTS}},
        {"name": "self", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]);
    spec["containers"][0]["volumeMounts"] = json!([
        {"name": "disk", "mountPath": "/disk"},
        {"name": "disk", "mountPath": "/part", "subPath": "part"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "map", "mountPath": "/map"},
        {"name": "secret", "mountPath": "/secret"},
        {"name": "self", "mountPath": "/self"},
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_pods() {
        for kind in KINDS {
            let made = kind.pod("a", "n");
            let pod: Pod = serde_json::from_value(made.clone()).unwrap();
            assert!(!kind.is_settled(&pod), "{}: nothing is known of it", kind.name);
            assert_eq!(made["metadata"]["labels"][QUIET] == "yes", kind.comes == PodOutcome::Quiet);
        }
    }

    #[test]
    fn a_pod_is_settled_by_what_it_shows() {
        let with = |phase: &str, ready: &str, state: Value, restarts: u32| -> Pod {
            let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}],
                "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true,
                    "restartCount": restarts, "state": state}]});
            serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap()
        };
        let of = |name: &str| KINDS.into_iter().find(|k| k.name == name).unwrap();
        let running = json!({"running": {}});
        let lost = json!({"terminated": {"exitCode": 255}});
        let waiting = json!({"waiting": {"reason": "ErrImageNeverPull"}});
        for (name, phase, ready, state, restarts, is_settled) in [
            ("plain", "Running", "True", &running, 0, true),
            ("plain", "Running", "False", &running, 0, false),
            ("crashes", "Running", "True", &running, 0, false),
            ("crashes", "Running", "False", &running, 1, true),
            ("job", "Succeeded", "False", &running, 0, true),
            ("job", "Failed", "False", &running, 0, false),
            ("job", "Failed", "False", &lost, 0, true),
            ("job-fails", "Failed", "False", &lost, 0, true),
            ("no-image", "Pending", "False", &waiting, 0, true),
            ("no-image", "Pending", "False", &running, 0, false),
        ] {
            let pod = with(phase, ready, state.clone(), restarts);
            assert_eq!(of(name).is_settled(&pod), is_settled, "{name} {phase} {state}");
        }
    }
}
