//! A booted VM as a node of a cluster: its wire, its first-boot configuration, its power.
//!
//! ```text
//! NodeConfig (SMBIOS type 11) ─► VM ── virtio-net ── TAP ── cluster0 ── API server
//! ```
//! In: a cluster. Out: [`VmNode`]. Invariant: a node must be dropped before its cluster, whose network namespace
//! its QEMU holds.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use orlop_image::qemu::{Port, Topology};
use serde_json::{Value, json};

use super::bootstrap::Token;
use super::flags::ADDRESS;
use super::plane::{Cluster, server_url};
use super::wires::Wire;
use crate::vm::lab::{Cable, Firmware, Lab, MachineHardware};
use crate::vm::machine::Vm;

/// How long a boot to a Ready node may take under TCG on a busy machine, seconds.
pub const READY_LIMIT_S: u64 = 240;

/// Label that these nodes give themselves.
pub const LABEL: (&str, &str) = ("orlop.test/machine", "vm");

/// A VM with a place in a cluster.
pub struct VmNode {
    // Dropped first: QEMU must end before its disk is removed.
    vm: Option<Vm>,
    lab: Lab,
    cable: Cable,
    name: String,
    wire: Wire,
    /// The firmware's.
    uuid: String,
    ca_hash: String,
    /// Of a platform whose metadata service configures it.
    manufacturer: Option<&'static str>,
    clock: Option<&'static str>,
    memory_mib: Option<u32>,
    disk: Option<PathBuf>,
    keeps_last_words: bool,
    has_watchdog: bool,
    /// It boots through the firmware and the boot loader on its disk.
    firmware: Firmware,
    /// `kubelet` of its NodeConfig.
    kubelet: Value,
    /// `registries` of it.
    registries: Value,
    /// `storage` of it.
    storage: Value,
    /// `kernel` of it.
    kernel: Value,
    /// `runtime.podsPerShim` of it.
    pods_per_shim: u32,
    /// Its name servers.
    name_servers: Vec<String>,
    /// Its NTP servers.
    time_servers: Vec<String>,
    /// `network.podNetwork` of it.
    pod_network: &'static str,
    /// `network` of it without `podNetwork`, and its `node.addresses`, in place of an address on its cable.
    network: Option<(Value, Value)>,
}

impl VmNode {
    /// Makes the place and a fresh disk; nothing is booted. Logs go below `artefacts/<name>`.
    ///
    /// # Errors
    /// If there is no image, or the cable cannot be made (`/dev/net/tun`).
    pub fn plug(cluster: &mut Cluster, artefacts: &Path, name: &str) -> Result<VmNode> {
        let (wire, plane) = (cluster.next_wire()?, cluster.pid()?);
        let artefacts = artefacts.join(name);
        std::fs::create_dir_all(&artefacts).with_context(|| format!("make {}", artefacts.display()))?;
        let lab = Lab::new(cluster.run(), &artefacts)?;
        wire.make_tap(plane)?;
        let cable = Cable { namespace_of: plane, device: wire.tap(), mac: wire.mac() };
        let ca_hash = cluster.pki().ca.public_key_hash.clone();
        // The API server verifies the node's serving certificate.
        let (kubelet, registries, storage) = (json!({"serverTLSBootstrap": true}), json!({}), json!({}));
        let name = name.to_owned();
        let (clock, disk, keeps_last_words) = (None, None, false);
        Ok(VmNode {
            vm: None,
            lab,
            cable,
            name,
            wire,
            uuid: wire.uuid(),
            ca_hash,
            manufacturer: None,
            clock,
            memory_mib: None,
            disk,
            keeps_last_words,
            has_watchdog: false,
            firmware: Firmware::Direct,
            kubelet,
            registries,
            storage,
            kernel: json!({}),
            pods_per_shim: 1,
            name_servers: Vec::new(),
            time_servers: Vec::new(),
            pod_network: "bridge",
            network: None,
        })
    }

    /// It starts through the firmware and the boot loader on its disk, which chooses the slot.
    pub fn start_by_firmware(&mut self) {
        self.firmware = Firmware::Uefi;
    }

    /// Sets a key of its kubelet's configuration, from the next boot on.
    pub fn configure(&mut self, key: &str, value: impl Into<Value>) {
        self.kubelet[key] = value.into();
    }

    /// Removes a key from its kubelet's configuration, from the next boot on.
    pub fn unset(&mut self, key: &str) {
        if let Some(keys) = self.kubelet.as_object_mut() {
            keys.remove(key);
        }
    }

    /// Sets the endpoint for images of `host`, from the next boot on.
    pub fn mirror(&mut self, host: &str, endpoint: &str) {
        self.registries["mirrors"][host] = json!({"endpoints": [endpoint], "skipFallback": true});
    }

    /// Sets the credential provider plugins, from the next boot on.
    pub fn ask_plugins(&mut self, plugins: impl Into<Value>) {
        self.registries["credentialProviders"] = plugins.into();
    }

    /// Adds a name server, from the next boot on.
    pub fn ask_name_server(&mut self, address: &str) {
        self.name_servers.push(address.to_owned());
    }

    /// Adds an NTP server, from the next boot on.
    pub fn ask_time_server(&mut self, address: &str) {
        self.time_servers.push(address.to_owned());
    }

    /// Loads a module of the kernel, from the next boot on.
    pub fn load_module(&mut self, name: &str) {
        match self.kernel["modules"].as_array_mut() {
            Some(modules) => modules.push(name.into()),
            None => self.kernel["modules"] = json!([name]),
        }
    }

    /// Leaves its pod network to an add-on of the cluster, from the next boot on.
    pub fn leave_pod_network(&mut self) {
        self.pod_network = "cluster";
    }

    /// Adds these network cards to its own, from the next boot on.
    pub fn give_ports(&mut self, ports: Vec<Port>) {
        self.lab.give_ports(ports);
    }

    /// Sets its network and its Node's addresses, in place of an address on its cable, from the next boot on.
    pub fn connect_by(&mut self, network: impl Into<Value>, addresses: impl Into<Value>) {
        self.network = Some((network.into(), addresses.into()));
    }

    /// Makes its state partition with project quotas.
    pub fn count_by_projects(&mut self) {
        self.storage["projectQuotas"] = true.into();
    }

    /// Lets so many pods share a shim, from the next boot on.
    pub fn share_shims(&mut self, pods_per_shim: u32) {
        self.pods_per_shim = pods_per_shim;
    }

    /// Its clock shows this time (`2001-01-01T00:00:00`) whenever it is switched on.
    pub fn mislead(&mut self, clock: &'static str) {
        self.clock = Some(clock);
    }

    /// It has a screen, from the next boot on.
    pub fn give_screen(&mut self) {
        self.lab.give_screen();
    }

    /// It trusts the CA with this public key alone, from the next boot on.
    pub fn trust(&mut self, ca_hash: &str) {
        ca_hash.clone_into(&mut self.ca_hash);
    }

    /// Adds a second disk; its file belongs to the caller.
    pub fn add_disk(&mut self, file: PathBuf) {
        self.disk = Some(file);
    }

    /// Sets its memory, MiB, from the next boot on.
    pub fn give_memory(&mut self, mebi: u32) {
        self.memory_mib = Some(mebi);
    }

    /// Sets the number of its processors, from the next boot on.
    pub fn give_processors(&mut self, number: u32) {
        self.lab.give_processors(number);
    }

    /// It has these sockets and NUMA nodes, from the next boot on.
    pub fn give_topology(&mut self, topology: Topology) {
        self.lab.give_topology(topology);
    }

    /// Adds arguments to its kernel's command line from the next boot on.
    pub fn tell_kernel(&mut self, words: &str) {
        self.lab.tell_kernel(words);
    }

    /// Its firmware keeps the last messages of a crashing kernel.
    pub fn keep_last_words(&mut self) {
        self.keeps_last_words = true;
    }

    /// Its board has a hardware watchdog, from the next boot on.
    pub fn give_watchdog(&mut self) {
        self.has_watchdog = true;
    }

    /// Sets the pod range of its Node after the registration, as a cluster's controller does: only then it can become
    /// Ready.
    ///
    /// # Errors
    /// If it does not register, or has another range.
    pub fn give_range(&self, cluster: &Cluster) -> Result<()> {
        let (client, name) = (cluster.client(), self.name.as_str());
        let nodes = client.all::<Node>();
        client.wait(&nodes, READY_LIMIT_S, &format!("node {name} to register"), |all| {
            all.contains_key(name).then_some(())
        })?;
        let range = self.wire.pods();
        client.merge(&nodes, name, &json!({"spec": {"podCIDR": range, "podCIDRs": [range]}}))?;
        Ok(())
    }

    /// It is a machine of a platform, from the next boot on: its firmware names the platform and has no configuration for it.
    /// What [`VmNode::configuration`] gives is for the platform's metadata service to say.
    pub fn belong_to(&mut self, manufacturer: &'static str) {
        self.manufacturer = Some(manufacturer);
    }

    /// Its disk is in another machine, from the next boot on, whose firmware has another UUID.
    pub fn change_machine(&mut self) {
        self.uuid = self.uuid.replacen("0a", "0b", 1);
    }

    /// The first-boot configuration. Without a token the node needs the identity on its disk.
    #[must_use]
    pub fn configuration(&self, token: Option<&Token>) -> Value {
        let mut config = node_config(
            &self.name,
            self.wire,
            &self.ca_hash,
            token,
            (self.name_servers.as_slice(), self.pod_network, self.time_servers.as_slice()),
            [&self.kubelet, &self.registries, &self.storage, &self.kernel],
        );
        if self.pods_per_shim > 1 {
            config["runtime"] = json!({"podsPerShim": self.pods_per_shim});
        }
        if let Some((network, addresses)) = &self.network {
            config["network"] = network.clone();
            config["network"]["podNetwork"] = self.pod_network.into();
            config["node"]["addresses"] = addresses.clone();
        }
        config
    }

    /// Switches it on. Without a token the node needs the identity on its disk.
    ///
    /// # Errors
    /// If QEMU does not start.
    pub fn boot(&mut self, token: Option<&Token>) -> Result<()> {
        let config = self.manufacturer.is_none().then(|| self.configuration(token));
        self.boot_with(config.as_ref())
    }

    /// Switches it on with this NodeConfig. It may be one that joins no cluster.
    ///
    /// # Errors
    /// If QEMU does not start.
    pub fn boot_as(&mut self, config: &Value) -> Result<()> {
        self.boot_with(Some(config))
    }

    fn boot_with(&mut self, config: Option<&Value>) -> Result<()> {
        let disk = self.disk.as_deref();
        let keeps_last_words = self.keeps_last_words;
        let (clock, memory_mib) = (self.clock, self.memory_mib);
        let board = MachineHardware {
            uuid: &self.uuid,
            manufacturer: self.manufacturer,
            clock,
            disk,
            keeps_last_words,
            watchdog: self.has_watchdog,
            memory_mib,
            firmware: self.firmware,
        };
        let config = config.map(Value::to_string);
        self.vm = Some(self.lab.boot_plugged(&self.cable, board, config.as_deref())?);
        Ok(())
    }

    /// Cuts the power: unwritten data of the guest is lost, the disk stays.
    pub fn cut_power(&mut self) {
        self.vm = None;
    }

    /// Runs `act` while the agent is dead and systemd has not restarted it yet, so that the agent misses the change.
    ///
    /// # Errors
    /// The shell's, or those of `act`.
    pub fn while_agent_is_dead(&mut self, act: impl FnOnce() -> Result<()>) -> Result<()> {
        // Stopped and killed, so that it has no last moment.
        self.vm()?.shell()?.must("systemctl kill -s STOP kubelet")?;
        act()?;
        self.vm()?.shell()?.must("systemctl kill -s KILL kubelet").map(drop)
    }

    /// Waits until it has switched itself off.
    ///
    /// # Errors
    /// If it does not, or is off already.
    pub fn await_off(&mut self, limit_s: u64) -> Result<()> {
        self.vm.take().with_context(|| format!("{} is off", self.name))?.ended(limit_s)
    }

    /// The running machine.
    ///
    /// # Errors
    /// If it is off.
    pub fn vm(&mut self) -> Result<&mut Vm> {
        self.vm.as_mut().with_context(|| format!("{} is off", self.name))
    }

    /// Waits until its network card has an address, and returns the card's name ([`Vm::await_network`]).
    ///
    /// # Errors
    /// If it is off, or its card has none in time.
    pub fn await_network(&mut self) -> Result<String> {
        self.vm()?.await_network()
    }

    /// Its place in the network.
    #[must_use]
    pub fn wire(&self) -> Wire {
        self.wire
    }
}

/// The configuration for the first boot. Pure.
fn node_config(
    name: &str,
    wire: Wire,
    ca_hash: &str,
    token: Option<&Token>,
    (name_servers, pod_network, time_servers): (&[String], &str, &[String]),
    [kubelet, registries, storage, kernel]: [&Value; 4],
) -> Value {
    let mut join = json!({"server": server_url(), "caCertHashes": [ca_hash]});
    if let Some(token) = token {
        join["token"] = token.render().into();
    }
    let addresses = [format!("{}/24", wire.address())];
    let interface = json!({"addresses": addresses, "gateway": ADDRESS, "dns": name_servers});
    let (label, value) = LABEL;
    json!({
        "apiVersion": "orlop/v1alpha1",
        "kind": "NodeConfig",
        "node": {"name": name},
        // The pods' range is the cluster's to say: see `give_range`.
        "network": {"interfaces": [interface], "podNetwork": pod_network},
        "labels": {label: value},
        "time": {"servers": time_servers},
        "join": join,
        "kubelet": kubelet,
        "registries": registries,
        "storage": storage,
        "kernel": kernel,
    })
}

#[cfg(test)]
mod tests {
    use orlop_config::node::{Source, load};

    use super::*;

    #[test]
    fn the_configuration_is_taken_whole() {
        let token = Token { id: "abcdef".into(), secret: "0123456789abcdef".into() };
        let (wire, hash) = (Wire::new(3).unwrap(), format!("sha256:{}", "ab".repeat(32)));
        for token in [Some(&token), None] {
            let kernel = json!({"modules": ["br_netfilter"]});
            let parts = [&json!({"maxPods": 7}), &json!({}), &json!({"projectQuotas": true}), &kernel];
            let name_servers = [ADDRESS.to_owned()];
            let network = (name_servers.as_slice(), "cluster", name_servers.as_slice());
            let text = node_config("vm", wire, &hash, token, network, parts).to_string();
            let source = Source { name: "smbios".into(), origin: "SMBIOS".into(), text };
            let effective = load(&[source], &[]);
            assert_eq!(effective.problems, []);
            assert_eq!((effective.config.node.name.as_str(), effective.kubelet.max_pods), ("vm", 7));
            assert!(effective.config.storage.project_quotas);
            assert_eq!(effective.config.kernel.modules, ["br_netfilter"]);
            assert_eq!(effective.config.network.interfaces[0].dns, [ADDRESS]);
            assert_eq!(effective.config.time.servers, [ADDRESS]);
            assert_eq!(json!(effective.config.network.pod_network), "cluster");
            let join = effective.config.join.unwrap();
            assert_eq!((join.server, join.token.is_some()), (server_url(), token.is_some()));
        }
    }
}
