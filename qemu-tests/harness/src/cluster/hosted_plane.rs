//! A VM that carries its own control plane, from one document of `orlopctl controlplane gen`.
//!
//! ```text
//! orlopctl ─► NodeConfig (fw_cfg) ─► VM: etcd, API server, controllers, scheduler as static pods
//!                                     ▲ :6443                     │ images, from 10.0.2.2
//! admin.conf ─► port of the loopback ─┘                           ▼ registry on the loopback
//! ```
//! In: the programs of the control plane for tests, as images. Out: [`HostedPlane`]. Invariant: no other control plane is there; what
//! an administrator does here is done with the kubeconfig that the command made.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node;
use orlop_config::yaml;
use serde_json::{Value, json};

use super::client::ClusterClient;
use super::plane_images::{self, REGISTRY};
use super::programs::{self, Programs};
use super::ready;
use crate::built;
use crate::native::registry;
use crate::process::must;
use crate::run::Run;
use crate::vm::lab::{Firmware, Lab};
use crate::vm::machine::Vm;

/// Name of the node.
pub const NODE: &str = "control-plane-1";
/// How long a boot to a Ready node may take under TCG on a busy machine, seconds: the API server alone needs more than a minute.
pub const READY_LIMIT_S: u64 = 1200;
/// How long a boot to the running agent may take, seconds.
const AGENT_LIMIT_S: u64 = 240;
/// The API server's port in the guest.
const API_PORT: u16 = 6443;
/// Memory of the machine, MiB.
const MEMORY_MIB: u32 = 2048;
/// Its processors: etcd, API server, controllers and scheduler start at once, and the controllers end if the API server does not answer
/// within ten seconds. On one emulated processor each of their starts takes the time that the API server needs for an answer.
const PROCESSORS: u32 = 2;
/// Lines of each container's log in the message of a failure.
const LOG_LINES: u32 = 12;
/// This machine's loopback, as the guest reaches it.
const HOST: &str = "10.0.2.2";

/// A VM with its own control plane.
pub struct HostedPlane {
    // Dropped first: QEMU must end before its disk is removed.
    vm: Option<Vm>,
    client: ClusterClient,
    lab: Lab,
    programs: Programs,
    document: String,
    out: PathBuf,
    port: u16,
}

impl HostedPlane {
    /// Makes images, keys and the document, boots, and waits until the node is Ready.
    ///
    /// # Errors
    /// The part that failed.
    pub fn start(run: &Arc<Run>, artefacts: &Path) -> Result<HostedPlane> {
        let mut lab = Lab::new(run, artefacts)?;
        lab.reach_host();
        lab.give_memory(MEMORY_MIB);
        lab.give_processors(PROCESSORS);
        let programs = programs::find(run)?;
        let images = lab.dir().join("images");
        let names = plane_images::make(run, &images, &programs)?;
        let mirror = format!("http://{HOST}:{}", registry::serve_on_loopback(&images)?);
        let (out, port) = (lab.dir().join("controlplane"), free_port()?);
        let mut command = Command::new(built::ctl(run)?);
        command.args(["controlplane", "gen", "--single", "--endpoint", &format!("127.0.0.1:{port}")]);
        command.args(["--member", NODE, "--images", &names.join(","), "--out"]).arg(&out);
        must(run, &mut command).context("make the control plane")?;
        let document = document(&out.join(format!("{NODE}.yaml")), &mirror)?;
        let client = ClusterClient::new(&out.join("admin.conf"))?;
        let mut plane = HostedPlane { vm: None, client, lab, programs, document, out, port };
        plane.boot()?;
        plane.await_ready()?;
        Ok(plane)
    }

    /// Switches it on.
    ///
    /// # Errors
    /// If QEMU does not start.
    pub fn boot(&mut self) -> Result<()> {
        let mut vm = self.lab.boot(Firmware::Direct, Some(&self.document))?;
        vm.qmp.forward(self.port, API_PORT)?;
        self.vm = Some(vm);
        Ok(())
    }

    /// Cuts the power: unwritten data of the guest is lost, the disk stays.
    pub fn cut_power(&mut self) {
        self.vm = None;
    }

    /// Lets the machine run for so long.
    ///
    /// # Errors
    /// If it is off, or switches itself off meanwhile.
    pub fn run_for(&mut self, time: Duration) -> Result<()> {
        let vm = self.vm()?;
        if vm.qmp.await_event("SHUTDOWN", time).is_ok() {
            bail!("the machine has switched itself off");
        }
        // No event came, or there is no QEMU any more.
        vm.qmp.execute("query-status").map(drop).context("the machine does not run")
    }

    /// The running machine.
    ///
    /// # Errors
    /// If it is off.
    pub fn vm(&mut self) -> Result<&mut Vm> {
        self.vm.as_mut().context("the VM is off: an earlier case of the group failed")
    }

    /// The administrator's client.
    #[must_use]
    pub fn client(&self) -> &ClusterClient {
        &self.client
    }

    /// Waits until the node is Ready in this boot: the API server still has the last boot's status for a while.
    ///
    /// # Errors
    /// At the deadline, with the present state and the node's containers.
    pub fn await_ready(&mut self) -> Result<Node> {
        let vm = self.vm()?;
        vm.await_phase("agent.ready", AGENT_LIMIT_S)?;
        let boot = vm.shell()?.must("cat /proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let api = self.client.all::<Node>();
        let found = self.client.wait(&api, READY_LIMIT_S, &format!("node {NODE} to be Ready"), |all| {
            let node = all.get(NODE).filter(|node| ready::node(node))?;
            let info = node.status.as_ref()?.node_info.as_ref()?;
            (info.boot_id == boot).then(|| node.clone())
        });
        found.map_err(|error| {
            let containers = self.containers();
            error.context(format!("the node's containers:\n{containers}"))
        })
    }

    /// What the node says about its containers, for a person.
    fn containers(&mut self) -> String {
        // The number in a log's name is that of the container's restarts.
        let listed =
            format!("ls -l /var/log/pods/*/*; tail -n {LOG_LINES} /var/log/pods/kube-system_*/*/*.log");
        let said = self.vm().and_then(|vm| vm.shell()?.run(&listed, Duration::from_secs(60)));
        said.map_or_else(|error| format!("{error:#}"), |output| output.text)
    }

    /// Runs kubectl with the kubeconfig that the command made; returns its output.
    ///
    /// # Errors
    /// If it fails: its message.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(self.programs.path("kubectl"));
        command.arg("--kubeconfig").arg(self.out.join("admin.conf")).args(words);
        // The cache of API groups is in the lab's directory, not in the user's.
        command.env("HOME", self.lab.dir()).env_remove("KUBECONFIG");
        for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            command.env_remove(proxy);
        }
        must(self.lab.run(), &mut command)
    }
}

/// The document, with the registry of the case.
fn document(file: &Path, mirror: &str) -> Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let parsed = yaml::parse(&text).with_context(|| format!("understand {}", file.display()))?;
    Ok(with_mirror(parsed.value, mirror).to_string())
}

/// Pure.
fn with_mirror(mut document: Value, mirror: &str) -> Value {
    document["registries"]["mirrors"][REGISTRY] = json!({"endpoints": [mirror], "skipFallback": true});
    document
}

/// A port of the loopback that is free now.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("look for a free port")?;
    Ok(listener.local_addr().context("ask for the port")?.port())
}

#[cfg(test)]
mod tests {
    use orlop_config::node::{Source, load};

    use super::*;

    #[test]
    fn the_document_keeps_what_it_has_and_gets_the_registry() {
        let own = json!({"apiVersion": "orlop/v1alpha1", "kind": "NodeConfig", "node": {"name": NODE}});
        let text = with_mirror(own, "http://10.0.2.2:1").to_string();
        let source = Source { name: "fw-cfg".into(), origin: "fw_cfg".into(), text };
        let effective = load(&[source], &[]);
        assert_eq!(effective.problems, []);
        assert_eq!(effective.config.node.name, NODE);
        let mirror = &effective.config.registries.mirrors[REGISTRY];
        assert_eq!(
            (mirror.endpoints.as_slice(), mirror.skip_fallback),
            (&["http://10.0.2.2:1".to_owned()][..], true)
        );
    }
}
