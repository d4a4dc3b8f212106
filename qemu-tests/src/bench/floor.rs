//! `bench floor`: the time that the runtime alone needs for many pods: RunPodSandbox, CreateContainer and
//! StartContainer in a loop, without a kubelet, with different numbers of pods at once.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use futures_util::StreamExt as _;
use futures_util::stream;
use orlop_harness::cluster::fixture::STAYS;
use orlop_harness::native::held::shims;
use orlop_harness::native::images;
use orlop_harness::native::node::NativeNode;
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_proto::cri::v1 as cri;
use orlop_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::Channel;

use super::spent::CpuSeconds;

/// Annotation of sandboxes with the name of the group that shares a shim.
const SHIM_GROUP: &str = "io.containerd.runc.v2.group";

/// Options of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of pods.
    #[arg(long, default_value_t = 100)]
    pub pods: u32,
    /// Pods at once; each number is a measurement of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,100")]
    pub at_once: Vec<usize>,
    /// Pods that share a shim.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pods_per_shim: u32,
}

/// Prints it for each of `at_once`.
///
/// # Errors
/// If the runtime refuses something.
pub fn run(run: &Arc<Run>, of: &Options) -> Result<()> {
    let (pods, per_shim) = (of.pods, of.pods_per_shim);
    let artefacts = run.dir().join("bench-floor");
    fs::create_dir_all(&artefacts)?;
    for parallel in &of.at_once {
        // No agent is started, so any program can be given as the agent.
        let node = NativeNode::start(run, &artefacts, std::env::current_exe()?)?;
        let pull = cri::PullImageRequest { image: Some(image()), ..Default::default() };
        let mut images = node.cri().image_client();
        node.cri().block_on(images.pull_image(pull)).context("PullImage")?;
        for n in 0..pods {
            fs::create_dir_all(node.logs().join(format!("pods/floor-{n}")))?;
        }
        let client = node.cri().runtime_client();
        let before = CpuSeconds::runtime(&node)?;
        let start = Instant::now();
        let all =
            stream::iter((0..pods).map(|n| one(client.clone(), n, per_shim))).buffer_unordered(*parallel);
        node.cri().block_on(all.collect::<Vec<_>>()).into_iter().collect::<Result<()>>()?;
        let took = start.elapsed().as_secs_f64();
        let spent = CpuSeconds::runtime(&node)?.since(&before);
        let (count, memory) = (shims(&node)?.len(), shims_memory(&node)?);
        say::line(format!(
            "{pods} pods, {parallel} at once, {per_shim} for each shim: {took:.1} s; processor time: {spent}; \
             {count} shims {memory:.1} MiB"
        ));
    }
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

/// MiB of memory that the node's shims have, shared pages by their share (`Pss` of smaps_rollup).
fn shims_memory(node: &NativeNode) -> Result<f64> {
    let mut kib = 0.0_f64;
    for pid in shims(node)? {
        let path = format!("/proc/{pid}/smaps_rollup");
        let rollup = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let pss = rollup
            .lines()
            .find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse::<f64>().ok());
        kib += pss.with_context(|| format!("no Pss in {path}"))?;
    }
    Ok(kib / 1024.0)
}

fn image() -> cri::ImageSpec {
    cri::ImageSpec { image: images::busybox(), ..Default::default() }
}

async fn one(mut client: RuntimeServiceClient<Channel>, n: u32, per_shim: u32) -> Result<()> {
    let name = format!("floor-{n}");
    let metadata = cri::PodSandboxMetadata { name: name.clone(), uid: name.clone(), ..Default::default() };
    let group = (per_shim > 1).then(|| (SHIM_GROUP.to_owned(), format!("floor-group-{}", n / per_shim)));
    let sandbox = cri::PodSandboxConfig {
        metadata: Some(metadata),
        annotations: group.into_iter().collect(),
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
