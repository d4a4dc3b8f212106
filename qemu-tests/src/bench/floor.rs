//! `bench floor`: what the runtime alone needs for many pods: RunPodSandbox, CreateContainer and StartContainer by a
//! loop, nothing else, with different numbers of pods at once.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use futures_util::StreamExt as _;
use futures_util::stream;
use orlop_proto::cri::v1 as cri;
use orlop_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::Channel;

use crate::cluster::fixture::STAYS;
use crate::native::images;
use crate::native::node::NativeNode;
use crate::run::Run;
use crate::say;

/// Prints it for each of `at_once`.
///
/// # Errors
/// If the runtime refuses something.
pub fn run(run: &Arc<Run>, pods: u32, at_once: &[usize]) -> Result<()> {
    let artefacts = run.dir().join("bench-floor");
    fs::create_dir_all(&artefacts)?;
    for parallel in at_once {
        // No agent is started, so any program may stand at its place.
        let node = NativeNode::start(run, &artefacts, std::env::current_exe()?)?;
        let pull = cri::PullImageRequest { image: Some(image()), ..Default::default() };
        let mut images = node.cri().image_client();
        node.cri().block_on(images.pull_image(pull)).context("PullImage")?;
        for n in 0..pods {
            fs::create_dir_all(node.logs().join(format!("pods/floor-{n}")))?;
        }
        let client = node.cri().runtime_client();
        let start = Instant::now();
        let all = stream::iter((0..pods).map(|n| one(client.clone(), n))).buffer_unordered(*parallel);
        node.cri().block_on(all.collect::<Vec<_>>()).into_iter().collect::<Result<()>>()?;
        say::line(format!("{pods} pods, {parallel} at once: {:.1} s", start.elapsed().as_secs_f64()));
    }
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

fn image() -> cri::ImageSpec {
    cri::ImageSpec { image: images::busybox(), ..Default::default() }
}

async fn one(mut client: RuntimeServiceClient<Channel>, n: u32) -> Result<()> {
    let name = format!("floor-{n}");
    let metadata = cri::PodSandboxMetadata { name: name.clone(), uid: name.clone(), ..Default::default() };
    let sandbox = cri::PodSandboxConfig {
        metadata: Some(metadata),
        log_directory: format!("/var/log/pods/{name}"),
        linux: Some(cri::LinuxPodSandboxConfig::default()),
        ..Default::default()
    };
    let request = cri::RunPodSandboxRequest { config: Some(sandbox.clone()), ..Default::default() };
    let made = client.run_pod_sandbox(request).await.context("RunPodSandbox")?.into_inner();
    let config = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "c".into(), attempt: 0 }),
        image: Some(image()),
        command: ["sh", "-c", STAYS].map(str::to_owned).into(),
        log_path: "c.log".into(),
        linux: Some(cri::LinuxContainerConfig::default()),
        ..Default::default()
    };
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: made.pod_sandbox_id,
        config: Some(config),
        sandbox_config: Some(sandbox),
    };
    let container_id =
        client.create_container(request).await.context("CreateContainer")?.into_inner().container_id;
    client.start_container(cri::StartContainerRequest { container_id }).await.context("StartContainer")?;
    Ok(())
}
