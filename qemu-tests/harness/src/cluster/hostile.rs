//! Malformed and hostile pods, and the expected messages about each. Pure.
//!
//! In: a node's name. Out: pods for the API, and for each the texts that must appear at some time. They are
//! the upstream kubelet's (`ORLOP_E2E_AGENT=kubelet` runs it in the agent's place).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use serde_json::{Value, json};

use super::crowd::statuses;
use super::fixture::{STAYS, api_pod};
use super::ready;

/// A pod, and its expected messages.
#[derive(Clone, Copy)]
pub struct Hostile {
    /// Name of the pod.
    pub name: &'static str,
    restart: &'static str,
    spec: fn(&mut Value),
    /// Words of [`shown`], each line of which must have been shown.
    pub says: &'static [&'static str],
}

const fn pod(name: &'static str, spec: fn(&mut Value), says: &'static [&'static str]) -> Hostile {
    Hostile { name, restart: "Never", spec, says }
}

/// The same, restarted repeatedly.
const fn again(name: &'static str, spec: fn(&mut Value), says: &'static [&'static str]) -> Hostile {
    Hostile { name, restart: "Always", spec, says }
}

/// All of these pods.
pub const ALL: &[Hostile] = &[
    pod(
        "env-one",
        |c| c["env"] = json!([{"name": "HUGE", "value": "x".repeat(1_000_000)}]),
        &["ended Error 1"],
    ),
    pod(
        "env-many",
        |c| {
            let one = |n: u32| json!({"name": format!("V{n}"), "value": "x".repeat(120_000)});
            c["env"] = (0..8).map(one).collect();
            script(c, "echo ${#V0} ${#V7} > /dev/termination-log");
        },
        &["ended Completed 0 120000 120000"],
    ),
    pod("argument", |c| c["args"] = json!(["x".repeat(200_000)]), &["ended Error 1"]),
    pod(
        "unicode",
        |c| {
            c["env"] =
                json!([{"name": "?!", "value": "grüße 世界 🦀 \u{202e}"}, {"name": "A", "value": "日本"}]);
            c["workingDir"] = json!("/tmp/ordner ä 世界");
            script(c, "printf '%s %s' \"$A\" \"$PWD\" > /dev/termination-log");
        },
        &["ended Completed 0 日本 /tmp/ordner ä 世界"],
    ),
    pod("env-nul", |c| c["env"] = json!([{"name": "A", "value": "a\u{0}b"}]), &["runs"]),
    pod(
        "cycles",
        |c| {
            c["env"] = json!([{"name": "A", "value": "$(B)"}, {"name": "B", "value": "$(A)$(B)"},
                {"name": "C", "value": "$(C)$$(A)$(A"}]);
            c["command"] =
                json!(["sh", "-c", "echo \"$0 $A $B $C\" > /dev/termination-log", "$(B)$(NONE)$$(C)"]);
        },
        &["ended Completed 0 $(B)$(B)$(NONE)$(C) $(B) $(B)$(B) $(C)$(A)$(A"],
    ),
    pod(
        "no-image",
        |c| c["image"] = json!("127.0.0.1:5001/e2e/none:1"),
        &[
            "waits ErrImagePull",
            "waits ImagePullBackOff Back-off pulling image \"127.0.0.1:5001/e2e/none:1\"",
        ],
    ),
    pod(
        "no-registry",
        |c| c["image"] = json!("127.0.0.1:1/none:1"),
        &[
            "waits ErrImagePull failed to pull and unpack image \"127.0.0.1:1/none:1\": failed to resolve image",
            "waits ImagePullBackOff Back-off pulling image \"127.0.0.1:1/none:1\": ErrImagePull: failed to pull",
        ],
    ),
    pod(
        "bad-image",
        |c| c["image"] = json!("Upper/Case:not a tag"),
        &[
            "waits InvalidImageName Failed to apply default image tag \"Upper/Case:not a tag\": couldn't parse image \
          name \"Upper/Case:not a tag\": invalid reference format: repository name (Case) must be lowercase",
        ],
    ),
    pod(
        "never",
        |c| {
            c["image"] = json!("127.0.0.1:5001/e2e/none:1");
            c["imagePullPolicy"] = json!("Never");
        },
        &[
            "waits ErrImageNeverPull Container image \"127.0.0.1:5001/e2e/none:1\" is not present with pull policy of Never",
        ],
    ),
    pod(
        "no-entrypoint",
        |c| c["command"] = json!(["/no/such/program"]),
        &[
            "ended StartError 128 failed to create containerd task: failed to create shim task: OCI runtime create failed",
        ],
    ),
    pod(
        "directory",
        |c| c["command"] = json!(["/tmp"]),
        &[
            "ended StartError 128 failed to create containerd task: failed to create shim task: OCI runtime create failed",
        ],
    ),
    pod(
        "work-dir",
        |c| c["workingDir"] = json!("/bin/busybox"),
        &[
            "ended StartError 128 failed to create containerd task: failed to create shim task: OCI runtime create failed",
        ],
    ),
    again(
        "no-entrypoint-again",
        |c| c["command"] = json!(["/no/such/program"]),
        &[
            "waits RunContainerError failed to create containerd task: failed to create shim task: OCI runtime create",
            "waits CrashLoopBackOff back-off 10s restarting failed container=c pod=no-entrypoint-again_default(",
        ],
    ),
    again(
        "short-again",
        |c| c["command"] = json!(["true"]),
        &[
            "waits CrashLoopBackOff back-off 10s restarting failed container=c pod=short-again_default(",
            "last ended Completed 0",
        ],
    ),
    pod("short", |c| c["command"] = json!(["true"]), &["ended Completed 0"]),
    pod("short-fails", |c| c["command"] = json!(["false"]), &["ended Error 1"]),
    pod(
        "root",
        |c| c["securityContext"] = json!({"runAsNonRoot": true}),
        &[
            "waits CreateContainerConfigError container has runAsNonRoot and image will run as root (pod: \"root_default(",
        ],
    ),
    pod(
        "no-map",
        |c| c["env"] = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k"}}}]),
        &["waits CreateContainerConfigError configmap \"none\" not found"],
    ),
    pod(
        "memory",
        |c| {
            c["resources"] = json!({"limits": {"memory": "16Mi"}});
            script(c, "tail /dev/zero");
        },
        &["ended OOMKilled 137"],
    ),
];

impl Hostile {
    /// The pod. It runs once, unless it must crash.
    #[must_use]
    pub fn pod(self, node: &str) -> Value {
        let mut pod = api_pod(self.name, node, STAYS, 1);
        pod["spec"]["restartPolicy"] = json!(self.restart);
        (self.spec)(&mut pod["spec"]["containers"][0]);
        pod
    }
}

fn script(container: &mut Value, text: &str) {
    container["command"] = json!(["sh", "-c", text]);
}

/// One line for the pod's phase and one for each container's state and its last one, numbers that are no one's choice
/// (container ids, times) left out.
#[must_use]
pub fn shown(pod: &Pod) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let status = pod.status.as_ref();
    let words = |all: [Option<&String>; 2]| {
        all.into_iter().flatten().map(|text| without_ids(text)).collect::<Vec<_>>().join(" ")
    };
    let of_pod = words([status.and_then(|s| s.reason.as_ref()), status.and_then(|s| s.message.as_ref())]);
    lines.insert(format!("phase {} {of_pod}", ready::phase(pod)).trim_end().to_owned());
    let mut state = |what: &str, state: &ContainerState| {
        if let Some(waiting) = &state.waiting {
            lines.insert(format!(
                "{what}waits {}",
                words([waiting.reason.as_ref(), waiting.message.as_ref()])
            ));
        }
        if let Some(ended) = &state.terminated {
            let reason = ended.reason.as_deref().unwrap_or_default();
            let message = words([ended.message.as_ref(), None]);
            lines.insert(
                format!("{what}ended {reason} {} {}", ended.exit_code, message.trim()).trim_end().to_owned(),
            );
        }
        if state.running.is_some() {
            lines.insert(format!("{what}runs"));
        }
    };
    for container in statuses(pod) {
        container.state.iter().for_each(|s| state("", s));
        container.last_state.iter().for_each(|s| state("last ", s));
    }
    lines
}

/// Words of 12 and more hexadecimal digits become `ID`; long messages are cut.
fn without_ids(text: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric();
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().take(600).chain(std::iter::once('\n')) {
        if is_word(c) {
            word.push(c);
            continue;
        }
        let is_id = word.len() >= 12 && word.chars().all(|c| c.is_ascii_hexdigit());
        out.push_str(if is_id { "ID" } else { &word });
        word.clear();
        out.push(c);
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_has_no_ids() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {}, "status": {"phase": "Failed", "reason": "R",
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 128, "reason": "StartError",
                    "message": "task 0123456789abcdef: no such file"}}}]}}))
            .unwrap();
        let lines: Vec<String> = shown(&pod).into_iter().collect();
        assert_eq!(lines, ["ended StartError 128 task ID: no such file", "phase Failed R"]);
    }

    #[test]
    fn they_are_pods_with_names_of_their_own() {
        let names: BTreeSet<&str> = ALL.iter().map(|h| h.name).collect();
        assert_eq!(names.len(), ALL.len());
        for one in ALL {
            serde_json::from_value::<Pod>(one.pod("n")).unwrap();
            assert!(!one.says.is_empty(), "{}", one.name);
        }
    }
}
