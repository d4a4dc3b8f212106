//! Nodes whose configuration is with their platform's metadata service. The dialects of the platforms are proved without VMs
//! (`cargo test -p agent-provision`); here the whole way is: SMBIOS, DHCP, the unit, the agent.

pub mod aws;
pub mod copy;
pub mod late;

use anyhow::{Result, ensure};
use orlop_config::platform::PlatformName;
use orlop_harness::cluster::dhcp::DhcpServer;
use orlop_harness::cluster::metadata::{FakeMetadata, MetadataServer};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::VmNode;

/// Manufacturer that the firmware of AWS' machines names.
const MANUFACTURER: &str = "Amazon EC2";

/// A machine of AWS with user data that have it join the cluster; nothing is booted.
fn machine(cluster: &Cluster, vm: &mut VmNode) -> Result<(DhcpServer, MetadataServer)> {
    vm.belong_to(MANUFACTURER);
    let user_data = vm.configuration(Some(cluster.token())).to_string();
    let dhcp = DhcpServer::start(cluster.pid()?, &[vm.wire()])?;
    let fake = FakeMetadata::new(PlatformName::Aws, Some(&user_data));
    Ok((dhcp, MetadataServer::start(cluster.pid()?, fake)?))
}

/// Milliseconds from the applied user data to the agent's start; the agent waited for them.
fn waited(vm: &mut VmNode) -> Result<u64> {
    let applied = vm.vm()?.await_phase("provision.configured", 0)?;
    let started = vm.vm()?.await_phase("agent.started", 0)?;
    ensure!(applied.ok, "the user data were not applied: {}", applied.detail);
    ensure!(started.at_ms >= applied.at_ms, "the agent started before the user data were applied");
    Ok(started.at_ms - applied.at_ms)
}
