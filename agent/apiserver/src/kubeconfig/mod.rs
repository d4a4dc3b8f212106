//! Kubeconfig files: reads the files that a kubelet may be given, and writes the one that the kubelet keeps.
//!
//! In: a path. Out: [`Access`]; on disk, the kubelet's own kubeconfig with upstream's names and layout
//! (pkg/kubelet/certificate/bootstrap, `writeKubeconfigFromBootstrapping`). Invariants: relative paths start
//! at the kubeconfig's directory; inline data win over files, as in client-go; a setting that the agent
//! cannot honour is an error that names it; written files have mode 0600 and appear complete.

mod file;
mod write;

use std::path::{Path, PathBuf};

use orlop_config::node::Secret;

use crate::access::{Access, Credentials, Server, ServerError, Trust};
use file::{Cluster, Data, File, NamedEntry, User};
pub use write::{OwnKubeconfig, write};

/// What is wrong with a kubeconfig.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeconfigError {
    /// It, or a file that it names, cannot be read or written.
    #[error("{}: {operation}", path.display())]
    Io {
        /// Path of the file or directory.
        path: PathBuf,
        /// What was being done.
        operation: &'static str,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// It is no kubeconfig. The reason never quotes the text.
    #[error("{}: is no kubeconfig: {reason}", path.display())]
    Syntax {
        /// Path of the file or directory.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// A part is missing or wrong.
    #[error("{}: {field}: {reason}", path.display())]
    Field {
        /// Path of the file or directory.
        path: PathBuf,
        /// Path of the key.
        field: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Its server is no API server's URL.
    #[error("{}: {cause}", path.display())]
    Server {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error in the server's URL.
        cause: ServerError,
    },
}

/// A kubeconfig as read; files that it names are read by [`Kubeconfig::access`].
#[derive(Debug)]
pub struct Kubeconfig {
    path: PathBuf,
    file: File,
}

impl Kubeconfig {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read or is no kubeconfig.
    pub async fn read(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
        let text = tokio::fs::read_to_string(path).await.map_err(|source| KubeconfigError::Io {
            path: path.to_owned(),
            operation: "read",
            source,
        })?;
        Kubeconfig::parse(path, &text)
    }

    /// Reads a text; `path` is what messages name and relative paths count from.
    ///
    /// # Errors
    /// It is no kubeconfig.
    pub fn parse(path: &Path, text: &str) -> Result<Kubeconfig, KubeconfigError> {
        let file =
            file::parse(text).map_err(|reason| KubeconfigError::Syntax { path: path.to_owned(), reason })?;
        Ok(Kubeconfig { path: path.to_owned(), file })
    }

    /// The current context's server, trust and credentials, with every file read.
    ///
    /// # Errors
    /// The context is incomplete, a file cannot be read, or something is asked for that is not supported
    /// (`proxy-url`, `exec`, `auth-provider`, user name and password, impersonation).
    pub async fn access(&self) -> Result<Access, KubeconfigError> {
        let context = match self.file.current_context.as_deref().filter(|c| !c.is_empty()) {
            Some(name) => self.named(&self.file.contexts, "contexts", name)?,
            None => return Err(self.field("current-context", "is not set; name one of the contexts")),
        };
        let cluster = context.cluster.as_deref().unwrap_or_default();
        let cluster = self.named(&self.file.clusters, "clusters", cluster)?;
        let (server, trust) = self.cluster(cluster).await?;
        let credentials = match context.user.as_deref().filter(|u| !u.is_empty()) {
            Some(user) => self.user(self.named(&self.file.users, "users", user)?).await?,
            None => Credentials::None,
        };
        Ok(Access { server, trust, credentials })
    }

    /// The CA inside a kubeconfig of one cluster, as in the ConfigMap `cluster-info`; files are not looked at.
    pub(crate) fn inline_ca(&self) -> Result<Vec<u8>, KubeconfigError> {
        match &self.only_cluster()?.certificate_authority_data {
            Some(Data(pem)) if !pem.is_empty() => Ok(pem.to_vec()),
            _ => Err(self.field("certificate-authority-data", "is missing")),
        }
    }

    /// The server of a kubeconfig of one cluster.
    pub(crate) fn advertised_server(&self) -> Result<Server, KubeconfigError> {
        let url = self.only_cluster()?.server.as_deref().unwrap_or_default();
        Server::parse(url).map_err(|cause| KubeconfigError::Server { path: self.path.clone(), cause })
    }

    fn only_cluster(&self) -> Result<&Cluster, KubeconfigError> {
        match self.file.clusters.as_slice() {
            [one] => Ok(&one.value),
            other => Err(self.field("clusters", format!("must hold one cluster, holds {}", other.len()))),
        }
    }

    /// Where the client's certificate is kept, if in a file.
    #[must_use]
    pub fn client_certificate_file(&self) -> Option<PathBuf> {
        let context = self.file.current_context.as_deref()?;
        let user = self.file.contexts.iter().find(|c| c.name == context)?.value.user.as_deref()?;
        let user = &self.file.users.iter().find(|u| u.name == user)?.value;
        user.client_certificate.as_deref().filter(|p| !p.is_empty()).map(|p| self.path_of(p))
    }

    async fn cluster(&self, cluster: &Cluster) -> Result<(Server, Trust), KubeconfigError> {
        let url = cluster.server.as_deref().unwrap_or_default();
        let mut server =
            Server::parse(url).map_err(|cause| KubeconfigError::Server { path: self.path.clone(), cause })?;
        server.tls_server_name = cluster.tls_server_name.clone().filter(|n| !n.is_empty());
        if cluster.proxy_url.as_deref().is_some_and(|p| !p.is_empty()) {
            return Err(
                self.field("proxy-url", "is not supported; the API server must be reachable directly")
            );
        }
        let pem =
            self.data(&cluster.certificate_authority_data, cluster.certificate_authority.as_deref()).await?;
        let insecure = cluster.insecure_skip_tls_verify.unwrap_or(false);
        let trust = match pem {
            Some(_) if insecure => {
                return Err(self.field("insecure-skip-tls-verify", "cannot be true together with a CA"));
            }
            Some(pem) => {
                Trust::from_pem(&pem).map_err(|reason| self.field("certificate-authority", reason))?
            }
            None if insecure => Trust::Anyone,
            None => Trust::System,
        };
        Ok((server, trust))
    }

    async fn user(&self, user: &User) -> Result<Credentials, KubeconfigError> {
        const UNSUPPORTED: &str = "is not supported; use a client certificate or a token";
        let refused = [
            ("exec", user.exec.is_some()),
            ("auth-provider", user.auth_provider.is_some()),
            ("username", user.username.as_deref().is_some_and(|u| !u.is_empty())),
            ("as", user.impersonate.as_deref().is_some_and(|u| !u.is_empty())),
        ];
        if let Some((field, _)) = refused.iter().find(|(_, set)| *set) {
            return Err(self.field(field, UNSUPPORTED));
        }
        let certificate =
            self.data(&user.client_certificate_data, user.client_certificate.as_deref()).await?;
        let key = self.data(&user.client_key_data, user.client_key.as_deref()).await?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => Credentials::from_pem(&certificate, &key)
                .map_err(|reason| self.field("client-certificate and client-key", reason)),
            (Some(_), None) => Err(self.field("client-key", "is missing beside client-certificate")),
            (None, Some(_)) => Err(self.field("client-certificate", "is missing beside client-key")),
            // A file wins over a literal token, as in client-go, because it can be renewed.
            (None, None) => Ok(match (user.token_file.as_deref(), &user.token) {
                (Some(file), _) if !file.is_empty() => Credentials::TokenFile(self.path_of(file)),
                (_, Some(token)) if !token.reveal().is_empty() => {
                    Credentials::Token(Secret::new(token.reveal().trim()))
                }
                _ => Credentials::None,
            }),
        }
    }

    async fn data(
        &self,
        inline: &Option<Data>,
        file: Option<&str>,
    ) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, KubeconfigError> {
        if let Some(Data(bytes)) = inline.as_ref().filter(|d| !d.0.is_empty()) {
            return Ok(Some(bytes.clone()));
        }
        let Some(file) = file.filter(|f| !f.is_empty()) else { return Ok(None) };
        let path = self.path_of(file);
        match tokio::fs::read(&path).await {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(source) => Err(KubeconfigError::Io { path, operation: "read", source }),
        }
    }

    fn path_of(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    fn named<'a, T>(
        &self,
        list: &'a [NamedEntry<T>],
        key: &str,
        name: &str,
    ) -> Result<&'a T, KubeconfigError> {
        let found = list.iter().find(|n| n.name == name);
        found.map(|n| &n.value).ok_or_else(|| self.field(key, format!("has none that is named {name:?}")))
    }

    fn field(&self, field: &str, reason: impl Into<String>) -> KubeconfigError {
        KubeconfigError::Field { path: self.path.clone(), field: field.to_owned(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests;
