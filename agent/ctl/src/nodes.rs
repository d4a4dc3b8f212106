//! One question to several nodes at once.
//!
//! In: ways to nodes, a verb that reads. Out: the answers in the order of the command line, each row with its node. Invariants: at most
//! [`AT_ONCE`] nodes are asked at the same time; a node that fails hides no other one; no verb that changes a node has several.

use std::io::{self, Write as _};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use orlop_proto::node_api::v1alpha1::node_client::NodeClient;
use orlop_proto::node_api::v1alpha1::{GetRequest, GetResponse, VersionInfo, VersionRequest};
use serde_json::{Value, json};

use crate::cli::{Cli, OutputForm, Verb};
use crate::cluster_node::ClusterNode;
use crate::commands::{SCREEN_KINDS, Verdict, show, within, write};
use crate::failure::{CtlError, NO};
use crate::render::{list, name, plain, screen, table};
use crate::target::Target;

/// Nodes that are asked at the same time.
const AT_ONCE: usize = 8;
/// What several nodes may be asked.
const VERBS: &str =
    "several nodes answer `status`, `get` without --watch, and `version`; for other verbs name one node";

/// A way to one of several nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeWay {
    /// kubectl knows the way.
    Cluster(ClusterNode),
    /// The name, and the way.
    Known(String, Target),
}

/// What the nodes are asked.
enum Question {
    Status,
    Objects(GetRequest),
    Version,
}

/// What a node says.
enum Reply {
    Objects(GetResponse),
    Version(Box<VersionInfo>),
}

struct NodeAnswer {
    node: String,
    reply: Result<Reply, CtlError>,
}

/// Asks all nodes of the command line.
pub(crate) async fn run(cli: &Cli) -> Result<Verdict, CtlError> {
    let question = match &cli.verb {
        Verb::Status => Question::Status,
        Verb::Get(args) if !args.watch => {
            Question::Objects(GetRequest { kinds: args.kinds(), names: args.names.clone() })
        }
        Verb::Version => Question::Version,
        _ => return Err(CtlError::Usage(VERBS.to_owned())),
    };
    let (question, limit) = (&question, cli.timeout());
    let asked = stream::iter(cli.several()?).map(|way| ask(way, question, limit));
    let answers: Vec<NodeAnswer> = asked.buffered(AT_ONCE).collect().await;
    match cli.output {
        OutputForm::Table => write(&text(question, &answers))?,
        OutputForm::Name => write(&names(&answers))?,
        other => show(other, &document(&answers), String::new)?,
    }
    for line in complaints(question, &answers) {
        // If stderr is gone, there is no other place for it.
        let _ = writeln!(io::stderr(), "orlopctl: {line}");
    }
    verdict(question, &answers)
}

async fn ask(way: NodeWay, question: &Question, limit: Duration) -> NodeAnswer {
    let (node, target) = match way {
        NodeWay::Known(node, target) => (node, Ok(target)),
        NodeWay::Cluster(node) => {
            let target = node.find(limit).await;
            (node.name, target)
        }
    };
    let reply = match target {
        Ok(target) => reply(&target, question, limit).await,
        Err(error) => Err(error),
    };
    NodeAnswer { node, reply }
}

async fn reply(target: &Target, question: &Question, limit: Duration) -> Result<Reply, CtlError> {
    let mut client = NodeClient::new(target.connect(limit).await?);
    let request = match question {
        Question::Version => {
            let version = within(limit, "the node", client.version(VersionRequest {})).await?;
            return Ok(Reply::Version(Box::new(version)));
        }
        Question::Status => GetRequest { kinds: SCREEN_KINDS.map(str::to_owned).to_vec(), names: Vec::new() },
        Question::Objects(request) => request.clone(),
    };
    Ok(Reply::Objects(within(limit, "the node", client.get(request)).await?))
}

/// The answers for people.
fn text(question: &Question, answers: &[NodeAnswer]) -> String {
    if matches!(question, Question::Status) {
        let screens = answers.iter().filter_map(|answer| match &answer.reply {
            Ok(Reply::Objects(response)) => {
                Some(format!("── {}\n{}", plain(&answer.node), screen::screen(response)))
            }
            Ok(Reply::Version(_)) | Err(_) => None,
        });
        return screens.collect::<Vec<String>>().join("\n");
    }
    let mut versions = Vec::new();
    let mut objects = Vec::new();
    for NodeAnswer { node, reply } in answers {
        match reply {
            Ok(Reply::Version(version)) => versions.push(row(node, version)),
            Ok(Reply::Objects(response)) => {
                objects.extend(response.objects.iter().map(|object| (node.as_str(), object)));
            }
            Err(_) => {}
        }
    }
    match versions.is_empty() {
        true => table::objects_of_nodes(&objects),
        false => table::table(&["NODE", "IMAGE", "SERVER", "KERNEL", "SERVER KEY"], versions),
    }
}

fn row(node: &str, version: &VersionInfo) -> Vec<String> {
    let VersionInfo { image_version, server_version, kernel, server_key, .. } = version;
    let words = [image_version, server_version, kernel, server_key];
    std::iter::once(plain(node)).chain(words.into_iter().map(|word| plain(word))).collect()
}

/// One line for each object: node/kind/name.
fn names(answers: &[NodeAnswer]) -> String {
    let mut lines = String::new();
    for NodeAnswer { node, reply } in answers {
        match reply {
            Ok(Reply::Objects(response)) => {
                for object in &response.objects {
                    let parts = [node.as_str(), object.kind.as_str(), name(object)].map(plain);
                    lines.push_str(&parts.join("/"));
                    lines.push('\n');
                }
            }
            Ok(Reply::Version(_)) => lines.push_str(&format!("{}\n", plain(node))),
            Err(_) => {}
        }
    }
    lines
}

/// All answers as one document, errors among them.
fn document(answers: &[NodeAnswer]) -> Value {
    let item = |NodeAnswer { node, reply }: &NodeAnswer| match reply {
        Ok(Reply::Objects(response)) => json!({ "node": node, "answer": list(response) }),
        Ok(Reply::Version(version)) => json!({ "node": node, "answer": version }),
        Err(error) => {
            let error = json!({
                "message": error.to_string(),
                "reason": error.reason(),
                "exitCode": error.exit_code(),
            });
            json!({ "node": node, "error": error })
        }
    };
    json!({ "kind": "NodeAnswers", "items": answers.iter().map(item).collect::<Vec<Value>>() })
}

/// What nodes could not say, each with its node.
fn complaints(question: &Question, answers: &[NodeAnswer]) -> Vec<String> {
    let mut lines = Vec::new();
    for NodeAnswer { node, reply } in answers {
        match reply {
            Ok(Reply::Objects(response)) => {
                for failure in &response.failures {
                    lines.push(plain(&format!("{node}: {}: {}", failure.kind, failure.message)));
                }
                let missing = missing(question, response).into_iter();
                lines.extend(missing.map(|name| plain(&format!("{node}: there is no {name:?}"))));
            }
            Ok(Reply::Version(_)) => {}
            Err(error) => lines.push(format!("{}: {error}", plain(node))),
        }
    }
    lines
}

/// Names of the question that the node does not have.
fn missing<'a>(question: &'a Question, response: &GetResponse) -> Vec<&'a str> {
    let Question::Objects(GetRequest { names, .. }) = question else { return Vec::new() };
    let is_missing = |wanted: &&str| !response.objects.iter().any(|object| name(object) == *wanted);
    names.iter().map(String::as_str).filter(is_missing).collect()
}

/// Nodes that failed decide; then problems of the others.
fn verdict(question: &Question, answers: &[NodeAnswer]) -> Result<Verdict, CtlError> {
    let codes: Vec<u8> =
        answers.iter().filter_map(|answer| Some(answer.reply.as_ref().err()?.exit_code())).collect();
    if let Some(first) = codes.first() {
        let code = if codes.iter().all(|code| code == first) { *first } else { NO };
        return Err(CtlError::Nodes { failed: codes.len(), asked: answers.len(), code });
    }
    let is_fine = |answer: &NodeAnswer| match &answer.reply {
        Ok(Reply::Objects(response)) => {
            let has_problem = response.objects.iter().any(|object| object.kind == "problems");
            let is_status = matches!(question, Question::Status);
            let is_whole = response.failures.is_empty() && missing(question, response).is_empty();
            is_whole && !(is_status && has_problem)
        }
        Ok(Reply::Version(_)) | Err(_) => true,
    };
    Ok(if answers.iter().all(is_fine) { Verdict::Fine } else { Verdict::Problems })
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::v1alpha1::{KindFailure, Meta, Object};

    use super::*;

    fn object(kind: &str, name: &str) -> Object {
        let metadata = Some(Meta { name: name.to_owned(), ..Meta::default() });
        Object { kind: kind.to_owned(), metadata, ..Object::default() }
    }

    fn answer(node: &str, objects: Vec<Object>) -> NodeAnswer {
        let reply = Ok(Reply::Objects(GetResponse { objects, failures: Vec::new() }));
        NodeAnswer { node: node.to_owned(), reply }
    }

    fn failed(node: &str, error: CtlError) -> NodeAnswer {
        NodeAnswer { node: node.to_owned(), reply: Err(error) }
    }

    fn silent() -> CtlError {
        CtlError::TimedOut { what: "the node".to_owned(), limit: Duration::from_secs(1) }
    }

    fn unreachable() -> CtlError {
        CtlError::Unreachable { target: "t".to_owned(), why: "w".to_owned() }
    }

    fn objects() -> Question {
        Question::Objects(GetRequest::default())
    }

    #[test]
    fn each_row_has_its_node_and_a_node_that_fails_hides_none() {
        let answers = [
            answer("edge-1", vec![object("disks", "vda"), object("links", "lo")]),
            failed("edge-2", unreachable()),
            answer("edge-3", vec![object("disks", "sda")]),
        ];
        let table = text(&objects(), &answers);
        assert_eq!(table, "NODE    NAME\nedge-1  vda\nedge-3  sda\n\nNODE    NAME\nedge-1  lo\n");
        assert_eq!(names(&answers), "edge-1/disks/vda\nedge-1/links/lo\nedge-3/disks/sda\n");
        let document = document(&answers);
        assert_eq!(document["items"][0]["answer"]["items"][1]["metadata"]["name"], "lo");
        assert_eq!(
            (&document["items"][1]["node"], &document["items"][1]["error"]["exitCode"]),
            (&json!("edge-2"), &json!(3))
        );
        assert!(complaints(&objects(), &answers)[0].starts_with("edge-2: cannot reach t"));
    }

    #[test]
    fn the_exit_code_is_that_of_all_failures_or_1() {
        let fine = || answer("a", Vec::new());
        let code = |answers: &[NodeAnswer]| verdict(&objects(), answers).map_err(|error| error.exit_code());
        assert_eq!(code(&[fine(), fine()]), Ok(Verdict::Fine));
        assert_eq!(code(&[fine(), failed("b", unreachable()), failed("c", unreachable())]), Err(3));
        assert_eq!(code(&[fine(), failed("b", unreachable()), failed("c", silent())]), Err(1));
        assert_eq!(code(&[fine(), failed("c", silent())]), Err(5));
    }

    #[test]
    fn problems_count_in_a_status_and_missing_kinds_everywhere() {
        let problem = || [answer("a", vec![object("problems", "p")])];
        assert_eq!(verdict(&Question::Status, &problem()).unwrap(), Verdict::Problems);
        assert_eq!(verdict(&objects(), &problem()).unwrap(), Verdict::Fine);
        let failure = KindFailure { kind: "services".to_owned(), message: "m".to_owned(), error: None };
        let reply = Ok(Reply::Objects(GetResponse { objects: Vec::new(), failures: vec![failure] }));
        let partly = [NodeAnswer { node: "a".to_owned(), reply }];
        assert_eq!(verdict(&objects(), &partly).unwrap(), Verdict::Problems);
        assert_eq!(complaints(&objects(), &partly), ["a: services: m"]);
        let named = Question::Objects(GetRequest {
            names: vec!["p".to_owned(), "q".to_owned()],
            ..GetRequest::default()
        });
        assert_eq!(verdict(&named, &problem()).unwrap(), Verdict::Problems);
        assert_eq!(complaints(&named, &problem()), ["a: there is no \"q\""]);
    }
}
