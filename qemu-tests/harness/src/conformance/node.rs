//! `cargo e2e conformance --node`: the upstream suite of the node itself (e2e_node) on a booted VM that has joined, or
//! on a native node (`--native`).
//!
//! ```text
//! host:  harness ── second disk ─► VM: suite.service: e2e_node.test ─► kubelet's ports, CRI socket, cgroups, files
//!                ◄─ log, report ──                        └─► API server in the plane's network
//! ```
//! On a native node, the suite and ginkgo run in the node's own namespaces, without a second disk.
//!
//! In: the selected tests. Out: as in [`super`]. The suite starts no services itself (`--start-services=false`): it
//! tests the agent that the image starts, with the image's configuration and in addition the read-only port, which the
//! suite uses. Tests that stop a kubelet or write its configuration need a unit of the suite's own, which they have
//! with `--serial` (`unit.rs`).

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::in_cluster::{self, boot, forget, plug, serve_images};
use super::selection::Part;
use super::session::{Session, Watcher};
use super::{NODE, Options, images, tools, unit};
use crate::built;
use crate::cluster::fixture::{await_ready, await_serving};
use crate::cluster::flags::Settings;
use crate::cluster::join::{JoinMethod, start_kubelet};
use crate::cluster::plane::{Cluster, server_url};
use crate::cluster::programs::{self, Suite};
use crate::cluster::second_disk::SecondDisk;
use crate::counts::Counts;
use crate::native::config;
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
/// Characters of the focus in one command: a line of a terminal is not long.
const LINE: usize = 800;
/// Directory of what containerd imports.
const HANDLERS: &str = "/run/orlop/containerd";
/// The second runtime handler, which the suite expects on its machine: the image's runtime under another name.
const HANDLER: (&str, &str) =
    (include_str!("../../../conformance/suite/test-handler.toml"), "/run/orlop/containerd/test-handler.toml");

/// Runs the tests; returns the counts of those that began.
///
/// # Errors
/// The part that did not start, or a suite without a report.
pub(super) fn run(run: &Arc<Run>, options: &Options, artefacts: &Path, session: Session) -> Result<Counts> {
    let (program, suite) = (programs::node_suite(run)?, programs::suite(run)?);
    let wanted = wanted_images(run, &suite)?;
    // As the suite's own API server: a test expects a pod to have exactly the volumes of its spec.
    let settings = Settings { service_account_tokens: false, ..Settings::default() };
    let mut cluster = Cluster::start(run, artefacts, settings)?;
    let (to, spec) = (format!("{DIR}/e2e_node.test"), format!("{DIR}/spec.yaml"));
    let texts = [&[(SPEC, spec.as_str())][..], &unit::FILES, &[HANDLER]].concat();
    let mut files = vec![(program.as_path(), to.as_str())];
    files.extend(tools::FILES.map(|(from, to)| (Path::new(from), to)));
    let disk = SecondDisk::make(artefacts, &files, &texts)?;
    serve_images(&cluster, &artefacts.join("images"), &suite, &wanted)?;
    let mut vm = plug(&mut cluster, artefacts, options, NODE, None)?;
    vm.configure("readOnlyPort", READ_ONLY_PORT);
    vm.add_disk(disk.file());
    boot(&mut vm, &cluster, NODE)?;
    await_serving(&cluster, NODE, 60)?;
    let token = administrator(&cluster)?;
    let shell = vm.vm()?.shell()?;
    shell.must(&format!("{} {} {HANDLERS}", unit::directories(), tools::DIR))?;
    disk.unpack(shell)?;
    // Running pods keep their shims.
    shell.must("systemctl restart containerd")?;
    await_serving(&cluster, NODE, 120)?;
    if options.serial {
        unit::start_in_vm(shell)?;
        await_serving(&cluster, NODE, 120)?;
    }
    say::line(format!("agent, tests of the node that match {}", options.focus));
    session.note_versions(&cluster)?;
    let counts = session.play(|part, watcher| {
        shell.must(&format!("rm -f {DIR}/report.json {DIR}/e2e.log {DIR}/focus"))?;
        for command in focus(&part.focus) {
            shell.must(&command)?;
        }
        shell.must(&command(&token, options, part))?;
        watch(shell, watcher)?;
        disk.fetch(shell, &format!("{DIR}/report.json")).context("the suite left no report")
    });
    if options.serial {
        keep_log(&disk, shell, artefacts);
    }
    drop(vm);
    counts
}

/// The same on a native node, several tests at once.
///
/// # Errors
/// The part that did not start, or a suite without a report.
pub(super) fn run_native(
    run: &Arc<Run>,
    options: &Options,
    artefacts: &Path,
    session: Session,
) -> Result<Counts> {
    let (program, suite) = (programs::node_suite(run)?, programs::suite(run)?);
    let wanted = wanted_images(run, &suite)?;
    let settings = Settings { service_account_tokens: false, ..Settings::default() };
    let mut cluster = Cluster::start(run, artefacts, settings)?;
    let kubelet = if options.upstream { programs::kubelet(run)? } else { built::agent(run, false)? };
    let mut node = cluster.start_node(artefacts, NODE, kubelet)?;
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
    for dir in [&output, &node.inside(tools::DIR)] {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let mut files = vec![(program.as_path(), SUITE), (suite.ginkgo.as_path(), GINKGO)];
    files.extend(tools::FILES.map(|(from, to)| (Path::new(from), to)));
    for (from, name) in files {
        fs::copy(from, node.inside(name)).with_context(|| format!("copy {}", from.display()))?;
    }
    fs::write(node.inside(&format!("{DIR}/spec.yaml")), SPEC).context("write the demands on the machine")?;
    let kubelet = if options.upstream { "upstream kubelet" } else { "agent" };
    let (focus, procs) = (&options.focus, options.whole(&[]).procs);
    say::line(format!("{kubelet}, tests of the node that match {focus}, {procs} at once, on a native node"));
    session.note_versions(&cluster)?;
    let (token, report) = (administrator(&cluster)?, output.join("report.json"));
    let counts = session.play(|part, watcher| {
        forget(&report)?;
        let mut command = native_command(node.pid(), &token, options, part);
        let ended = in_cluster::watch(run, &mut command, watcher)?;
        fs::read(&report).with_context(|| format!("the suite left no report ({ended})"))
    })?;
    drop(node);
    Ok(counts)
}

/// Command that runs ginkgo with the suite in the namespaces of the node whose first process is `pid`. Pure.
fn native_command(pid: i32, token: &str, options: &Options, part: &Part) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--target={pid}"))
        .args(["--mount", "--uts", "--ipc", "--net", "--pid", "--", GINKGO]);
    command.args(["-v", "--no-color", "--timeout=4h", "--json-report=report.json"]);
    command.arg(format!("--output-dir={OUTPUT}")).arg(format!("--procs={}", part.procs));
    command.arg(format!("--focus={}", part.focus));
    command.args(part.skips.iter().map(|skip| format!("--skip={skip}")));
    command.arg(SUITE).arg("--").args(suite_flags(token)).env("HOME", DIR).env_remove("KUBECONFIG");
    command.env("PATH", path(options));
    images::keep_names(&mut command);
    for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
        command.env_remove(proxy);
    }
    command
}

/// Search path of the suite. Pure.
fn path(options: &Options) -> String {
    let unit = if options.serial { format!("{}:", unit::BIN) } else { String::new() };
    format!("{unit}{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", tools::DIR)
}

/// The images that the suite lists, and those of its manifests.
fn wanted_images(run: &Arc<Run>, suite: &Suite) -> Result<String> {
    let listed = images::list(run, suite)?;
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

/// A token with all permissions: the suite supports no other credentials.
fn administrator(cluster: &Cluster) -> Result<String> {
    let (account, subject) = ("suite", "--serviceaccount=kube-system:suite");
    cluster.kubectl(&["create", "serviceaccount", account, "-n", "kube-system"])?;
    cluster.kubectl(&["create", "clusterrolebinding", account, "--clusterrole=cluster-admin", subject])?;
    let token = cluster.kubectl(&["create", "token", account, "-n", "kube-system", "--duration=12h"])?;
    Ok(token.trim().to_owned())
}

/// Commands that write the focus for systemd-run to a file, in pieces that fit into a line of the shell. Pure.
fn focus(focus: &str) -> Vec<String> {
    let chars: Vec<char> = focus.replace('$', "$$").chars().collect();
    let pieces = chars.chunks(LINE).map(|piece| piece.iter().collect::<String>());
    pieces.map(|piece| format!("printf %s {} >>{DIR}/focus", of_shell(&piece))).collect()
}

/// Command that starts the suite as a unit of the VM; the focus is in its file. Pure.
fn command(token: &str, options: &Options, part: &Part) -> String {
    let mut args = suite_flags(token);
    let own = [
        "--ginkgo.v",
        "--ginkgo.no-color",
        "--ginkgo.timeout=6h",
        "--test.timeout=0",
        "--ginkgo.json-report=report.json",
    ];
    args.extend(own.map(str::to_owned));
    args.extend(part.skips.iter().map(|skip| format!("--ginkgo.skip={skip}")));
    let args: Vec<String> = args.iter().map(|arg| quoted(arg)).collect();
    let path = path(options);
    // A unit that failed would stay, and so would its name.
    format!(
        "systemd-run --quiet --collect --unit={UNIT} --working-directory={DIR} --setenv=HOME={DIR} \
         --setenv=PATH={path} \
         --property=StandardOutput=append:{DIR}/e2e.log --property=StandardError=append:{DIR}/e2e.log \
         {DIR}/e2e_node.test {} \"--ginkgo.focus=$(cat {DIR}/focus)\"",
        args.join(" ")
    )
}

/// One quoted word of a shell command, in which systemd expands no variable. Pure.
fn quoted(word: &str) -> String {
    of_shell(&word.replace('$', "$$"))
}

/// One quoted word of a shell command. Pure.
fn of_shell(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Hands the suite's output to `watcher` until the suite has ended.
fn watch(shell: &mut Shell, watcher: &mut Watcher<'_>) -> Result<()> {
    let mut seen = 0;
    loop {
        let is_over = !is_active(shell)?;
        loop {
            let piece = whole_lines(shell, seen)?;
            if piece.is_empty() {
                break;
            }
            seen += piece.len();
            piece.iter().for_each(|line| watcher.line(line));
        }
        if is_over {
            return Ok(());
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

    #[test]
    fn a_long_focus_is_written_in_pieces() {
        let text = format!("^E2eNode Suite (?:it's {})$", r"\[é\]".repeat(400));
        let commands = focus(&text);
        assert!(commands.len() > 2 && commands.iter().all(|c| c.chars().count() < LINE + 100));
        let dir = std::env::temp_dir().join(format!("orlop-focus-{}", std::process::id()));
        let script = commands.join("\n").replace(&format!("{DIR}/focus"), &dir.display().to_string());
        assert!(Command::new("sh").args(["-ec", &script]).status().unwrap().success());
        // systemd makes one of two.
        assert_eq!(fs::read_to_string(&dir).unwrap(), text.replace('$', "$$"));
        fs::remove_file(dir).unwrap();
    }

    #[test]
    fn the_handler_is_the_images_runtime_under_another_name() {
        let image = include_str!("../../../../image/rootfs/common/etc/containerd/config.toml");
        let lines: Vec<&str> = HANDLER.0.lines().filter(|line| line.contains('=')).collect();
        assert!(lines.iter().all(|line| image.lines().any(|of_image| of_image == *line)), "{lines:?}");
        assert!(lines.len() == 4 && HANDLER.0.contains("runtimes.test-handler.options]"));
        assert!(HANDLER.1.starts_with(HANDLERS) && image.contains(HANDLERS));
    }
}
