//! Images that need credentials, in a cluster.
//!
//! Cases: `join/pull-secret`, `join/pulled-by-others`.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStateWaiting, Event, Pod, Secret};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::native::images::private_busybox;
use orlop_harness::native::registry::{HOST, PASSWORD, USER};
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "join/pull-secret",
        30,
        "an image that wants a password is pulled with the pod's Secret, and not without",
        pull_secret,
    ),
    HERE.case(
        "join/pulled-by-others",
        40,
        "an image that was pulled with a Secret is there for nobody without it, also after a kill of the agent",
        pulled_by_others,
    ),
];

fn waiting(pod: &Pod) -> Option<ContainerStateWaiting> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.first()?.state.as_ref()?.waiting.clone()
}

fn pull_secret(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let pod = |name: &str, secrets: &[&str]| private_pod(name, "first", "Always", secrets);
    client.create::<Pod>(&client.of("default"), pod("stranger", &[]))?;
    let text = await_waiting(&joined.cluster, "stranger", &["ErrImagePull", "ImagePullBackOff"])?;
    ensure!(text.contains("401") || text.contains("authorization"), "it says {text:?}");

    let config = json!({"auths": {format!("http://{HOST}"): {"username": USER, "password": PASSWORD}}});
    client.create::<Secret>(
        &client.of("default"),
        json!({"metadata": {"name": "registry"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": config.to_string()}}),
    )?;
    client.create::<Pod>(&client.of("default"), pod("guest", &["never", "registry"]))?;
    await_pod_ready(&joined.cluster, "guest", 60)?;
    let words =
        "Unable to retrieve some image pull secrets (never); attempting to pull the image may not succeed.";
    client.wait::<Event, _>(&client.of("default"), 30, "event FailedToRetrieveImagePullSecret", |all| {
        let said = |e: &&Event| {
            e.reason.as_deref() == Some("FailedToRetrieveImagePullSecret")
                && e.message.as_deref() == Some(words)
        };
        all.values().find(said).map(|_| ())
    })?;
    for name in ["stranger", "guest"] {
        client.delete::<Pod>(&client.of("default"), name, None)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}

fn pulled_by_others(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let secret = |name: &str, password: &str| {
        let config = json!({"auths": {format!("http://{HOST}"): {"username": USER, "password": password}}});
        client.create::<Secret>(
            &client.of("default"),
            json!({"metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson",
                "stringData": {".dockerconfigjson": config.to_string()}}),
        )
    };
    secret("owner", PASSWORD)?;
    secret("same", PASSWORD)?;
    secret("wrong", "a guess")?;
    let refused: &[&str] = &["ErrImagePull", "ImagePullBackOff"];
    joined.run_pod(private_pod("owner", "second", "IfNotPresent", &["owner"]))?;
    let create = |name: &str, policy: &str, secrets: &[&str]| {
        client.create::<Pod>(&client.of("default"), private_pod(name, "second", policy, secrets))
    };
    create("present", "IfNotPresent", &[])?;
    let text = await_waiting(&joined.cluster, "present", refused)?;
    ensure!(text.contains("401") || text.contains("authorization"), "it says {text:?}");
    create("guesser", "IfNotPresent", &["wrong"])?;
    await_waiting(&joined.cluster, "guesser", refused)?;
    create("never", "Never", &[])?;
    let text = await_waiting(&joined.cluster, "never", &["ErrImageNeverPull"])?;
    let image = private_busybox();
    ensure!(
        text == format!("Container image \"{image}\" is not present with pull policy of Never"),
        "it says {text:?}"
    );

    joined.nodes[1].kill_agent()?;
    start_kubelet(&mut joined.nodes[1], JoinMethod::BootstrapKubeconfig)?;
    let client = joined.cluster.client();
    let create = |name: &str, policy: &str, secrets: &[&str]| {
        client.create::<Pod>(&client.of("default"), private_pod(name, "second", policy, secrets))
    };
    create("later", "IfNotPresent", &[])?;
    await_waiting(&joined.cluster, "later", refused)?;
    create("blind", "Never", &["wrong"])?;
    await_waiting(&joined.cluster, "blind", &["ErrImageNeverPull"])?;
    // A pod with the Secret of the pull, or with another Secret of the same contents, needs no registry.
    joined.run_pod(private_pod("fellow", "second", "Never", &["owner"]))?;
    joined.run_pod(private_pod("cousin", "second", "IfNotPresent", &["same"]))?;
    let words =
        format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
    client.wait::<Event, _>(&client.of("default"), 30, "event Pulled without a pull", |all| {
        let of = |name: &str| {
            all.values().any(|e| {
                e.involved_object.name.as_deref() == Some(name)
                    && e.message.as_deref() == Some(words.as_str())
            })
        };
        (of("fellow") && of("cousin")).then_some(())
    })?;
    for name in ["owner", "present", "guesser", "never", "later", "blind", "fellow", "cousin"] {
        client.delete::<Pod>(&client.of("default"), name, None)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    for name in ["owner", "same", "wrong"] {
        client.delete::<Secret>(&client.of("default"), name, None)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}

/// A pod that stays, of the image that wants a password.
pub(crate) fn private_pod(name: &str, node: &str, policy: &str, secrets: &[&str]) -> Value {
    let mut pod = api_pod(name, node, STAYS, 1);
    pod["spec"]["containers"][0]["image"] = json!(private_busybox());
    pod["spec"]["containers"][0]["imagePullPolicy"] = json!(policy);
    pod["spec"]["imagePullSecrets"] = secrets.iter().map(|name| json!({ "name": name })).collect();
    pod
}

/// The message of a container that waits for one of the reasons.
pub(crate) fn await_waiting(cluster: &Cluster, name: &str, reasons: &[&str]) -> Result<String> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, &format!("{name} to wait for {reasons:?}"), |all| {
        let waiting = waiting(all.get(name)?)?;
        reasons.contains(&waiting.reason.as_deref()?).then(|| waiting.message.unwrap_or_default())
    })
}
