//! Metrics of certificates: remaining lifetime and renewals of the node's certificates, and the number of
//! pods' certificates by state.
//!
//! Invariant: a certificate that the agent does not manage (of a given kubeconfig, files) has no metrics.

use std::collections::BTreeMap;

use agent_core::certs::CertFact;
use agent_kubelet_api::metrics::families;
use agent_types::time::{Now, Wall};

use super::{Metrics, MetricsState};

/// The two certificates of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// The client certificate for the API server.
    Client,
    /// The serving certificate of the HTTPS API.
    Serving,
}

/// Expiry of the certificates; the outer `None` is a certificate that the agent does not manage, the inner one a
/// certificate that does not exist yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CertificateExpirations {
    client: Option<Option<Wall>>,
    serving: Option<Option<Wall>>,
}

impl Metrics {
    /// The agent manages the certificate; the one on disk expires at `not_after`.
    pub fn certificate(&self, which: Certificate, not_after: Option<Wall>) {
        self.with(|state| {
            match which {
                Certificate::Client => {
                    state.certificates.client = Some(not_after);
                    state.main.begin(&families::CLIENT_RENEW_ERRORS);
                }
                Certificate::Serving => {
                    state.certificates.serving = Some(not_after);
                    state.main.begin(&families::SERVER_RENEW_ERRORS);
                    state.main.begin_histogram(&families::SERVER_ROTATION);
                }
            };
        });
    }

    /// Number of certificate sources in pods' volumes, by signer and state.
    pub fn pod_certificates(&self, states: &BTreeMap<(&str, &'static str), u32>) {
        self.with(|state| {
            state.main.clear(families::POD_CERTIFICATES.name);
            for ((signer, is), n) in states {
                state.main.set(&families::POD_CERTIFICATES, [*signer, *is], (*n).into());
            }
        });
    }

    /// A fact from the certificate's owner.
    pub fn certificate_fact(&self, which: Certificate, fact: &CertFact) {
        self.with(|state| match (fact, which) {
            (CertFact::Rotated { not_after, .. }, Certificate::Client) => {
                state.certificates.client = Some(Some(*not_after));
            }
            (CertFact::Rotated { not_after, lived_s }, Certificate::Serving) => {
                state.certificates.serving = Some(Some(*not_after));
                if let Some(lived) = lived_s {
                    // Exact below centuries.
                    #[allow(clippy::cast_precision_loss)]
                    state.main.observe(&families::SERVER_ROTATION, [], *lived as f64);
                }
            }
            (CertFact::Failed { .. }, Certificate::Client) => {
                state.main.count(&families::CLIENT_RENEW_ERRORS, []);
            }
            (CertFact::Failed { .. }, Certificate::Serving) => {
                state.main.count(&families::SERVER_RENEW_ERRORS, []);
            }
            _ => {}
        });
    }
}

impl MetricsState {
    pub(super) fn tell_certificates(&mut self, now: Now) {
        let left = |end: Option<Wall>| end.map_or(f64::INFINITY, |end| seconds(end.0) - seconds(now.wall.0));
        if let Some(end) = self.certificates.client {
            self.main.set(&families::CLIENT_TTL, [], left(end));
        }
        if let Some(end) = self.certificates.serving {
            self.main.set(&families::SERVER_TTL, [], left(end));
        }
    }
}

/// Nanoseconds as seconds.
#[allow(clippy::cast_precision_loss)] // microseconds are exact enough
pub(super) fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}
