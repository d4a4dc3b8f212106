//! `boot`: the phases of a boot as a table, or as a picture; of a node, or of a ledger in a file.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use orlop_config::ledger::{Ledger, LedgerEntry};
use orlop_proto::node_api::v1alpha1::node_client::NodeClient;
use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{GetRequest, GetResponse, Object};

use crate::cli::OutputForm;
use crate::commands::{show, within, write};
use crate::failure::CtlError;
use crate::render::amounts::milliseconds;
use crate::render::{boot_plot, name, plain, table};
use crate::target::NodeChannel;

/// Longest ledger, bytes: a node's has a hundredth of it.
const LEDGER_MAX: u64 = 1 << 20;
/// The file name that means standard output.
const STDOUT: &str = "-";

/// What is shown of which boot.
#[derive(Debug, Args)]
pub(crate) struct BootArgs {
    /// Draws the boot in this file (SVG) instead; -: standard output
    #[arg(long, value_name = "FILE", visible_alias = "svg")]
    plot: Option<PathBuf>,
    /// A ledger in this file, such as files/boot.json of a bundle; asks no node
    #[arg(long, value_name = "FILE")]
    pub(crate) ledger: Option<PathBuf>,
}

/// Shows the ledger of a file.
pub(crate) fn of_file(form: OutputForm, args: &BootArgs, file: &Path) -> Result<(), CtlError> {
    let failed = |why: String| CtlError::Usage(format!("{}: {why}", file.display()));
    let mut text = String::new();
    let opened = fs::File::open(file).map_err(|error| failed(error.to_string()))?;
    opened.take(LEDGER_MAX).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    let ledger = Ledger::parse(&text).map_err(|error| failed(format!("is no boot ledger: {error}")))?;
    shown(form, args, "", &ledger)
}

/// Shows this boot of a node. The answer has what the node could not say.
pub(crate) async fn of_node(
    channel: NodeChannel,
    limit: Duration,
    form: OutputForm,
    args: &BootArgs,
) -> Result<GetResponse, CtlError> {
    let request = GetRequest { kinds: vec!["node".to_owned(), "boot".to_owned()], names: Vec::new() };
    let response = within(limit, "the node", NodeClient::new(channel).get(request)).await?;
    let node = response.objects.iter().find(|object| object.kind == "node").map_or("", name);
    let ledger = ledger(&response);
    if !ledger.entries.is_empty() {
        shown(form, args, node, &ledger)?;
    }
    Ok(response)
}

/// The objects of the kind `boot` as the ledger from which the node has made them.
pub(crate) fn ledger(response: &GetResponse) -> Ledger {
    let meta = response.objects.first().and_then(|object| object.metadata.as_ref());
    let boot_id = meta.map_or_else(String::new, |meta| meta.boot_id.clone());
    let entry = |object: &Object| match &object.status {
        Some(Status::Boot(phase)) => Some(LedgerEntry {
            phase: name(object).to_owned(),
            at_ms: phase.at_ms,
            took_ms: phase.took_ms,
            detail: phase.detail.clone(),
            ok: phase.ok,
        }),
        _ => None,
    };
    Ledger { boot_id, entries: response.objects.iter().filter_map(entry).collect() }
}

fn shown(form: OutputForm, args: &BootArgs, node: &str, ledger: &Ledger) -> Result<(), CtlError> {
    let title = format!("{node} boot {}", ledger.boot_id);
    let picture = || boot_plot::svg(title.trim(), ledger);
    match args.plot.as_deref() {
        None => show(form, &serde_json::to_value(ledger).unwrap_or_default(), || phases(ledger)),
        Some(file) if file == Path::new(STDOUT) => write(&picture()),
        Some(file) => fs::write(file, picture())
            .map_err(|error| CtlError::Usage(format!("{}: {error}", file.display()))),
    }
}

/// The phases for people.
fn phases(ledger: &Ledger) -> String {
    let row = |entry: &LedgerEntry| {
        let took = entry.took_ms.map_or_else(String::new, milliseconds);
        let ok = if entry.ok { "yes" } else { "no" }.to_owned();
        vec![plain(&entry.phase), milliseconds(entry.at_ms), took, ok, plain(&entry.detail)]
    };
    table::table(&["PHASE", "AT", "TOOK", "OK", "DETAIL"], ledger.entries.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::v1alpha1::{BootPhase, Meta, NodeStatus};

    use super::*;

    fn object(kind: &str, name: &str, status: Status) -> Object {
        let metadata = Some(Meta { name: name.to_owned(), boot_id: "boot-1".to_owned(), ..Meta::default() });
        Object { kind: kind.to_owned(), metadata, status: Some(status), ..Object::default() }
    }

    #[test]
    fn phases_of_an_answer_are_the_ledger_again() {
        let phase = BootPhase { at_ms: 1200, took_ms: Some(40), detail: "a\u{1b}b".to_owned(), ok: false };
        let objects = vec![
            object("node", "n", Status::Node(NodeStatus::default())),
            object("boot", "init.x", Status::Boot(phase)),
        ];
        let ledger = ledger(&GetResponse { objects, failures: Vec::new() });
        assert_eq!((ledger.boot_id.as_str(), ledger.entries.len()), ("boot-1", 1));
        assert_eq!((ledger.entries[0].phase.as_str(), ledger.entries[0].took_ms), ("init.x", Some(40)));
        assert_eq!(phases(&ledger), "PHASE   AT      TOOK    OK  DETAIL\ninit.x  1.200s  0.040s  no  a?b\n");
    }

    #[test]
    fn a_ledger_in_a_file_is_drawn_without_a_node() {
        let dir = tempfile::tempdir().unwrap();
        let (file, plot) = (dir.path().join("boot.json"), dir.path().join("boot.svg"));
        fs::write(&file, "{\"boot_id\":\"b\",\"entries\":[{\"phase\":\"kernel\",\"at_ms\":900}]}").unwrap();
        let args = BootArgs { plot: Some(plot.clone()), ledger: None };
        of_file(OutputForm::Table, &args, &file).unwrap();
        assert!(fs::read_to_string(&plot).unwrap().contains("kernel at 0.900s"));
        fs::write(&file, "{").unwrap();
        assert_eq!(of_file(OutputForm::Table, &args, &file).unwrap_err().exit_code(), 2);
    }
}
