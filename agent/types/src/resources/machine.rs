//! Facts of the machine: identifiers, kernel, network.

use std::net::IpAddr;

use crate::resources::node_allocatable::MachineAmounts;

/// Identity and amounts of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// /etc/machine-id.
    pub machine_id: String,
    /// DMI product UUID; the machine id where there is none.
    pub system_uuid: String,
    /// /proc/sys/kernel/random/boot_id.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel_version: String,
    /// `PRETTY_NAME` of os-release.
    pub os_image: String,
    /// As Go spells it: `amd64`, `arm64`.
    pub architecture: String,
    /// Swap, bytes; 0 without.
    pub swap_bytes: u64,
    /// Amounts of resources.
    pub amounts: MachineAmounts,
}

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface.
    pub interface: String,
    /// The IP address.
    pub ip: IpAddr,
}

/// The host's network, as far as the node's address depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNetwork {
    /// In the kernel's order, loopback included.
    pub addresses: Vec<InterfaceAddress>,
    /// Interfaces of IPv4 default routes, lowest metric first.
    pub default_v4: Vec<String>,
    /// Interfaces of IPv6 default routes, lowest metric first.
    pub default_v6: Vec<String>,
    /// Addresses to which the node's name resolves.
    pub resolved: Vec<IpAddr>,
}
