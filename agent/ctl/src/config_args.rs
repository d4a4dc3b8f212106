//! The command line of `orlopctl config`. Pure, but for the files that it names.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use orlop_config::node::{RunningSources, Source};

use crate::cli::seconds;
use crate::failure::CtlError;

/// Longest file that is read, bytes: as much as init reads of a source.
const FILE_MAX: u64 = 1 << 20;
/// The file name that means standard input.
const STDIN: &str = "-";

/// What is asked about the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Checks a document against the sources of a node, and lists all mistakes
    Check(ConfigCheckArgs),
    /// Shows which keys a document would change, and when each change acts
    Diff(ConfigCheckArgs),
    /// Shows where each value of the configuration is from
    Explain(ConfigExplainArgs),
    /// Gives the node a document of its own, and takes it back unless it is confirmed
    Apply(ConfigApplyArgs),
    /// Confirms the open change, by a connection that is newer than it
    Confirm(ConfigNumberArgs),
    /// Takes the open change back
    Revert(ConfigNumberArgs),
    /// Lists the last changes
    History,
}

/// A document for the node, or none.
#[derive(Debug, Args)]
pub(crate) struct ConfigDocumentArgs {
    /// File with a NodeConfig; -: standard input
    #[arg(value_name = "FILE", required_unless_present = "remove")]
    file: Option<PathBuf>,
    /// Takes the node's own document away
    #[arg(long, conflicts_with = "file")]
    remove: bool,
}

/// Sources in the place of a node's.
#[derive(Debug, Args)]
pub(crate) struct OfflineArgs {
    /// Asks no node: --source and --set are all that there is
    #[arg(long)]
    offline: bool,
    /// A source, in rising precedence: esp=esp.yaml; asks no node
    #[arg(long, value_name = "NAME=FILE")]
    source: Vec<String>,
    /// A value of `orlop.set=`; asks no node
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigCheckArgs {
    #[command(flatten)]
    pub(crate) document: ConfigDocumentArgs,
    #[command(flatten)]
    pub(crate) offline: OfflineArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigExplainArgs {
    /// Keys at and below this path; none: all
    #[arg(value_name = "PATH", default_value = "")]
    pub(crate) below: String,
    /// Keys, too, that no source has set
    #[arg(long)]
    pub(crate) defaults: bool,
    #[command(flatten)]
    pub(crate) offline: OfflineArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigApplyArgs {
    #[command(flatten)]
    pub(crate) document: ConfigDocumentArgs,
    /// Has to be confirmed within this time: 90s, 10m, 2h; without it the node asks for a confirmation where its way in may change
    #[arg(long, value_name = "TIME", conflicts_with = "no_confirm")]
    confirm: Option<String>,
    /// Counts once it is applied, also where the way to the node may change
    #[arg(long)]
    pub(crate) no_confirm: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigNumberArgs {
    /// Number of the change; without it the open one
    #[arg(value_name = "NUMBER", default_value_t = 0)]
    pub(crate) number: u64,
}

impl ConfigApplyArgs {
    /// The time for a confirmation, seconds; 0: the node decides.
    pub(crate) fn confirm_seconds(&self) -> Result<u32, CtlError> {
        let Some(text) = &self.confirm else { return Ok(0) };
        let wrong = || CtlError::Usage(format!("--confirm {text:?} is no duration: 90s, 10m, 2h"));
        let seconds = seconds(text).and_then(|seconds| u32::try_from(seconds).ok());
        seconds.filter(|seconds| *seconds > 0).ok_or_else(wrong)
    }
}

/// A document as it was read.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ReadDocument {
    /// The text; empty with `remove`.
    pub(crate) text: String,
    /// Its name in messages.
    pub(crate) origin: String,
    /// The node's own document is taken away.
    pub(crate) remove: bool,
}

impl ConfigDocumentArgs {
    /// Reads the document.
    pub(crate) fn read(&self) -> Result<ReadDocument, CtlError> {
        let Some(file) = self.file.as_ref().filter(|_| !self.remove) else {
            return Ok(ReadDocument { text: String::new(), origin: "no document".to_owned(), remove: true });
        };
        let origin = if file.as_os_str() == STDIN { "stdin".to_owned() } else { file.display().to_string() };
        let text = read(file)?;
        if text.is_empty() {
            return Err(CtlError::Usage(format!(
                "{origin} is empty; --remove takes the node's document away"
            )));
        }
        Ok(ReadDocument { text, origin, remove: false })
    }
}

impl OfflineArgs {
    /// The sources that take the place of a node's; `None`: a node is asked.
    pub(crate) fn sources(&self) -> Result<Option<RunningSources>, CtlError> {
        if !self.offline && self.source.is_empty() && self.set.is_empty() {
            return Ok(None);
        }
        let source = |given: &String| -> Result<Source, CtlError> {
            let wrong = || CtlError::Usage(format!("--source {given:?} is not NAME=FILE: esp=esp.yaml"));
            let (name, file) = given.split_once('=').ok_or_else(wrong)?;
            let (name, origin) = (name.to_owned(), file.to_owned());
            Ok(Source { name, origin, text: read(Path::new(file))? })
        };
        let sources = self.source.iter().map(source).collect::<Result<_, _>>()?;
        Ok(Some(RunningSources { sources, sets: self.set.clone() }))
    }
}

fn read(file: &Path) -> Result<String, CtlError> {
    let failed = |why: &dyn std::fmt::Display| CtlError::Usage(format!("{}: {why}", file.display()));
    let mut text = String::new();
    let result = if file.as_os_str() == STDIN {
        std::io::stdin().lock().take(FILE_MAX + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|opened| opened.take(FILE_MAX + 1).read_to_string(&mut text))
    };
    result.map_err(|e| failed(&e))?;
    if text.len() as u64 > FILE_MAX {
        return Err(failed(&format!("it has more than {FILE_MAX} bytes")));
    }
    Ok(text)
}
