//! Static pods on the native node: they follow their files, and an invalid file does not affect the others.
//!
//! Cases: `lifecycle/static-pod-add`, `lifecycle/static-pod-change`, `lifecycle/static-pod-remove`,
//! `lifecycle/static-pod-back`, `lifecycle/static-pod-invalid`, `lifecycle/static-pod-unreadable`,
//! `lifecycle/static-pod-hundred`.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::sys::stat::Mode;
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, human};
use orlop_harness::native::cri::View;
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::pods::Pod;
use orlop_harness::say;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "lifecycle/static-pod-add",
        4,
        "a manifest appears: its pod runs, named, labelled and logged",
        add,
    ),
    HERE.case(
        "lifecycle/static-pod-change",
        6,
        "a manifest changes: the old pod ends before the new one runs",
        change,
    ),
    HERE.case("lifecycle/static-pod-remove", 5, "a manifest goes: nothing of its pod is left", remove),
    HERE.case(
        "lifecycle/static-pod-back",
        6,
        "a manifest goes and is back at once: its pod begins anew, once, and counts on",
        back,
    ),
    HERE.case(
        "lifecycle/static-pod-invalid",
        8,
        "an invalid manifest hurts no other pod, and is taken up once mended",
        invalid,
    ),
    HERE.case(
        "lifecycle/static-pod-unreadable",
        5,
        "entries that cannot be read as files hurt no other pod",
        unreadable,
    ),
    HERE.case("lifecycle/static-pod-hundred", 60, "100 manifests at once all run, and all go again", hundred),
];

/// A node with a ready agent.
pub(crate) fn ready_node(cx: &CaseContext<'_>) -> Result<NativeNode> {
    let agent = built::agent(&cx.run, false)?;
    let mut node = NativeNode::start(&cx.run, &cx.artefacts, agent)?;
    node.start_agent_ready()?;
    Ok(node)
}

/// Writes the manifest and waits for its one running container; returns its id.
pub(crate) fn run_pod(node: &NativeNode, pod: &Pod) -> Result<String> {
    node.write_manifest(&pod.file(), &pod.manifest())?;
    let name = pod.full_name();
    node.wait(30, &format!("pod {name} to run"), |v| v.one_running(&name))
}

/// Waits until the runtime, the pod directory and the log directory hold nothing of the pods.
pub(crate) fn await_gone(node: &NativeNode, limit_s: u64, pod: &str) -> Result<()> {
    node.wait(limit_s, &format!("pod {pod} to be gone"), |v| v.is_gone(pod).then_some(()))?;
    node.wait(10, "its directories to be gone", |v| {
        // Pod directories are named by UID: none after the last pod, before that at most one for each pod.
        let uids: BTreeSet<_> =
            v.sandboxes.iter().filter_map(|s| s.metadata.as_ref()).map(|m| m.uid.clone()).collect();
        let left = fs::read_dir(node.inside("/var/lib/kubelet/pods")).map_or(0, Iterator::count);
        (left <= uids.len()).then_some(())
    })
    .with_context(|| {
        let dirs = fs::read_dir(node.inside("/var/lib/kubelet/pods")).map_or_else(
            |e| e.to_string(),
            |d| {
                d.flatten()
                    .map(|e| e.file_name().to_string_lossy().into_owned())
                    .collect::<Vec<_>>()
                    .join(" ")
            },
        );
        format!("left in /var/lib/kubelet/pods: {dirs}")
    })
}

fn log_of(node: &NativeNode, id: &str) -> Result<String> {
    let path = node.cri().status(id)?.log_path;
    fs::read_to_string(node.inside(&path)).with_context(|| format!("read the container's log {path}"))
}

/// The container's log as soon as it holds `text`; the container has written it before it blocked.
fn await_log(node: &NativeNode, id: &str, text: &str) -> Result<()> {
    node.wait(10, &format!("{text:?} in the log of {id}"), |_| {
        log_of(node, id).is_ok_and(|log| log.contains(text)).then_some(())
    })
}

fn add(cx: &mut CaseContext<'_>) -> Result<()> {
    let agent = built::agent(&cx.run, false)?;
    let mut node = NativeNode::start(&cx.run, &cx.artefacts, agent)?;
    // One manifest exists before the agent starts, one is written later.
    let (early, late) = (Pod::staying("early"), Pod::staying("late"));
    node.write_manifest(&early.file(), &early.manifest())?;
    node.start_agent_ready()?;
    let id = node.wait(30, "the pod that was there first", |v| v.one_running("early-native"))?;
    await_log(&node, &id, "hello from early")?;
    let id = run_pod(&node, &late)?;
    await_log(&node, &id, "hello from late")?;

    let status = node.cri().status(&id)?;
    let label = |k: &str| status.labels.get(k).cloned().unwrap_or_default();
    ensure!(label("io.kubernetes.pod.namespace") == "default", "labels {:?}", status.labels);
    ensure!(label("io.kubernetes.container.name") == "c", "labels {:?}", status.labels);
    let uid = label("io.kubernetes.pod.uid");
    ensure!(uid.len() == 32 && uid.bytes().all(|b| b.is_ascii_hexdigit()), "UID of a static pod: {uid:?}");
    let want = format!("/var/log/pods/default_late-native_{uid}/c/0.log");
    ensure!(status.log_path == want, "log path {} instead of {want}", status.log_path);
    ensure!(node.http_get(10248, "/healthz")?.trim() == "ok", "healthz");
    ensure!(node.stop_agent()? == 0, "the agent ends with 0 on SIGTERM");
    ensure!(
        node.cri().view()?.one_running("late-native").as_ref() == Some(&id),
        "containers outlive the agent"
    );
    Ok(())
}

fn change(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = ready_node(cx)?;
    let bystander = run_pod(&node, &Pod::staying("bystander"))?;
    let first = run_pod(&node, &Pod::script("pod", "trap 'exit 0' TERM; echo first; sleep 3600 & wait"))?;
    let second = Pod::script("pod", "trap 'exit 0' TERM; echo second; sleep 3600 & wait");
    node.write_manifest(&second.file(), &second.manifest())?;
    let mut two_at_once = None;
    let id = node.wait(60, "the changed pod", |v| {
        if v.running("pod-native").len() > 1 {
            two_at_once = Some(v.describe());
        }
        v.one_running("pod-native").filter(|id| *id != first)
    })?;
    ensure!(two_at_once.is_none(), "old and new ran at once:\n{}", two_at_once.unwrap_or_default());
    await_log(&node, &id, "second")?;
    node.wait(30, "the old pod's remains to go", |v| (v.of("pod-native").len() == 1).then_some(()))?;
    ensure!(
        node.cri().view()?.one_running("bystander-native") == Some(bystander),
        "the other pod was not touched"
    );
    Ok(())
}

fn remove(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = ready_node(cx)?;
    let stays = run_pod(&node, &Pod::staying("stays"))?;
    let goes = Pod::staying("goes");
    run_pod(&node, &goes)?;
    node.remove_manifest(&goes.file())?;
    await_gone(&node, 60, "goes-native")?;
    ensure!(node.cri().view()?.one_running("stays-native") == Some(stays), "the other pod was not touched");
    Ok(())
}

fn back(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = ready_node(cx)?;
    let stays = run_pod(&node, &Pod::staying("stays"))?;
    let pod = Pod::script("pod", "trap 'exit 0' TERM; echo again; sleep 3600 & wait");
    let first = run_pod(&node, &pod)?;
    node.remove_manifest(&pod.file())?;
    node.write_manifest(&pod.file(), &pod.manifest())?;
    let id =
        node.wait(60, "the pod to begin anew", |v| v.one_running("pod-native").filter(|id| *id != first))?;
    let log = node.cri().status(&id)?.log_path;
    ensure!(log.ends_with("/c/1.log"), "it counts as restarted once: its log is {log}");
    node.wait(30, "the old one's remains to go", |v| (v.of("pod-native").len() == 1).then_some(()))?;
    node.remove_manifest(&pod.file())?;
    await_gone(&node, 60, "pod-native")?;
    ensure!(node.cri().view()?.one_running("stays-native") == Some(stays), "the other pod was not touched");
    Ok(())
}

fn invalid(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = ready_node(cx)?;
    let stays = run_pod(&node, &Pod::staying("stays"))?;
    for (file, text) in [
        ("broken.yaml", "kind: Pod\nmetadata: [\n"),
        ("empty.yaml", ""),
        ("binary.yaml", "\u{0}\u{1}\u{2}"),
        ("service.yaml", "apiVersion: v1\nkind: Service\nmetadata:\n  name: s\n"),
        (
            "no-containers.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: none\nspec:\n  containers: []\n",
        ),
        ("bad-name.yaml", &Pod::staying("Not_A_Name").manifest()),
        ("secret.yaml", &format!("{}  serviceAccountName: x\n", Pod::staying("reference").manifest())),
    ] {
        node.write_manifest(file, text)?;
    }
    // The sources are read in order of their names: when this one runs, all of the above have been judged.
    let after = Pod::staying("zz-after");
    run_pod(&node, &after)?;
    let names = pod_names(&node.cri().view()?);
    ensure!(names == ["stays-native", "zz-after-native"], "pods in the runtime: {names:?}");
    node.write_manifest("broken.yaml", &Pod::staying("mended").manifest())?;
    node.wait(30, "the mended manifest's pod", |v| v.one_running("mended-native"))?;
    ensure!(node.cri().view()?.one_running("stays-native") == Some(stays), "the other pod was not touched");
    ensure!(node.http_get(10248, "/healthz")?.trim() == "ok", "healthz");
    Ok(())
}

fn pod_names(view: &View) -> Vec<String> {
    let names: BTreeSet<String> =
        view.sandboxes.iter().filter_map(|s| s.metadata.as_ref()).map(|m| m.name.clone()).collect();
    names.into_iter().collect()
}

fn unreadable(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = ready_node(cx)?;
    let stays = run_pod(&node, &Pod::staying("stays"))?;
    let dir = node.manifests();
    // File modes do not stop root: these files cannot be read by any user.
    fs::create_dir(dir.join("a-directory.yaml"))?;
    std::os::unix::fs::symlink("/nowhere", dir.join("a-dangling-link.yaml"))?;
    std::os::unix::fs::symlink("a-loop.yaml", dir.join("a-loop.yaml"))?;
    nix::unistd::mkfifo(&dir.join("a-pipe.yaml"), Mode::S_IRUSR).context("make a named pipe")?;
    let huge = fs::File::create(dir.join("a-huge.yaml"))?;
    huge.set_len(64 << 20)?;
    run_pod(&node, &Pod::staying("zz-after"))?;
    let names = pod_names(&node.cri().view()?);
    ensure!(names == ["stays-native", "zz-after-native"], "pods in the runtime: {names:?}");
    ensure!(node.cri().view()?.one_running("stays-native") == Some(stays), "the other pod was not touched");
    ensure!(node.http_get(10248, "/healthz")?.trim() == "ok", "healthz");
    Ok(())
}

fn hundred(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = ready_node(cx)?;
    let pods: Vec<Pod> = (0..100).map(|n| Pod::staying(&format!("pod{n:03}"))).collect();
    let start = Instant::now();
    for pod in &pods {
        node.write_manifest(&pod.file(), &pod.manifest())?;
    }
    node.wait(180, "100 pods to run", |v| (v.running("pod*").len() == 100).then_some(()))?;
    say::line(format!("  100 static pods ran after {}", human(start.elapsed())));
    let view = node.cri().view()?;
    ensure!(view.of("pod*").len() == 100, "some were restarted:\n{}", view.describe());
    let start = Instant::now();
    for pod in &pods {
        node.remove_manifest(&pod.file())?;
    }
    await_gone(&node, 180, "pod*")?;
    say::line(format!("  and were gone after {}", human(start.elapsed())));
    Ok(())
}
