//! The control: the node's runtime can run a pod without the agent. If this fails, failures of the other lifecycle
//! cases are not the agent's.

use anyhow::{Context, Result};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::native::images;
use orlop_harness::native::node::NativeNode;
use orlop_proto::cri::v1 as cri;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "lifecycle/runtime-control",
    level: Level::L4n,
    expected_s: 3,
    about: "the native node's runtime pulls an image and runs a pod without the agent",
    group: None,
    run,
}];

fn run(cx: &mut CaseContext<'_>) -> Result<()> {
    // No agent is started, so any program can be given as the agent.
    let node = NativeNode::start(&cx.run, &cx.artefacts, std::env::current_exe()?)?;
    let (mut runtime, mut image) = (node.cri().runtime_client(), node.cri().image_client());
    let sandbox_config = cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: "control".into(),
            uid: "control".into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        log_directory: "/var/log/pods/default_control_control".into(),
        labels: [("io.kubernetes.pod.name".to_owned(), "control".to_owned())].into(),
        linux: Some(cri::LinuxPodSandboxConfig::default()),
        ..Default::default()
    };
    let spec = cri::ImageSpec { image: images::busybox(), ..Default::default() };
    let config = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "c".into(), attempt: 0 }),
        image: Some(spec.clone()),
        command: vec!["sh".into(), "-c".into(), "echo it runs; exit 3".into()],
        labels: [("io.kubernetes.pod.name".to_owned(), "control".to_owned())].into(),
        log_path: "c.log".into(),
        linux: Some(cri::LinuxContainerConfig::default()),
        ..Default::default()
    };
    std::fs::create_dir_all(node.logs().join("pods/default_control_control"))?;
    let id = node.cri().block_on(async {
        let pull = cri::PullImageRequest { image: Some(spec), ..Default::default() };
        image.pull_image(pull).await.context("PullImage")?;
        let request =
            cri::RunPodSandboxRequest { config: Some(sandbox_config.clone()), ..Default::default() };
        let pod_sandbox_id =
            runtime.run_pod_sandbox(request).await.context("RunPodSandbox")?.into_inner().pod_sandbox_id;
        let request = cri::CreateContainerRequest {
            pod_sandbox_id,
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let container_id =
            runtime.create_container(request).await.context("CreateContainer")?.into_inner().container_id;
        let request = cri::StartContainerRequest { container_id: container_id.clone() };
        runtime.start_container(request).await.context("StartContainer")?;
        anyhow::Ok(container_id)
    })?;
    node.wait(20, "the container's end", |v| {
        v.of("control").iter().any(|c| c.state() == cri::ContainerState::ContainerExited).then_some(())
    })?;
    let status = node.cri().status(&id)?;
    anyhow::ensure!(status.exit_code == 3, "exit code {}", status.exit_code);
    let log = std::fs::read_to_string(node.logs().join("pods/default_control_control/c.log"))
        .context("read its log")?;
    anyhow::ensure!(log.contains("it runs"), "its log: {log:?}");
    Ok(())
}
