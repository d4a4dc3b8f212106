//! Images that are not for everybody, in a cluster.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStateWaiting, Event, Pod, Secret};
use serde_json::json;

use crate::case::{Case, CaseContext, Level, Place};
use crate::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready};
use crate::native::images::private_busybox;
use crate::native::registry::{HOST, PASSWORD, USER};

const HERE: Place = Place { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/pull-secret",
    30,
    "an image that wants a password is pulled with the pod's Secret, and not without",
    pull_secret,
)];

fn waiting(pod: &Pod) -> Option<ContainerStateWaiting> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.first()?.state.as_ref()?.waiting.clone()
}

fn pull_secret(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let pod = |name: &str, secrets: &[&str]| {
        let mut pod = api_pod(name, "first", STAYS, 1);
        pod["spec"]["containers"][0]["image"] = json!(private_busybox());
        pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
        pod["spec"]["imagePullSecrets"] = secrets.iter().map(|name| json!({ "name": name })).collect();
        pod
    };
    client.create::<Pod>(&client.of("default"), pod("stranger", &[]))?;
    let why = client.wait::<Pod, _>(&client.of("default"), 60, "the pull to be refused", |all| {
        let waiting = waiting(all.get("stranger")?)?;
        ["ErrImagePull", "ImagePullBackOff"].contains(&waiting.reason.as_deref()?).then_some(waiting)
    })?;
    let text = why.message.unwrap_or_default();
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
