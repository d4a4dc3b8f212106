//! `cargo e2e conformance --node`: the upstream suite of the node itself (e2e_node) on a booted VM that has joined, or
//! on a native node (`--native`).
//!
//! ```text
//! host:  harness ── second disk ─► VM: suite.service: e2e_node.test ─► kubelet's ports, CRI socket, cgroups, files
//!                ◄─ log, report ──                        └─► API server in the plane's network
//! ```
//! On a native node, the suite and ginkgo run in the node's own namespaces, without a second disk.
//!
//! What comes in: the selected tests. What goes out: as in [`super`]. The suite starts no services itself
//! (`--start-services=false`): it tests the agent that the image starts, with the image's configuration and in addition
//! the read-only port, which the suite uses. Tests that stop a kubelet or write its configuration need a unit of the
//! suite's own, which they have with `--serial` (`unit.rs`).

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::skips::{self, Skip};
use super::{NODE, Options, artefacts, boot, images, lines, plugged, unit, write_results};
use crate::built;
use crate::case::human;
use crate::cluster::fixture::{await_ready, await_serving};
use crate::cluster::flags::Settings;
use crate::cluster::join::{JoinMethod, start_kubelet};
use crate::cluster::plane::{Cluster, server_url};
use crate::cluster::programs::{self, Suite};
use crate::cluster::second_disk::SecondDisk;
use crate::counts::Counts;
use crate::native::config;
use crate::process::must;
use crate::run::Run;
use crate::say;
use crate::vm::shell::Shell;

/// Directory of the suite and of its output in the VM.
const DIR: &str = "/var/lib/suite";
/// Paths of the suite, of ginkgo and of the report on a native node.
const SUITE: &str = "/var/lib/suite/e2e_node.test";
const GINKGO: &str = "/var/lib/suite/ginkgo";
const OUTPUT: &str = "/var/lib/suite/output";
/// The suite's unit.
const UNIT: &str = "suite.service";
/// The suite's requirements for the machine: none, the tests have their own.
const SPEC: &str = "os: Linux\n";
/// Port of the kubelet that the suite uses without credentials.
const READ_ONLY_PORT: u16 = 10255;
/// Pause between two looks at its output, seconds.
const LOOK_S: u64 = 3;
/// At most so much of its output at once, bytes: the shell is a serial port.
const PIECE: u64 = 128 * 1024;

/// Runs the tests; returns the counts of those that began.
///
/// # Errors
/// The part that did not start, or a suite without a report.
pub(super) fn run(run: &Arc<Run>, options: &Options, listed: &[Skip]) -> Result<Counts> {
    let (program, suite) = (programs::node_suite(run)?, programs::suite(run)?);
    let artefacts = artefacts(run)?;
    let wanted = wanted_images(run, &suite)?;
    // As the suite's own API server: a test expects a pod to have exactly the volumes of its spec.
    let settings = Settings { service_account_tokens: false, ..Settings::default() };
    let mut cluster = Cluster::start(run, &artefacts, settings)?;
    let (to, spec) = (format!("{DIR}/e2e_node.test"), format!("{DIR}/spec.yaml"));
    let texts = [&[(SPEC, spec.as_str())][..], &unit::FILES].concat();
    let disk = SecondDisk::make(&artefacts, &[(&program, &to)], &texts)?;
    let mut vm = plugged(&mut cluster, &artefacts, options, (&suite, &wanted))?;
    vm.configure("readOnlyPort", READ_ONLY_PORT);
    vm.add_disk(disk.file());
    boot(&mut vm, &cluster)?;
    await_serving(&cluster, NODE, 60)?;
    let token = administrator(&cluster)?;
    let shell = vm.vm()?.shell()?;
    shell.must(&unit::directories())?;
    disk.unpack(shell)?;
    if options.serial {
        unit::start_in_vm(shell)?;
        await_serving(&cluster, NODE, 120)?;
    }
    say::line(format!("agent, tests of the node that match {}", options.focus));
    skips::say(listed);
    let start = Instant::now();
    shell.must(&command(&token, options, listed))?;
    watch(shell, &artefacts.join("e2e.log"))?;
    if options.serial {
        keep_log(&disk, shell, &artefacts);
    }
    let report = disk
        .fetch(shell, &format!("{DIR}/report.json"))
        .with_context(|| format!("the suite left no report: see {}/e2e.log", artefacts.display()))?;
    fs::write(artefacts.join("report.json"), &report).context("write the report")?;
    let counts = write_results(&artefacts, &report)?;
    say::line(format!("\n{}; everything is in {}", human(start.elapsed()), artefacts.display()));
    drop(vm);
    Ok(counts)
}

/// The same on a native node, several tests at once.
///
/// # Errors
/// The part that did not start, or a suite without a report.
pub(super) fn run_native(run: &Arc<Run>, options: &Options, listed: &[Skip]) -> Result<Counts> {
    let (program, suite) = (programs::node_suite(run)?, programs::suite(run)?);
    let artefacts = artefacts(run)?;
    let wanted = wanted_images(run, &suite)?;
    let settings = Settings { service_account_tokens: false, ..Settings::default() };
    let mut cluster = Cluster::start(run, &artefacts, settings)?;
    let kubelet = if options.upstream { programs::kubelet(run)? } else { built::agent(run, false)? };
    let mut node = cluster.start_node(&artefacts, NODE, kubelet)?;
    images::serve(run, &node, &suite, &wanted)?;
    let path = node.inside(config::KUBELET);
    let configuration = fs::read_to_string(&path).context("read the kubelet's configuration")?;
    fs::write(&path, format!("{configuration}readOnlyPort: {READ_ONLY_PORT}\n"))
        .context("write the kubelet's configuration")?;
    start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(&cluster, NODE, 120)?;
    await_serving(&cluster, NODE, 60)?;
    if options.serial {
        unit::start_natively(&mut node)?;
        await_serving(&cluster, NODE, 60)?;
    }
    let output = node.inside(OUTPUT);
    fs::create_dir_all(&output).with_context(|| format!("make {}", output.display()))?;
    for (from, name) in [(&program, SUITE), (&suite.ginkgo, GINKGO)] {
        fs::copy(from, node.inside(name)).with_context(|| format!("copy {}", from.display()))?;
    }
    fs::write(node.inside(&format!("{DIR}/spec.yaml")), SPEC).context("write the demands on the machine")?;
    let kubelet = if options.upstream { "upstream kubelet" } else { "agent" };
    let (focus, procs) = (&options.focus, processes(options));
    say::line(format!("{kubelet}, tests of the node that match {focus}, {procs} at once, on a native node"));
    skips::say(listed);
    let start = Instant::now();
    let mut command = native_command(node.pid(), &administrator(&cluster)?, options, listed);
    let ended = super::watch(run, &mut command, &artefacts.join("e2e.log"))?;
    let report = fs::read(output.join("report.json")).with_context(|| {
        format!("the suite left no report ({ended}): see {}/e2e.log", artefacts.display())
    })?;
    fs::write(artefacts.join("report.json"), &report).context("write the report")?;
    let counts = write_results(&artefacts, &report)?;
    say::line(format!("\n{}; everything is in {}", human(start.elapsed()), artefacts.display()));
    drop(node);
    Ok(counts)
}

/// Command that runs ginkgo with the suite in the namespaces of the node whose first process is `pid`. Pure.
fn native_command(pid: i32, token: &str, options: &Options, listed: &[Skip]) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--target={pid}"))
        .args(["--mount", "--uts", "--ipc", "--net", "--pid", "--", GINKGO]);
    command.args(["-v", "--no-color", "--timeout=4h", "--json-report=report.json"]);
    command.arg(format!("--output-dir={OUTPUT}")).arg(format!("--procs={}", processes(options)));
    command.arg(format!("--focus={}", options.focus));
    command.args(skipped(options, listed).map(|skip| format!("--skip={skip}")));
    command.arg(SUITE).arg("--").args(suite_flags(token)).env("HOME", DIR).env_remove("KUBECONFIG");
    if options.serial {
        command.env("PATH", unit::PATH);
    }
    for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
        command.env_remove(proxy);
    }
    command
}

/// Tests at once on a native node. Pure.
fn processes(options: &Options) -> u8 {
    if options.serial { 1 } else { options.procs }
}

/// The images that the suite lists, and those of its manifests.
fn wanted_images(run: &Arc<Run>, suite: &Suite) -> Result<String> {
    let listed = must(run, Command::new(&suite.e2e).arg("--list-images")).context("ask for the images")?;
    Ok(format!("{}\n{}", listed.trim_end(), images::OF_MANIFESTS))
}

/// Keeps the log of the agent under the suite's unit; a missing log is no failure of the tests.
fn keep_log(disk: &SecondDisk, shell: &mut Shell, artefacts: &Path) {
    let kept = disk
        .fetch(shell, unit::LOG)
        .and_then(|log| fs::write(artefacts.join("agent.log"), log).context("write the agent's log"));
    if let Err(e) = kept {
        say::line(format!("the agent's log is not kept: {e:#}"));
    }
}

/// Flags of the suite on both kinds of nodes. Pure.
fn suite_flags(token: &str) -> Vec<String> {
    let fixed = ["--start-services=false", "--prepull-images=false", "--dump-logs-on-failure=false"];
    let mut flags: Vec<String> = fixed.map(str::to_owned).to_vec();
    flags.push(format!("--node-name={NODE}"));
    flags.push(format!("--host={}", server_url()));
    flags.push(format!("--bearer-token={token}"));
    flags.push(format!("--system-spec-file={DIR}/spec.yaml"));
    flags
}

/// Tests that are left out. Pure.
fn skipped<'a>(options: &'a Options, listed: &'a [Skip]) -> impl Iterator<Item = &'a str> {
    listed.iter().map(|s| s.skip.as_str()).chain(options.skip.iter().map(String::as_str))
}

/// A token with all permissions: the suite supports no other credentials.
fn administrator(cluster: &Cluster) -> Result<String> {
    let (account, subject) = ("suite", "--serviceaccount=kube-system:suite");
    cluster.kubectl(&["create", "serviceaccount", account, "-n", "kube-system"])?;
    cluster.kubectl(&["create", "clusterrolebinding", account, "--clusterrole=cluster-admin", subject])?;
    let token = cluster.kubectl(&["create", "token", account, "-n", "kube-system", "--duration=12h"])?;
    Ok(token.trim().to_owned())
}

/// Command that starts the suite as a unit of the VM. Pure.
fn command(token: &str, options: &Options, listed: &[Skip]) -> String {
    let mut args = suite_flags(token);
    let own = [
        "--ginkgo.v",
        "--ginkgo.no-color",
        "--ginkgo.timeout=6h",
        "--test.timeout=0",
        "--ginkgo.json-report=report.json",
    ];
    args.extend(own.map(str::to_owned));
    args.push(format!("--ginkgo.focus={}", options.focus));
    args.extend(skipped(options, listed).map(|skip| format!("--ginkgo.skip={skip}")));
    let args: Vec<String> = args.iter().map(|arg| quoted(arg)).collect();
    let path = if options.serial { format!("--setenv=PATH={} ", unit::PATH) } else { String::new() };
    format!(
        "systemd-run --quiet --unit={UNIT} --working-directory={DIR} --setenv=HOME={DIR} {path}\
         --property=StandardOutput=append:{DIR}/e2e.log --property=StandardError=append:{DIR}/e2e.log \
         {DIR}/e2e_node.test {}",
        args.join(" ")
    )
}

/// One quoted word of a shell command, in which systemd expands no variable. Pure.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''").replace('$', "$$"))
}

/// Keeps the suite's output, and prints a line for every test that ends, until the suite has ended.
fn watch(shell: &mut Shell, log: &Path) -> Result<()> {
    let mut log = BufWriter::new(File::create(log).with_context(|| format!("make {}", log.display()))?);
    let (mut lines, mut seen) = (lines::Lines::default(), 0);
    loop {
        let is_over = !is_active(shell)?;
        loop {
            let piece = whole_lines(shell, seen)?;
            if piece.is_empty() {
                break;
            }
            seen += piece.len();
            for line in piece {
                // A disk that is full shows in the missing report.
                let _ = writeln!(log, "{line}");
                if let Some(ended) = lines.next(&line) {
                    say::line(ended);
                }
            }
        }
        if is_over {
            return log.flush().context("write the suite's output");
        }
        shell.run(&format!("sleep {LOOK_S}"), Duration::from_secs(60 + LOOK_S))?;
    }
}

fn is_active(shell: &mut Shell) -> Result<bool> {
    let state = shell.run(&format!("systemctl is-active {UNIT}"), Duration::from_secs(120))?;
    Ok(matches!(state.text.trim(), "active" | "activating"))
}

/// New whole lines of a piece of the output, without a last line that is still being written.
fn whole_lines(shell: &mut Shell, seen: usize) -> Result<Vec<String>> {
    let (log, next) = (format!("{DIR}/e2e.log"), seen + 1);
    let command = format!("tail -n +{next} {log} 2>/dev/null | head -c {PIECE}; echo");
    let text = shell.run(&command, Duration::from_secs(120))?.text;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.pop();
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_whole_for_the_shell_and_for_systemd() {
        assert_eq!(quoted(r"\[Slow\] it's$"), r"'\[Slow\] it'\''s$$'");
    }
}
