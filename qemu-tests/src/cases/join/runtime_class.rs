//! RuntimeClasses: the runtime handler of a pod.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready};
use orlop_harness::native::pods;
use serde_json::json;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/runtime-class",
    45,
    "pods are run by the handler of their RuntimeClass, with its overhead; one that is missing or unknown is told and waited for",
    runtime_class,
)];

fn class(name: &str, handler: &str) -> serde_json::Value {
    json!({"metadata": {"name": name}, "handler": handler,
        "overhead": {"podFixed": {"cpu": "10m", "memory": "16Mi"}}})
}

fn await_words(joined: &Joined, pod: &str, words: &str) -> Result<()> {
    let client = joined.cluster.client();
    client.wait::<Event, _>(&client.of("default"), 60, &format!("{pod} to be told {words:?}"), |all| {
        let said = |e: &&Event| {
            e.involved_object.name.as_deref() == Some(pod)
                && e.reason.as_deref() == Some("FailedCreatePodSandBox")
                && e.message.as_deref().is_some_and(|m| m.contains(words))
        };
        all.values().find(said).map(|_| ())
    })
}

/// Runtime handler of the pod's newest sandbox.
fn handler_of(joined: &Joined, pod: &str) -> Result<String> {
    let view = joined.nodes[0].cri().view()?;
    let sandboxes = view.sandboxes_of(pod);
    Ok(sandboxes.first().with_context(|| format!("no sandbox of {pod}"))?.runtime_handler.clone())
}

fn runtime_class(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let node = client.get::<Node>(&client.all(), "first")?.context("the node")?;
    let handlers = node.status.and_then(|s| s.runtime_handlers).unwrap_or_default();
    let named = handlers.into_iter().filter_map(|h| h.name).find(|name| !name.is_empty());
    let handler = named.context("the node shows no handler with a name")?;

    client.create::<RuntimeClass>(&client.all(), class("usual", &handler))?;
    client.create::<RuntimeClass>(&client.all(), class("unknown", "nowhere"))?;
    let pod = |name: &str, class: &str| {
        let mut pod = api_pod(name, "first", STAYS, 1);
        pod["spec"]["runtimeClassName"] = json!(class);
        pod
    };
    let ran = joined.run_pod(pod("classy", "usual"))?;
    let overhead = ran.spec.and_then(|s| s.overhead).unwrap_or_default();
    ensure!(overhead.get("memory").is_some_and(|q| q.0 == "16Mi"), "admission gave it {overhead:?}");
    let by = handler_of(joined, "classy")?;
    ensure!(by == handler, "it is run by {by:?} and not by {handler:?}");

    client.create::<Pod>(&client.of("default"), pod("lost", "unknown"))?;
    await_words(joined, "lost", "no runtime for \"nowhere\" is configured")?;

    // Admission refuses a pod without its class, but the class may be deleted before the pod runs.
    client.create::<RuntimeClass>(&client.all(), class("late", &handler))?;
    let mut gated = pod("late", "late");
    gated["spec"]["schedulingGates"] = json!([{ "name": "e2e.example/class" }]);
    client.create::<Pod>(&client.of("default"), gated)?;
    client.delete::<RuntimeClass>(&client.all(), "late", None)?;
    client.merge::<Pod>(&client.of("default"), "late", &json!({"spec": {"schedulingGates": null}}))?;
    await_words(joined, "late", "runtimeclass.node.k8s.io \"late\" not found")?;
    ensure!(joined.nodes[0].cri().view()?.sandboxes_of("late").is_empty(), "it was run all the same");
    client.create::<RuntimeClass>(&client.all(), class("late", &handler))?;
    await_pod_ready(&joined.cluster, "late", 60)?;
    let by = handler_of(joined, "late")?;
    ensure!(by == handler, "it is run by {by:?} and not by {handler:?}");

    let own = pods::Pod::staying("own");
    let text = own.manifest().replace("spec:\n", "spec:\n  runtimeClassName: usual\n");
    joined.nodes[0].write_manifest(&own.file(), &text)?;
    await_pod_ready(&joined.cluster, "own-first", 60)?;
    let by = handler_of(joined, "own-first")?;
    ensure!(by == handler, "the static pod is run by {by:?} and not by {handler:?}");

    // The class is created again with a handler of the runtime.
    client.delete::<RuntimeClass>(&client.all(), "unknown", None)?;
    client.create::<RuntimeClass>(&client.all(), class("unknown", &handler))?;
    await_pod_ready(&joined.cluster, "lost", 60)?;

    joined.nodes[0].remove_manifest(&own.file())?;
    for name in ["classy", "lost", "late"] {
        client.delete::<Pod>(&client.of("default"), name, None)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    await_pod_gone(&joined.cluster, "own-first", 60)?;
    for name in ["usual", "unknown", "late"] {
        client.delete::<RuntimeClass>(&client.all(), name, None)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}
