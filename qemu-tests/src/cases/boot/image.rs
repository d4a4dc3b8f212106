//! The image as an artefact on disk (level L3): its contents with their reasons, and a reproducible build.
//!
//! Cases: `boot/inspect`, `boot/reproducible`.

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::process::{must, stream};
use orlop_harness::workspace::cargo;

/// Cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "boot/inspect",
        level: Level::L3,
        expected_s: 5,
        about: "every executable in the image has a reason, and every component keeps its size budget",
        group: Some("image"),
        run: inspect,
    },
    Case {
        name: "boot/reproducible",
        level: Level::L3,
        expected_s: 90,
        about: "built twice, the image has the same root hash",
        group: Some("image"),
        run: reproducible,
    },
];

fn orlop_image(args: &[&str]) -> std::process::Command {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "orlop-image", "--"]).args(args);
    command
}

fn inspect(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut lines = Vec::new();
    let mut command = orlop_image(&["inspect", "--profile", "test", "--executables"]);
    let status = stream(&cx.run, &mut command, |l| lines.push(l.to_owned()))?;
    std::fs::write(cx.artefacts.join("inspect.txt"), lines.join("\n"))?;
    ensure!(status.success(), "inspect ended with {status}:\n{}", lines.join("\n"));
    for needed in ["usr/bin/orlop-agent", "usr/bin/containerd", "orlop-init"] {
        ensure!(lines.iter().any(|l| l.contains(needed)), "{needed} is not listed");
    }
    Ok(())
}

fn reproducible(cx: &mut CaseContext<'_>) -> Result<()> {
    let output = must(&cx.run, &mut orlop_image(&["build", "--profile", "test", "--verify-reproducible"]))?;
    ensure!(output.contains("reproducible: both builds have root hash"), "{output}");
    Ok(())
}
