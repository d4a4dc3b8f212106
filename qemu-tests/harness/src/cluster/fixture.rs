//! A cluster with joined native nodes, and pods made through the API, for cases and benchmarks.
//!
//! In: settings, names of nodes. Out: [`Joined`]. Invariant: nodes are dropped before their cluster.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use serde_json::{Value, json};

use super::flags::Settings;
use super::join::{JoinMethod, share_shims, start_kubelet};
use super::node_api::NodeApi;
use super::plane::Cluster;
use super::ready;
use crate::built;
use crate::case::CaseContext;
use crate::native::images;
use crate::native::node::NativeNode;
use crate::run::Run;

/// Cases with this group share one cluster of two nodes.
pub const GROUP: Option<&str> = Some("join-cluster");

/// A cluster and its nodes, which are dropped first.
pub struct Joined {
    /// In the order of their names.
    pub nodes: Vec<NativeNode>,
    /// The cluster.
    pub cluster: Cluster,
}

impl Joined {
    /// Starts a cluster with nodes of these names, all Ready and with certificates for their HTTPS APIs.
    ///
    /// # Errors
    /// The part that did not start.
    pub fn start(run: &Arc<Run>, artefacts: &Path, settings: Settings, names: &[&str]) -> Result<Joined> {
        Joined::start_sharing(run, artefacts, settings, names, 1)
    }

    /// The same with so many pods for each shim.
    ///
    /// # Errors
    /// The part that did not start.
    pub fn start_sharing(
        run: &Arc<Run>,
        artefacts: &Path,
        settings: Settings,
        names: &[&str],
        pods_per_shim: u32,
    ) -> Result<Joined> {
        let agent = built::agent(run, false)?;
        let cluster = Cluster::start(run, artefacts, settings)?;
        let mut joined = Joined { nodes: Vec::new(), cluster };
        for name in names {
            let mut node = joined.cluster.start_node(artefacts, name, agent.clone())?;
            if pods_per_shim > 1 {
                share_shims(&node, pods_per_shim)?;
            }
            start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
            joined.nodes.push(node);
        }
        for name in names {
            await_ready(&joined.cluster, name, 120)?;
            await_serving(&joined.cluster, name, 60)?;
        }
        Ok(joined)
    }

    /// The group's cluster, with nodes `first` and `second`.
    ///
    /// # Errors
    /// The part that did not start.
    pub fn shared<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut Joined> {
        cx.shared_or(|run, artefacts| {
            // Short, so that the case about a silent node is short.
            let settings = Settings { node_monitor_grace: Duration::from_secs(25), ..Settings::default() };
            Joined::start(run, artefacts, settings, &["first", "second"])
        })
    }

    /// Creates a pod in namespace `default` and waits until it is Ready.
    ///
    /// # Errors
    /// If it is refused or does not become Ready.
    pub fn run_pod(&self, pod: Value) -> Result<Pod> {
        let client = self.cluster.client();
        let api = client.of::<Pod>("default");
        let name = client.create(&api, pod)?.metadata.name.unwrap_or_default();
        await_pod_ready(&self.cluster, &name, 90)
    }
}

/// A pod for the API, bound to a node by its label: one container from the test image with a shell script.
#[must_use]
pub fn api_pod(name: &str, node: &str, script: &str, grace_s: u32) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": grace_s,
        "containers": [container(script)],
    }})
}

/// The container of such a pod.
#[must_use]
pub fn container(script: &str) -> Value {
    json!({"name": "c", "image": images::busybox(), "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script]})
}

/// The same with a name, for pods of several containers.
pub fn named_container(name: &str, script: &str) -> Value {
    let mut container = container(script);
    container["name"] = json!(name);
    container
}

/// A container `burns` that uses all of its CPU limit, in thousandths of a CPU.
pub fn burner(milli: u64) -> Value {
    let mut burns = named_container("burns", "while :; do :; done");
    burns["resources"] = json!({"limits": {"cpu": format!("{milli}m")}});
    burns
}

/// A container `holds` that holds memory, in MiB.
pub fn holder(mib: u64) -> Value {
    named_container("holds", &format!("A=$(head -c {} /dev/zero | tr '\\0' a); {STAYS}", mib << 20))
}

/// A script that runs until SIGTERM and then ends at once.
pub const STAYS: &str = "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done";

/// Waits until a pod of namespace `default` is Ready.
///
/// # Errors
/// At the deadline, with the present state.
pub fn await_pod_ready(cluster: &Cluster, name: &str, limit_s: u64) -> Result<Pod> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), limit_s, &format!("pod {name} to be Ready"), |all| {
        all.get(name).filter(|p| ready::pod(p)).cloned()
    })
}

/// Waits until the pod's containers run again after the machine ended. Until then the API server shows the pod's state
/// before that.
///
/// # Errors
/// At the deadline, with the present state.
pub fn await_started_anew(cluster: &Cluster, name: &str, limit_s: u64) -> Result<()> {
    let client = cluster.client();
    client.wait::<Pod, _>(
        &client.of("default"),
        limit_s,
        &format!("{name} to have been started anew"),
        |all| {
            let pod = all.get(name)?;
            let mut statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
            (ready::pod(pod) && statuses.all(|c| c.restart_count > 0)).then_some(())
        },
    )
}

/// The pod's UID.
///
/// # Errors
/// If it has none, as no object that the API server gave.
pub fn uid(pod: &Pod) -> Result<String> {
    pod.metadata.uid.clone().with_context(|| format!("{:?} has no UID", pod.metadata.name))
}

/// The UID that a pod of namespace `default` has now.
///
/// # Errors
/// If there is no such pod.
pub fn uid_of(cluster: &Cluster, name: &str) -> Result<String> {
    let client = cluster.client();
    let pod = client.get::<Pod>(&client.of("default"), name)?.with_context(|| format!("no pod {name}"))?;
    uid(&pod)
}

/// Waits until a pod of namespace `default` is gone.
///
/// # Errors
/// At the deadline, with the present state.
pub fn await_pod_gone(cluster: &Cluster, name: &str, limit_s: u64) -> Result<()> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), limit_s, &format!("pod {name} to be gone"), |all| {
        (!all.contains_key(name)).then_some(())
    })
}

/// Waits for an event with this reason about the pod or node `about`.
///
/// # Errors
/// At the deadline, with the present events.
pub fn await_event(cluster: &Cluster, reason: &str, about: &str, limit_s: u64) -> Result<Event> {
    let client = cluster.client();
    let what = format!("an event {reason} about {about}");
    client.wait::<Event, _>(&client.of("default"), limit_s, &what, |all| {
        let is = |e: &&Event| {
            e.reason.as_deref() == Some(reason) && e.involved_object.name.as_deref() == Some(about)
        };
        all.values().find(is).cloned()
    })
}

/// An event of this reason in the namespace `default`, if there is one.
///
/// # Errors
/// If the API server does not answer.
pub fn event(cluster: &Cluster, reason: &str) -> Result<Option<Event>> {
    let client = cluster.client();
    client.wait::<Event, _>(&client.of("default"), 10, "the events", |all| {
        Some(all.values().find(|event| event.reason.as_deref() == Some(reason)).cloned())
    })
}

/// Waits until a node is Ready.
///
/// # Errors
/// At the deadline, with the present state.
pub fn await_ready(cluster: &Cluster, name: &str, limit_s: u64) -> Result<Node> {
    let client = cluster.client();
    client.wait::<Node, _>(&client.all(), limit_s, &format!("node {name} to be Ready"), |all| {
        all.get(name).filter(|n| ready::node(n)).cloned()
    })
}

/// Waits until the node's HTTPS API answers at its Node's address with a valid certificate.
///
/// # Errors
/// At the deadline: the API's answer.
pub fn await_serving(cluster: &Cluster, name: &str, limit_s: u64) -> Result<()> {
    let client = cluster.client();
    let address =
        client.wait::<Node, _>(&client.all(), limit_s, &format!("an address of node {name}"), |all| {
            ready::internal_ip(all.get(name)?)
        })?;
    let admin = cluster.pki().node_admin()?;
    NodeApi::at(cluster, &address)?.await_healthy(&admin, limit_s)
}

/// Waits until one line of the kubelet's log contains all of `words`, capitals or not.
///
/// # Errors
/// At the deadline, with the log.
pub fn await_words(node: &mut NativeNode, limit_s: u64, words: &[&str]) -> Result<String> {
    let deadline = Instant::now() + Duration::from_secs(limit_s);
    loop {
        let log = std::fs::read_to_string(node.logs().join("agent.log")).unwrap_or_default();
        let says = |line: &&str| words.iter().all(|w| line.to_lowercase().contains(&w.to_lowercase()));
        if let Some(line) = log.lines().find(says) {
            return Ok(line.to_owned());
        }
        if Instant::now() >= deadline {
            let tail = crate::native::supervised::tail(&node.logs().join("agent.log"));
            bail!("waited {limit_s} s for a line with {words:?}; the last ones are\n{tail}");
        }
        // A log file has no event of its own here; the node's events are read meanwhile.
        node.pass(Duration::from_millis(250))?;
    }
}

/// The termination message of a container of the pod, if its exit code was 0.
#[must_use]
pub fn last_words(pod: &Pod, name: &str) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.clone()?;
    let status = statuses.into_iter().find(|s| s.name == name)?;
    let ended = status.state?.terminated?;
    (ended.exit_code == 0).then(|| ended.message.unwrap_or_default())
}
