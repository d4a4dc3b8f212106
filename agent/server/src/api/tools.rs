//! Endpoints for operators: commands in containers (`/run`), checkpoints, logs of the node itself.
//!
//! In: a request of these paths, [`NodeTools`]. Out: answers. Invariant: the node's own view resolves the pod
//! before the runtime gets a call. Upstream: pkg/kubelet/server/server.go.

use std::future::Future;

use agent_kubelet_api::node_logs::{NodeLogQuery, NodeLogs, QueryError, ServiceQuery, directory_page};
use agent_types::ids::PodKey;
use agent_types::pod;
use agent_types::time::Wall;
use hyper::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::{Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::{LogPieces, NodeApi, decoded, pairs};
use crate::body::{Body, json as json_answer, streamed, text, whole};

/// The node's hands, for people.
pub trait NodeTools: Send + Sync + 'static {
    /// Runs a command in a container to its end; what it wrote, outputs before errors.
    ///
    /// # Errors
    /// The command's failure, or the runtime's words.
    fn run_command(
        &self,
        of: ContainerOf,
        command: Vec<String>,
    ) -> impl Future<Output = Result<Vec<u8>, String>> + Send;

    /// Writes a checkpoint of a container; answers of its path. `timeout_s` is the runtime's to keep, 0 its own.
    ///
    /// # Errors
    /// The runtime's words.
    fn checkpoint(
        &self,
        of: ContainerOf,
        timeout_s: i64,
    ) -> impl Future<Output = Result<String, String>> + Send;

    /// Looks below the node's log directory.
    fn node_file(&self, path: String) -> impl Future<Output = Result<NodeFile, NodeFileError>> + Send;

    /// Logs of services, with what went wrong as a part of them.
    fn service_logs(&self, query: ServiceQuery) -> impl Future<Output = LogPieces> + Send;

    /// When the process began.
    fn started(&self) -> Wall;

    /// The flags that it was given, name and value.
    fn flags(&self) -> Vec<(String, String)>;

    /// The process's command line.
    fn command_line(&self) -> Vec<String>;

    /// Says more or less from now on, `logging.verbosity`'s way.
    ///
    /// # Errors
    /// Why it goes on as it was.
    fn set_verbosity(&self, level: u32) -> Result<(), String>;
}

/// One container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerOf {
    /// UID of the pod.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// The container's name.
    pub container: String,
}

/// What a path below the log directory leads to.
#[derive(Debug)]
pub enum NodeFile {
    /// A file's bytes, and whether they are text.
    Pieces(LogPieces, bool),
    /// Names in a directory; those of directories end in a slash.
    Directory(Vec<String>),
}

/// Why there is nothing to read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeFileError {
    /// Nothing of that name, or nothing that may be shown: 404.
    #[error("{0}")]
    NotFound(String),
    /// The disk's words: 500.
    #[error("{0}")]
    Failed(String),
}

/// `POST /run/<namespace>/<pod>[/<uid>]/<container>?cmd=…`
pub(super) async fn run<N: NodeApi + NodeTools>(node: &N, rest: &[&str], query: &str) -> Response<Body> {
    let Some(segments) = rest.iter().map(|s| decoded(s, false)).collect::<Option<Vec<_>>>() else {
        return page_not_found();
    };
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (namespace, pod, uid, container) = match segments.as_slice() {
        [namespace, pod, container] => (*namespace, *pod, None, *container),
        [namespace, pod, uid, container] => (*namespace, *pod, Some(*uid), *container),
        _ => return page_not_found(),
    };
    let found = node.pod(namespace, pod).map(|(found, _)| container_of(&found, container));
    let Some(of) = found.filter(|of| uid.is_none_or(|uid| uid == of.uid)) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist\n");
    };
    let query = pairs(query);
    let command = query.iter().find(|(key, _)| key == "cmd").map_or("", |(_, value)| value.as_str());
    let command = command.split(' ').map(str::to_owned).collect();
    match node.run_command(of, command).await {
        Ok(written) => whole(StatusCode::OK, "application/json", written.into()),
        Err(problem) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{problem}\n")),
    }
}

/// `POST /checkpoint/<namespace>/<pod>/<container>?timeout=…`
pub(super) async fn checkpoint<N: NodeApi + NodeTools>(
    node: &N,
    rest: &[&str],
    query: &str,
) -> Response<Body> {
    let segments = rest.iter().map(|s| decoded(s, false)).collect::<Option<Vec<_>>>().unwrap_or_default();
    let [namespace, pod, container] = segments.as_slice() else { return page_not_found() };
    let not_found = |words: String| text(StatusCode::NOT_FOUND, words);
    let Some((found, _)) = node.pod(namespace, pod) else {
        return not_found("pod does not exist\n".to_owned());
    };
    if !super::logs::names(&found).any(|name| name == container) {
        return not_found(format!("container {container} does not exist\n"));
    }
    let query = pairs(query);
    // Of several the last counts.
    let timeout = query.iter().rfind(|(key, _)| key == "timeout").map_or(Ok(0), |(_, value)| value.parse());
    let Ok(timeout_s) = timeout else {
        return not_found("cannot parse value of timeout parameter\n".to_owned());
    };
    match node.checkpoint(container_of(&found, container), timeout_s).await {
        Ok(path) => json_answer(StatusCode::OK, &json!({ "items": [path] })),
        Err(problem) => {
            let words = format!("checkpointing of {namespace}/{pod}/{container} failed ({problem})\n");
            text(StatusCode::INTERNAL_SERVER_ERROR, words)
        }
    }
}

fn container_of(pod: &Pod, container: &str) -> ContainerOf {
    let PodKey { uid, namespace, name } = pod::key(pod);
    ContainerOf {
        uid: uid.to_string(),
        namespace: namespace.to_string(),
        pod: name.to_string(),
        container: container.to_owned(),
    }
}

/// `GET /logs/…`: files and directories, and queries where `queries` allows them (`enableSystemLogQuery`).
pub(super) async fn node_logs<N: NodeTools>(
    node: &N,
    rest: &[&str],
    query: &str,
    queries: bool,
) -> Response<Body> {
    if rest.is_empty() {
        return moved("logs/");
    }
    let Some(path) = decoded(&rest.join("/"), false) else { return page_not_found() };
    let asked = if queries { read_query(query) } else { Ok(None) };
    let asked = match asked {
        Ok(Some(_)) if !path.trim_matches('/').is_empty() => {
            return text(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode\n");
        }
        Ok(asked) => asked,
        Err(error) => return refused(&error),
    };
    let Some(asked) = asked else { return file(node, path).await };
    let missing = match asked.only_file().map(str::to_owned) {
        Some(name) => node.node_file(name).await.err().map(|error| error.to_string()),
        None => None,
    };
    match asked.accepted(|_| missing.clone()) {
        Ok(NodeLogs::File(path)) => file(node, path).await,
        Ok(NodeLogs::Services(services)) => {
            let mut response = streamed(node.service_logs(services).await);
            let kind = HeaderValue::from_static("text/plain;charset=UTF-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Err(error) => refused(&error),
    }
}

fn read_query(query: &str) -> Result<Option<NodeLogQuery>, QueryError> {
    let query = pairs(query);
    NodeLogQuery::from_query(query.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

fn refused(error: &QueryError) -> Response<Body> {
    let status = match error {
        QueryError::Unreadable(_) => StatusCode::BAD_REQUEST,
        QueryError::Unacceptable(_) => StatusCode::NOT_ACCEPTABLE,
    };
    text(status, format!("{error}\n"))
}

async fn file<N: NodeTools>(node: &N, path: String) -> Response<Body> {
    let is_directory_path = path.is_empty() || path.ends_with('/');
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    match node.node_file(path).await {
        // Links on the page are relative: they need the slash. A name with a colon would be read as a scheme.
        Ok(NodeFile::Directory(_)) if !is_directory_path => moved(&format!("./{}/", encoded(&last))),
        Ok(NodeFile::Directory(names)) => {
            whole(StatusCode::OK, "text/html; charset=utf-8", directory_page(&names).into())
        }
        Ok(NodeFile::Pieces(..)) if is_directory_path => moved(&format!("../{}", encoded(&last))),
        Ok(NodeFile::Pieces(pieces, is_text)) => {
            let mut response = streamed(pieces);
            if !is_text {
                let kind = HeaderValue::from_static("application/octet-stream");
                response.headers_mut().insert(CONTENT_TYPE, kind);
            }
            response
        }
        Err(NodeFileError::NotFound(why)) => {
            tracing::debug!(why, "no such log");
            page_not_found()
        }
        Err(NodeFileError::Failed(why)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
    }
}

fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn moved(to: &str) -> Response<Body> {
    let mut response = text(StatusCode::MOVED_PERMANENTLY, "");
    match HeaderValue::from_str(to) {
        Ok(to) => {
            response.headers_mut().insert(LOCATION, to);
            response
        }
        Err(_) => page_not_found(),
    }
}

fn page_not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}
