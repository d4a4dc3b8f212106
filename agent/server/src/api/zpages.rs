//! `/statusz` and `/flagz`: as text for people, and as JSON for programs that ask for it (KEP-4827,
//! KEP-4828).
//!
//! In: the client's `Accept` header, facts about the process. Out: text, or JSON of `config.k8s.io/v1beta1`.

use agent_types::api_time;
use agent_types::time::Wall;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::tools::NodeTools;
use crate::body::{Body, json as json_answer, text};

/// Nanoseconds of a second.
const SECOND: i64 = 1_000_000_000;
/// What the pages call the program: tools look for this name.
const COMPONENT: &str = "kubelet";
/// The API's version whose behaviour this is.
const EMULATED: &str = "1.36";
/// First segments of paths that are served.
const PATHS: &[&str] = &[
    "/attach",
    "/checkpoint",
    "/configz",
    "/containerLogs",
    "/exec",
    "/flagz",
    "/healthz",
    "/logs",
    "/metrics",
    "/pods",
    "/portForward",
    "/run",
    "/runningpods",
    "/statusz",
];

/// What a client wants to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

/// `GET /statusz`.
pub(super) fn statusz<N: NodeTools>(node: &N, accept: Option<&str>, now: Wall) -> Response<Body> {
    let started = node.started();
    let up_s = now.0.saturating_sub(started.0).max(0) / SECOND;
    let version = env!("CARGO_PKG_VERSION");
    match form(accept, "Statusz") {
        Some(Form::Json) => structured(
            "Statusz",
            &json!({
                "startTime": api_time::text(started), "uptimeSeconds": up_s, "goVersion": "", "binaryVersion": version,
                "emulationVersion": EMULATED, "paths": PATHS,
            }),
        ),
        Some(Form::Text) => {
            let (hours, minutes, seconds) = (up_s / 3600, up_s / 60 % 60, up_s % 60);
            let page = format!(
                "{}\nStarted: {}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\nBinary version: {version}\n\
                 Emulation version: {EMULATED}\nPaths: {}\n",
                head("statusz"),
                unix_date(started),
                PATHS.join(" ")
            );
            text(StatusCode::OK, page)
        }
        None => not_acceptable("Statusz"),
    }
}

/// `GET /flagz`.
pub(super) fn flagz<N: NodeTools>(node: &N, accept: Option<&str>) -> Response<Body> {
    let mut flags = node.flags();
    flags.sort();
    match form(accept, "Flagz") {
        Some(Form::Json) => {
            let flags: serde_json::Map<String, Value> =
                flags.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
            structured("Flagz", &json!({ "flags": flags }))
        }
        Some(Form::Text) => {
            let lines: Vec<String> = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
            text(StatusCode::OK, head("flagz") + &lines.concat())
        }
        None => not_acceptable("Flagz"),
    }
}

fn head(page: &str) -> String {
    format!(
        "\n{COMPONENT} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
         compatibility guarantees and is for debugging purposes only.\n"
    )
}

fn structured(kind: &str, fields: &Value) -> Response<Body> {
    let mut document =
        json!({ "kind": kind, "apiVersion": "config.k8s.io/v1beta1", "metadata": { "name": COMPONENT } });
    if let (Some(document), Some(fields)) = (document.as_object_mut(), fields.as_object()) {
        document.extend(fields.clone());
    }
    json_answer(StatusCode::OK, &document)
}

/// The first form that is both accepted and there.
fn form(accept: Option<&str>, kind: &str) -> Option<Form> {
    let accept = accept.map(str::trim).filter(|a| !a.is_empty()).unwrap_or("text/plain");
    accept.split(',').find_map(|one| {
        let mut parts = one.split(';').map(str::trim);
        let media = parts.next()?.to_ascii_lowercase();
        let parameters: Vec<&str> = parts.collect();
        match media.as_str() {
            "text/plain" | "text/*" | "*/*" => Some(Form::Text),
            "application/json" => {
                let wanted = ["g=config.k8s.io".to_owned(), "v=v1beta1".to_owned(), format!("as={kind}")];
                wanted.iter().all(|w| parameters.contains(&w.as_str())).then_some(Form::Json)
            }
            _ => None,
        }
    })
}

fn not_acceptable(kind: &str) -> Response<Body> {
    let message = format!(
        "only the following media types are accepted: text/plain, \
         application/json;g=config.k8s.io;v=v1beta1;as={kind}"
    );
    json_answer(
        StatusCode::NOT_ACCEPTABLE,
        &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": "NotAcceptable", "code": 406 }),
    )
}

/// As Go's `time.UnixDate`.
fn unix_date(at: Wall) -> String {
    api_time::timestamp(at).strftime("%a %b %e %H:%M:%S UTC %Y").to_string()
}
