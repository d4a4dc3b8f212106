//! The shell of `staticPodURL`: sends the machine's requests to the server.
//!
//! ```text
//! UrlSource ─► requests ─► one GET at a time, 10 s at most ─► answers ─► UrlSource ─► updates ─► manager, mirror pods
//! ```
//! See [`agent_core::pod_source::url`] for the decisions. Invariant: the headers are in requests and nowhere else.

use std::sync::Arc;
use std::time::Duration;

use agent_core::console::problem::ConsoleProblem;
use agent_core::console::runbook;
use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_source::decode::MAX_MANIFEST_BYTES;
use agent_core::pod_source::url::{self, UrlAction, UrlAnswer, UrlEvent, UrlReport, UrlSourceConfig};
use agent_core::pod_source::{Source, UrlSource};
use agent_core::probe::check::HttpGet;
use agent_types::time::Now;
use anyhow::{Context, bail};
use hyper::header::{HeaderName, HeaderValue};
use orlop_config::kubelet::KubeletConfiguration;
use tokio::time::timeout;

use crate::node::NodeHandles;
use crate::node::node_events::NodeEvents;
use crate::pods::probes_and_hooks::http;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::alive::Owner;
use crate::tasks::mailbox::{Coalesce, Relation, Sender};

/// A request and its whole answer take at most this long; upstream's limit.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// `User-Agent`, unless a header sets another one.
const AGENT: &str = concat!("orlop-agent/", env!("CARGO_PKG_VERSION"));

/// The server of the manifests.
#[derive(Clone)]
pub struct Manifests {
    url: String,
    get: Arc<HttpGet>,
    check_period: Duration,
}

impl std::fmt::Debug for Manifests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manifests").field("check_period", &self.check_period).finish_non_exhaustive()
    }
}

impl Manifests {
    /// `staticPodURL`, `staticPodURLHeader` and `httpCheckFrequency`; `None` without a URL.
    ///
    /// # Errors
    /// The URL or a header is not valid; the error names the header without its values.
    pub fn of(kubelet: &KubeletConfiguration) -> anyhow::Result<Option<Manifests>> {
        if kubelet.static_pod_url.is_empty() {
            return Ok(None);
        }
        let mut headers = Vec::new();
        for (name, values) in &kubelet.static_pod_url_header {
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                bail!("staticPodURLHeader: {name:?} is no name of an HTTP header");
            }
            for value in &values.0 {
                if HeaderValue::from_bytes(value.as_bytes()).is_err() {
                    bail!("staticPodURLHeader: a value of {name} cannot be sent in an HTTP header");
                }
                headers.push((name.clone(), value.clone()));
            }
        }
        let get =
            Arc::new(url::request(&kubelet.static_pod_url, headers).context("the source of static pods")?);
        let check_period = kubelet.http_check_frequency.to_std();
        Ok(Some(Manifests { url: kubelet.static_pod_url.clone(), get, check_period }))
    }
}

/// Starts the source; it lives until the node stops.
pub fn start(manifests: Manifests, node_name: &str, node: &NodeHandles) -> Owner {
    let NodeHandles { manager, node_events, tasks } = node.clone();
    let (own, inbox) = tasks.mailbox();
    let Manifests { url, get, check_period } = manifests;
    let config = UrlSourceConfig { url, node_name: node_name.to_owned(), check_period };
    let shell = UrlShell { get, tasks: tasks.clone(), own: own.clone(), manager, node_events };
    tasks.own(UrlSource::new(config), shell, inbox);
    // The first tick asks for the first answer.
    own.send(UrlEvent::Tick);
    Owner::new("url source", own)
}

/// The source's surroundings.
struct UrlShell {
    get: Arc<HttpGet>,
    tasks: Tasks,
    own: Sender<UrlEvent>,
    manager: Sender<ManagerEvent>,
    node_events: NodeEvents,
}

impl Shell for UrlShell {
    type Machine = UrlSource;

    fn tick(&self) -> UrlEvent {
        UrlEvent::Tick
    }

    fn perform(&mut self, _now: Now, action: UrlAction) {
        match action {
            UrlAction::Get => {
                let (get, own) = (self.get.clone(), self.own.clone());
                self.tasks.start(async move {
                    own.send(UrlEvent::Answered(ask(&get).await));
                });
            }
            UrlAction::Deliver(update) => {
                self.node_events.static_pods(&update);
                self.manager.send(ManagerEvent::Update(update));
            }
            UrlAction::Report(UrlReport::Duplicate(duplicate)) => self.node_events.left_out(&duplicate),
            UrlAction::Report(report) => self.log(&report),
        }
    }
}

impl UrlShell {
    fn log(&self, report: &UrlReport) {
        // The query may contain a secret.
        let server = self.get.authority();
        match report {
            UrlReport::Failed { problem, last } => {
                let more = if *last { "; this is not said again until it works" } else { "" };
                tracing::error!(server, problem, "static pods not read from their URL{more}");
                let subject = format!("static pods of {server}");
                let shown = ConsoleProblem::of(&runbook::MANIFEST_URL, &subject, problem);
                self.node_events.manifest_problems(Source::Http, vec![shown]);
            }
            UrlReport::Recovered => {
                tracing::info!(server, "static pods read from their URL again");
                self.node_events.manifest_problems(Source::Http, Vec::new());
            }
            UrlReport::UnknownFields(fields) => {
                tracing::warn!(server, fields = fields.join(" "), "static pod manifests have unknown fields");
            }
            // An event, which is in the log as well.
            UrlReport::Duplicate(_) => {}
        }
    }
}

async fn ask(get: &HttpGet) -> Result<UrlAnswer, String> {
    let answer = timeout(ANSWER_MAX, http::fetch(get, AGENT, MAX_MANIFEST_BYTES + 1)).await;
    match answer {
        Ok(Ok(answer)) => Ok(UrlAnswer { status: answer.status, body: answer.body }),
        Ok(Err(error)) => Err(error.reason().to_owned()),
        Err(_) => Err(format!("no answer within {} s", ANSWER_MAX.as_secs())),
    }
}

impl Coalesce for UrlEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (UrlEvent::Tick, UrlEvent::Tick) => Relation::Supersedes,
            _ => Relation::Ordered,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use orlop_config::kubelet::nested::HeaderValues;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn manifests(url: &str, headers: &[(&str, &[&str])]) -> anyhow::Result<Option<Manifests>> {
        let values = |all: &[&str]| HeaderValues(all.iter().map(|v| (*v).to_owned()).collect());
        let kubelet = KubeletConfiguration {
            static_pod_url: url.to_owned(),
            static_pod_url_header: headers
                .iter()
                .map(|(name, all)| ((*name).to_owned(), values(all)))
                .collect::<BTreeMap<_, _>>(),
            ..KubeletConfiguration::default()
        };
        Manifests::of(&kubelet)
    }

    #[test]
    fn what_cannot_be_asked_is_said_without_secrets() {
        assert!(manifests("", &[]).unwrap().is_none());
        for (url, name, value, words) in [
            ("ftp://h/", "A", "hidden", "http://"),
            ("http://u:hidden@h/", "A", "hidden", "staticPodURLHeader"),
            ("http://h/", "a b", "hidden", "\"a b\""),
            ("http://h/", "A", "hidden\n", "a value of A"),
        ] {
            let error = format!("{:#}", manifests(url, &[(name, &[value])]).unwrap_err());
            assert!(error.contains(words) && !error.contains("hidden"), "{error}");
        }
        let shown = format!("{:?}", manifests("http://h/?token=hidden", &[("A", &["hidden"])]).unwrap());
        assert!(!shown.contains("hidden"), "{shown}");
    }

    /// A server that answers once with `answer`, and the request that it received.
    async fn serve(answer: String) -> (String, impl Future<Output = String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pods?a=b", listener.local_addr().unwrap());
        let heard = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = Vec::new();
            while !text.ends_with(b"\r\n\r\n") {
                text.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(text).unwrap()
        };
        (url, heard)
    }

    #[tokio::test]
    async fn the_headers_reach_the_server_and_its_answer_the_machine() {
        let (url, heard) = serve("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nkind".to_owned()).await;
        let given: &[(&str, &[&str])] = &[("Authorization", &["Bearer x"]), ("X-Many", &["1", "2"])];
        let manifests = manifests(&url, given).unwrap().unwrap();
        let (answer, heard) = tokio::join!(ask(&manifests.get), heard);
        assert_eq!(answer, Ok(UrlAnswer { status: 200, body: b"kind".to_vec() }));
        let heard = heard.to_lowercase();
        for line in ["get /pods?a=b http/1.1", "authorization: bearer x", "x-many: 1", "x-many: 2"] {
            assert!(heard.lines().any(|l| l == line), "{line}: {heard}");
        }
    }

    #[tokio::test]
    async fn a_redirection_is_an_answer_and_nobody_else_gets_the_headers() {
        let (url, heard) = serve(
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n".to_owned(),
        )
        .await;
        let manifests = manifests(&url, &[]).unwrap().unwrap();
        let (answer, _) = tokio::join!(ask(&manifests.get), heard);
        assert_eq!(answer, Ok(UrlAnswer { status: 302, body: Vec::new() }));
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_a_problem_without_the_query() {
        // Bound, and never listening: a dropped listener listens on in each child that another test is just starting.
        let bound = tokio::net::TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}/?token=hidden", bound.local_addr().unwrap());
        let manifests = manifests(&url, &[("A", &["hidden"])]).unwrap().unwrap();
        let problem = ask(&manifests.get).await.unwrap_err();
        assert!(problem.contains("refused") && !problem.contains("hidden"), "{problem}");
    }
}
