//! Images as volumes of pods in a cluster (KEP-4639): their contents, images that cannot be pulled, a kill of the
//! agent.
//!
//! Cases: `volumes/image`, `volumes/image-refused`.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, last_words, named_container,
};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::native::images::{model, private_busybox};
use orlop_harness::native::registry::{HOST, PASSWORD, USER};
use serde_json::{Value, json};

use crate::cases::join::image_pulls::await_waiting;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/image",
        40,
        "files of an image and a part of it, to be read only, in all containers of a pod; over a kill of the agent",
        image,
    ),
    HERE.case(
        "volumes/image-refused",
        60,
        "images of volumes that are missing, wrong or want a password are told, and keep nobody else",
        refused,
    ),
];

/// A pod that stays and mounts these images at `/v0`, `/v1` and so on.
fn mounting(name: &str, script: &str, images: &[Value]) -> Value {
    let mut pod = api_pod(name, "first", script, 1);
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for (index, image) in images.iter().enumerate() {
        let volume = format!("v{index}");
        volumes.push(json!({"name": volume, "image": image}));
        mounts.push(json!({"name": volume, "mountPath": format!("/{volume}")}));
    }
    pod["spec"]["volumes"] = json!(volumes);
    pod["spec"]["containers"][0]["volumeMounts"] = json!(mounts);
    pod
}

fn remove(joined: &Joined, name: &str) -> Result<()> {
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), name, None)?;
    await_pod_gone(&joined.cluster, name, 60)
}

fn image(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let script = "(cat /v0/README /v0/models/a/weights; touch /v0/new /part/new && echo writable; true) \
                  > /dev/termination-log 2>/dev/null";
    let mut pod = mounting("image", STAYS, &[json!({"reference": model()})]);
    let part = json!({"name": "v0", "mountPath": "/part", "subPathExpr": "models/$(PART)"});
    let mut first = named_container("first", script);
    first["volumeMounts"] = json!([{"name": "v0", "mountPath": "/v0"}, part]);
    first["env"] = json!([{"name": "PART", "value": "a"}]);
    pod["spec"]["initContainers"] = json!([first]);
    client.create::<Pod>(&client.of("default"), pod)?;
    let before = await_pod_ready(&joined.cluster, "image", 60)?;
    let seen = last_init_words(&before)?;
    ensure!(seen == "read me\nheavy\n", "it saw {seen:?}");
    // The runtime has to apply the sub-path of /part: containerd 2.1 mounts the whole image.

    let metrics = client.raw("/api/v1/nodes/first/proxy/metrics")?;
    let count = |name: &str| {
        let line = metrics.lines().find_map(|l| l.strip_prefix(&format!("kubelet_image_volume_{name} ")));
        line.and_then(|n| n.parse::<u32>().ok())
    };
    let counted = (count("requested_total"), count("mounted_succeed_total"), count("mounted_errors_total"));
    ensure!(counted.0 >= Some(2) && counted.1 >= Some(3), "it counts {counted:?}");

    let node = joined.nodes.first_mut().context("no node")?;
    node.kill_agent()?;
    start_kubelet(node, JoinMethod::BootstrapKubeconfig)?;
    // A volume of the new agent, next to those of the old one.
    let read = "cat /v0/models/a/weights > /dev/termination-log";
    let mut later = mounting("image-later", read, &[json!({"reference": model(), "pullPolicy": "Never"})]);
    later["spec"]["restartPolicy"] = json!("Never");
    let client = joined.cluster.client();
    client.create::<Pod>(&client.of("default"), later)?;
    let seen = client.wait::<Pod, _>(&client.of("default"), 60, "it to have been read", |all| {
        last_words(all.get("image-later")?, "c")
    })?;
    ensure!(seen == "heavy\n", "it saw {seen:?}");
    let after = await_pod_ready(&joined.cluster, "image", 30)?;
    let id = |pod: &Pod| {
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        statuses.first()?.container_id.clone()
    };
    ensure!(id(&before).is_some() && id(&before) == id(&after), "{:?} became {:?}", id(&before), id(&after));
    for name in ["image", "image-later"] {
        remove(joined, name)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}

fn last_init_words(pod: &Pod) -> Result<String> {
    let statuses = pod.status.as_ref().and_then(|s| s.init_container_statuses.as_ref());
    let state = statuses.and_then(|all| all.first()?.state.clone());
    state.and_then(|s| s.terminated?.message).context("the init container left no words")
}

fn refused(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let create = |pod: Value| client.create::<Pod>(&client.of("default"), pod);
    let pulling: &[&str] = &["ErrImagePull", "ImagePullBackOff"];

    let missing = format!("{HOST}/e2e/nothing:1");
    let mut pod = mounting("image-missing", STAYS, &[json!({"reference": missing})]);
    // One that does not mount it runs.
    let other = named_container("other", STAYS);
    pod["spec"]["containers"].as_array_mut().context("containers")?.push(other);
    create(pod)?;
    let text = await_waiting(&joined.cluster, "image-missing", pulling)?;
    ensure!(text.contains(&missing), "it says {text:?}");
    client.wait::<Pod, _>(&client.of("default"), 30, "the other container to run", |all| {
        let statuses = all.get("image-missing")?.status.as_ref()?.container_statuses.as_ref()?;
        let other = statuses.iter().find(|s| s.name == "other")?;
        other.state.as_ref()?.running.as_ref().map(|_| ())
    })?;
    client.wait::<Event, _>(&client.of("default"), 30, "what failed to be told of the pod", |all| {
        let told = |e: &&Event| {
            let of = (e.involved_object.name.as_deref(), e.involved_object.field_path.as_deref());
            let begins = format!("Failed to pull image \"{missing}\": ");
            of == (Some("image-missing"), None)
                && e.message.as_deref().is_some_and(|m| m.starts_with(&begins))
        };
        all.values().find(told).map(|_| ())
    })?;

    create(mounting("image-never", STAYS, &[json!({"reference": missing, "pullPolicy": "Never"})]))?;
    let text = await_waiting(&joined.cluster, "image-never", &["ErrImageNeverPull"])?;
    let words = format!("Container image \"{missing}\" is not present with pull policy of Never");
    ensure!(text == words, "it says {text:?}");

    create(mounting("image-wrong", STAYS, &[json!({"reference": "Wrong:1"})]))?;
    let text = await_waiting(&joined.cluster, "image-wrong", &["InvalidImageName"])?;
    ensure!(text.starts_with("Failed to apply default image tag \"Wrong:1\": "), "it says {text:?}");

    create(mounting(
        "image-stranger",
        STAYS,
        &[json!({"reference": private_busybox(), "pullPolicy": "Always"})],
    ))?;
    let text = await_waiting(&joined.cluster, "image-stranger", pulling)?;
    ensure!(text.contains("401") || text.contains("authorization"), "it says {text:?}");
    let config = json!({"auths": {format!("http://{HOST}"): {"username": USER, "password": PASSWORD}}});
    client.create::<Secret>(
        &client.of("default"),
        json!({"metadata": {"name": "image-registry"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": config.to_string()}}),
    )?;
    let mut guest =
        mounting("image-guest", STAYS, &[json!({"reference": private_busybox(), "pullPolicy": "Always"})]);
    guest["spec"]["imagePullSecrets"] = json!([{"name": "image-registry"}]);
    create(guest)?;
    await_pod_ready(&joined.cluster, "image-guest", 60)?;
    for name in ["image-missing", "image-never", "image-wrong", "image-stranger", "image-guest"] {
        remove(joined, name)?;
    }
    client.delete::<Secret>(&client.of("default"), "image-registry", None)?;
    joined.cluster.ensure_nothing_forbidden()
}
