//! streaming::upgrade: selects a stream's route through the node, by the protocol that its client offers.
//!
//! In: headers of a request. Out: [`StreamTransport`]. Invariant: an unknown protocol passes on unchanged, and the
//! runtime refuses it. Upstream: apimachinery/pkg/util/httpstream/wsstream, pkg/kubelet/server/server.go.

use super::{channels, tunnel};

/// Protocols in the headers of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpgradeRequest<'a> {
    /// `Connection`.
    pub connection: &'a str,
    /// `Upgrade`.
    pub upgrade: &'a str,
    /// `Sec-WebSocket-Protocol`: names, the best first.
    pub protocols: &'a str,
}

/// The kinds of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// exec and attach.
    Command,
    /// A port-forward request.
    Ports,
}

/// Route of a stream to the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamTransport {
    /// Unchanged: the node copies bytes.
    Opaque,
    /// [`channels`]: WebSocket to the client, SPDY to the runtime.
    Translated,
    /// [`tunnel`]: these protocols of SPDY are the client's, the best first.
    Tunnelled(Vec<String>),
}

/// The way of a stream; `extended` is the gate ExtendWebSocketsToKubelet.
#[must_use]
pub fn way(kind: Kind, wish: UpgradeRequest<'_>, extended: bool) -> StreamTransport {
    let is_websocket = wish.upgrade.eq_ignore_ascii_case("websocket")
        && wish.connection.to_ascii_lowercase().contains("upgrade");
    if !extended || !is_websocket {
        return StreamTransport::Opaque;
    }
    let mut protocols = wish.protocols.split(',').map(str::trim);
    match kind {
        Kind::Command if protocols.any(|p| p == channels::PROTOCOL) => StreamTransport::Translated,
        Kind::Command => StreamTransport::Opaque,
        Kind::Ports => {
            let inner = |p: &str| {
                p.strip_prefix(tunnel::PREFIX).filter(|p| p.ends_with(".k8s.io")).map(str::to_owned)
            };
            let inner: Vec<String> = protocols.filter_map(inner).collect();
            if inner.is_empty() { StreamTransport::Opaque } else { StreamTransport::Tunnelled(inner) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_touched() {
        let of = |protocols: &'static str| UpgradeRequest {
            connection: "Upgrade",
            upgrade: "WebSocket",
            protocols,
        };
        let tunnelled =
            |names: &[&str]| StreamTransport::Tunnelled(names.iter().map(|n| (*n).to_owned()).collect());
        let (v4, v5, spdy) = ("v4.channel.k8s.io", "v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io");
        for (kind, wish, way_of_it) in [
            (Kind::Command, of(v5), StreamTransport::Translated),
            (Kind::Command, of("v4.channel.k8s.io, v5.channel.k8s.io"), StreamTransport::Translated),
            (Kind::Command, of(v4), StreamTransport::Opaque),
            (Kind::Command, of(""), StreamTransport::Opaque),
            (Kind::Command, of("V5.channel.k8s.io"), StreamTransport::Opaque),
            (Kind::Command, of(spdy), StreamTransport::Opaque),
            (Kind::Command, UpgradeRequest { upgrade: "SPDY/3.1", ..of(v5) }, StreamTransport::Opaque),
            (Kind::Command, UpgradeRequest { connection: "close", ..of(v5) }, StreamTransport::Opaque),
            (
                Kind::Command,
                UpgradeRequest { connection: "keep-alive, Upgrade", ..of(v5) },
                StreamTransport::Translated,
            ),
            (Kind::Ports, of(spdy), tunnelled(&["portforward.k8s.io"])),
            (Kind::Ports, of("SPDY/3.1+b.k8s.io,SPDY/3.1+a.k8s.io,x"), tunnelled(&["b.k8s.io", "a.k8s.io"])),
            (Kind::Ports, of("SPDY/3.1+other"), StreamTransport::Opaque),
            (Kind::Ports, of(v5), StreamTransport::Opaque),
        ] {
            assert_eq!(way(kind, wish, true), way_of_it, "{wish:?}");
            assert_eq!(way(kind, wish, false), StreamTransport::Opaque, "the gate is off: {wish:?}");
        }
    }
}
