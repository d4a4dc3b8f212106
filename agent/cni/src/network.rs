//! The kernel's side of a container's network: bridge, pair of interfaces, addresses, routes, sysctls.
//!
//! In: what is wanted. Out: requests, one after the other, over a socket of the node's namespace and one of the
//! container's. Invariants: what is there already is taken as it is or refused with a reason; only the thread that asks
//! changes its namespace, and it comes back.

use std::fs::{self, File};
use std::io::Read as _;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use orlop_netlink::address::{self, Address};
use orlop_netlink::link::{self, Link, Mac, Veth};
use orlop_netlink::wire::Message;
use orlop_netlink::{NetlinkError, Socket, nft};

use crate::failure::Failure;
use crate::ipam::RangeSet;

/// This thread's own namespace.
const OWN: &str = "/proc/thread-self/ns/net";
/// How long a port may take until it carries packets, as the reference plugin waits.
const PORT_TIMEOUT: Duration = Duration::from_millis(2550);
/// How long duplicate address detection may take, as the reference plugin waits.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// The container's.
    ///
    /// # Errors
    /// The path does not open.
    pub fn open(path: &str) -> Result<Namespace, Failure> {
        let file = File::open(path).map_err(|source| Failure::Namespace { path: path.to_owned(), source })?;
        Ok(Namespace { file })
    }

    /// Whether it is this thread's own.
    ///
    /// # Errors
    /// /proc does not answer.
    pub fn is_own(&self) -> Result<bool, Failure> {
        let own = File::open(OWN).and_then(|own| own.metadata()).map_err(no_proc)?;
        let this = self.file.metadata().map_err(no_proc)?;
        Ok((own.dev(), own.ino()) == (this.dev(), this.ino()))
    }

    /// Runs it inside, and comes back.
    ///
    /// # Errors
    /// The namespace cannot be entered or left (`Ok` of neither), or what `work` says.
    pub fn inside<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let own = File::open(OWN).map_err(no_proc)?;
        let enter = |file: &File, action| {
            setns(file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|source| Failure::System { action, source })
        };
        enter(&self.file, "enter the container's network namespace")?;
        let outcome = work();
        enter(&own, "come back to the node's network namespace")?;
        outcome
    }
}

fn no_proc(source: std::io::Error) -> Failure {
    Failure::File { action: "open", path: OWN.into(), source }
}

/// The requests of one namespace.
#[derive(Debug)]
pub struct Links(Socket);

impl Links {
    /// Of the namespace that this thread is in now.
    ///
    /// # Errors
    /// The kernel refuses a socket.
    pub fn here() -> Result<Links, Failure> {
        Socket::route().map(Links).map_err(kernel("open", "rtnetlink"))
    }

    /// The interface of this name, if there is one.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn find(&mut self, name: &str) -> Result<Option<Link>, Failure> {
        match self.0.ask(link::get(name), link::NEWLINK) {
            Ok(bodies) => Ok(bodies.first().and_then(|body| link::parse(body))),
            Err(NetlinkError::Refused(Errno::ENODEV)) => Ok(None),
            Err(e) => Err(kernel("look for interface", name)(e)),
        }
    }

    /// The interface of this name.
    ///
    /// # Errors
    /// There is none, or the kernel does not say.
    pub fn get(&mut self, name: &str) -> Result<Link, Failure> {
        self.find(name)?.ok_or_else(|| Failure::State(format!("interface {name} is not there")))
    }

    /// Asks for a change.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn change(&mut self, request: Message, action: &'static str, object: &str) -> Result<(), Failure> {
        self.0.request(request).map_err(kernel(action, object))
    }

    /// Makes something, if it is not there.
    fn ensure(&mut self, request: Message, action: &'static str, object: &str) -> Result<bool, Failure> {
        match self.0.request(request) {
            Err(NetlinkError::Refused(Errno::EEXIST)) => Ok(false),
            other => other.map(|()| true).map_err(kernel(action, object)),
        }
    }

    /// Removes the interface; false if there is none.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn remove(&mut self, name: &str) -> Result<bool, Failure> {
        match self.0.request(link::delete(name)) {
            Err(NetlinkError::Refused(Errno::ENODEV)) => Ok(false),
            other => other.map(|()| true).map_err(kernel("remove interface", name)),
        }
    }

    /// The addresses of an interface.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn addresses(&mut self, index: u32, family: u8) -> Result<Vec<Address>, Failure> {
        let bodies = self.0.ask(address::dump(family), address::NEWADDR);
        let bodies = bodies.map_err(kernel("list", "addresses"))?;
        Ok(bodies.iter().filter_map(|body| address::parse(body)).filter(|a| a.index == index).collect())
    }

    /// The routes of a family.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn routes(&mut self, family: u8) -> Result<Vec<orlop_netlink::route::Route>, Failure> {
        use orlop_netlink::route;
        let bodies = self.0.ask(route::dump(family), route::NEWROUTE).map_err(kernel("list", "routes"))?;
        Ok(bodies.iter().filter_map(|body| route::parse(body)).collect())
    }

    /// The bridge, made if it is missing, and up.
    ///
    /// # Errors
    /// Something else has its name, or the kernel refuses it.
    pub fn bridge(&mut self, name: &str, mtu: Option<u32>, promiscuous: bool) -> Result<Link, Failure> {
        let found = match self.find(name)? {
            Some(found) => found,
            None => {
                self.ensure(link::create_bridge(name, mtu, random_mac()?), "make bridge", name)?;
                self.get(name)?
            }
        };
        if found.kind != "bridge" {
            return Err(Failure::State(format!("interface {name} is there and is no bridge")));
        }
        // Routes of this interface are the plugin's business.
        sysctl(&format!("ipv6/conf/{name}/accept_ra"), "0");
        if !found.up {
            self.change(link::set_up(found.index), "set up bridge", name)?;
        }
        if promiscuous && !found.promiscuous {
            self.change(link::set_promiscuous(found.index), "make promiscuous", name)?;
        }
        Ok(found)
    }

    /// Gives the bridge a gateway's address. Another IPv4 address, or another of the same IPv6 network, is in the way:
    /// with `force` it is taken away.
    ///
    /// # Errors
    /// Another address is in the way, or the kernel refuses it.
    pub fn gateway(&mut self, bridge: &Link, ip: IpAddr, prefix: u8, force: bool) -> Result<(), Failure> {
        for other in self.addresses(bridge.index, address::family(ip))? {
            if (other.ip, other.prefix) == (ip, prefix) {
                return Ok(());
            }
            if !in_the_way(&other, ip, prefix) {
                continue;
            }
            let shown = format!("{}/{} of {}", other.ip, other.prefix, bridge.name);
            if !force {
                let why =
                    format!("{shown} is in the way of {ip}/{prefix}: remove the bridge, or set forceAddress");
                return Err(Failure::State(why));
            }
            self.change(address::delete(bridge.index, other.ip, other.prefix), "remove address", &shown)?;
        }
        let shown = format!("{ip}/{prefix} to {}", bridge.name);
        if self.ensure(address::add(bridge.index, ip, prefix), "add address", &shown)? {
            // Its own address, given by hand: it no longer changes with the bridge's ports.
            if let Some(mac) = bridge.mac {
                self.change(link::set_mac(bridge.index, mac), "keep the Ethernet address of", &bridge.name)?;
            }
        }
        Ok(())
    }

    /// Makes the pair; false if one of its names is taken.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn pair(
        &mut self,
        name: &str,
        bridge: &Link,
        mtu: Option<u32>,
        peer: &str,
        namespace: &Namespace,
        mac: Option<Mac>,
    ) -> Result<bool, Failure> {
        let namespace = namespace.file.as_raw_fd();
        let veth = Veth { name, master: bridge.index, mtu, peer, namespace, mac };
        self.ensure(link::create_veth(&veth), "make the pair of interfaces", &format!("{name} and {peer}"))
    }

    /// Waits until the port carries packets; `changes` was opened before it was made.
    ///
    /// # Errors
    /// It never does, or the kernel does not say.
    pub fn running(&mut self, name: &str, changes: &mut Socket) -> Result<Link, Failure> {
        let end = Instant::now() + PORT_TIMEOUT;
        loop {
            let port = self.get(name)?;
            if port.running {
                return Ok(port);
            }
            if !wait(changes, end)? {
                return Err(Failure::State(format!("port {name} of the bridge carries no packets")));
            }
        }
    }

    /// Waits until no IPv6 address of the interface is being tried any more; `changes` was opened before.
    ///
    /// # Errors
    /// One is in use, or is not done while the interface runs, or the kernel does not say.
    pub fn settled(&mut self, inside: &Link, changes: &mut Socket) -> Result<(), Failure> {
        let end = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let all = self.addresses(inside.index, 10)?;
            if let Some(taken) = all.iter().find(|a| a.duplicate) {
                return Err(Failure::State(format!("{} of {} is somebody else's", taken.ip, inside.name)));
            }
            if !all.iter().any(|a| a.tentative) {
                return Ok(());
            }
            if !wait(changes, end)? {
                let why = format!("an address of {} is still being tried", inside.name);
                return if self.get(&inside.name)?.running { Err(Failure::State(why)) } else { Ok(()) };
            }
        }
    }
}

/// Hears of changes of links, or of IPv6 addresses, in the namespace that this thread is in now.
///
/// # Errors
/// The kernel refuses a socket.
pub fn changes(addresses: bool) -> Result<Socket, Failure> {
    let socket = if addresses { Socket::address_changes() } else { Socket::link_changes() };
    socket.map_err(kernel("listen to", "rtnetlink"))
}

/// Until something changed; false if it is `end`.
fn wait(changes: &mut Socket, end: Instant) -> Result<bool, Failure> {
    let left = end.saturating_duration_since(Instant::now()).as_millis();
    let heard = changes.changed(u16::try_from(left).unwrap_or(u16::MAX));
    heard.map_err(kernel("listen to", "rtnetlink"))
}

/// Writes a network setting of the namespace that this thread is in; one that the kernel does not have is passed over.
pub fn sysctl(name: &str, value: &str) {
    let _ = fs::write(format!("/proc/sys/net/{name}"), value);
}

/// The same, where the network does not work without it. A value that is right is not written: the kernel acts upon
/// each writing of some.
///
/// # Errors
/// The kernel refuses it.
pub fn must_sysctl(name: &str, value: &str) -> Result<(), Failure> {
    let path = format!("/proc/sys/net/{name}");
    if fs::read_to_string(&path).is_ok_and(|now| now.trim() == value) {
        return Ok(());
    }
    fs::write(&path, value).map_err(|source| Failure::File { action: "write", path: path.into(), source })
}

/// Makes the rules by which packets of the network's subnets leave under the node's address: a table of the network's,
/// one rule for each subnet instead of the reference plugin's one for each container.
///
/// # Errors
/// The kernel refuses them.
pub fn masquerade(network: &str, ranges: &[RangeSet]) -> Result<(), Failure> {
    let networks: Vec<nft::Network> =
        ranges.iter().flatten().map(|range| (range.network, range.prefix)).collect();
    let table = format!("cni_masquerade_{network}");
    let sent = Socket::netfilter().and_then(|mut s| s.transaction(nft::masquerade(&table, &networks)));
    sent.map_err(kernel("make nftables' rules in table", &table))
}

fn in_the_way(other: &Address, ip: IpAddr, prefix: u8) -> bool {
    use crate::range::first_host;
    let same = |bits: u8| first_host(other.ip, bits) == first_host(ip, bits);
    ip.is_ipv4() || (!unicast_link_local(other.ip) && (same(other.prefix) || same(prefix)))
}

fn unicast_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// An address of the kind that everybody may make up.
fn random_mac() -> Result<Mac, Failure> {
    let mut mac = Mac::default();
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut mac));
    read.map_err(|source| Failure::File { action: "read", path: "/dev/urandom".into(), source })?;
    mac[0] = mac[0] & 0xfc | 0x02;
    Ok(mac)
}

fn kernel(action: &'static str, object: &str) -> impl Fn(NetlinkError) -> Failure {
    move |source| Failure::Kernel { action, object: object.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_of_a_gateway() {
        let of = |ip: &str, prefix| Address {
            index: 1,
            ip: ip.parse().expect("an address"),
            prefix,
            tentative: false,
            duplicate: false,
        };
        for (other, bits, ip, prefix, want) in [
            ("10.9.0.1", 24, "10.1.0.1", 24, true),
            ("fd00::9", 64, "fd00::1", 64, true),
            ("fd00::9", 48, "fd00::1", 64, true),
            ("fd01::9", 64, "fd00::1", 64, false),
            ("fe80::1", 64, "fd00::1", 64, false),
        ] {
            let got = in_the_way(&of(other, bits), ip.parse().expect("an address"), prefix);
            assert_eq!(got, want, "{other}/{bits} {ip}/{prefix}");
        }
    }
}
