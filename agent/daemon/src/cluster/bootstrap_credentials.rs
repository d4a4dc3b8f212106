//! TLS bootstrap: where a node without a certificate finds its cluster, and the credentials with which it asks for its first one.
//!
//! ```text
//! join file ─────────────┐                   ┌─ discovery (hashes, token) ─┐
//! bootstrap kubeconfig ──┴─ BootstrapSource ─┴─────────── CA data ─────────┴─► BootstrapAccess: server, CA, credentials
//! ```
//! In: the files that flags name, read again at every look, so that a token, a CA or a hash that is mended while the
//! agent runs is taken. Out: [`BootstrapAccess`], or one sentence that says what is wrong and what to do. Invariant: no token is
//! in any sentence. The flow is in `super::identity`, the decisions are in `agent_core::certs`.

use std::path::Path;

use agent_apiserver::discovery::{Join as Question, authority, discover};
use agent_apiserver::kubeconfig::Kubeconfig;
use agent_apiserver::{Access, Credentials, Options, Server, Trust};
use agent_types::pem;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use orlop_config::node::Join;

use crate::pods::pod_dirs::chain;
use crate::settings::ClusterSettings;

/// As it is in the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum BootstrapSource {
    /// The join file.
    Join(Box<Join>),
    /// The bootstrap kubeconfig.
    Kubeconfig(Box<Access>),
}

/// Where the cluster is, why to trust it, and as whom to ask.
#[derive(Clone, Debug)]
pub(super) struct BootstrapAccess {
    pub(super) access: Access,
    /// For the node's own kubeconfig.
    pub(super) ca_pem: Vec<u8>,
}

impl BootstrapSource {
    /// Reads the file that the node was given.
    pub(super) async fn read(settings: &ClusterSettings) -> Result<BootstrapSource, String> {
        match (&settings.join, &settings.bootstrap_kubeconfig) {
            (Some(path), _) => join(path).await.map(|join| BootstrapSource::Join(Box::new(join))),
            (None, Some(path)) => {
                let read = Kubeconfig::read(path).await.map_err(|e| missing(&chain(&e)))?;
                let access = read.access().await.map_err(|e| chain(&e))?;
                Ok(BootstrapSource::Kubeconfig(Box::new(access)))
            }
            (None, None) => Err(format!(
                "{} holds no valid identity, and neither --join nor --bootstrap-kubeconfig says how to ask for one",
                settings.kubeconfig.display()
            )),
        }
    }

    /// Credentials to ask for a certificate with; for hashes the cluster is asked.
    pub(super) async fn found(&self, options: &Options) -> Result<BootstrapAccess, String> {
        match self {
            BootstrapSource::Join(join) => {
                let found = discover(&question(join)?, options).await.map_err(|e| chain(&e))?;
                Ok(BootstrapAccess { access: found.bootstrap, ca_pem: found.ca_pem })
            }
            BootstrapSource::Kubeconfig(access) => {
                let ca_pem =
                    pem(&access.trust).ok_or("the bootstrap kubeconfig names no certificate authority")?;
                Ok(BootstrapAccess { access: Access::clone(access), ca_pem })
            }
        }
    }

    /// The server, and the authorities that the node pins, found without a look at any certificate's dates: for the question
    /// for the time.
    pub(super) async fn authority(&self, options: &Options) -> Result<(Server, Trust), String> {
        match self {
            BootstrapSource::Join(join) => match ca_pem(join)? {
                Some(ca_pem) => {
                    let server = Server::parse(&join.server).map_err(|e| e.to_string())?;
                    let trust =
                        Trust::from_pem(&ca_pem).map_err(|reason| format!("join.caData: {reason}"))?;
                    Ok((server, trust))
                }
                None => authority(&question(join)?, options).await.map_err(|e| chain(&e)),
            },
            BootstrapSource::Kubeconfig(access) => Ok((access.server.clone(), access.trust.clone())),
        }
    }

    /// Where the cluster is and why to trust it, for a node that has a certificate: no token is needed for that if
    /// the CA itself was given.
    pub(super) async fn cluster(&self, options: &Options) -> Result<BootstrapAccess, String> {
        if let BootstrapSource::Join(join) = self
            && let (None, Some(ca_pem)) = (&join.token, ca_pem(join)?)
        {
            let server = Server::parse(&join.server).map_err(|e| e.to_string())?;
            let trust = Trust::from_pem(&ca_pem).map_err(|reason| format!("join.caData: {reason}"))?;
            return Ok(BootstrapAccess {
                access: Access { server, trust, credentials: Credentials::None },
                ca_pem,
            });
        }
        self.found(options).await
    }
}

async fn join(path: &Path) -> Result<Join, String> {
    let shown = path.display().to_string();
    let text = tokio::fs::read_to_string(path)
        .await
        .map_err(|e| format!("--join: {shown} cannot be read: {e}; it says which cluster to join (server, token, caData or caCertHashes)"))?;
    orlop_config::join::parse(&text, &shown).map_err(|e| format!("--join: {e}"))
}

fn missing(problem: &str) -> String {
    format!("{problem}; put a kubeconfig with a bootstrap token there (make one with: kubeadm token create)")
}

/// The question to discovery.
fn question(join: &Join) -> Result<Question, String> {
    let token = join.token.clone().ok_or(
        "the join configuration has no token: make one with `kubeadm token create` and give it as join.token",
    )?;
    Ok(Question {
        server: join.server.clone(),
        token,
        ca_pem: ca_pem(join)?,
        ca_cert_hashes: join.ca_cert_hashes.clone(),
    })
}

fn ca_pem(join: &Join) -> Result<Option<Vec<u8>>, String> {
    let decoded = join.ca_data.as_deref().map(|data| STANDARD.decode(data)).transpose();
    decoded.map_err(|_| "join.caData: must be PEM certificates in base64".to_owned())
}

/// The certificates as PEM; `None` if none are named.
fn pem(trust: &Trust) -> Option<Vec<u8>> {
    let Trust::Certificates(list) = trust else { return None };
    let text: String = list.iter().map(|der| pem::certificate(der)).collect();
    Some(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn settings(join: Option<PathBuf>, bootstrap_kubeconfig: Option<PathBuf>) -> ClusterSettings {
        ClusterSettings { kubeconfig: "/k".into(), bootstrap_kubeconfig, join, cert_dir: "/p".into() }
    }

    #[tokio::test]
    async fn what_is_missing_is_said_with_what_to_do_and_never_with_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("told.yaml");
        let (by_join, by_kubeconfig) =
            (settings(Some(path.clone()), None), settings(None, Some(path.clone())));
        let of = async |settings: &ClusterSettings| BootstrapSource::read(settings).await.unwrap_err();
        assert!(of(&settings(None, None)).await.contains("neither --join nor --bootstrap-kubeconfig"));
        assert!(of(&by_join).await.contains("told.yaml cannot be read"));
        assert!(of(&by_kubeconfig).await.contains("kubeadm token create"));
        std::fs::write(&path, "token: zyxwvu.9876543210fedcbaX\n").unwrap();
        let message = of(&by_join).await;
        assert!(message.contains("told.yaml") && !message.contains("9876543210"), "{message}");
        // Mended: taken at the next look.
        std::fs::write(&path, "server: https://a:6443\ncaData: YWJj\ntoken: zyxwvu.9876543210fedcba\n")
            .unwrap();
        let told = BootstrapSource::read(&by_join).await.unwrap();
        assert!(!format!("{told:?}").contains("9876543210"));
        let message = told.found(&Options::new("test")).await.unwrap_err();
        assert!(message.contains("holds no PEM certificate"), "{message}");
        std::fs::write(&path, "server: https://a:6443\ncaData: YWJj\n").unwrap();
        let other = BootstrapSource::read(&by_join).await.unwrap();
        assert_ne!(told, other);
        assert!(other.found(&Options::new("test")).await.unwrap_err().contains("no token"));
    }

    #[test]
    fn trust_is_written_as_pem() {
        let trust =
            Trust::from_pem(&pem(&Trust::Certificates([vec![7; 100].into()].into())).unwrap()).unwrap();
        assert_eq!(trust, Trust::Certificates([vec![7; 100].into()].into()));
        assert!(pem(&Trust::System).is_none());
    }
}
