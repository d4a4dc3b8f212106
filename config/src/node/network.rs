//! `network` of NodeConfig: the machine's interfaces, and the bonds, VLANs and bridges over them.
//!
//! Interfaces of every kind have the same keys of addresses ([`Addressing`]). `members` and `parent` name other entries:
//! `links` follows them. See docs/reference/network.md.

use crate::field::{config_enum, config_struct};

/// Defines an interface with its own keys, and those of addresses behind them.
macro_rules! addressed_struct {
    ($(#[$meta:meta])* pub struct $name:ident { $($own:tt)* }) => {
        config_struct! {
            $(#[$meta])*
            pub struct $name {
                $($own)*
                /// Ask DHCP; none: yes, unless it has addresses, is a member, or is there for VLANs alone.
                dhcp: Option<bool> = None, "dhcp";
                /// Take addresses and routes of IPv6 router advertisements; none: yes, unless it is a member, or is there for VLANs alone.
                accept_ra: Option<bool> = None, "acceptRA";
                /// Addresses with prefix length.
                addresses: Vec<String> = Vec::new(), "addresses";
                /// Default route.
                gateway: Option<String> = None, "gateway";
                /// Default route of the other address family.
                gateway6: Option<String> = None, "gateway6";
                /// Static routes.
                routes: Vec<Route> = Vec::new(), "routes";
                /// DNS servers.
                dns: Vec<String> = Vec::new(), "dns";
                /// DNS search domains; `.` alone: none, and none of DHCP's.
                search: Vec<String> = Vec::new(), "search";
                /// Largest packet, bytes.
                mtu: Option<i32> = None, "mtu", range(576, 65535);
            }
        }

        impl $name {
            /// Its keys of addresses.
            pub(super) fn addressing(&self) -> Addressing<'_> {
                Addressing {
                    dhcp: self.dhcp,
                    accept_ra: self.accept_ra,
                    addresses: &self.addresses,
                    gateway: self.gateway.as_deref(),
                    gateway6: self.gateway6.as_deref(),
                    routes: &self.routes,
                    dns: &self.dns,
                    search: &self.search,
                    mtu: self.mtu,
                }
            }
        }
    };
}

/// The keys of addresses, which interfaces of every kind have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addressing<'a> {
    pub(super) dhcp: Option<bool>,
    pub(super) accept_ra: Option<bool>,
    pub(super) addresses: &'a [String],
    pub(super) gateway: Option<&'a str>,
    pub(super) gateway6: Option<&'a str>,
    pub(super) routes: &'a [Route],
    pub(super) dns: &'a [String],
    pub(super) search: &'a [String],
    /// Bytes.
    pub(super) mtu: Option<i32>,
}

impl<'a> Addressing<'a> {
    /// The configured default gateways.
    pub(super) fn gateways(self) -> impl Iterator<Item = &'a str> {
        self.gateway.into_iter().chain(self.gateway6)
    }
}

config_struct! {
    /// Addresses and routes.
    pub struct Network {
        /// Interfaces in order of matching; the first whose name matches counts.
        interfaces: Vec<Interface> = vec![Interface::default()], "interfaces";
        /// Bonds of interfaces.
        bonds: Vec<Bond> = Vec::new(), "bonds";
        /// VLANs on other interfaces.
        vlans: Vec<Vlan> = Vec::new(), "vlans";
        /// Bridges over other interfaces.
        bridges: Vec<Bridge> = Vec::new(), "bridges";
        /// Who brings the pod network once the node has joined a cluster.
        pod_network: PodNetwork = PodNetwork::Cluster, "podNetwork";
    }
}

config_enum! {
    /// Who brings the pod network of a node that joins a cluster. A standalone node always has a bridge.
    pub enum PodNetwork {
        /// An add-on of the cluster, which puts its CNI configuration on the node.
        Cluster = "cluster",
        /// The node: a bridge with the ranges of its Node object, which the network outside must route.
        Bridge = "bridge",
    }
}

addressed_struct! {
    /// One interface, or all whose name matches.
    pub struct Interface {
        /// Names, or patterns as shells have them, spaces between; not with `macAddress`.
        name: String = "en* eth*".to_owned(), "name";
        /// MAC address, instead of a name.
        mac_address: Option<String> = None, "macAddress";
        /// Names or patterns of drivers, spaces between, in addition to name or MAC address.
        driver: Option<String> = None, "driver";
        /// Places on buses (udev's ID_PATH) or patterns, spaces between, in addition to name or MAC address.
        path: Option<String> = None, "path";
        /// Its word in `members` and `parent`; none: its name, if that is no pattern.
        id: Option<String> = None, "id";
    }
}

addressed_struct! {
    /// Several interfaces that are one.
    pub struct Bond {
        /// Name of the interface.
        name: String = String::new(), "name", required;
        /// Entries of `network.interfaces` by their `id`, or by their name.
        members: Vec<String> = Vec::new(), "members", required;
        /// How packets are spread.
        mode: BondMode = BondMode::ActiveBackup, "mode", required;
        /// How often partners tell each other that they are there; only with 802.3ad; none: slow.
        lacp_rate: Option<LacpRate> = None, "lacpRate";
        /// How often the members' carriers are looked at, milliseconds.
        miimon: i32 = 100, "miimon", range(10, 60_000);
        /// What of a packet chooses its member; only with 802.3ad, balance-xor and balance-tlb; none: layer2.
        hash_policy: Option<HashPolicy> = None, "hashPolicy";
        /// The member that carries whenever it can; only with active-backup, balance-tlb and balance-alb.
        primary: Option<String> = None, "primary";
        /// MAC address; none: that of the first member with a known one, else made from the machine id and the name.
        mac_address: Option<String> = None, "macAddress";
    }
}

config_enum! {
    /// How a bond spreads packets (the kernel's names).
    pub enum BondMode {
        /// One member at a time; needs nothing of the switch.
        ActiveBackup = "active-backup",
        /// LACP; the switch has a group of the same ports.
        Lacp = "802.3ad",
        /// Packets in turns; the switch has a static group.
        BalanceRr = "balance-rr",
        /// By a hash; the switch has a static group.
        BalanceXor = "balance-xor",
        /// Each packet on each member.
        Broadcast = "broadcast",
        /// What is sent is spread by load; needs nothing of the switch.
        BalanceTlb = "balance-tlb",
        /// What is received, too; needs nothing of the switch.
        BalanceAlb = "balance-alb",
    }
}

config_enum! {
    /// How often LACP partners tell each other that they are there.
    pub enum LacpRate {
        /// Every 30 s.
        Slow = "slow",
        /// Every second.
        Fast = "fast",
    }
}

config_enum! {
    /// What of a packet chooses its member (the kernel's names).
    pub enum HashPolicy {
        /// MAC addresses.
        Layer2 = "layer2",
        /// MAC and IP addresses.
        Layer23 = "layer2+3",
        /// IP addresses and ports.
        Layer34 = "layer3+4",
        /// As layer2+3, of the packet inside of a tunnel's.
        Encap23 = "encap2+3",
        /// As layer3+4, of the packet inside of a tunnel's.
        Encap34 = "encap3+4",
    }
}

addressed_struct! {
    /// One VLAN (IEEE 802.1Q) on another interface.
    pub struct Vlan {
        /// Name of the interface.
        name: String = String::new(), "name", required;
        /// Number of the VLAN.
        id: i32 = 0, "id", required, range(1, 4094);
        /// The interface below, by its `id` or name.
        parent: String = String::new(), "parent", required;
    }
}

addressed_struct! {
    /// Several interfaces that are one network.
    pub struct Bridge {
        /// Name of the interface.
        name: String = String::new(), "name", required;
        /// Interfaces, bonds and VLANs by their `id` or name; none: a network of this machine alone.
        members: Vec<String> = Vec::new(), "members";
        /// Spanning Tree Protocol.
        stp: bool = false, "stp";
        /// MAC address; none: that of the first member with a known one, else made from the machine id and the name.
        mac_address: Option<String> = None, "macAddress";
    }
}

config_struct! {
    /// A static route.
    pub struct Route {
        /// Destination, an address with prefix length; `0.0.0.0/0` and `::/0` are default routes.
        to: String = String::new(), "to", required;
        /// Gateway, of the same family; none: the destination is on the link.
        via: Option<String> = None, "via";
        /// Of two routes to one destination the one with the lower metric counts; none: the interface's metric.
        metric: Option<u32> = None, "metric";
        /// The gateway is on the link, in spite of the addresses; none: if no address has it in its network.
        on_link: Option<bool> = None, "onLink";
    }
}
