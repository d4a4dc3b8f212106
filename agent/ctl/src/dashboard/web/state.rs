//! What the page shows, as one JSON document. Pure.
//!
//! In: events, the time. Out: a document. Invariants: it has a limited length, whatever the node says ([`ROWS_MAX`], [`CELL_CHARS_MAX`],
//! [`LINES_MAX`]); it has no control characters, and no `<`, `>` or `&`, so it stays data wherever it stands in a page.

use std::time::Duration;

use jiff::Timestamp;
use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{GetResponse, KindFailure, Object};
use serde_json::{Value, json};

use crate::boot_verb;
use crate::dashboard::model::{DashboardEvent, DashboardModel, NodeLink, SERVICES};
use crate::failure::TOO_MANY_OBJECTS;
use crate::render::processes::{HEADERS, POD_HEADERS, ProcessOrder, ProcessUse, pods, uses};
use crate::render::{boot_plot, name, plain, screen, table};

/// Kinds that the page is made of.
pub(crate) const KINDS: [&str; 8] =
    ["node", "slots", "problems", "memory", "mounts", "services", PROCESSES, "boot"];
/// The kind of which a node may have more objects than an answer.
const PROCESSES: &str = "processes";
/// Rows of a table.
const ROWS_MAX: usize = 50;
/// Characters of a cell.
const CELL_CHARS_MAX: usize = 200;
/// Lines of the journal, and characters of one.
const LINES_MAX: usize = 100;
const LINE_CHARS_MAX: usize = 500;
/// Processes: those that use the most.
const PROCESSES_MAX: usize = 25;

/// The state of the page.
#[derive(Debug)]
pub(super) struct PageState {
    model: DashboardModel,
    began: Timestamp,
    answered: Option<Duration>,
    uses: Vec<ProcessUse>,
}

impl PageState {
    /// The model's time is that since `began`.
    pub(super) fn new(model: DashboardModel, began: Timestamp) -> PageState {
        PageState { model, began, answered: None, uses: Vec::new() }
    }

    /// Takes what has happened.
    pub(super) fn take(&mut self, event: DashboardEvent, now: Duration) {
        if let DashboardEvent::Answer(answer) = &event {
            // Use is a difference: without an earlier answer there is none.
            let (before, elapsed) = match (self.model.answer(), self.answered) {
                (Some(before), Some(at)) => (before, now.saturating_sub(at)),
                _ => (answer, Duration::ZERO),
            };
            self.uses = uses(before, answer, elapsed, ProcessOrder::Cpu);
            self.answered = Some(now);
        }
        self.model.take(event, now);
    }

    /// The document.
    pub(super) fn document(&self) -> String {
        let (boot_id, reboots) = self.model.boot();
        let (link, why, since) = match self.model.link() {
            NodeLink::Connecting => ("connecting", "", None),
            NodeLink::Up => ("up", "", None),
            NodeLink::Away { why, since } => ("away", why.as_str(), self.wall(*since)),
        };
        let answer = self.model.answer();
        let number =
            answer.map(|answer| screen::number(&screen::problems(answer), failures(answer).next().is_none()));
        let facts: Vec<[String; 2]> = answer
            .map(screen::facts)
            .unwrap_or_default()
            .iter()
            .take(ROWS_MAX)
            .map(|(key, value)| [cell(key), cell(value)])
            .collect();
        let lines: Vec<String> =
            self.model.last_lines(LINES_MAX).map(|line| short(line, LINE_CHARS_MAX)).collect();
        let document = json!({
            "target": cell(self.model.target()),
            "link": link,
            "why": short(why, LINE_CHARS_MAX),
            "since": since,
            "bootId": cell(boot_id),
            "reboots": reboots,
            "name": cell(answer.map_or("", node_name)),
            "headline": cell(&answer.and_then(screen::headline).unwrap_or_default()),
            "problems": number.unwrap_or_default(),
            "facts": facts,
            "sections": answer.map(|answer| self.sections(answer)).unwrap_or_default(),
            "picture": cell(&self.picture_key()),
            "lines": lines,
        });
        as_data(&document)
    }

    /// The boot as a picture (SVG); empty: the node has said nothing of it.
    pub(super) fn picture(&self) -> String {
        let Some(answer) = self.model.answer() else { return String::new() };
        let ledger = boot_verb::ledger(answer);
        if ledger.entries.is_empty() {
            return String::new();
        }
        let title = format!("{} boot {}", node_name(answer), ledger.boot_id);
        boot_plot::svg(&cell(&title), &ledger)
    }

    /// It is another one for another picture; empty without one.
    fn picture_key(&self) -> String {
        let entries = self.model.answer().map_or(0, |answer| boot_verb::ledger(answer).entries.len());
        if entries == 0 { String::new() } else { format!("{}-{entries}", self.model.boot().0) }
    }

    /// A time of the model by this machine's clock.
    fn wall(&self, since: Duration) -> Option<String> {
        self.began.checked_add(since).ok().map(|time| format!("{time:.0}"))
    }

    fn sections(&self, answer: &GetResponse) -> Vec<Value> {
        let problems = screen::problems(answer);
        let problem_rows = problems.iter().map(|problem| {
            let parts = [&problem.subject, &problem.message, &problem.remedy, &problem.runbook];
            parts.map(Clone::clone).to_vec()
        });
        let failures = failures(answer).map(|failure| vec![failure.kind.clone(), failure.message.clone()]);
        let processes = self.uses.iter().take(PROCESSES_MAX).map(ProcessUse::cells);
        let problem_headers = ["SUBJECT", "PROBLEM", "REMEDY", "MORE"];
        vec![
            section("problems", "Problems", &problem_headers, problem_rows.collect()),
            section("failures", "Not answered", &["KIND", "REASON"], failures.collect()),
            of_kind("services", "Services: the node's own, and failed ones", answer, has_line),
            of_kind("slots", "Root", answer, |_| true),
            section("pods", "Pods with processes", &POD_HEADERS, pods(&self.uses)),
            section("processes", "Processes that use the most CPU", &HEADERS, processes.collect()),
            of_kind("mounts", "File systems", answer, |_| true),
            of_kind("boot", "Phases of this boot", answer, |_| true),
        ]
    }
}

/// The kinds that could not be asked. Of many processes those with the most memory are there, which is enough for the page.
fn failures(answer: &GetResponse) -> impl Iterator<Item = &KindFailure> {
    let is_usual = |failure: &KindFailure| {
        let reason = failure.error.as_ref().map(|error| error.reason.as_str());
        failure.kind == PROCESSES && reason == Some(TOO_MANY_OBJECTS)
    };
    answer.failures.iter().filter(move |failure| !is_usual(failure))
}

/// The node's own services, and those that have failed.
fn has_line(object: &Object) -> bool {
    let has_failed = matches!(&object.status, Some(Status::Service(service)) if service.active == "failed");
    has_failed || SERVICES.contains(&name(object))
}

fn node_name(answer: &GetResponse) -> &str {
    answer.objects.iter().find(|object| object.kind == "node").map_or("", name)
}

/// The objects of a kind.
fn of_kind(kind: &str, title: &str, answer: &GetResponse, is_shown: impl Fn(&Object) -> bool) -> Value {
    let found: Vec<&Object> =
        answer.objects.iter().filter(|object| object.kind == kind && is_shown(object)).collect();
    let mut headers = vec!["NAME"];
    headers.extend(found.first().map(|object| table::columns(object)).unwrap_or_default());
    let row = |object: &&Object| {
        let mut row = vec![name(object).to_owned()];
        row.extend(table::cells(object));
        row
    };
    section(kind, title, &headers, found.iter().map(row).collect())
}

/// A table of the page.
fn section(id: &str, title: &str, headers: &[&str], rows: Vec<Vec<String>>) -> Value {
    let left_out = rows.len().saturating_sub(ROWS_MAX);
    let note = if left_out > 0 { format!("{left_out} more rows are left out") } else { String::new() };
    let columns = headers.len();
    let row = |row: Vec<String>| row.iter().take(columns).map(|text| cell(text)).collect::<Vec<String>>();
    let rows: Vec<Vec<String>> = rows.into_iter().take(ROWS_MAX).map(row).collect();
    json!({ "id": id, "title": title, "headers": headers, "rows": rows, "note": note })
}

fn cell(text: &str) -> String {
    short(text, CELL_CHARS_MAX)
}

/// The beginning of a text, without control characters.
fn short(text: &str, chars_max: usize) -> String {
    let text = plain(text.trim_end());
    if text.chars().count() <= chars_max {
        return text;
    }
    text.chars().take(chars_max - 1).chain(['…']).collect()
}

/// JSON without the characters that begin or end something in HTML. Outside of strings JSON has none of them.
fn as_data(document: &Value) -> String {
    let text = document.to_string();
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

#[cfg(test)]
mod tests;
