//! A request for a capture as a wish with limits. Pure.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use orlop_proto::node_api::v1alpha1::CaptureRequest;

use super::filter::{PacketFilter, Protocol};
use crate::refusal::{Reason, Refusal};

/// Seconds without a wish, and at most.
const SECONDS: (u32, u32) = (60, 3600);
/// Bytes of the file without a wish, and at most.
const BYTES: (u64, u64) = (64 << 20, 1 << 30);
/// Bytes of a packet without a wish, and at most.
const SNAP_BYTES: (u32, u32) = (256, 65535);
/// Characters of an interface's name (`IFNAMSIZ`).
const NAME_MAX: usize = 15;
/// Characters of a value that is shown in a refusal.
const SHOWN_MAX: usize = 64;

/// What is captured, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CaptureWish {
    pub(super) interface: String,
    pub(super) time: Duration,
    pub(super) bytes: u64,
    /// Packets at most.
    pub(super) packets: u64,
    pub(super) snap_bytes: u32,
    pub(super) filter: PacketFilter,
}

/// The wish of a request. `client` is the client's end of a connection by the network.
///
/// # Errors
/// A value that cannot be.
pub(super) fn wish(request: &CaptureRequest, client: Option<SocketAddr>) -> Result<CaptureWish, Refusal> {
    let bad = |message: String| Refusal::new(Reason::BadRequest, "capture", message);
    let shown = |text: &str| text.chars().take(SHOWN_MAX).collect::<String>();
    if !is_interface(&request.interface) {
        return Err(bad(format!("{:?} is no name of an interface", shown(&request.interface))));
    }
    let host = match request.host.as_str() {
        "" => None,
        text => Some(
            text.parse::<IpAddr>()
                .map_err(|_| bad(format!("the host {:?} is no IP address", shown(text))))?,
        ),
    };
    let protocol = match request.protocol.as_str() {
        "" => None,
        name => {
            let odd = || bad(format!("{:?} is none of tcp, udp, sctp, icmp, icmp6, arp", shown(name)));
            Some(Protocol::of(name).ok_or_else(odd)?)
        }
    };
    let port = u16::try_from(request.port).map_err(|_| bad(format!("{} is no port", request.port)))?;
    let seconds = limit(request.seconds, SECONDS).ok_or_else(|| bad(at_most("seconds", SECONDS.1)))?;
    let bytes = limit(request.bytes, BYTES).ok_or_else(|| bad(at_most("bytes", BYTES.1)))?;
    let snap_bytes = limit(request.snap_bytes, SNAP_BYTES);
    let snap_bytes = snap_bytes.ok_or_else(|| bad(at_most("bytes of a packet", SNAP_BYTES.1)))?;
    Ok(CaptureWish {
        interface: request.interface.clone(),
        time: Duration::from_secs(u64::from(seconds)),
        bytes,
        packets: if request.packets == 0 { u64::MAX } else { request.packets },
        snap_bytes,
        filter: PacketFilter { host, port: (port != 0).then_some(port), protocol, not_client: client },
    })
}

/// The wished number, or the usual one for 0; `None`: more than the most.
fn limit<T: PartialOrd + Default + Copy>(wished: T, (usual, most): (T, T)) -> Option<T> {
    let chosen = if wished == T::default() { usual } else { wished };
    (chosen <= most).then_some(chosen)
}

fn at_most(what: &str, most: impl std::fmt::Display) -> String {
    format!("a capture has at most {most} {what}")
}

/// A name that is one part of a path.
fn is_interface(name: &str) -> bool {
    let is_safe = |c: char| c.is_ascii_graphic() && c != '/';
    !name.is_empty() && name.len() <= NAME_MAX && name != "." && name != ".." && name.chars().all(is_safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(interface: &str) -> CaptureRequest {
        CaptureRequest { interface: interface.to_owned(), ..CaptureRequest::default() }
    }

    #[test]
    fn a_request_without_numbers_has_the_usual_limits() {
        let found = wish(&of("eth0"), None).unwrap();
        assert_eq!((found.time, found.bytes), (Duration::from_secs(60), 64 << 20));
        assert_eq!((found.packets, found.snap_bytes), (u64::MAX, 256));
        assert_eq!(found.filter, PacketFilter::default());
    }

    #[test]
    fn a_request_with_everything() {
        let request = CaptureRequest {
            seconds: 5,
            bytes: 1000,
            packets: 7,
            snap_bytes: 65535,
            host: "2001:db8::1".to_owned(),
            port: 443,
            protocol: "tcp".to_owned(),
            ..of("enp1s0.5")
        };
        let client: SocketAddr = "192.0.2.1:4711".parse().unwrap();
        let found = wish(&request, Some(client)).unwrap();
        assert_eq!((found.time, found.bytes, found.packets), (Duration::from_secs(5), 1000, 7));
        let filter = PacketFilter {
            host: "2001:db8::1".parse().ok(),
            port: Some(443),
            protocol: Some(Protocol::Tcp),
            not_client: Some(client),
        };
        assert_eq!((found.snap_bytes, found.filter), (65535, filter));
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        for bad in [
            of(""),
            of("."),
            of(".."),
            of("../eth0"),
            of("a b"),
            of("sixteen-letters0"),
            CaptureRequest { seconds: 3601, ..of("eth0") },
            CaptureRequest { bytes: (1 << 30) + 1, ..of("eth0") },
            CaptureRequest { snap_bytes: 65536, ..of("eth0") },
            CaptureRequest { host: "edge-7".to_owned(), ..of("eth0") },
            CaptureRequest { port: 65536, ..of("eth0") },
            CaptureRequest { protocol: "TCP".to_owned(), ..of("eth0") },
        ] {
            assert_eq!(wish(&bad, None).unwrap_err().reason, Reason::BadRequest, "{bad:?}");
        }
    }
}
