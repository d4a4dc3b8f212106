//! Cables between a cluster's bridge and its nodes, and the routes to their pods.
//!
//! What comes in: the first processes of two network namespaces. What goes out: a veth pair (node) or a TAP device
//! (VM). The plane forwards between pod subnets, so a node needs one route only. Nothing is made in the host's own
//! namespace, so nothing is left there.

use std::process::Command;

use anyhow::{Context, Result};

use super::flags::ADDRESS;

/// Name of the bridge in the plane.
pub const BRIDGE: &str = "cluster0";

/// What a node has on the network; everything follows from its number.
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

    fn bridge_end(self) -> String {
        format!("node{}", self.number)
    }

    /// Name of the TAP device of a VM.
    #[must_use]
    pub fn tap(self) -> String {
        format!("tap{}", self.number)
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

    /// Cuts the node off and connects it again.
    ///
    /// # Errors
    /// If the command fails.
    pub fn set_up(self, plane: i32, is_up: bool) -> Result<()> {
        ip(plane, &["link", "set", &self.bridge_end(), if is_up { "up" } else { "down" }])
    }

    /// Makes a TAP device on the bridge for a VM, whose QEMU must then be started in the plane's namespace.
    ///
    /// # Errors
    /// Which command failed.
    pub fn make_tap(self, plane: i32) -> Result<()> {
        let tap = self.tap();
        ip(plane, &["tuntap", "add", "dev", &tap, "mode", "tap"])?;
        ip(plane, &["link", "set", &tap, "master", BRIDGE, "up"])?;
        ip(plane, &["route", "add", &self.pods(), "via", &self.address()])
    }
}

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
        assert!(Wire::new(100).is_err());
    }
}
