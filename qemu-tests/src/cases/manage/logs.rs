//! Logs of containers on a booted node: with the agent, and with agent, containerd and network dead; what a name does not lead to is
//! refused by name.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;
use orlop_harness::vm::shell::Output;

use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, await_network, config_with_pod};

use super::status::{PROGRAM, kill_parts};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "manage/logs",
    150,
    "orlopctl logs --pod shows a container's lines, also with agent, containerd and network dead, and no file outside of the logs",
    logs,
)];

/// An answer under TCG, with the start of the server.
const ANSWER: Duration = Duration::from_secs(60);
/// The sample pod, as a static pod is called.
const POD: &str = "default/hello";

fn logs(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = built::ctl(&cx.run)?;
    let disk = SecondDisk::make(&cx.artefacts, &[(program.as_path(), PROGRAM)], &[])?;
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    lab.attach(&[disk.file()]);
    let mut vm = lab.boot(Firmware::Direct, Some(&config_with_pod()))?;
    vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    // Parts are killed later, network cards among them.
    await_network(&mut vm)?;
    disk.unpack(vm.shell()?)?;
    let listed = must(&mut vm, "logs --list")?;
    let pod = listed.lines().map(str::trim).find(|line| line.starts_with(POD));
    let pod = pod.with_context(|| format!("{POD} is not in: {listed}"))?.to_owned();
    // The pod runs for a moment before it says something.
    let said = format!(
        "(for n in $(seq 60); do grep -q ' stdout F ' /var/log/pods/{}_*/hello/*.log && exit 0; sleep 1; done; exit 1)",
        pod.replace('/', "_")
    );
    vm.shell()?.must(&said).context("the sample pod says nothing")?;
    let lines = must(&mut vm, &format!("logs --pod {pod}"))?;
    ensure!(lines.contains(" stdout: "), "{lines}");
    let named = must(&mut vm, &format!("logs --pod {pod} -c hello --tail 1 -o json"))?;
    ensure!(named.contains("\"source\":\"stdout\""), "{named}");
    for (words, reason) in [
        (format!("logs --pod {pod} --previous"), "NO_SUCH_LOG"),
        (format!("logs --pod {pod} -c other"), "NO_SUCH_LOG"),
        ("logs --pod default/none".to_owned(), "NO_SUCH_LOG"),
        ("logs --pod default/..".to_owned(), "BAD_REQUEST"),
    ] {
        refused(&mut vm, &words, reason)?;
    }

    kill_parts(&mut vm)?;
    let dead = must(&mut vm, &format!("logs --pod {pod} --tail 1")).context("agent and runtime are dead")?;
    ensure!(dead.contains(" stdout: "), "{dead}");
    say::line(format!("  with dead parts: {}", dead.trim()));
    // A container with the logs of the node puts a link in the place of its own.
    let moved = format!(
        "cd /var/log/pods/{}_*/hello && last=$(ls *.log | sort -n | tail -n 1) && rm $last && ln -s /etc/machine-id $last",
        pod.replace('/', "_")
    );
    vm.shell()?.must(&format!("({moved})"))?;
    refused(&mut vm, &format!("logs --pod {pod}"), "NO_SUCH_LOG")
}

fn ask(vm: &mut Vm, words: &str) -> Result<Output> {
    vm.shell()?.run(&format!("{PROGRAM} --timeout 50 {words}"), ANSWER)
}

fn must(vm: &mut Vm, words: &str) -> Result<String> {
    let output = ask(vm, words)?;
    ensure!(output.status == 0, "`orlopctl {words}` ended with {}: {}", output.status, output.text);
    Ok(output.text)
}

fn refused(vm: &mut Vm, words: &str, reason: &str) -> Result<()> {
    let output = ask(vm, words)?;
    let is_refused = output.status == 1 && output.text.contains(reason);
    ensure!(
        is_refused,
        "`orlopctl {words}` ended with {}, not with {reason}: {}",
        output.status,
        output.text
    );
    Ok(())
}
