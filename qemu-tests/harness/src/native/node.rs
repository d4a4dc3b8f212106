//! A native node under the harness's control: start, agent, manifests, the runtime's containers.
//!
//! Invariant: dropping it ends the supervisor, and with it every process and mount of the node; the cgroups and
//! directories left on the host are then removed by their recorded names.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cri::{Cri, View};
use super::protocol::{Layout, NodeSpec, RootSource};
use super::supervised::{Supervised, tail};
use super::{cgroups, config, images, mounts, root};
use crate::resource::Resource;
use crate::run::Run;

/// Nodes of this process so far: two of them never share a name.
static NODES: AtomicU32 = AtomicU32::new(0);

const AGENT: &str = "agent";
const CONTAINERD: &str = "containerd";

/// A running node.
pub struct NativeNode {
    run: Arc<Run>,
    // Dropped before the resources below are removed: see Drop.
    supervised: Option<Supervised>,
    pid: i32,
    place: NodePlacement,
    work: PathBuf,
    logs: PathBuf,
    leftovers: Vec<Resource>,
    cri: Cri,
}

/// A number that is unique among the nodes and clusters of this process.
#[must_use]
pub fn next_number() -> u32 {
    NODES.fetch_add(1, Ordering::Relaxed)
}

/// The node's name and its network.
#[derive(Clone, Debug)]
pub struct NodePlacement {
    /// The node's name.
    pub name: String,
    /// Its pods' subnet.
    pub pods: String,
    /// True if a cable to a cluster's bridge is plugged in from outside; else the node is on a bridge of its own.
    pub wired: bool,
}

impl NodePlacement {
    /// A node without a cluster.
    #[must_use]
    pub fn alone() -> NodePlacement {
        NodePlacement { name: config::NODE_NAME.into(), pods: "10.88.0.0/16".into(), wired: false }
    }
}

impl NativeNode {
    /// Starts a node without a cluster, with a running containerd and no agent yet. Its logs go below `artefacts`.
    ///
    /// # Errors
    /// The tool that is missing on this machine, or the step that failed.
    pub fn start(run: &Arc<Run>, artefacts: &Path, agent: PathBuf) -> Result<NativeNode> {
        NativeNode::start_at(run, artefacts, agent, NodePlacement::alone(), |_| Ok(()))
    }

    /// Starts a node with this placement; `plug` gets the node's first process when its namespaces exist.
    ///
    /// # Errors
    /// The tool that is missing on this machine, or the step that failed.
    pub fn start_at(
        run: &Arc<Run>,
        artefacts: &Path,
        agent: PathBuf,
        place: NodePlacement,
        plug: impl FnOnce(i32) -> Result<()>,
    ) -> Result<NativeNode> {
        let number = next_number();
        let work = run.dir().join(format!("node{number}-{}", run.id()));
        let mut leftovers = vec![Resource::Dir { path: work.clone() }];
        run.record(leftovers[0].clone())?;
        fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
        let logs = artefacts.join("log");
        fs::create_dir_all(&logs)?;
        let registry = work.join("registry");
        images::make_registry(run, &registry)?;
        let mut groups = Vec::new();
        for (_, dir) in cgroups::child_dirs(&format!("orlop-{}-{number}", run.id()))? {
            let resource = Resource::Cgroup { path: dir.clone() };
            run.record(resource.clone())?;
            leftovers.push(resource);
            cgroups::make(&dir)?;
            groups.push(dir);
        }
        let hostname = if place.wired { place.name.clone() } else { "orlop-native".into() };
        let (root, wired) = (root::find()?, place.wired);
        let spec =
            NodeSpec { root, work: work.clone(), logs: logs.clone(), registry, agent, hostname, wired };
        let source = spec.root.clone();
        let supervised = Supervised::start(run, &groups, &Layout::Node(spec), &logs)?;
        let pid = supervised.pid();
        let cri = Cri::new(&in_root(pid, config::CRI_SOCKET))?;
        let run = run.clone();
        let mut node =
            NativeNode { run, supervised: Some(supervised), pid, place, work, logs, leftovers, cri };
        plug(pid)?;
        node.write_configuration(&source)?;
        node.start_containerd()?;
        Ok(node)
    }

    /// A path of the node as the host reaches it.
    #[must_use]
    pub fn inside(&self, path: &str) -> PathBuf {
        in_root(self.pid, path)
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// The runtime of the node.
    #[must_use]
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// Host directory that is the node's /var/log.
    #[must_use]
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    fn write_configuration(&self, source: &RootSource) -> Result<()> {
        let has_seed = self.inside("/usr/share/orlop/containerd-seed").is_dir();
        let pause = if has_seed { "localhost/orlop/pause:1".into() } else { images::stand_in_pause() };
        anyhow::ensure!(
            has_seed || matches!(source, RootSource::Dir(_)),
            "the image has no /usr/share/orlop/containerd-seed: no sandbox can start"
        );
        let runtime = root::oci_runtime(&self.inside("/"));
        images::lead_to_registry(self, super::registry::HOST, super::registry::HOST)?;
        for (path, text) in [
            ("/run/e2e/containerd.toml", config::containerd(&pause, &runtime)),
            (config::CNI, config::cni(&self.place.pods)),
            (config::KUBELET, config::kubelet()),
            (config::HOSTS, config::hosts(&self.place.name)),
        ] {
            fs::write(self.inside(path), text).with_context(|| format!("write {path} in the node"))?;
        }
        Ok(())
    }

    /// Gives pods of this node host ports, from the next sandbox on: containerd notices the new file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn map_host_ports(&self) -> Result<()> {
        fs::write(
            self.inside(config::CNI),
            config::cni_with_host_ports(std::slice::from_ref(&self.place.pods)),
        )
        .with_context(|| format!("write {} in the node", config::CNI))
    }

    /// Its pods' subnet.
    #[must_use]
    pub fn pods(&self) -> &str {
        &self.place.pods
    }

    /// Removes the node's own pod network. Until an add-on brings another one, the node is not Ready.
    ///
    /// # Errors
    /// If it has none, or the file cannot be removed.
    pub fn remove_network(&self) -> Result<()> {
        fs::remove_file(self.inside(config::CNI))
            .with_context(|| format!("remove {} in the node", config::CNI))
    }

    /// Gives the node its own pod network again.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn restore_network(&self) -> Result<()> {
        fs::write(self.inside(config::CNI), config::cni(&self.place.pods))
            .with_context(|| format!("write {} in the node", config::CNI))
    }

    /// Starts containerd and waits for its readiness notification.
    ///
    /// # Errors
    /// If it ends or stays silent.
    pub fn start_containerd(&mut self) -> Result<()> {
        self.start_containerd_in(&[])
    }

    /// The same with additional environment variables.
    ///
    /// # Errors
    /// If it ends or stays silent.
    pub fn start_containerd_in(&mut self, environment: &[(&str, &str)]) -> Result<()> {
        let argv = ["/usr/bin/containerd", "--config", "/run/e2e/containerd.toml"].map(str::to_owned);
        self.supervised()?.start_program(CONTAINERD, &argv, environment)?;
        self.supervised()?.await_ready(CONTAINERD, Duration::from_secs(60))
    }

    /// Ends containerd; containers live on by design.
    ///
    /// # Errors
    /// If it does not end within ten seconds.
    pub fn kill_containerd(&mut self) -> Result<()> {
        self.supervised()?.signal(CONTAINERD, nix::libc::SIGKILL)?;
        self.supervised()?.await_exit(CONTAINERD).map(|_| ())
    }

    /// Starts the agent; does not wait for anything.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent(&mut self) -> Result<()> {
        self.start_agent_with(&[])
    }

    /// Starts the agent with more flags than its configuration and its name; does not wait for anything.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent_with(&mut self, flags: &[&str]) -> Result<()> {
        self.start_agent_in(&[], flags)
    }

    /// The same with additional environment variables.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent_in(&mut self, environment: &[(&str, &str)], flags: &[&str]) -> Result<()> {
        let hostname = format!("--hostname-override={}", self.place.name);
        let argv = [&[mounts::AGENT, "--config", config::KUBELET, &hostname], flags].concat();
        let argv: Vec<String> = argv.iter().map(|a| (*a).to_owned()).collect();
        self.supervised()?.start_program(AGENT, &argv, environment)
    }

    /// Starts a program of the node that starts the agent with this configuration file, as often as it wants. To this
    /// node, that program is the agent.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent_under(&mut self, program: &str, config: &str, flags: &[&str]) -> Result<()> {
        let hostname = format!("--hostname-override={}", self.place.name);
        let argv = [&[program, mounts::AGENT, "--config", config, &hostname], flags].concat();
        self.start_program(AGENT, &argv)
    }

    /// Starts the agent and waits for its READY notification.
    ///
    /// # Errors
    /// If it ends or stays silent.
    pub fn start_agent_ready(&mut self) -> Result<()> {
        self.start_agent()?;
        self.supervised()?.await_ready(AGENT, Duration::from_secs(30))
    }

    /// kill -9, and waits for the end.
    ///
    /// # Errors
    /// If it does not end.
    pub fn kill_agent(&mut self) -> Result<()> {
        self.supervised()?.signal(AGENT, nix::libc::SIGKILL)?;
        self.supervised()?.await_exit(AGENT).map(|_| ())
    }

    /// SIGTERM; returns the exit status.
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop_agent(&mut self) -> Result<i32> {
        self.supervised()?.signal(AGENT, nix::libc::SIGTERM)?;
        self.supervised()?.await_exit(AGENT)
    }

    /// The node's first process, as the host numbers it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The node's own cgroups, as the host reaches them.
    #[must_use]
    pub fn cgroups(&self) -> Vec<PathBuf> {
        let path = |resource: &Resource| match resource {
            Resource::Cgroup { path } => Some(path.clone()),
            Resource::Process { .. } | Resource::Dir { .. } => None,
        };
        self.leftovers.iter().filter_map(path).collect()
    }

    /// The agent's process id on the host.
    ///
    /// # Errors
    /// If none runs.
    pub fn agent_pid(&self) -> Result<i32> {
        find_child(self.pid, "orlop-agent").context("no agent runs in the node")
    }

    /// containerd's process id on the host.
    ///
    /// # Errors
    /// If none runs.
    pub fn containerd_pid(&self) -> Result<i32> {
        find_child(self.pid, "containerd").context("no containerd runs in the node")
    }

    /// Writes a manifest into the static pod directory, atomically.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_manifest(&self, file: &str, text: &str) -> Result<()> {
        let dir = self.manifests();
        let temporary = dir.join(format!(".{file}.new"));
        fs::write(&temporary, text).with_context(|| format!("write {}", temporary.display()))?;
        fs::rename(&temporary, dir.join(file)).with_context(|| format!("rename to {file}"))
    }

    /// Removes a manifest.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn remove_manifest(&self, file: &str) -> Result<()> {
        fs::remove_file(self.manifests().join(file)).with_context(|| format!("remove manifest {file}"))
    }

    /// The static pod directory as the host reaches it.
    #[must_use]
    pub fn manifests(&self) -> PathBuf {
        self.inside(config::MANIFESTS)
    }

    /// Waits for the runtime's lists; see [`Cri::wait`].
    ///
    /// # Errors
    /// At the deadline, with the present lists and the agent's last lines.
    pub fn wait<T>(&self, limit_s: u64, what: &str, look: impl FnMut(&View) -> Option<T>) -> Result<T> {
        self.cri.wait(Duration::from_secs(limit_s), what, look).map_err(|e| {
            let tail = tail(&self.logs.join("agent.log"));
            e.context(format!("the agent's last lines:\n{tail}\n"))
        })
    }

    /// Lets the node go on for a while; its notifications of that time are kept.
    ///
    /// # Errors
    /// If the node fails or ends.
    pub fn pass(&mut self, moment: Duration) -> Result<()> {
        self.supervised()?.pass(moment)
    }

    /// Waits until the agent's state (`STATUS=`) contains all of `words`, or reports no problem if there are none;
    /// returns the state.
    ///
    /// # Errors
    /// At the deadline, with the present state; if the agent ends.
    pub fn await_agent_status(&mut self, limit_s: u64, words: &[&str]) -> Result<String> {
        let what = if words.is_empty() { "\"running\"".to_owned() } else { format!("{words:?}") };
        let limit = Duration::from_secs(limit_s);
        self.supervised()?.await_status(AGENT, limit, &what, |status| match words {
            [] => status == "running",
            words => words.iter().all(|word| status.contains(word)),
        })
    }

    /// Waits for the agent's end; returns its exit status.
    ///
    /// # Errors
    /// If it does not end.
    pub fn await_agent_exit(&mut self) -> Result<i32> {
        self.supervised()?.await_exit(AGENT)
    }

    /// Body of a GET on the node's loopback.
    ///
    /// # Errors
    /// If nothing answers with status 200.
    pub fn http_get(&self, port: u16, path: &str) -> Result<String> {
        let pid = self.pid;
        let path = path.to_owned();
        // A network namespace belongs to a thread, so the request runs in a thread of its own.
        std::thread::spawn(move || get_in_namespace(pid, port, &path))
            .join()
            .unwrap_or_else(|_| bail!("the request's thread died"))
    }

    fn start_program(&mut self, name: &str, argv: &[&str]) -> Result<()> {
        let argv: Vec<String> = argv.iter().map(|a| (*a).to_owned()).collect();
        self.supervised()?.start_program(name, &argv, &[])
    }

    pub(super) fn supervised(&mut self) -> Result<&mut Supervised> {
        self.supervised.as_mut().context("the node is being stopped")
    }

    /// Waits for the agent's READY notification after [`NativeNode::start_agent`].
    ///
    /// # Errors
    /// If it ends or stays silent.
    pub fn await_agent_ready(&mut self) -> Result<()> {
        self.supervised()?.await_ready(AGENT, Duration::from_secs(30))
    }
}

impl Drop for NativeNode {
    fn drop(&mut self) {
        self.supervised = None;
        for leftover in self.leftovers.iter().rev() {
            if let Err(e) = leftover.remove(self.run.id()) {
                crate::say::line(format!("left behind: {e:#}"));
            }
        }
        debug_assert!(!self.work.exists() || std::thread::panicking(), "the node's directory is gone");
    }
}

fn in_root(pid: i32, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root{path}"))
}

fn find_child(parent: i32, comm: &str) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children
        .split_whitespace()
        .filter_map(|p| p.parse().ok())
        .find(|pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == comm))
}

fn get_in_namespace(pid: i32, port: u16, path: &str) -> Result<String> {
    let namespace =
        fs::File::open(format!("/proc/{pid}/ns/net")).context("open the node's network namespace")?;
    nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).context("enter the node's network")?;
    let mut stream =
        TcpStream::connect(("127.0.0.1", port)).with_context(|| format!("connect to port {port}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("read the answer")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    let status = head.lines().next().unwrap_or_default();
    anyhow::ensure!(status.contains(" 200 "), "GET {path}: {status}: {body}");
    Ok(body.to_owned())
}
