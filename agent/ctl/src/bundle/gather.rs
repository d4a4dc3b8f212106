//! Asks a node for all parts of a bundle, one after the other.
//!
//! ```text
//! version ─► objects of each kind ─► configuration ─► files ─► kernel log ─► journal of each boot ─► units that the journal left out
//! ```
//! Invariants: a part that fails costs itself; a part takes [`PART_TIME`] at most, and all of them the time that was given; a lost
//! connection is made again once for a part, and not at all after that has failed; the order is that of the node's own lists.

use std::time::Duration;

use orlop_config::ledger::Ledger;
use orlop_proto::node_api::decode;
use orlop_proto::node_api::v1alpha1::config_client::ConfigClient;
use orlop_proto::node_api::v1alpha1::logs_client::LogsClient;
use orlop_proto::node_api::v1alpha1::node_client::NodeClient;
use orlop_proto::node_api::v1alpha1::{
    ConfigExplainRequest, ConfigHistoryRequest, ErrorDetail, GetRequest, KindsRequest, ListRequest,
    ListResponse, LogLine, ReadRequest, VersionRequest,
};
use serde::Serialize;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::{Response, Status};

use super::archive::file_name;
use super::parts::{Bundle, FileLines, KeptLines};
use crate::boot_verb;
use crate::commands::within;
use crate::failure::{CtlError, TOO_MANY_OBJECTS};
use crate::render::{self, boot_plot};
use crate::target::{NodeChannel, Target};

/// The longest time of one part: the node itself gives up on a source that hangs after five seconds, and a kind has up to three.
const PART_TIME: Duration = Duration::from_secs(30);
/// Lines of the journal of this boot.
const LINES_MAX: u32 = 20_000;
/// Lines of an earlier boot.
const EARLIER_LINES_MAX: u32 = 5_000;
/// Lines of one unit which the journal's part may have left out, and bytes of them.
const UNIT_LINES_MAX: u32 = 1_000;
const UNIT_BYTES_MAX: usize = 1 << 20;
/// Files that every node has.
const FILES: [&str; 2] = ["boot.json", "node-config.json"];
/// Units that are asked for one by one.
const UNITS_MAX: usize = 200;
/// Kinds, and files: a node has a dozen of each.
const KINDS_MAX: usize = 64;
const FILES_MAX: usize = 500;
/// Boots before this one.
const EARLIER_BOOTS: u32 = 2;
/// A node that has too many calls names the time of the next one; it is asked again so often.
const TRIES_MAX: usize = 40;
/// The longest wait between two tries.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Parts that came, and whose they are.
#[derive(Debug, Default)]
pub(crate) struct GatheredBundle {
    pub(crate) bundle: Bundle,
    /// Name of the node; empty: it did not say.
    pub(crate) node: String,
    pub(crate) boot_id: String,
}

/// Asks for everything.
///
/// # Errors
/// The node cannot be reached at all, or the caller is not allowed to ask it.
pub(crate) async fn gather(
    target: &Target,
    limit: Duration,
    time: Duration,
) -> Result<GatheredBundle, CtlError> {
    let channel = target.connect(limit).await?;
    let until = Instant::now() + time;
    let gathered = GatheredBundle::default();
    let mut gatherer = BundleGatherer { target, limit, until, channel: Some(channel), gathered };
    gatherer.version().await?;
    gatherer.objects().await;
    gatherer.configuration().await;
    let units = gatherer.files().await;
    gatherer.kernel().await;
    gatherer.journal(&units).await;
    Ok(gatherer.gathered)
}

struct BundleGatherer<'a> {
    target: &'a Target,
    limit: Duration,
    until: Instant,
    /// `None`: the connection is lost, and could not be made again.
    channel: Option<NodeChannel>,
    gathered: GatheredBundle,
}

/// Why a call has no answer.
enum NoAnswer {
    OutOfTime,
    NoConnection,
    Failed(CtlError),
}

impl NoAnswer {
    fn reason(&self) -> String {
        match self {
            NoAnswer::OutOfTime => "OUT_OF_TIME".to_owned(),
            NoAnswer::NoConnection => "UNREACHABLE".to_owned(),
            NoAnswer::Failed(CtlError::Refused(status)) => match detail(status).reason {
                reason if reason.is_empty() => format!("{:?}", status.code()).to_uppercase(),
                reason => reason,
            },
            NoAnswer::Failed(CtlError::TimedOut { .. }) => "TIMED_OUT".to_owned(),
            NoAnswer::Failed(_) => "FAILED".to_owned(),
        }
    }

    fn message(&self) -> String {
        match self {
            NoAnswer::OutOfTime => "no time was left for it (`--within`)".to_owned(),
            NoAnswer::NoConnection => "the connection was lost and could not be made again".to_owned(),
            NoAnswer::Failed(CtlError::Refused(status)) => status.message().to_owned(),
            NoAnswer::Failed(error) => error.to_string(),
        }
    }
}

fn detail(status: &Status) -> ErrorDetail {
    decode(status.details()).unwrap_or_default()
}

impl BundleGatherer<'_> {
    fn bundle(&mut self) -> &mut Bundle {
        &mut self.gathered.bundle
    }

    /// The answer to a call.
    async fn ask<T, F>(&mut self, call: impl Fn(NodeChannel) -> F) -> Result<T, NoAnswer>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut has_reconnected = false;
        for _ in 0..TRIES_MAX {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoAnswer::OutOfTime);
            }
            let Some(channel) = self.channel.clone() else { return Err(NoAnswer::NoConnection) };
            let error = match within(PART_TIME.min(left), "the node", call(channel)).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let retry_after_ms = match &error {
                CtlError::Refused(status) => detail(status).retry_after_ms,
                _ => 0,
            };
            if retry_after_ms > 0 {
                let pause = Duration::from_millis(retry_after_ms).min(RETRY_MAX);
                sleep_until(self.until.min(Instant::now() + pause)).await;
            } else if error.is_lost_connection() && !has_reconnected {
                has_reconnected = true;
                self.channel = self.target.connect(self.limit.min(left)).await.ok();
            } else {
                return Err(NoAnswer::Failed(error));
            }
        }
        Err(NoAnswer::OutOfTime)
    }

    /// An answer as a part; what did not come is missing.
    async fn document<T: Serialize, F>(&mut self, path: &str, call: impl Fn(NodeChannel) -> F) -> Option<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        match self.ask(call).await {
            Ok(answer) => {
                let document = serde_json::to_value(&answer).unwrap_or_default();
                self.bundle().add_document(path, document);
                Some(answer)
            }
            Err(error) => {
                self.bundle().miss(path, &error.reason(), error.message(), false);
                None
            }
        }
    }

    /// Who the node is. A caller who may not even ask that gets no bundle.
    async fn version(&mut self) -> Result<(), CtlError> {
        let call =
            |channel: NodeChannel| async move { NodeClient::new(channel).version(VersionRequest {}).await };
        match self.ask(call).await {
            Ok(version) => {
                self.gathered.node.clone_from(&version.node);
                self.gathered.boot_id.clone_from(&version.boot_id);
                let document = serde_json::to_value(version).unwrap_or_default();
                self.bundle().add_document("version.json", document);
                Ok(())
            }
            Err(NoAnswer::Failed(error)) if error.is_not_allowed() => Err(error),
            Err(error) => {
                self.bundle().miss("version.json", &error.reason(), error.message(), false);
                Ok(())
            }
        }
    }

    /// Objects of each kind that the node has.
    async fn objects(&mut self) {
        let call =
            |channel: NodeChannel| async move { NodeClient::new(channel).kinds(KindsRequest {}).await };
        let Some(kinds) = self.document("kinds.json", call).await else { return };
        for kind in kinds.kinds.iter().map(|kind| &kind.name).take(KINDS_MAX) {
            let path = format!("objects/{}.json", file_name(kind));
            let call = |channel: NodeChannel| {
                let request = GetRequest { kinds: vec![kind.clone()], ..GetRequest::default() };
                async move { NodeClient::new(channel).get(request).await }
            };
            match self.ask(call).await {
                Ok(response) => {
                    for failure in &response.failures {
                        let error = failure.error.clone().unwrap_or_default();
                        // The first ones are there: a healthy node may have hundreds of processes.
                        let is_optional = error.reason == TOO_MANY_OBJECTS;
                        self.bundle().miss(&path, &error.reason, failure.message.clone(), is_optional);
                    }
                    if !response.objects.is_empty() || response.failures.is_empty() {
                        self.bundle().add_document(&path, render::list(&response));
                    }
                    self.picture(&boot_verb::ledger(&response));
                }
                Err(error) => self.bundle().miss(&path, &error.reason(), error.message(), false),
            }
        }
    }

    /// Draws the boot. Objects of other kinds have none.
    fn picture(&mut self, ledger: &Ledger) {
        if ledger.entries.is_empty() {
            return;
        }
        let title = format!("{} boot {}", self.gathered.node, ledger.boot_id);
        self.bundle().add_file("boot.svg", &boot_plot::svg(&title, ledger), "");
    }

    /// Where each value of the configuration is from, and its changes. The node masks secrets itself.
    async fn configuration(&mut self) {
        let call = |channel: NodeChannel| {
            let request = ConfigExplainRequest { below: String::new(), defaults: true };
            async move { ConfigClient::new(channel).explain(request).await }
        };
        self.document("configuration/explain.json", call).await;
        let call = |channel: NodeChannel| async move {
            ConfigClient::new(channel).history(ConfigHistoryRequest {}).await
        };
        self.document("configuration/history.json", call).await;
    }

    /// The files of `/var/log/orlop`. The answer is the units of the journal.
    async fn files(&mut self) -> Vec<String> {
        let call = |channel: NodeChannel| async move { LogsClient::new(channel).list(ListRequest {}).await };
        let list = self.document("logs.json", call).await;
        // A dead journal costs the list; these files are there all the same.
        let known = || ListResponse { files: FILES.map(str::to_owned).to_vec(), ..ListResponse::default() };
        let list = list.unwrap_or_else(known);
        // A directory ends in a slash, and is none of the agent's.
        for file in list.files.iter().filter(|file| !file.ends_with('/')).take(FILES_MAX) {
            let path = format!("files/{}", file_name(file));
            let request = ReadRequest { file: file.clone(), ..ReadRequest::default() };
            let mut lines = FileLines::new(self.bundle().room());
            match self.read(&request, |line| lines.push(&line)).await {
                Ok(note) => {
                    let (text, note) = lines.into_text(note);
                    self.bundle().add_file(&path, &text, &note);
                }
                Err(error) => self.bundle().miss(&path, &error.reason(), error.message(), false),
            }
        }
        list.units
    }

    /// The kernel's log of this boot, and of those before it.
    async fn kernel(&mut self) {
        for earlier in 0..=EARLIER_BOOTS {
            let request = ReadRequest { kernel: true, ..of_boot(earlier) };
            self.log(&format!("kernel/boot-{earlier}.log"), &request, earlier > 0).await;
        }
    }

    /// The journal of this boot, and of those before it; then the units of which it may have left something out.
    async fn journal(&mut self, units: &[String]) {
        let mut is_whole = false;
        let mut sources = Vec::new();
        for earlier in 0..=EARLIER_BOOTS {
            let request = of_boot(earlier);
            let path = format!("journal/boot-{earlier}.log");
            let lines = self.log(&path, &request, earlier > 0).await;
            if let (0, Some((whole, seen))) = (earlier, lines) {
                (is_whole, sources) = (whole, seen);
            }
        }
        if is_whole {
            return;
        }
        // Those first of which there is nothing yet.
        let (seen, unseen): (Vec<&String>, Vec<&String>) =
            units.iter().partition(|unit| sources.contains(*unit));
        for unit in unseen.into_iter().chain(seen).take(UNITS_MAX) {
            let request =
                ReadRequest { units: vec![unit.clone()], lines: UNIT_LINES_MAX, ..ReadRequest::default() };
            self.log(&format!("units/{}.log", file_name(unit)), &request, false).await;
        }
    }

    /// A log as a part: whether all of it came, and who has said something.
    async fn log(
        &mut self,
        path: &str,
        request: &ReadRequest,
        is_optional: bool,
    ) -> Option<(bool, Vec<String>)> {
        let room = self.bundle().room();
        let bytes_max = if request.units.is_empty() { room } else { room.min(UNIT_BYTES_MAX) };
        let mut lines = KeptLines::new(bytes_max);
        match self.read(request, |line| lines.push(line)).await {
            Ok(note) => {
                let has_all = note.is_empty() && !lines.is_cut();
                let is_whole = has_all && lines.came() < usize::try_from(request.lines).unwrap_or(usize::MAX);
                let sources = lines.sources().iter().cloned().collect();
                self.bundle().add_lines(path, lines, &note);
                Some((is_whole, sources))
            }
            Err(error) => {
                self.bundle().miss(path, &error.reason(), error.message(), is_optional);
                None
            }
        }
    }

    /// Reads a log to its end; the answer says why it ended before, if any line came.
    async fn read(
        &mut self,
        request: &ReadRequest,
        mut push: impl FnMut(LogLine),
    ) -> Result<String, NoAnswer> {
        let until = self.until.min(Instant::now() + PART_TIME);
        let call = |channel: NodeChannel| {
            let request = request.clone();
            async move { LogsClient::new(channel).read(request).await }
        };
        let mut lines = self.ask(call).await?;
        let mut has_lines = false;
        loop {
            let failed = match timeout_at(until, lines.message()).await {
                Ok(Ok(Some(line))) => {
                    has_lines = true;
                    push(line);
                    continue;
                }
                Ok(Ok(None)) => return Ok(String::new()),
                Ok(Err(status)) => NoAnswer::Failed(CtlError::Refused(status)),
                Err(_) => NoAnswer::OutOfTime,
            };
            return if has_lines { Ok(failed.message()) } else { Err(failed) };
        }
    }
}

/// The request for the newest lines of a boot.
fn of_boot(earlier: u32) -> ReadRequest {
    let lines = if earlier == 0 { LINES_MAX } else { EARLIER_LINES_MAX };
    let boot = i32::try_from(earlier).unwrap_or(0);
    ReadRequest { boot: -boot, lines, ..ReadRequest::default() }
}
