//! The pod resources API: the same answers as the upstream kubelet's, about a pod of each kind of container.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone, named_container};
use orlop_harness::native::pod_resources::PodResources;
use serde_json::json;
use tonic::Code;

/// Cases of this file.
pub const CASES: &[Case] = &[CaseDefaults { level: Level::L4n, group: GROUP }.case(
    "api/pod-resources",
    15,
    "pods and their containers on the pod resources socket until they end, and no more than its rate",
    pod_resources,
)];

const POD: &str = "holds-nothing";

fn pod_resources(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let mut pod = api_pod(POD, "first", STAYS, 1);
    let mut sidecar = named_container("sidecar", STAYS);
    sidecar["restartPolicy"] = "Always".into();
    pod["spec"]["initContainers"] = json!([named_container("ends", "true"), sidecar]);
    let mut ended = api_pod("has-ended", "first", "true", 1);
    ended["spec"]["restartPolicy"] = "Never".into();
    let client = joined.cluster.client();
    client.create::<Pod>(&client.of("default"), ended)?;
    joined.run_pod(pod)?;
    client.wait::<Pod, _>(&client.of("default"), 60, "a pod to end", |all| {
        let phase = all.get("has-ended")?.status.as_ref()?.phase.clone()?;
        (phase == "Succeeded").then_some(())
    })?;
    let node = &joined.nodes[0];
    let api = PodResources::of(node)?;
    let listed = api.list()?;
    let of_pod = listed.iter().find(|pod| pod.name == POD).with_context(|| format!("{POD}: {listed:?}"))?;
    ensure!(listed.iter().all(|pod| pod.name != "has-ended"), "what has ended is listed: {listed:?}");
    let got = api.get(POD)?.context("an answer without a pod")?;
    ensure!(got == *of_pod && got.namespace == "default", "{got:?} is not {of_pod:?}");
    let names: Vec<&str> = got.containers.iter().map(|container| container.name.as_str()).collect();
    ensure!(names == ["sidecar", "c"], "containers: {names:?}");
    for container in &got.containers {
        let none = container.devices.is_empty()
            && container.cpu_ids.is_empty()
            && container.memory.is_empty()
            && container.dynamic_resources.is_empty();
        ensure!(none, "nobody gave it anything: {container:?}");
    }
    ensure!(api.allocatable()? == Default::default(), "there are no managers: {:?}", api.allocatable()?);
    let missing = api.get("has-ended").err().context("a pod that has ended is found")?;
    let words = "pod has-ended in namespace default not found";
    ensure!((missing.code(), missing.message()) == (Code::Unknown, words), "{missing:?}");
    let old = api.list_of_old()?;
    ensure!(old.iter().any(|pod| pod.name == POD && pod.containers.len() == 1), "{old:?}");
    // Faster than a hundred a second on every machine: a call takes far less than 10 ms.
    let refused = (0..2000).find_map(|_| api.list().err()).context("2000 questions at once were answered")?;
    let limited = (Code::ResourceExhausted, "rejected by rate limit");
    ensure!((refused.code(), refused.message()) == limited, "{refused:?}");
    for name in [POD, "has-ended"] {
        client.delete::<Pod>(&client.of("default"), name, Some(0))?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    Ok(())
}
