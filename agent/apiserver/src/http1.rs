//! HTTP/1.1 in the place of HTTP/2 (`DISABLE_HTTP2`): as many connections as requests are under way.
//!
//! In: requests, connections dialled by the caller. Out: answers. Invariants: a connection has one request at a time and
//! takes the next one only when the answer was read to its end; an idle one that the server closed, or whose address
//! the node lost, is not used; at most [`IDLE_MAX`] are kept idle. One whose handle is dropped here finishes its answer and closes.

use std::net::IpAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::PathAndQuery;

use crate::connect::is_of_host;

/// Sends requests on one connection.
pub(crate) type Sender = http1::SendRequest<Full<Bytes>>;

/// Connections kept for the next requests.
const IDLE_MAX: usize = 4;

/// A connection.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    pub(crate) sender: Sender,
    /// The node's end; none in memory.
    pub(crate) local: Option<IpAddr>,
}

impl PooledConnection {
    fn is_usable(&self) -> bool {
        !self.sender.is_closed() && self.local.is_none_or(is_of_host)
    }
}

/// Connections that were dialled and not given up.
#[derive(Debug, Default)]
pub(crate) struct Pool(Vec<PooledConnection>);

impl Pool {
    /// One that can take a request now.
    pub(crate) fn take(&mut self) -> Option<PooledConnection> {
        self.0.retain(PooledConnection::is_usable);
        let free = self.0.iter().position(|kept| kept.sender.is_ready())?;
        Some(self.0.swap_remove(free))
    }

    /// Gives back one whose answer has begun; it is free again at the answer's end.
    pub(crate) fn put(&mut self, kept: PooledConnection) {
        let mut idle = 0;
        self.0.retain(|k| {
            idle += usize::from(k.sender.is_ready());
            !k.sender.is_closed() && (!k.sender.is_ready() || idle <= IDLE_MAX)
        });
        self.0.push(kept);
    }
}

/// A request as HTTP/1.1 wants it: the server in a header, not in the request line.
pub(crate) fn to_origin(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let host = request.uri().authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok());
    let path = request.uri().path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
    *request.uri_mut() = path.into();
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_in_a_header() {
        let request =
            Request::get("https://[2001:db8::1]:6443/api/v1/pods?watch=1").body(Full::default()).unwrap();
        let request = to_origin(request);
        assert_eq!(request.uri().to_string(), "/api/v1/pods?watch=1");
        assert_eq!(request.headers()[HOST], "[2001:db8::1]:6443");
    }
}
