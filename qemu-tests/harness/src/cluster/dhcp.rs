//! A small DHCP server on a cluster's bridge (RFC 2131), for VMs without an address in their configuration.
//!
//! In: packets of clients on port 67 of the control plane's network namespace. Out: for the hardware addresses that it knows, the
//! address of their wire, the bridge's network and the plane as gateway. It stops when it is dropped.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

use super::flags::ADDRESS;
use super::proxy::inside;
use super::wires::{BRIDGE, Wire};

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
/// Bytes before the options, the magic included.
const HEAD: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// The bridge's network has this prefix.
const MASK: [u8; 4] = [255, 255, 255, 0];
/// Lease, seconds.
const LEASE_S: u32 = 3600;
/// The thread looks this often whether it shall stop.
const LOOK: Duration = Duration::from_millis(200);

type HardwareAddress = [u8; 6];

/// A running server.
pub struct DhcpServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DhcpServer {
    /// Starts it in the network of process `pid`, for the VMs at these wires.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn start(pid: i32, wires: &[Wire]) -> Result<DhcpServer> {
        let leases = wires.iter().map(|wire| lease(*wire)).collect::<Result<BTreeMap<_, _>>>()?;
        let server: Ipv4Addr = ADDRESS.parse().context("the plane's address")?;
        // The socket stays in the network of the thread that makes it.
        let socket = inside(pid, async || -> Result<UdpSocket> {
            let socket =
                UdpSocket::bind((Ipv4Addr::UNSPECIFIED, SERVER_PORT)).context("bind the port of DHCP")?;
            setsockopt(&socket, sockopt::BindToDevice, &OsString::from(BRIDGE))
                .context("bind to the bridge")?;
            socket.set_broadcast(true).context("allow broadcasts")?;
            Ok(socket)
        })?;
        socket.set_read_timeout(Some(LOOK)).context("limit a read")?;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut packet = [0; 1500];
            while !seen.load(Ordering::Relaxed) {
                let Ok(length) = socket.recv(&mut packet) else { continue };
                if let Some(answer) = answer(&packet[..length], server, &leases) {
                    let everybody = SocketAddr::from((Ipv4Addr::BROADCAST, CLIENT_PORT));
                    // A client that has gone needs no answer.
                    let _ = socket.send_to(&answer, everybody);
                }
            }
        });
        Ok(DhcpServer { stop, thread: Some(thread) })
    }
}

impl Drop for DhcpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lease(wire: Wire) -> Result<(HardwareAddress, Ipv4Addr)> {
    let mac = wire.mac();
    let bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let bytes = bytes.collect::<Result<Vec<u8>, _>>().with_context(|| format!("read {mac}"))?;
    let mac: HardwareAddress = bytes.try_into().map_err(|_| anyhow::anyhow!("{mac} has not six bytes"))?;
    Ok((mac, wire.address().parse().context("a wire's address")?))
}

/// The answer to a client's packet; `None` for strangers and for what needs none. Pure.
fn answer(
    question: &[u8],
    server: Ipv4Addr,
    leases: &BTreeMap<HardwareAddress, Ipv4Addr>,
) -> Option<Vec<u8>> {
    let head = question.get(..HEAD)?;
    let mac: HardwareAddress = head[28..34].try_into().ok()?;
    if head[0] != 1 || head[236..] != MAGIC {
        return None;
    }
    let kind = match option(&question[HEAD..], 53)? {
        // Discover, offer; request, acknowledgement.
        [1] => 2,
        [3] => 5,
        _ => return None,
    };
    let address = leases.get(&mac)?;
    let mut answer = vec![0; HEAD];
    answer[..3].copy_from_slice(&[2, 1, 6]);
    // Transaction and flags; the client's hardware address.
    answer[4..8].copy_from_slice(&head[4..8]);
    answer[10..12].copy_from_slice(&head[10..12]);
    answer[16..20].copy_from_slice(&address.octets());
    answer[20..24].copy_from_slice(&server.octets());
    answer[28..34].copy_from_slice(&mac);
    answer[236..].copy_from_slice(&MAGIC);
    let (kind, server, lease) = ([kind], server.octets(), LEASE_S.to_be_bytes());
    let options: [(u8, &[u8]); 5] = [(53, &kind), (54, &server), (51, &lease), (1, &MASK), (3, &server)];
    for (code, value) in options {
        answer.extend([code, u8::try_from(value.len()).unwrap_or(0)]);
        answer.extend(value);
    }
    answer.push(255);
    Some(answer)
}

/// The value of an option.
fn option(mut options: &[u8], wanted: u8) -> Option<&[u8]> {
    loop {
        match options {
            [0, rest @ ..] => options = rest,
            [255, ..] | [] | [_] => return None,
            [code, length, rest @ ..] => {
                let value = rest.get(..usize::from(*length))?;
                if *code == wanted {
                    return Some(value);
                }
                options = &rest[value.len()..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(mac: HardwareAddress, kind: u8) -> Vec<u8> {
        let mut packet = vec![0; HEAD];
        packet[..3].copy_from_slice(&[1, 1, 6]);
        packet[4..8].copy_from_slice(&[1, 2, 3, 4]);
        packet[28..34].copy_from_slice(&mac);
        packet[236..].copy_from_slice(&MAGIC);
        packet.extend([0, 61, 2, 9, 9, 53, 1, kind, 255]);
        packet
    }

    #[test]
    fn a_known_client_gets_its_wires_address() {
        let wire = Wire::new(3).unwrap();
        let leases: BTreeMap<_, _> = [lease(wire).unwrap()].into();
        let mac = *leases.keys().next().unwrap();
        assert_eq!(mac, [0x52, 0x54, 0, 0x1e, 0, 3]);
        let server = Ipv4Addr::new(172, 30, 0, 1);
        for (asked, answered) in [(1, 2), (3, 5)] {
            let reply = answer(&packet(mac, asked), server, &leases).unwrap();
            assert_eq!((reply[0], &reply[4..8]), (2, &[1, 2, 3, 4][..]));
            assert_eq!(reply[16..20], [172, 30, 0, 13]);
            let options = &reply[HEAD..];
            assert_eq!(option(options, 53), Some(&[answered][..]));
            assert_eq!(option(options, 3), Some(&[172, 30, 0, 1][..]));
            assert_eq!(option(options, 6), None);
        }
        assert!(answer(&packet([1; 6], 1), server, &leases).is_none(), "a stranger");
        assert!(answer(&packet(mac, 7), server, &leases).is_none(), "a release");
        assert!(answer(&packet(mac, 1)[..HEAD], server, &leases).is_none(), "no options");
        assert!(answer(&[0; 10], server, &leases).is_none());
    }
}
