//! A server of manifests as a machine (configuration field `staticPodURL`).
//!
//! In: answers to its own requests, ticks. Out: requests, [`PodUpdate`]s, reports for the log. Invariants:
//! - one request at a time, the next a check period after the answer;
//! - a server that cannot be reached, answers with another status than 200, or answers with something other
//!   than pods for this node changes nothing: an answer counts completely or not at all;
//! - an empty answer means no pods; upstream does the same, and reports a failure as well;
//! - nothing is delivered before the first valid answer, so the source is not ready before it;
//! - the driver adds the request's headers: they are secret and never reach this machine.
//!
//! The shell answers each request exactly once. Upstream: pkg/kubelet/config/http.go.

use std::sync::Arc;
use std::time::Duration;

use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

use super::file::static_pod;
use super::storage::DuplicateName;
use super::{ManifestError, PodStorage, PodUpdate, Source, decode, identity};
use crate::probe::check::{HttpGet, Scheme};

/// Consecutive failures that get a log line; the line after them announces that there are no more.
const FAILURES_SAID: u32 = 3;

/// What a source needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlSourceConfig {
    /// `staticPodURL`. It is part of every pod's UID.
    pub url: String,
    /// Name of the Node.
    pub node_name: String,
    /// `httpCheckFrequency`: from an answer to the next request.
    pub check_period: Duration,
}

/// What the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlAnswer {
    /// HTTP status.
    pub status: u16,
    /// Its bytes; a shell may stop after [`decode::MAX_MANIFEST_BYTES`] + 1.
    pub body: Vec<u8>,
}

/// What the source reacts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlEvent {
    /// The answer to [`UrlAction::Get`], or why there is none.
    Answered(Result<UrlAnswer, String>),
    /// The deadline came, or the source starts.
    Tick,
}

/// A request or report of the source.
#[derive(Clone, Debug, PartialEq)]
pub enum UrlAction {
    /// Ask the server.
    Get,
    /// For `pod_manager`.
    Deliver(PodUpdate),
    /// For the log.
    Report(UrlReport),
}

/// Something people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlReport {
    /// The pods stay as they are (an empty answer takes them).
    Failed {
        /// Reason of the failure.
        problem: String,
        /// True if further failures are not reported.
        last: bool,
    },
    /// It works again.
    Recovered,
    /// Fields that a pod does not have were ignored.
    UnknownFields(Vec<String>),
    /// Event `FailedValidation`: a pod was left out because another one has its name.
    Duplicate(DuplicateName),
}

/// The machine.
#[derive(Clone, Debug)]
pub struct UrlSource {
    config: UrlSourceConfig,
    storage: PodStorage,
    /// What counted last, to skip decoding it again.
    digest: Option<u128>,
    asking: bool,
    next: Option<Mono>,
    failures: u32,
    duplicates: Vec<DuplicateName>,
}

impl UrlSource {
    /// A source that has read nothing; step it with [`UrlEvent::Tick`] to start.
    #[must_use]
    pub fn new(config: UrlSourceConfig) -> UrlSource {
        UrlSource {
            config,
            storage: PodStorage::new(Source::Http),
            digest: None,
            asking: false,
            next: None,
            failures: 0,
            duplicates: Vec::new(),
        }
    }

    fn answered(&mut self, now: Now, answer: Result<UrlAnswer, String>, out: &mut Outbox<UrlAction>) {
        match answer.and_then(|answer| self.taken(now, &answer, out)) {
            Ok(()) => {
                if std::mem::take(&mut self.failures) > 0 {
                    out.push(UrlAction::Report(UrlReport::Recovered));
                }
            }
            Err(problem) => {
                if self.failures <= FAILURES_SAID {
                    let last = self.failures == FAILURES_SAID;
                    out.push(UrlAction::Report(UrlReport::Failed { problem, last }));
                }
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    fn taken(&mut self, now: Now, answer: &UrlAnswer, out: &mut Outbox<UrlAction>) -> Result<(), String> {
        if answer.status != 200 {
            return Err(format!("the server answered with status {}", answer.status));
        }
        if answer.body.is_empty() {
            self.digest = None;
            self.deliver(now, Vec::new(), out);
            return Err("the answer is empty: no pods".to_owned());
        }
        let digest = identity::digest(&answer.body);
        if self.digest == Some(digest) {
            return Ok(());
        }
        let pods = self.pods(&answer.body, out).map_err(|error| error.to_string())?;
        self.digest = Some(digest);
        self.deliver(now, pods, out);
        Ok(())
    }

    fn pods(&self, body: &[u8], out: &mut Outbox<UrlAction>) -> Result<Vec<Arc<Pod>>, ManifestError> {
        let UrlSourceConfig { url, node_name, .. } = &self.config;
        let (mut pods, mut unknown) = (Vec::new(), Vec::new());
        for decoded in decode::decode_all(body)? {
            unknown.extend(decoded.unknown_fields);
            pods.push(Arc::new(static_pod(decoded.pod, &decoded.raw, Source::Http, node_name, url)?));
        }
        if !unknown.is_empty() {
            out.push(UrlAction::Report(UrlReport::UnknownFields(unknown)));
        }
        Ok(pods)
    }

    fn deliver(&mut self, now: Now, pods: Vec<Arc<Pod>>, out: &mut Outbox<UrlAction>) {
        let (updates, duplicates) = self.storage.set(pods, now.wall);
        for news in duplicates.iter().filter(|d| !self.duplicates.contains(d)) {
            out.push(UrlAction::Report(UrlReport::Duplicate(news.clone())));
        }
        self.duplicates = duplicates;
        updates.into_iter().for_each(|update| out.push(UrlAction::Deliver(update)));
    }
}

impl Machine for UrlSource {
    type Event = UrlEvent;
    type Action = UrlAction;

    fn step(&mut self, now: Now, event: UrlEvent, out: &mut Outbox<UrlAction>) {
        match event {
            UrlEvent::Answered(answer) => {
                self.asking = false;
                self.next = Some(now.mono.after(self.config.check_period));
                self.answered(now, answer, out);
            }
            UrlEvent::Tick => {
                if !self.asking && self.next.is_none_or(|at| now.mono >= at) {
                    self.asking = true;
                    out.push(UrlAction::Get);
                }
            }
        }
    }

    /// The next request; none while an answer is awaited.
    fn deadline(&self) -> Option<Mono> {
        self.next.filter(|_| !self.asking)
    }
}

/// Reason why `staticPodURL` is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not `http://` or `https://` with a host.
    #[error("staticPodURL: no URL that begins with http:// or https:// and a host")]
    NoUrl,
    /// `user:password@` before the host: the URL is in logs and annotations are made of it.
    #[error("staticPodURL: user and password do not belong into the URL; give them by staticPodURLHeader")]
    Credentials,
}

/// The request for `url` with these headers.
///
/// # Errors
/// [`UrlError`], without the URL, which may be secret.
pub fn request(url: &str, headers: Vec<(String, String)>) -> Result<HttpGet, UrlError> {
    let (_, rest) = url.split_once("://").ok_or(UrlError::NoUrl)?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(UrlError::Credentials);
    }
    let nothing = HttpGet {
        scheme: Scheme::Http,
        host: String::new(),
        port: 0,
        target: "/".to_owned(),
        headers: Vec::new(),
    };
    let get = nothing.redirected(url).filter(|get| !get.host.is_empty()).ok_or(UrlError::NoUrl)?;
    Ok(HttpGet { headers, ..get })
}

#[cfg(test)]
mod tests;
