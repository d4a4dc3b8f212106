//! The agent's CRI client against the image's containerd: the contract suite that the fake runtime also passes, a check
//! of every raw answer, and the descriptor in containerd's executable.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::native::images;
use orlop_harness::native::node::NativeNode;
use orlop_harness::process::must;
use orlop_harness::say;
use orlop_proto::cri::v1 as cri;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "lifecycle/cri-contract",
    level: Level::L4n,
    expected_s: 20,
    about: "the CRI client's contract holds against the image's containerd, on the wire and in its descriptor",
    group: None,
    run,
}];

fn cri_contract(cx: &CaseContext<'_>, args: &[&str]) -> Result<Command> {
    let mut command = Command::new(built::example(&cx.run, "cri-contract")?);
    command.args(args);
    Ok(command)
}

fn run(cx: &mut CaseContext<'_>) -> Result<()> {
    // No agent is started, so any program can be given as the agent.
    let node = NativeNode::start(&cx.run, &cx.artefacts, std::env::current_exe()?)?;
    let containerd = node.inside("/usr/bin/containerd");
    let output = must(&cx.run, &mut cri_contract(cx, &["binary", &containerd.to_string_lossy()])?)?;
    ensure!(output.contains(" 0 breaking"), "{output}");
    say::line(format!("  {}", output.lines().last().unwrap_or_default()));
    let mut client = node.cri().image_client();
    node.cri().block_on(async {
        let image = cri::ImageSpec { image: images::busybox(), ..Default::default() };
        client
            .pull_image(cri::PullImageRequest { image: Some(image), ..Default::default() })
            .await
            .context("PullImage")
    })?;
    std::fs::create_dir_all(node.logs().join("pods/contract_orlop-contract_uid-orlop-contract"))?;
    // The words of a command are separated by blanks there, so none can hold a script.
    let arguments = [
        "runtime",
        "--endpoint",
        &format!("unix://{}", node.cri().socket().display()),
        "--image",
        &images::busybox(),
        "--runs",
        "/bin/runs",
        "--exits",
        "/bin/false",
        "--code",
        "1",
        "--deaf",
        "/bin/deaf",
        // Sandbox metrics need a cgroup; it is below the node's own.
        "--cgroup-parent",
        "/contract",
    ]
    .map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = must(&cx.run, &mut cri_contract(cx, &arguments)?)?;
    say::line(format!("  {}", output.lines().last().unwrap_or_default()));
    Ok(())
}
