//! Follows a kubeconfig and the files that it names: a rotated certificate, CA bundle or key is taken up without a
//! restart.
//!
//! In: the kubeconfig's path and a client. Out: the client's new [`Access`](crate::Access) when contents changed.
//! Invariant: what cannot be read or used leaves the client as it is, and is reported.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::ApiClient;
use crate::kubeconfig::{Kubeconfig, KubeconfigError};
use crate::tls::TlsError;

/// Upstream checks its client's certificate as often.
const EVERY: Duration = Duration::from_secs(10);

/// What a look at the files found.
#[derive(Debug)]
pub enum Refreshed {
    /// Nothing new.
    Same,
    /// The client uses something new from now on.
    Changed,
    /// The files cannot be read; the client stays as it is.
    Unreadable(KubeconfigError),
    /// What they hold cannot be used; the client stays as it is.
    Unusable(TlsError),
}

impl ApiClient {
    /// Reads the kubeconfig and what it names again, now: after a certificate was stored, for example.
    pub async fn refresh(&self, kubeconfig: &Path) -> Refreshed {
        match Kubeconfig::read(kubeconfig).await {
            Err(error) => Refreshed::Unreadable(error),
            Ok(read) => match read.access().await {
                Err(error) => Refreshed::Unreadable(error),
                Ok(access) => match self.set_access(access) {
                    Ok(true) => Refreshed::Changed,
                    Ok(false) => Refreshed::Same,
                    Err(error) => Refreshed::Unusable(error),
                },
            },
        }
    }
}

/// Refreshes every 10 s for ever; spawn it, drop it to stop. Says in the log when something changed, and when
/// something is wrong, once for each wording.
pub async fn keep_fresh(client: ApiClient, kubeconfig: std::path::PathBuf) {
    let mut said = String::new();
    loop {
        sleep_until(Instant::now() + EVERY).await;
        let path = kubeconfig.display();
        let problem = match client.refresh(&kubeconfig).await {
            Refreshed::Same => String::new(),
            Refreshed::Changed => {
                tracing::info!(%path, "identity or trust changed: new connections use it");
                String::new()
            }
            Refreshed::Unreadable(error) => error.to_string(),
            Refreshed::Unusable(error) => error.to_string(),
        };
        if !problem.is_empty() && problem != said {
            tracing::warn!(%path, problem, "kubeconfig cannot be used; what was read before stays in use");
        }
        said = problem;
    }
}
