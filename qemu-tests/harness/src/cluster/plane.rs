//! A running cluster: its network, the control plane's programs, the admin's client, the nodes' wires.
//!
//! In: programs, settings. Out: kubeconfigs, [`Cluster::client`], [`Cluster::start_node`]. Invariants: programs
//! start in the order of their dependencies, each after the readiness of the last; dropping a cluster ends all
//! of its programs (the caller owns the nodes and must drop them first).

use std::cell::Cell;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::approver::Approver;
use super::bootstrap::{self, Token};
use super::client::ClusterClient;
use super::flags::{self, Files, Settings};
use super::kubeconfig::{Credentials, render};
use super::pki::Pki;
use super::programs::{self, Programs};
use super::proxy::Proxy;
use super::wires::{BRIDGE, Wire};
use super::{audit, join};
use crate::native::node::{NativeNode, NodePlacement};
use crate::native::protocol::{Layout, PlaneSpec};
use crate::native::supervised::{Supervised, tail};
use crate::resource::Resource;
use crate::run::Run;

const APISERVER: &str = "kube-apiserver";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";
/// File name of the admin's kubeconfig for programs inside.
const INSIDE: &str = "admin-inside";

/// A running cluster.
pub struct Cluster {
    run: Arc<Run>,
    // Drop order: background work, then the client that it uses, then the programs.
    approver: Approver,
    client: ClusterClient,
    proxy: Proxy,
    plane: Option<Supervised>,
    programs: Programs,
    settings: Settings,
    pki: Pki,
    dir: PathBuf,
    logs: PathBuf,
    leftovers: Vec<Resource>,
    token: Token,
    nodes: u8,
    /// Requests that were judged already: a refusal is reported once.
    judged: Cell<usize>,
    /// Requests to an API server that was starting again: its node authoriser refuses everything that it has not
    /// listed yet.
    early: Vec<Range<usize>>,
}

impl Cluster {
    /// Starts a control plane and writes the files that nodes need to join. Logs go below `artefacts`.
    ///
    /// # Errors
    /// The program that did not start, with its last lines.
    pub fn start(run: &Arc<Run>, artefacts: &Path, settings: Settings) -> Result<Cluster> {
        let programs = programs::find(run)?;
        let number = crate::native::node::next_number();
        let dir = run.dir().join(format!("plane{number}-{}", run.id()));
        let mut leftovers = Vec::new();
        let logs = artefacts.join("control-plane");
        let sockets = run.sockets().join(format!("p{number}"));
        run.record(Resource::Dir { path: dir.clone() })?;
        leftovers.push(Resource::Dir { path: dir.clone() });
        for dir in [&dir, &logs, &sockets] {
            fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let pki = Pki::make(&dir.join("pki"), &flags::SERVER_NAMES)?;
        let bridge = BRIDGE.to_owned();
        let address = format!("{}/24", flags::ADDRESS);
        let ipv6_address = settings.dual_stack.then(|| format!("{}/64", flags::IPV6_ADDRESS));
        let layout = Layout::Plane(PlaneSpec { bridge, address, ipv6_address, logs: logs.clone(), sockets });
        let mut plane = Supervised::start(run, &[], &layout, &logs)?;
        let target =
            format!("{}:{}", flags::ADDRESS, flags::PORT).parse().context("the API server's address")?;
        let proxy = Proxy::start_with_names(plane.pid(), target)?;
        write_kubeconfigs(&dir, &pki, proxy.port())?;
        fs::write(dir.join("audit-policy.yaml"), flags::AUDIT_POLICY).context("write the audit policy")?;
        start_programs(&mut plane, &programs, &dir, &logs, &pki, settings)?;
        let client = ClusterClient::new(&dir.join("admin.kubeconfig"))?;
        let server = server_url();
        bootstrap::lay(&client, &server, &pki.ca.pem)?;
        let token = Token::random()?;
        bootstrap::add_token(&client, &token, 24 * 3600)?;
        bootstrap::await_signature(&client, &token)?;
        let approver = Approver::start(client.handle(), client.kube());
        Ok(Cluster {
            run: run.clone(),
            approver,
            client,
            proxy,
            plane: Some(plane),
            programs,
            settings,
            pki,
            dir,
            logs,
            leftovers,
            token,
            nodes: 0,
            judged: Cell::new(0),
            early: Vec::new(),
        })
    }

    /// The admin's client.
    #[must_use]
    pub fn client(&self) -> &ClusterClient {
        &self.client
    }

    /// Decides about nodes' serving certificates.
    #[must_use]
    pub fn approver(&self) -> &Approver {
        &self.approver
    }

    /// Keys and certificates.
    #[must_use]
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// A bootstrap token that is good for a day.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The controllers' directory of FlexVolume drivers.
    #[must_use]
    pub fn flex_drivers(&self) -> PathBuf {
        self.dir.join("flex")
    }

    /// The admin's kubeconfig, good on the host.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// The admin's kubeconfig, good in the cluster's network namespace.
    #[must_use]
    pub fn inside_kubeconfig(&self) -> PathBuf {
        self.dir.join(format!("{INSIDE}.kubeconfig"))
    }

    /// A kubeconfig for a node that has a bootstrap token only.
    #[must_use]
    pub fn bootstrap_kubeconfig(&self, token: &Token) -> String {
        render(&server_url(), &self.pki.ca.pem, &Credentials::Token(token.render()))
    }

    /// The same with the API server's address on the host.
    #[must_use]
    pub fn host_bootstrap_kubeconfig(&self, token: &Token) -> String {
        render(&self.host_url(), &self.pki.ca.pem, &Credentials::Token(token.render()))
    }

    /// A kubeconfig with a certificate, good on the host.
    #[must_use]
    pub fn host_kubeconfig(&self, certificate: String, key: String) -> String {
        render(&self.host_url(), &self.pki.ca.pem, &Credentials::Certificate { certificate, key })
    }

    fn host_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.proxy.port())
    }

    /// The cluster's own directory; gone when it ends.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The first process of the cluster's namespaces.
    ///
    /// # Errors
    /// If the cluster is being stopped.
    pub fn pid(&self) -> Result<i32> {
        Ok(self.plane.as_ref().context("the cluster is being stopped")?.pid())
    }

    /// kubectl of the cluster's release with the admin's kubeconfig.
    #[must_use]
    pub fn kubectl_path(&self) -> PathBuf {
        self.programs.path("kubectl")
    }

    /// Runs kubectl on the host; returns its output.
    ///
    /// # Errors
    /// If it fails: its message.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        crate::process::must(&self.run, &mut self.kubectl_command(args))
    }

    /// The same command, not started yet.
    #[must_use]
    pub fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.kubectl_path());
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(args);
        // The cache of API groups is in the run's directory, not in the user's.
        command.env("HOME", &self.dir).env_remove("KUBECONFIG");
        for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            command.env_remove(proxy);
        }
        command
    }

    /// Starts a native node on the cluster's network, with `agent` as its kubelet and its configuration laid; the
    /// kubelet is not started yet. Logs go below `artefacts/<name>`.
    ///
    /// # Errors
    /// Which step failed.
    pub fn start_node(&mut self, artefacts: &Path, name: &str, agent: PathBuf) -> Result<NativeNode> {
        let wire = self.next_wire()?;
        let place = NodePlacement { name: name.to_owned(), pods: wire.pods(), wired: true };
        let plane = self.pid()?;
        let logs = artefacts.join(name);
        let plug = |node: i32| -> Result<()> {
            wire.plug(plane, node)?;
            if self.settings.dual_stack { wire.plug_ipv6(plane, node) } else { Ok(()) }
        };
        let node = NativeNode::start_at(&self.run, &logs, agent, place, plug)?;
        join::lay(self, &node)?;
        Ok(node)
    }

    /// Address of the node that was started last.
    ///
    /// # Errors
    /// If there is none.
    pub fn newest_address(&self) -> Result<String> {
        let number = self.nodes.checked_sub(1).context("no node was started yet")?;
        Ok(Wire::new(number)?.address())
    }

    /// The wire of the next node.
    ///
    /// # Errors
    /// If the cluster has too many.
    pub fn next_wire(&mut self) -> Result<Wire> {
        let wire = Wire::new(self.nodes)?;
        self.nodes += 1;
        Ok(wire)
    }

    /// True if nodes, pods and Services have addresses of both families.
    #[must_use]
    pub fn is_dual_stack(&self) -> bool {
        self.settings.dual_stack
    }

    /// The run it belongs to.
    #[must_use]
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// The supervisor of the plane's programs.
    ///
    /// # Errors
    /// If the cluster is being stopped.
    pub fn plane(&mut self) -> Result<&mut Supervised> {
        self.plane.as_mut().context("the cluster is being stopped")
    }

    /// Ends the API server as a crash does.
    ///
    /// # Errors
    /// If it does not end.
    pub fn kill_apiserver(&mut self) -> Result<()> {
        let plane = self.plane()?;
        plane.signal(APISERVER, nix::libc::SIGKILL)?;
        plane.await_exit(APISERVER).map(|_| ())
    }

    /// Starts the API server again, the programs that ended without it, and a new scheduler. A scheduler that asks
    /// before the API server knows its role goes on with old data, and ends by itself when another pod has a known
    /// pod's name ("Scheduler cache is corrupted"). In a real cluster a supervisor restarts it; here there is none.
    ///
    /// # Errors
    /// If a program does not start.
    pub fn restart_apiserver(&mut self) -> Result<()> {
        let before = self.audit()?.len();
        let plane = self.plane.as_mut().context("the cluster is being stopped")?;
        if plane.is_running(SCHEDULER) {
            plane.signal(SCHEDULER, nix::libc::SIGKILL)?;
            plane.await_exit(SCHEDULER)?;
        }
        start_programs(plane, &self.programs, &self.dir, &self.logs, &self.pki, self.settings)?;
        self.early.push(before..self.audit()?.len());
        self.approver.look_again();
        Ok(())
    }

    /// All requests to the API server so far, of nodes and of other clients.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn audit(&self) -> Result<Vec<audit::Request>> {
        audit::read(&self.logs.join("audit.log"))
    }

    /// Fails if the API server has refused a node's request since the last call.
    ///
    /// # Errors
    /// The forbidden requests.
    pub fn ensure_nothing_forbidden(&self) -> Result<()> {
        self.ensure_nothing_forbidden_but(|_| false)
    }

    /// The same without requests that a case makes in order to be refused.
    ///
    /// # Errors
    /// The other forbidden requests.
    pub fn ensure_nothing_forbidden_but(&self, meant: impl Fn(&audit::Request) -> bool) -> Result<()> {
        let all = self.audit()?;
        let since = self.judged.replace(all.len());
        let mut refused: Vec<_> = all.iter().enumerate().skip(since).collect();
        refused.retain(|(at, request)| {
            audit::is_forbidden(request)
                && !meant(request)
                && !audit::was_early(&all, *at)
                && !audit::was_late(&all, *at)
                && !self.early.iter().any(|early| early.contains(at))
        });
        anyhow::ensure!(refused.is_empty(), "nodes made forbidden requests: {refused:#?}");
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.plane = None;
        for leftover in self.leftovers.iter().rev() {
            if let Err(e) = leftover.remove(self.run.id()) {
                crate::say::line(format!("left behind: {e:#}"));
            }
        }
    }
}

/// The API server as nodes reach it.
#[must_use]
pub fn server_url() -> String {
    format!("https://{}:{}", flags::ADDRESS, flags::PORT)
}

fn write_kubeconfigs(dir: &Path, pki: &Pki, port: u16) -> Result<()> {
    let host = format!("https://127.0.0.1:{port}");
    for (file, server, user, group) in [
        ("admin", host.as_str(), "kubernetes-admin", Some("system:masters")),
        (INSIDE, &server_url(), "kubernetes-admin", Some("system:masters")),
        ("controller-manager", &server_url(), "system:kube-controller-manager", None),
        ("scheduler", &server_url(), "system:kube-scheduler", None),
    ] {
        let credentials = pki.client(file, user, group)?.credentials()?;
        let path = dir.join(format!("{file}.kubeconfig"));
        super::pki::write_private(&path, &render(server, &pki.ca.pem, &credentials))?;
    }
    Ok(())
}

/// Starts the programs that do not run yet, each after its dependencies answer.
fn start_programs(
    plane: &mut Supervised,
    programs: &Programs,
    dir: &Path,
    logs: &Path,
    pki: &Pki,
    settings: Settings,
) -> Result<()> {
    let files = Files {
        pki,
        etcd: &dir.join("etcd"),
        audit_policy: &dir.join("audit-policy.yaml"),
        audit_log: &logs.join("audit.log"),
        controller_manager: &dir.join("controller-manager.kubeconfig"),
        flex: &dir.join("flex"),
        scheduler: &dir.join("scheduler.kubeconfig"),
    };
    let argv = |program: &Path, args: Vec<String>| [vec![program.display().to_string()], args].concat();
    let all = [
        ("etcd", argv(programs.etcd(), flags::etcd(&files))),
        (APISERVER, argv(&programs.path(APISERVER), flags::apiserver(&files, settings))),
        (
            CONTROLLER_MANAGER,
            argv(&programs.path(CONTROLLER_MANAGER), flags::controller_manager(&files, settings)),
        ),
        (SCHEDULER, argv(&programs.path(SCHEDULER), flags::scheduler(&files))),
    ];
    for (name, argv) in all {
        if plane.is_running(name) {
            continue;
        }
        plane.start_program(name, &argv, &[])?;
        // The other two programs send no notification: later steps wait for their work.
        if name == "etcd" || name == APISERVER {
            plane.await_ready(name, Duration::from_secs(90))?;
        }
        if name == APISERVER {
            await_answers(plane, dir, logs)?;
        }
    }
    Ok(())
}

/// READY means that the API server listens; `/readyz` means that its own start is over.
fn await_answers(plane: &mut Supervised, dir: &Path, logs: &Path) -> Result<()> {
    let client = ClusterClient::new(&dir.join("admin.kubeconfig"))?;
    let answers = client.await_readyz(Duration::from_secs(90));
    if plane.is_running(APISERVER) {
        return answers;
    }
    anyhow::bail!("kube-apiserver ended:\n{}", tail(&logs.join("kube-apiserver.log")))
}
