//! Certificates in files of other owners: read at the start, and again when they change.
//!
//! In: paths; inotify events, and a check every minute, because events can be lost. Out: views. Invariant: an unusable
//! file is reported once for each wording, and its earlier contents stay in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_apiserver::kubeconfig::Kubeconfig;
use agent_apiserver::{ApiClient, Trust, provider};
use agent_linux::path_watch::PathWatch;
use agent_server::tls::clients::{AuthoritiesView, ClientAuthorities};
use agent_server::tls::serving::{ServingKey, ServingView};
use anyhow::{Context, bail};
use tokio::sync::watch;

use crate::tasks::actor::Tasks;

/// Period of reading without an inotify event, as upstream does.
const EVERY: Duration = Duration::from_secs(60);

/// Source of client CAs.
pub(super) enum Authorities {
    /// `clientCAFile`.
    File(PathBuf),
    /// The cluster's CA in the node's kubeconfig, once the node has an identity.
    Kubeconfig(PathBuf, watch::Receiver<Option<Arc<ApiClient>>>),
}

pub(super) async fn read_authorities(path: &Path) -> anyhow::Result<ClientAuthorities> {
    let pem = tokio::fs::read(path).await.with_context(|| format!("read {}", path.display()))?;
    let authorities = ClientAuthorities::from_pem(&pem, provider());
    authorities.map_err(|reason| anyhow::anyhow!("{}: {reason}", path.display()))
}

async fn of_kubeconfig(path: &Path) -> anyhow::Result<ClientAuthorities> {
    let access = Kubeconfig::read(path).await?.access().await?;
    let Trust::Certificates(list) = access.trust else {
        bail!("{}: names no certificate authority", path.display());
    };
    let authorities = ClientAuthorities::of(list.iter().cloned(), provider());
    authorities.map_err(|reason| anyhow::anyhow!("{}: {reason}", path.display()))
}

/// Certificate and key.
pub(super) async fn read_pair((certificate, key): &(PathBuf, PathBuf)) -> anyhow::Result<ServingKey> {
    let read = |path: PathBuf| async move {
        tokio::fs::read(&path).await.with_context(|| format!("read {}", path.display()))
    };
    let certificate_pem = read(certificate.clone()).await?;
    let key_pem = zeroize::Zeroizing::new(read(key.clone()).await?);
    let what = format!("{} and {}", certificate.display(), key.display());
    Ok(ServingKey::from_pem(&what, &certificate_pem, &key_pem)?)
}

/// Follows client CAs; `first` are the present ones.
pub(super) fn follow(
    source: Authorities,
    first: Option<ClientAuthorities>,
    tasks: &Tasks,
) -> AuthoritiesView {
    let (view, shown) = watch::channel(first);
    let all = tasks.clone();
    tasks.start(async move {
        let path = match &source {
            Authorities::File(path) => path.clone(),
            Authorities::Kubeconfig(path, client) => {
                // There is no kubeconfig to speak of before there is an identity.
                if client.clone().wait_for(Option::is_some).await.is_err() {
                    return;
                }
                path.clone()
            }
        };
        let mut reader = Reader::new(path.clone());
        loop {
            let read = match &source {
                Authorities::File(path) => read_authorities(path).await,
                Authorities::Kubeconfig(path, _) => of_kubeconfig(path).await,
            };
            if let Some(authorities) = reader.judge("client CAs", read) {
                view.send_replace(Some(authorities));
            }
            reader.wait(&all).await;
        }
    });
    shown
}

/// Follows a certificate and its key; `first` are the present ones.
pub(super) fn follow_pair(pair: (PathBuf, PathBuf), first: ServingKey, tasks: &Tasks) -> ServingView {
    let (view, shown) = watch::channel(Some(first));
    let all = tasks.clone();
    tasks.start(async move {
        // Programs that write both files write the certificate after its key.
        let mut reader = Reader::new(pair.0.clone());
        loop {
            reader.wait(&all).await;
            if let Some(key) = reader.judge("serving certificate", read_pair(&pair).await) {
                let is_new = view.send_if_modified(|shown| {
                    let differ = shown.as_ref() != Some(&key);
                    *shown = Some(key);
                    differ
                });
                if is_new {
                    tracing::info!(path = %pair.0.display(), "the serving certificate was replaced");
                }
            }
        }
    });
    shown
}

/// Waits for a change of a file, and reports problems with it.
struct Reader {
    path: PathBuf,
    hints: Option<PathWatch>,
    said: String,
}

impl Reader {
    fn new(path: PathBuf) -> Reader {
        // Without inotify only the timer triggers.
        let hints = PathWatch::new(&path).ok();
        Reader { path, hints, said: String::new() }
    }

    async fn wait(&mut self, tasks: &Tasks) {
        let timer = tasks.wait_until(tasks.now().mono.after(EVERY));
        let Some(hints) = &mut self.hints else { return timer.await };
        let failed = tokio::select! {
            // Both only wait.
            changed = hints.changed() => changed.is_err(),
            () = timer => false,
        };
        if failed {
            self.hints = None;
        }
    }

    fn judge<T>(&mut self, what: &'static str, read: anyhow::Result<T>) -> Option<T> {
        match read {
            Ok(read) => {
                self.said.clear();
                Some(read)
            }
            Err(error) => {
                let problem = format!("{error:#}");
                if problem != self.said {
                    tracing::warn!(path = %self.path.display(), what, problem, "cannot be used; what was read before stays");
                    self.said = problem;
                }
                None
            }
        }
    }
}
