//! Cables between a cluster's bridge and its nodes, and the routes to their pods.
//!
//! In: the first processes of two network namespaces. Out: a veth pair (node) or a TAP device (VM). The plane
//! forwards between pod subnets, so a node needs one route only. Nothing is made in the host's own namespace, so
//! nothing is left there.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::flags::{ADDRESS, IPV6_ADDRESS};

/// Range of the pods' subnets.
pub const POD_RANGE: &str = "10.88.0.0/16";
/// Range of the pods' subnets of IPv6.
pub const IPV6_POD_RANGE: &str = "fd00:88::/32";
/// Name of the bridge in the plane.
pub const BRIDGE: &str = "cluster0";

/// A node's addresses and devices, all derived from its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    number: u8,
}

impl Wire {
    /// The wire of the `number`th node (from 0; up to 99).
    ///
    /// # Errors
    /// If the number is too large.
    pub fn new(number: u8) -> Result<Wire> {
        anyhow::ensure!(number < 100, "a cluster has at most 100 nodes");
        Ok(Wire { number })
    }

    /// The node's address.
    #[must_use]
    pub fn address(self) -> String {
        format!("172.30.0.{}", 10 + self.number)
    }

    /// Its pods' subnet.
    #[must_use]
    pub fn pods(self) -> String {
        format!("10.88.{}.0/24", 10 + self.number)
    }

    /// The node's address of IPv6, in a cluster with both families.
    #[must_use]
    pub fn ipv6_address(self) -> String {
        format!("fd00:30::{:x}", 16 + u16::from(self.number))
    }

    /// Its pods' subnet of IPv6.
    #[must_use]
    pub fn ipv6_pods(self) -> String {
        format!("fd00:88:{:x}::/64", 16 + u16::from(self.number))
    }

    fn bridge_end(self) -> String {
        format!("node{}", self.number)
    }

    /// Name of the TAP device of a VM.
    #[must_use]
    pub fn tap(self) -> String {
        format!("tap{}", self.number)
    }

    /// Hardware address of a VM's network card.
    #[must_use]
    pub fn mac(self) -> String {
        // 52:54:00 is QEMU's own prefix.
        format!("52:54:00:1e:00:{:02x}", self.number)
    }

    /// System UUID of a VM. Its bytes differ, so that a wrong order shows.
    #[must_use]
    pub fn uuid(self) -> String {
        format!("0a1b2c3d-4e5f-4789-8abc-0102030405{:02x}", self.number)
    }

    /// Connects a native node: its `node0` to the bridge, a default route, and its pods' subnet known to the plane.
    ///
    /// # Errors
    /// Which command failed.
    pub fn plug(self, plane: i32, node: i32) -> Result<()> {
        let (end, address, pid) = (self.bridge_end(), self.address(), node.to_string());
        ip(plane, &["link", "add", &end, "type", "veth", "peer", "name", "node0", "netns", &pid])?;
        ip(plane, &["link", "set", &end, "master", BRIDGE, "up"])?;
        ip(node, &["addr", "add", &format!("{address}/24"), "dev", "node0"])?;
        ip(node, &["link", "set", "node0", "up"])?;
        ip(node, &["route", "add", "default", "via", ADDRESS])?;
        ip(plane, &["route", "add", &self.pods(), "via", &address])
    }

    /// Gives a connected native node its address of IPv6, a default route, and makes its pods' subnet known to the plane.
    ///
    /// # Errors
    /// Which command failed.
    pub fn plug_ipv6(self, plane: i32, node: i32) -> Result<()> {
        let (address, pods) = (self.ipv6_address(), self.ipv6_pods());
        // `nodad`: it is good at once.
        ip(node, &["-6", "addr", "add", &format!("{address}/64"), "dev", "node0", "nodad"])?;
        ip(node, &["-6", "route", "add", "default", "via", IPV6_ADDRESS])?;
        ip(plane, &["-6", "route", "add", &pods, "via", &address])
    }

    /// Cuts the node off and connects it again.
    ///
    /// # Errors
    /// If the command fails.
    pub fn set_up(self, plane: i32, is_up: bool) -> Result<()> {
        ip(plane, &["link", "set", &self.bridge_end(), if is_up { "up" } else { "down" }])
    }

    /// Gives a native node another address on its wire and removes the old one, as a network does that renumbers its
    /// machines.
    ///
    /// # Errors
    /// The command that failed.
    pub fn renumber(self, plane: i32, node: i32, address: &str) -> Result<()> {
        ip(node, &["addr", "add", &format!("{address}/24"), "dev", "node0"])?;
        // The new one is the second of its subnet, and would be removed with the first.
        ip(node, &["addr", "del", &format!("{}/24", self.address()), "dev", "node0"])?;
        ip(node, &["addr", "replace", &format!("{address}/24"), "dev", "node0"])?;
        ip(node, &["route", "replace", "default", "via", ADDRESS])?;
        ip(plane, &["route", "replace", &self.pods(), "via", address])
    }

    /// Ends or begins the plane's part in the traffic between pods: without its route only an overlay of the nodes leads
    /// to the node's pods.
    ///
    /// # Errors
    /// If the command fails.
    pub fn route_pods(self, plane: i32, is_routed: bool) -> Result<()> {
        let verb = if is_routed { "add" } else { "del" };
        ip(plane, &["route", verb, &self.pods(), "via", &self.address()])
    }

    /// Makes a TAP device on the bridge for a VM, whose QEMU must then be started in the plane's namespace.
    ///
    /// # Errors
    /// The command that failed.
    pub fn make_tap(self, plane: i32) -> Result<()> {
        let tap = self.tap();
        ip(plane, &["tuntap", "add", "dev", &tap, "mode", "tap"])?;
        ip(plane, &["link", "set", &tap, "master", BRIDGE, "up"])?;
        ip(plane, &["route", "add", &self.pods(), "via", &self.address()])
    }
}

/// Removes a link in the network namespace of process `pid`.
///
/// # Errors
/// If there is none of this name.
pub fn remove_link(pid: i32, name: &str) -> Result<()> {
    ip(pid, &["link", "delete", name])
}

/// True if the network namespace of process `pid` has a link of this name.
///
/// # Errors
/// If the links cannot be listed.
pub fn has_link(pid: i32, name: &str) -> Result<bool> {
    let output = Command::new("nsenter")
        .args(["--target", &pid.to_string(), "--net", "ip", "-o", "link", "show"])
        .output()
        .context("run nsenter (util-linux)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "ip link show: {}: {}", output.status, said.trim());
    Ok(names_link(&String::from_utf8_lossy(&output.stdout), name))
}

/// True if `ip -o link show` has this link; the name of one of a pair is followed by that of its peer. Pure.
fn names_link(links: &str, name: &str) -> bool {
    let mut names = links.lines().filter_map(|line| line.split(": ").nth(1));
    names.any(|found| found.split('@').next() == Some(name))
}

/// Gives the network namespace of process `pid` an address of its own, on its loopback.
///
/// # Errors
/// If it has it already.
pub fn add_address(pid: i32, address: &str) -> Result<()> {
    ip(pid, &["address", "add", &format!("{address}/32"), "dev", "lo"])
}

/// Fails unless the host with address `ip` answers a process in `pid`'s network namespace. The port needs no listener:
/// a running host refuses the connection by itself.
///
/// # Errors
/// If there is no answer within `limit`.
pub fn reach(pid: i32, ip: IpAddr, limit: Duration) -> Result<()> {
    // A network namespace belongs to a thread, so the connection is made in a thread of its own.
    let go = move || -> Result<()> {
        enter(pid)?;
        knock((ip, DISCARD).into(), limit)
    };
    std::thread::spawn(go).join().unwrap_or_else(|_| bail!("the knocking thread died"))
}

/// Moves the calling thread into the network namespace of process `pid`.
pub(super) fn enter(pid: i32) -> Result<()> {
    let namespace = File::open(format!("/proc/{pid}/ns/net")).context("open a network namespace")?;
    nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).context("enter a network namespace")
}

fn knock(at: SocketAddr, limit: Duration) -> Result<()> {
    match TcpStream::connect_timeout(&at, limit) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(e) => Err(e).with_context(|| format!("{} does not answer", at.ip())),
    }
}

/// A port without a listener.
const DISCARD: u16 = 9;

/// `ip` in another network namespace, in the host's process namespace: numbers of processes are the host's.
fn ip(pid: i32, args: &[&str]) -> Result<()> {
    let output = Command::new("nsenter")
        .args(["--target", &pid.to_string(), "--net", "ip"])
        .args(args)
        .output()
        .context("run nsenter (util-linux)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "ip {}: {}: {}", args.join(" "), output.status, said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_nothing() {
        let (a, b) = (Wire::new(0).unwrap(), Wire::new(1).unwrap());
        assert_eq!(a.address(), "172.30.0.10");
        assert_eq!(b.pods(), "10.88.11.0/24");
        assert_eq!((a.ipv6_address(), b.ipv6_pods()), ("fd00:30::10".into(), "fd00:88:11::/64".into()));
        assert!(Wire::new(100).is_err());
        assert_ne!((a.mac(), a.uuid(), a.tap()), (b.mac(), b.uuid(), b.tap()));
        assert!(a.mac().len() == 17 && a.uuid().len() == 36);
    }

    #[test]
    fn a_link_is_found_by_its_whole_name() {
        let links = "1: lo: <LOOPBACK,UP> mtu 65536\n2: node0@if9: <BROADCAST,UP> mtu 1500\n3: cni0: <BROADCAST> mtu 1450\n";
        for (name, is_there) in [("cni0", true), ("node0", true), ("cni", false), ("if9", false)] {
            assert_eq!(names_link(links, name), is_there, "{name}");
        }
    }

    #[test]
    fn a_refusal_is_an_answer() {
        let soon = Duration::from_millis(300);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = socket.local_addr().unwrap();
        knock(open, soon).unwrap();
        // Bound, and never listening: a dropped listener listens on in each child that another test is just starting.
        let bound = tokio::net::TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        knock(bound.local_addr().unwrap(), soon).unwrap();
        // No host has the broadcast address.
        let error = knock("255.255.255.255:9".parse().unwrap(), soon).unwrap_err();
        assert!(error.to_string().contains("255.255.255.255 does not answer"), "{error}");
    }
}
