//! The verbs: calls of the node, and what is shown of their answers.
//!
//! Invariant: what a node could not answer is said on standard error, and makes the exit code 1; the rest is shown.

use std::io::{self, Write};
use std::time::Duration;

use orlop_proto::node_api::v1alpha1::logs_client::LogsClient;
use orlop_proto::node_api::v1alpha1::node_client::NodeClient;
use orlop_proto::node_api::v1alpha1::{GetRequest, GetResponse, KindsRequest, ListRequest, VersionRequest};
use serde_json::json;
use tokio::time::timeout;
use tonic::{Response, Status};

use crate::boot_verb;
use crate::bundle;
use crate::capture;
use crate::cli::{Cli, GetArgs, KeyVerb, OutputForm, Verb};
use crate::cluster_node::FoundNode;
use crate::completion;
use crate::config_verbs;
use crate::controlplane;
use crate::dashboard;
use crate::explain;
use crate::failure::CtlError;
use crate::keys;
use crate::logs;
use crate::nodes;
use crate::operations::{self, OperationVerb};
use crate::pod_logs;
use crate::render::{self, escaped, plain, screen, table};
use crate::target::NodeChannel;
use crate::top;
use crate::watch;

/// Kinds of the screen.
pub(crate) const SCREEN_KINDS: [&str; 5] = ["node", "slots", "problems", "memory", "mounts"];

/// What the answer says about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is wrong.
    Fine,
    /// The node has a problem, or could not answer everything.
    Problems,
}

/// Runs a command line.
pub(crate) async fn run(cli: Cli) -> Result<Verdict, CtlError> {
    if let Verb::Key(verb) = &cli.verb {
        return key(verb);
    }
    if let Verb::Config(verb) = &cli.verb {
        return config_verbs::run(&cli, verb).await;
    }
    if let Verb::Controlplane(verb) = &cli.verb {
        return controlplane::run(verb);
    }
    if let Verb::Boot(args) = &cli.verb
        && let Some(file) = &args.ledger
    {
        return boot_verb::of_file(cli.output, args, file).map(|()| Verdict::Fine);
    }
    if let Verb::Explain(args) = &cli.verb {
        return explain::run(cli.output, args);
    }
    if let Verb::Completion(args) = &cli.verb {
        return completion::run(args);
    }
    if cli.is_several() {
        return nodes::run(&cli).await;
    }
    let (limit, form) = (cli.timeout(), cli.output);
    let found = way(&cli).await?;
    let target = &found.target;
    match cli.verb {
        Verb::Reboot(args) => operations::run(&found, limit, form, OperationVerb::Reboot(args)).await,
        Verb::Shutdown(args) => operations::run(&found, limit, form, OperationVerb::Shutdown(args)).await,
        Verb::Restart(args) => operations::run(&found, limit, form, OperationVerb::Restart(args)).await,
        Verb::Reset(args) => operations::run(&found, limit, form, OperationVerb::Reset(args)).await,
        Verb::Upgrade(args) => operations::run(&found, limit, form, OperationVerb::Upgrade(args)).await,
        Verb::Rollback(args) => operations::run(&found, limit, form, OperationVerb::Rollback(args)).await,
        Verb::Wait(args) => operations::run(&found, limit, form, OperationVerb::Wait(args)).await,
        Verb::Cancel(args) => operations::run(&found, limit, form, OperationVerb::Cancel(args)).await,
        Verb::Boot(args) => {
            let response = boot_verb::of_node(target.connect(limit).await?, limit, form, &args).await?;
            Ok(failures(&response))
        }
        Verb::Dashboard(args) => dashboard::run(target, limit, &args).await,
        Verb::Top(args) => top::run(target, limit, form, &args).await,
        Verb::Capture(args) => capture::run(target, limit, &args).await,
        Verb::Bundle(args) => bundle::run(target, limit, form, &args).await,
        Verb::Logs(args) if args.pod.is_some() => pod_logs::run(target, limit, form, &args).await,
        Verb::Logs(args) if !args.list => logs::run(target, limit, form, &args).await,
        Verb::Logs(_) => {
            let mut client = LogsClient::new(target.connect(limit).await?);
            let found = within(limit, "the node", client.list(ListRequest {})).await?;
            let names = found.units.iter().chain(&found.files).chain(&found.pods);
            let lines: Vec<String> = names.map(|name| plain(name)).collect();
            show(form, &serde_json::to_value(&found).unwrap_or_default(), || lines.join("\n") + "\n")?;
            Ok(Verdict::Fine)
        }
        verb => {
            let mut client = NodeClient::new(target.connect(limit).await?);
            of_node(&mut client, limit, form, &verb).await
        }
    }
}

/// The way to the node that is meant.
pub(crate) async fn way(cli: &Cli) -> Result<FoundNode, CtlError> {
    if cli.is_several() {
        return Err(CtlError::Usage("this verb asks one node: name one".to_owned()));
    }
    let node = cli.cluster_node()?;
    let target = match &node {
        Some(node) => node.find(cli.timeout()).await?,
        None => cli.target()?,
    };
    Ok(FoundNode { target, node })
}

/// Keys need no node.
fn key(verb: &KeyVerb) -> Result<Verdict, CtlError> {
    match verb {
        KeyVerb::New(args) => {
            keys::check_name(&args.name)?;
            let document = keys::document(&args.name, &keys::make(&args.file)?);
            // If stderr is gone, there is no other place for it.
            let _ = writeln!(
                io::stderr(),
                "the private key is in {}: keep it, and name it with --key; the node gets the document",
                args.file.display()
            );
            write(&document)?;
        }
        KeyVerb::Show(args) => {
            keys::check_name(&args.name)?;
            write(&keys::line(&args.name, &keys::load(&args.file)?))?;
        }
    }
    Ok(Verdict::Fine)
}

async fn of_node(
    client: &mut NodeClient<NodeChannel>,
    limit: Duration,
    form: OutputForm,
    verb: &Verb,
) -> Result<Verdict, CtlError> {
    match verb {
        Verb::Status => {
            let kinds = SCREEN_KINDS.map(str::to_owned).to_vec();
            let request = GetRequest { kinds, names: Vec::new() };
            let response = within(limit, "the node", client.get(request)).await?;
            match form {
                OutputForm::Table => write(&screen::screen(&response))?,
                other => objects(other, &response)?,
            }
            let has_problem = response.objects.iter().any(|object| object.kind == "problems");
            Ok(if has_problem { Verdict::Problems } else { failures(&response) })
        }
        Verb::Get(args) => get(client, limit, form, args).await,
        Verb::Kinds => {
            let found = within(limit, "the node", client.kinds(KindsRequest {})).await?;
            let rows = found.kinds.iter().map(|kind| vec![plain(&kind.name), plain(&kind.about)]).collect();
            let document = serde_json::to_value(&found).unwrap_or_default();
            show(form, &document, || table::table(&["KIND", "MEANING"], rows))?;
            Ok(Verdict::Fine)
        }
        Verb::Version => {
            let node = within(limit, "the node", client.version(VersionRequest {})).await?;
            let own = env!("CARGO_PKG_VERSION");
            let document = json!({ "client": own, "node": node });
            show(form, &document, || render::version(own, &node))?;
            Ok(Verdict::Fine)
        }
        // `run` has taken them.
        _ => Err(CtlError::Usage("it has no other form".to_owned())),
    }
}

async fn get(
    client: &mut NodeClient<NodeChannel>,
    limit: Duration,
    form: OutputForm,
    args: &GetArgs,
) -> Result<Verdict, CtlError> {
    let request = GetRequest { kinds: args.kinds(), names: args.names.clone() };
    if args.watch {
        return watch::run(client, limit, form, request).await;
    }
    let response = within(limit, "the node", client.get(request)).await?;
    objects(form, &response)?;
    let verdict = failures(&response);
    let is_there = |name: &&String| {
        let mut metas = response.objects.iter().filter_map(|object| object.metadata.as_ref());
        metas.any(|meta| meta.name == **name)
    };
    match args.names.iter().find(|name| !is_there(name)) {
        Some(name) => Err(CtlError::NotFound(format!("{name:?} of {}", args.kinds().join(", ")))),
        None => Ok(verdict),
    }
}

/// Says what the node could not answer.
fn failures(response: &GetResponse) -> Verdict {
    for failure in &response.failures {
        let remedy =
            failure.error.as_ref().map_or(String::new(), |error| format!("; {}", plain(&error.remedy)));
        let line = format!("orlopctl: {}: {}{remedy}", plain(&failure.kind), plain(&failure.message));
        // If stderr is gone, there is no other place for it.
        let _ = writeln!(io::stderr(), "{line}");
    }
    if response.failures.is_empty() { Verdict::Fine } else { Verdict::Problems }
}

fn objects(form: OutputForm, response: &GetResponse) -> Result<(), CtlError> {
    match form {
        OutputForm::Table => write(&table::objects(&response.objects)),
        OutputForm::Name => write(&render::names(&response.objects)),
        OutputForm::Json | OutputForm::Yaml | OutputForm::JsonPath(_) => {
            show(form, &render::list(response), String::new)
        }
    }
}

/// Shows a document, or the text for people.
pub(crate) fn show(
    form: OutputForm,
    document: &serde_json::Value,
    text: impl FnOnce() -> String,
) -> Result<(), CtlError> {
    match form {
        OutputForm::Json => write(&escaped(&format!("{document:#}\n"))),
        OutputForm::Yaml => write(&escaped(&orlop_config::yaml_emit::emit(document))),
        OutputForm::JsonPath(path) => write(&path.apply(document)),
        OutputForm::Table | OutputForm::Name => write(&text()),
    }
}

/// Writes all of it, now.
pub(crate) fn write(text: &str) -> Result<(), CtlError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The answer of a call within the limit.
pub(crate) async fn within<T>(
    limit: Duration,
    what: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CtlError> {
    match timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(CtlError::Refused(status)),
        Err(_) => Err(CtlError::TimedOut { what: what.to_owned(), limit }),
    }
}
