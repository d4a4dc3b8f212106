//! Certificates of the node: one machine for the client certificate, one for the serving certificate. Each
//! machine keeps a certificate that matches and renews it in time.
//!
//! # For the shell
//! First send [`CertEvent::Loaded`] with the contents of the certificate directory (again whenever another
//! program changes the files), and for a serving certificate [`CertEvent::Addresses`] whenever the Node's
//! addresses change. Answer each of [`CertAction::GenerateKeyAndCsr`], [`CertAction::Call`] and
//! [`CertAction::Store`] exactly once; send [`CertEvent::Tick`] at the deadline.
//! - `GenerateKeyAndCsr`: make a P-256 key, keep it in memory under `key`, and answer with the PEM of the
//!   request that the key signed. The key never leaves the shell.
//! - `Call`: send with the identity named in `with`.
//! - `Bootstrap`: if it asks for bootstrap credentials (a first-boot token), look for them and report with
//!   [`CertEvent::Bootstrap`] that they are there or why not, and again whenever that changes. If it does not
//!   ask, the current certificate is good: use it, stop looking, and forget the token.
//! - `Store`: if bootstrap credentials requested the certificate, their cluster is the node's cluster from
//!   now on. Write the certificate chain and the key `key` into one file of mode 0600, switch `-current.pem`
//!   to it, make the API client use it (close its old connections), and answer with the facts of the
//!   certificate. A chain that does not fit the key is an error.
//! - `DropKey`: the machine does not need the key `key` any more, erase it.
//! - `Show`: the sentence for the operator changed; it is empty when nothing needs attention.
//! - `Fact`: for logs and metrics, sent once. [`CertManager::state`] is the current state, also the source of
//!   `kubelet_certificate_manager_*_ttl_seconds`.
//!
//! - [`CertEvent::ClockVerified`]: send it before `Loaded` on a node whose clock may be wrong, and whenever it changes. Without
//!   it the clock counts as right.
//!
//! Invariants: one effect in flight; no CSR before the clock is plausible, and none for a serving certificate
//! without an IP address; a pause after every failure (2 s doubling four times, then 32 s); the machine waits
//! at most 15 minutes for one CSR; no input ends the machine. Difference from upstream: an expired
//! certificate without bootstrap credentials is a state with a message and slow retries, not exit code 1.
//! Upstream: client-go/util/certificate, pkg/kubelet/certificate.

mod csr;
mod machine;
mod message;
mod rotation;
mod standing;

#[cfg(test)]
mod tests;

use agent_types::api::{ApiCall, ApiResult};
use agent_types::certificates::{CertTemplate, CertificateFacts};
use agent_types::machine::EffectId;
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::NodeAddress;

pub use machine::CertManager;

/// Who sends a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertIdentity {
    /// The client certificate in use.
    Node,
    /// The bootstrap credentials.
    Bootstrap,
}

/// Names a private key that the shell keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHandle(pub u64);

/// What the machine reacts to.
#[derive(Clone, Debug)]
pub enum CertEvent {
    /// What the certificate directory holds; `None` if there is no usable pair.
    Loaded(Option<CertificateFacts>),
    /// Bootstrap credentials are present, or have changed: the machine tries them at once. `Err`: there are
    /// none, the reason and the remedy.
    Bootstrap(Result<(), String>),
    /// Whether NTP or the API server vouches for the clock ([`crate::clock`]). While neither does, no certificate counts as expired, and none
    /// is renewed for its dates.
    ClockVerified(bool),
    /// Addresses of the Node (serving certificates only).
    Addresses(Vec<NodeAddress>),
    /// The answer to [`CertAction::GenerateKeyAndCsr`]: PEM of the request, or why not.
    Generated {
        /// Of the action.
        id: EffectId,
        /// PEM of the PKCS#10 request.
        result: Result<String, String>,
    },
    /// The answer to [`CertAction::Call`].
    Answered {
        /// Of the action.
        id: EffectId,
        /// Result of the call.
        result: ApiResult,
    },
    /// The answer to [`CertAction::Store`]: facts of the certificate, or the error.
    Stored {
        /// Of the action.
        id: EffectId,
        /// The new current certificate.
        result: Result<CertificateFacts, String>,
    },
    /// The deadline has passed.
    Tick,
}

/// A request of the machine to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum CertAction {
    /// Make a key and a request; answer [`CertEvent::Generated`].
    GenerateKeyAndCsr {
        /// Comes back with the answer.
        id: EffectId,
        /// Keep the key under this name.
        key: KeyHandle,
        /// Names and usages of the request.
        template: CertTemplate,
    },
    /// Send it; answer [`CertEvent::Answered`].
    Call {
        /// Comes back with the answer.
        id: EffectId,
        /// Who sends it.
        with: CertIdentity,
        /// What to send.
        call: ApiCall,
    },
    /// Keep and use the certificate; answer [`CertEvent::Stored`].
    Store {
        /// Comes back with the answer.
        id: EffectId,
        /// Its private key.
        key: KeyHandle,
        /// Identity that requested the certificate: it belongs to that identity's cluster.
        with: CertIdentity,
        /// The chain, PEM, as the API server gave it.
        certificate: Vec<u8>,
    },
    /// Erase the key.
    DropKey {
        /// Handle of the key.
        key: KeyHandle,
    },
    /// Look for bootstrap credentials, or let them be; answers are [`CertEvent::Bootstrap`]. Client certificates only.
    Bootstrap {
        /// False: there is a certificate that does, to be used.
        wanted: bool,
    },
    /// One sentence for the operator, with the remedy; empty if nothing needs attention.
    Show(String),
    /// For logs and metrics.
    Fact(CertFact),
}

/// An event of the machine, sent once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertFact {
    /// A new certificate is in use.
    Rotated {
        /// It ends then.
        not_after: Wall,
        /// Whole seconds that the one before had lived; `None` for the first one.
        lived_s: Option<u64>,
    },
    /// An attempt failed (counts as `…_renew_errors`).
    Failed {
        /// Problem and remedy.
        message: String,
    },
    /// A request is there and must be approved.
    Requested {
        /// Name of the CertificateSigningRequest.
        csr: String,
    },
    /// The clock is wrong: no request is sent until it is set.
    ClockWrong {
        /// What it shows, and how that is known to be wrong.
        message: String,
    },
    /// The clock is plausible again.
    ClockSet,
}

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertState {
    /// Nothing was loaded yet.
    Starting,
    /// There is a valid certificate; a renewal may be under way.
    Valid {
        /// It ends then.
        not_after: Wall,
    },
    /// There is none, and a request is in progress.
    Requesting {
        /// State of the request, or its last error with the remedy.
        message: String,
    },
    /// There is none, and no request is possible now.
    Waiting {
        /// Missing condition and remedy.
        message: String,
    },
}

impl CertState {
    /// The sentence for people; empty if all is well.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            CertState::Starting => "the certificate directory has not been read yet",
            CertState::Valid { .. } => "",
            CertState::Requesting { message } | CertState::Waiting { message } => message,
        }
    }
}
