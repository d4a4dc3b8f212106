//! Images that are removed for space while the runtime, then the agent are killed.

use std::fs;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::native::images::{SPARES, busybox, model, spare};
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::pods::Pod;
use orlop_harness::say;
use orlop_proto::cri::v1 as cri;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "defence/images-restart",
    60,
    "containerd, then the agent are killed while images are removed: what is in use stays, the rest goes, and comes back",
    restarted,
)];

/// Number of removal events, about three for an image, after which the runtime or the agent is killed.
const SOME: usize = 30;

fn restarted(cx: &mut CaseContext<'_>) -> Result<()> {
    let agent = built::agent(&cx.run, false)?;
    let mut node = NativeNode::start(&cx.run, &cx.artefacts, agent)?;
    configure(&node, "1%")?;
    node.start_agent_ready()?;
    let keeper = Pod::staying("keeper");
    // The pod runs one image and mounts another.
    let volume = format!("spec:\n  volumes: [{{name: m, image: {{reference: {:?}}}}}]\n", model());
    let manifest =
        keeper.manifest().replace("spec:\n", &volume) + "    volumeMounts: [{name: m, mountPath: /m}]\n";
    node.write_manifest(&keeper.file(), &manifest)?;
    let container = node.wait(30, "the pod to run", |v| v.one_running(&keeper.full_name()))?;
    pull_spares(&node)?;
    node.kill_agent()?;
    // More than can be free, so that every removable image is removed.
    configure(&node, "99.99%")?;
    node.start_agent_ready()?;
    await_removals(&node, SOME)?;
    node.kill_containerd()?;
    node.start_containerd()?;
    let left = spares(&node)?;
    say::line(format!("  {left} of {SPARES} images were left when containerd was killed"));
    ensure!(left > 0, "it was killed too late for this test");
    await_removals(&node, SOME)?;
    node.kill_agent()?;
    let left = spares(&node)?;
    say::line(format!("  {left} when the agent was killed"));
    ensure!(left > 0, "it was killed too late for this test");
    node.start_agent_ready()?;
    node.wait(60, "all images to be gone that nobody needs", |_| (spares(&node).ok()? == 0).then_some(()))?;
    for (image, used) in [(busybox(), "runs"), (model(), "mounts")] {
        ensure!(images(&node)?.contains(&image), "the image is gone that a container {used}");
    }
    let name = keeper.full_name();
    node.wait(10, "the pod to run on as it did", |v| (v.one_running(&name)? == container).then_some(()))?;
    node.kill_agent()?;
    configure(&node, "1%")?;
    node.start_agent_ready()?;
    for number in [0, SPARES - 1] {
        let pod = Pod::staying(&format!("again-{number}"));
        node.write_manifest(&pod.file(), &pod.manifest().replace(&busybox(), &spare(number)))?;
        let name = pod.full_name();
        node.wait(40, &format!("{name} to run"), |v| v.one_running(&name))?;
    }
    Ok(())
}

fn configure(node: &NativeNode, available: &str) -> Result<()> {
    let path = node.inside("/run/e2e/kubelet.yaml");
    let text = fs::read_to_string(&path).context("read the agent's configuration")?;
    let ours = ["eviction", "imageMinimumGCAge", "imageGCHigh"];
    let kept = text.lines().filter(|line| !ours.iter().any(|word| line.starts_with(word)));
    let mut text: String = kept.flat_map(|line| [line, "\n"]).collect();
    text += &format!(
        "imageMinimumGCAge: 1s\nimageGCHighThresholdPercent: 100\nevictionHard: {{imagefs.available: {available:?}}}\n"
    );
    fs::write(&path, text).context("write the agent's configuration")
}

fn pull_spares(node: &NativeNode) -> Result<()> {
    let mut client = node.cri().image_client();
    node.cri().block_on(async {
        for number in 0..SPARES {
            let image = cri::ImageSpec { image: spare(number), ..Default::default() };
            let pull = cri::PullImageRequest { image: Some(image), ..Default::default() };
            client.pull_image(pull).await.with_context(|| format!("pull {}", spare(number)))?;
        }
        Ok(())
    })
}

/// Names of all images.
fn images(node: &NativeNode) -> Result<Vec<String>> {
    let mut client = node.cri().image_client();
    let list = node.cri().block_on(client.list_images(cri::ListImagesRequest::default()));
    let images = list.context("list images")?.into_inner().images;
    Ok(images.into_iter().flat_map(|image| image.repo_tags).collect())
}

fn spares(node: &NativeNode) -> Result<u32> {
    let all = images(node)?;
    Ok((0..SPARES).map(spare).filter(|name| all.contains(name)).fold(0, |sum, _| sum + 1))
}

/// Waits until the runtime has removed so many images more.
fn await_removals(node: &NativeNode, more: usize) -> Result<()> {
    let path = node.logs().join("containerd.log");
    let so_far = || -> Result<usize> {
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(text.matches("ImageDelete event").count())
    };
    let (first, start) = (so_far()?, Instant::now());
    while so_far()? < first + more {
        ensure!(start.elapsed() < Duration::from_secs(60), "no {more} images were removed in a minute");
        park_timeout(Duration::from_millis(2));
    }
    Ok(())
}
