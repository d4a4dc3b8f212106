//! The suite of a whole cluster: its nodes, with `--certified` also kube-proxy and CoreDNS, then ginkgo.
//!
//! ```text
//! plane: registry (images of the suite and of the add-ons) ─► nodes ─► add-ons Ready ─► ginkgo, part after part
//!        API server ─► endpoints of Services (webhooks, aggregated APIs), over the routes to the nodes' pods
//! ```
//! In: [`Options`], the session's parts. Out: the suite's report of each part. Invariants: no test begins before
//! all nodes and add-ons are Ready; all nodes find all images at one place.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::json;

use super::login::Login;
use super::selection::Part;
use super::session::{Session, Watcher};
use super::{NODE, Options, images};
use crate::built;
use crate::case::human;
use crate::cluster::addons::{AddOns, NodeKind};
use crate::cluster::fixture::{await_ready, await_serving};
use crate::cluster::flags::{ADDRESS, LOG_STREAMS_GATE, Settings};
use crate::cluster::join::{JoinMethod, start_kubelet};
use crate::cluster::plane::Cluster;
use crate::cluster::programs::{self, More, Suite};
use crate::cluster::vm_node::{READY_LIMIT_S, VmNode};
use crate::counts::Counts;
use crate::native::images as host;
use crate::native::node::NativeNode;
use crate::native::registry;
use crate::process::stream;
use crate::run::Run;
use crate::say;

/// Port of the images in the plane's network.
const PORT: u16 = 5002;
/// Limit of one part: ginkgo stops its tests then.
const PART_LIMIT: &str = "4h";

/// Runs the session's parts; returns the counts.
///
/// # Errors
/// The part that did not start, or a suite without a report.
pub(super) fn run(run: &Arc<Run>, options: &Options, artefacts: &Path, session: Session) -> Result<Counts> {
    let suite = programs::suite(run)?;
    if options.proxy().is_some() {
        // Together with the control plane, which consists of the same packages.
        programs::prepare(run, &[More::AddOns])?;
    }
    let wanted = images::list(run, &suite)?;
    // The API server's host has no kube-proxy, but routes to all pods.
    let settings = Settings { log_streams: true, aggregator_routing: true, ..Settings::default() };
    let mut cluster = Cluster::start(run, artefacts, settings)?;
    let kind = if options.vm { NodeKind::Vm } else { NodeKind::Native };
    let addons = options.proxy().map(|mode| AddOns::make(&cluster, mode, kind)).transpose()?;
    let registry = artefacts.join("images");
    serve_images(&cluster, &registry, &suite, &wanted)?;
    if let Some(addons) = &addons {
        addons.add_to(&registry)?;
    }
    let (mut vms, mut native) = (Vec::new(), Vec::new());
    let names = options.names();
    for name in &names {
        if options.vm {
            let mut vm = plug(&mut cluster, artefacts, options, name, addons.as_ref())?;
            boot(&mut vm, &cluster, name)?;
            vms.push(vm);
        } else {
            native.push(start(&mut cluster, artefacts, options, name)?);
        }
    }
    for name in &names {
        await_serving(&cluster, name, 60)?;
    }
    if let Some(addons) = &addons {
        install(addons, &cluster, names.len())?;
    }
    let login = options.ssh.then(|| Login::offer(&cluster, artefacts, NODE)).transpose()?;
    let kubelet = if options.upstream { "upstream kubelet" } else { "agent" };
    let (focus, procs, nodes) = (options.whole(&[]).focus, options.procs, names.len());
    say::line(format!("{kubelet}, tests that match {focus}, {procs} at once, nodes: {nodes}"));
    session.note_versions(&cluster)?;
    let report = artefacts.join("report.json");
    let counts = session.play(|part, watcher| {
        forget(&report)?;
        let mut command = command(&suite, &cluster, artefacts, (part, nodes), login.as_ref())?;
        let ended = watch(run, &mut command, watcher)?;
        fs::read(&report).with_context(|| format!("the suite left no report ({ended})"))
    })?;
    drop((vms, native));
    Ok(counts)
}

/// Waits until the add-ons are Ready on all nodes.
fn install(addons: &AddOns, cluster: &Cluster, nodes: usize) -> Result<()> {
    let start = Instant::now();
    let nodes = u8::try_from(nodes).context("the number of nodes")?;
    addons.install(cluster, nodes, addons.limit_s(nodes))?;
    say::line(format!("{}, Ready after {}", addons.describe(), human(start.elapsed())));
    Ok(())
}

/// Removes the report of the last part: a part without a report of its own has failed.
pub(super) fn forget(report: &Path) -> Result<()> {
    match fs::remove_file(report) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("remove {}", report.display()))
        }
        _ => Ok(()),
    }
}

/// Makes the suite's images in a registry's directory, and serves it in the plane's network.
pub(super) fn serve_images(cluster: &Cluster, dir: &Path, suite: &Suite, wanted: &str) -> Result<()> {
    images::make(cluster.run(), dir, suite, wanted)?;
    registry::serve_in(cluster.pid()?, PORT, dir)
}

/// A native node whose containerd finds the suite's images in the plane's network, until it is Ready.
fn start(cluster: &mut Cluster, artefacts: &Path, options: &Options, name: &str) -> Result<NativeNode> {
    let run = cluster.run().clone();
    let agent = if options.upstream { programs::kubelet(&run)? } else { built::agent(&run, false)? };
    let mut node = cluster.start_node(artefacts, name, agent)?;
    host::lead_to_registry(&node, images::REGISTRY, &format!("{ADDRESS}:{PORT}"))?;
    if options.proxy().is_some() {
        node.map_host_ports()?;
    }
    start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(cluster, name, 120)?;
    Ok(node)
}

/// A VM of the built image, whose containerd finds the suite's images in the plane's network; not booted yet. `addons`
/// are in the same registry.
pub(super) fn plug(
    cluster: &mut Cluster,
    artefacts: &Path,
    options: &Options,
    name: &str,
    addons: Option<&AddOns>,
) -> Result<VmNode> {
    let mut vm = VmNode::plug(cluster, artefacts, name)?;
    vm.give_memory(options.memory);
    if let Some(topology) = options.topology {
        vm.give_topology(topology);
    }
    vm.configure("featureGates", json!({LOG_STREAMS_GATE: true}));
    if let Some(addons) = addons {
        addons.prepare(&mut vm);
    }
    vm.mirror(images::REGISTRY, &format!("http://{ADDRESS}:{PORT}"));
    Ok(vm)
}

/// Boots it until it is Ready.
pub(super) fn boot(vm: &mut VmNode, cluster: &Cluster, name: &str) -> Result<()> {
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(cluster)?;
    await_ready(cluster, name, READY_LIMIT_S)?;
    Ok(())
}

/// ginkgo with the suite, in the plane's network namespace: pods and nodes are reached from there.
fn command(
    suite: &Suite,
    cluster: &Cluster,
    artefacts: &Path,
    (part, nodes): (&Part, usize),
    login: Option<&Login>,
) -> Result<Command> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--target={}", cluster.pid()?)).args(["--net", "--"]);
    if let Some(login) = login {
        login.lead(&mut command);
    }
    command.arg(&suite.ginkgo).args(ginkgo_flags(part, artefacts));
    command.arg(&suite.e2e).arg("--").args(suite_flags(artefacts, nodes, login.is_some()));
    command.arg("--kubeconfig").arg(cluster.inside_kubeconfig());
    command.arg("--kubectl-path").arg(cluster.kubectl_path());
    // Programs must neither read nor write the user's own files.
    command.current_dir(artefacts).env("HOME", cluster.dir()).env_remove("KUBECONFIG");
    images::keep_names(&mut command);
    for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
        command.env_remove(proxy);
    }
    Ok(command)
}

/// What ginkgo runs, and how. Pure.
fn ginkgo_flags(part: &Part, artefacts: &Path) -> Vec<String> {
    let mut flags = vec![
        "-v".to_owned(),
        "--no-color".to_owned(),
        format!("--timeout={PART_LIMIT}"),
        "--json-report=report.json".to_owned(),
        "--junit-report=junit.xml".to_owned(),
        format!("--procs={}", part.procs),
        format!("--output-dir={}", artefacts.display()),
        format!("--focus={}", part.focus),
    ];
    flags.extend(part.skips.iter().map(|skip| format!("--skip={skip}")));
    flags
}

/// What the suite must know of the cluster. Its defaults are the certification programme's: all nodes and all pods of
/// kube-system must be Ready before the first test (`--allowed-not-ready-nodes`, `--system-pods-startup-timeout`). Pure.
fn suite_flags(artefacts: &Path, nodes: usize, has_login: bool) -> Vec<String> {
    vec![
        // Tests that log in themselves are skipped where the provider is not one of those with SSH.
        format!("--provider={}", if has_login { "local" } else { "skeleton" }),
        format!("--num-nodes={nodes}"),
        "--node-os-distro=custom".to_owned(),
        "--disable-log-dump".to_owned(),
        // After a failed test it would ask the kubelet for metrics for two minutes. The harness keeps the logs in any
        // case.
        "--dump-logs-on-failure=false".to_owned(),
        format!("--e2e-output-dir={}", artefacts.display()),
    ]
}

/// Runs the suite, and hands its output to `watcher`; returns the suite's exit status.
pub(super) fn watch(run: &Arc<Run>, command: &mut Command, watcher: &mut Watcher<'_>) -> Result<String> {
    let status = stream(run, command, |line| watcher.line(line))?;
    Ok(status.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_serial_tests_has_one_process_and_leaves_nothing_out() {
        let part = Part { focus: "^S (?:a)$".into(), skips: Vec::new(), procs: 1 };
        let flags = ginkgo_flags(&part, Path::new("/run/e2e"));
        for want in ["--procs=1", "--focus=^S (?:a)$", "--output-dir=/run/e2e", "--json-report=report.json"] {
            assert!(flags.iter().any(|flag| flag == want), "{want}: {flags:?}");
        }
        // A test that fails is not repeated, and none is left out.
        assert!(!flags.iter().any(|f| f.starts_with("--skip") || f.contains("flake")), "{flags:?}");
        let part = Part { skips: vec!["a".into(), "b".into()], procs: 8, ..part };
        let flags = ginkgo_flags(&part, Path::new("/run/e2e"));
        assert!(flags.ends_with(&["--skip=a".to_owned(), "--skip=b".to_owned()]), "{flags:?}");
    }

    #[test]
    fn the_suite_knows_the_nodes_and_no_cloud() {
        let flags = |has_login| suite_flags(Path::new("/run/e2e"), 2, has_login);
        for want in ["--provider=skeleton", "--num-nodes=2", "--e2e-output-dir=/run/e2e"] {
            assert!(flags(false).iter().any(|flag| flag == want), "{want}");
        }
        assert!(flags(true).contains(&"--provider=local".to_owned()));
        assert!(!flags(false).iter().any(|flag| flag.starts_with("--allowed-not-ready-nodes")));
    }
}
