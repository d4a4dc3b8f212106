//! A request and what came of it, as values.

use std::net::Ipv6Addr;

/// Method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestMethod {
    /// GET.
    Get,
    /// PUT, without a body.
    Put,
    /// POST.
    Post,
}

/// The two services that are ever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The metadata service, 169.254.169.254 port 80.
    Metadata,
    /// Azure's wire server, 168.63.129.16 port 80.
    Fabric,
}

/// A request; `Debug` does not show its headers.
#[derive(Clone, PartialEq, Eq)]
pub struct MetadataRequest {
    /// Method.
    pub method: RequestMethod,
    /// To whom.
    pub service: Service,
    /// `Host`.
    pub host: &'static str,
    /// Address of the service for machines without IPv4, if it has one.
    pub ipv6: Option<Ipv6Addr>,
    /// Path and query.
    pub target: &'static str,
    /// Further headers. Values may be secret.
    pub headers: Vec<(&'static str, String)>,
    /// Body of a POST.
    pub body: String,
    /// A longer body of the answer is not read, bytes.
    pub bytes_max: usize,
}

impl std::fmt::Debug for MetadataRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.method, self.target)
    }
}

/// An answer.
#[derive(Clone, PartialEq, Eq)]
pub struct MetadataResponse {
    /// Status code.
    pub status: u16,
    /// Whole body. It may hold a token.
    pub body: Vec<u8>,
}

impl std::fmt::Debug for MetadataResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.status, self.body.len())
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeFailure {
    /// The machine has no address or no route, in the kernel's words: its network is not up.
    #[error("{0}")]
    NoRoute(String),
    /// No connection, in the kernel's words.
    #[error("{0}")]
    NoConnection(String),
    /// Connected, and nothing came in time.
    #[error("it is connected and says nothing")]
    Silent,
    /// It is no HTTP, or ends in the middle.
    #[error("the answer breaks off: {0}")]
    Broken(String),
    /// The body is longer than the request allows.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}
