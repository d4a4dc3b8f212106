//! What a dashboard knows of its node, and its screen. Pure.
//!
//! In: answers, lines of the journal, lost connections, the time. Out: the lines of a screen. Invariants: a node that is away keeps its
//! last answer on the screen, with the time since it went; a new boot is said, with both identifiers; no line is longer than the screen
//! is wide, and there are no more than it has rows.

use std::collections::VecDeque;
use std::time::Duration;

use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{GetResponse, LogLine, ServiceStatus};

use crate::logs;
use crate::render::amounts::{bytes, seconds};
use crate::render::{name, plain, screen};

/// Kinds that the screen is made of.
pub(crate) const KINDS: [&str; 6] = ["node", "slots", "problems", "memory", "mounts", "services"];
/// Lines of the journal that are kept.
const LINES_MAX: usize = 200;
/// Characters of such a line: no screen is wider.
const LINE_CHARS_MAX: usize = 1024;
/// Rows that the journal has at least, if the screen has room for anything else.
const LOG_ROWS_MIN: usize = 4;
/// Services that have a line of their own.
pub(crate) const SERVICES: [&str; 2] = ["kubelet.service", "containerd.service"];

/// What has happened.
#[derive(Debug)]
pub(crate) enum DashboardEvent {
    /// The node has answered.
    Answer(GetResponse),
    /// A line of the journal.
    Line(LogLine),
    /// The node cannot be asked, with the reason.
    Away(String),
}

/// A screen's size, characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScreenSize {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// Whether the node can be asked.
#[derive(Debug)]
pub(crate) enum NodeLink {
    /// It was not asked yet.
    Connecting,
    /// It has answered the last question.
    Up,
    /// It cannot be asked, since this time of the model.
    Away {
        /// The reason.
        why: String,
        /// Time of the model.
        since: Duration,
    },
}

/// The model. Times are those since it was made.
#[derive(Debug)]
pub(crate) struct DashboardModel {
    target: String,
    link: NodeLink,
    answer: Option<GetResponse>,
    boot_id: String,
    reboots: u64,
    lines: VecDeque<String>,
}

impl DashboardModel {
    /// Nothing is known of the node yet.
    pub(crate) fn new(target: String) -> DashboardModel {
        DashboardModel {
            target,
            link: NodeLink::Connecting,
            answer: None,
            boot_id: String::new(),
            reboots: 0,
            lines: VecDeque::new(),
        }
    }

    /// Takes what has happened.
    pub(crate) fn take(&mut self, event: DashboardEvent, now: Duration) {
        match event {
            DashboardEvent::Answer(answer) => self.answered(answer),
            DashboardEvent::Line(line) => self.push(logs::text(&line)),
            DashboardEvent::Away(why) => {
                let since = match &self.link {
                    NodeLink::Away { since, .. } => *since,
                    NodeLink::Connecting | NodeLink::Up => now,
                };
                self.link = NodeLink::Away { why, since };
            }
        }
    }

    fn answered(&mut self, answer: GetResponse) {
        let meta = answer.objects.first().and_then(|object| object.metadata.as_ref());
        let boot_id = meta.map_or("", |meta| meta.boot_id.as_str());
        if !boot_id.is_empty() && boot_id != self.boot_id {
            let boot_id = boot_id.to_owned();
            if !self.boot_id.is_empty() {
                self.reboots += 1;
                self.push(format!("-- the node has rebooted: boot {boot_id}, before it {}", self.boot_id));
            }
            self.boot_id = boot_id;
        }
        self.link = NodeLink::Up;
        self.answer = Some(answer);
    }

    fn push(&mut self, line: String) {
        self.lines.push_back(line.chars().take(LINE_CHARS_MAX).collect());
        if self.lines.len() > LINES_MAX {
            self.lines.pop_front();
        }
    }

    /// The way to the node, in words.
    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// Whether the node can be asked.
    pub(crate) fn link(&self) -> &NodeLink {
        &self.link
    }

    /// The last answer.
    pub(crate) fn answer(&self) -> Option<&GetResponse> {
        self.answer.as_ref()
    }

    /// The boot of the last answer, empty without one, and the reboots that were seen.
    pub(crate) fn boot(&self) -> (&str, u64) {
        (&self.boot_id, self.reboots)
    }

    /// The last lines of the journal, at most `number`.
    pub(crate) fn last_lines(&self, number: usize) -> impl Iterator<Item = &str> {
        self.lines.iter().skip(self.lines.len().saturating_sub(number)).map(String::as_str)
    }

    /// The screen.
    pub(crate) fn screen(&self, now: Duration, size: ScreenSize) -> Vec<String> {
        let mut lines = self.head(now);
        if let Some(answer) = &self.answer {
            lines.push(String::new());
            lines.extend(screen::screen(answer).lines().map(str::to_owned));
            lines.extend(services(answer));
            lines.extend(
                answer.failures.iter().map(|failure| format!("{}: {}", failure.kind, failure.message)),
            );
        }
        let room = size.rows.saturating_sub(LOG_ROWS_MIN + 1).max(1);
        if lines.len() > room {
            let left_out = lines.len() - room + 1;
            lines.truncate(room - 1);
            lines.push(format!("({left_out} more lines: `orlopctl status`)"));
        }
        lines.push("-- journal".to_owned());
        let rest = size.rows.saturating_sub(lines.len());
        let skipped = self.lines.len().saturating_sub(rest);
        lines.extend(self.lines.iter().skip(skipped).cloned());
        lines.truncate(size.rows);
        // A tab is as wide as a terminal likes.
        let shown = |line: &String| plain(line.trim_end()).replace('\t', " ");
        lines.iter().map(|line| shown(line).chars().take(size.columns).collect()).collect()
    }

    /// Whether the node can be asked, and which boot it is.
    fn head(&self, now: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        match &self.link {
            NodeLink::Connecting => lines.push(format!("{}: connecting", self.target)),
            NodeLink::Up => lines.push(format!("{}: connected", self.target)),
            NodeLink::Away { why, since } => {
                let time = seconds(now.saturating_sub(*since).as_secs());
                lines.push(format!("{}: AWAY for {time}; it is tried again for ever", self.target));
                lines.push(format!("  {why}"));
                if self.answer.is_some() {
                    lines.push("  What follows is its last answer.".to_owned());
                }
            }
        }
        if !self.boot_id.is_empty() {
            let reboots = match self.reboots {
                0 => String::new(),
                1 => ", after 1 reboot".to_owned(),
                reboots => format!(", after {reboots} reboots"),
            };
            lines.push(format!("boot {}{reboots}", self.boot_id));
        }
        lines
    }
}

/// How many services run, which have failed, and the node's own.
fn services(answer: &GetResponse) -> Vec<String> {
    let all = || {
        answer.objects.iter().filter_map(|object| match &object.status {
            Some(Status::Service(service)) => Some((name(object), service)),
            _ => None,
        })
    };
    if all().next().is_none() {
        return Vec::new();
    }
    let of = |state: &'static str| all().filter(move |(_, service)| service.active == state);
    let failed: Vec<&str> = of("failed").map(|(name, _)| name).collect();
    let words = if failed.is_empty() { "none".to_owned() } else { failed.join(", ") };
    let mut lines = vec![format!("services   {} active, failed: {words}", of("active").count())];
    for own in SERVICES {
        lines.extend(all().find(|(name, _)| *name == own).map(|(name, service)| row(name, service)));
    }
    lines
}

fn row(name: &str, service: &ServiceStatus) -> String {
    let memory = service.memory_bytes.map_or_else(String::new, |amount| format!(", {}", bytes(amount)));
    format!("  {name}: {} ({}){memory}, {} restarts", service.active, service.sub, service.restarts)
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::v1alpha1::{Meta, NodeStatus, Object, ProblemStatus};

    use super::*;

    const SIZE: ScreenSize = ScreenSize { rows: 24, columns: 80 };

    fn object(name: &str, boot_id: &str, status: Status) -> Object {
        let metadata = Meta { name: name.to_owned(), boot_id: boot_id.to_owned(), ..Meta::default() };
        Object { metadata: Some(metadata), status: Some(status), ..Object::default() }
    }

    fn service(active: &str, sub: &str) -> Status {
        let (active, sub) = (active.to_owned(), sub.to_owned());
        Status::Service(ServiceStatus {
            active,
            sub,
            memory_bytes: Some(1 << 20),
            ..ServiceStatus::default()
        })
    }

    fn answer(boot_id: &str, problems: usize) -> DashboardEvent {
        let node = NodeStatus { image_version: "0.4.0".to_owned(), ..NodeStatus::default() };
        let problem = |number: usize| {
            let subject = format!("p{number}");
            object("p", boot_id, Status::Problem(ProblemStatus { subject, ..ProblemStatus::default() }))
        };
        let mut objects = vec![object("edge-7", boot_id, Status::Node(node))];
        objects.extend((0..problems).map(problem));
        objects.push(object("kubelet.service", boot_id, service("active", "running")));
        objects.push(object("x.service", boot_id, service("failed", "failed")));
        DashboardEvent::Answer(GetResponse { objects, failures: Vec::new() })
    }

    fn line(message: &str) -> DashboardEvent {
        DashboardEvent::Line(LogLine { message: message.to_owned(), ..LogLine::default() })
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_screen_has_the_node_its_services_and_its_last_lines() {
        let mut model = DashboardModel::new("the node at x".to_owned());
        assert_eq!(model.screen(at(0), SIZE)[0], "the node at x: connecting");
        model.take(answer("boot-1", 0), at(1));
        model.take(line("a\u{1b}[2J\tb"), at(1));
        let shown = model.screen(at(1), SIZE).join("\n");
        for words in [
            "the node at x: connected\nboot boot-1\n",
            "edge-7  Orlop 0.4.0",
            "services   1 active, failed: x.service\n  kubelet.service: active (running), 1.0 MiB, 0 restarts\n",
            "-- journal\na?[2J b",
        ] {
            assert!(shown.contains(words), "{words:?} is not in\n{shown}");
        }
    }

    #[test]
    fn a_node_that_is_away_keeps_its_answer_and_a_new_boot_is_said() {
        let mut model = DashboardModel::new("n".to_owned());
        model.take(answer("boot-1", 0), at(1));
        model.take(DashboardEvent::Away("refused".to_owned()), at(10));
        model.take(DashboardEvent::Away("no route".to_owned()), at(15));
        let shown = model.screen(at(73), SIZE).join("\n");
        let away = "n: AWAY for 1m 3s; it is tried again for ever\n  no route\n  What follows is its last answer.\nboot boot-1\n";
        assert!(shown.starts_with(away) && shown.contains("edge-7  Orlop"), "{shown}");
        model.take(answer("boot-2", 0), at(80));
        let shown = model.screen(at(80), SIZE).join("\n");
        assert!(shown.starts_with("n: connected\nboot boot-2, after 1 reboot\n"), "{shown}");
        assert!(shown.ends_with("-- the node has rebooted: boot boot-2, before it boot-1"), "{shown}");
        // The same boot again is no reboot; away again counts from then.
        model.take(answer("boot-2", 0), at(81));
        model.take(DashboardEvent::Away("refused".to_owned()), at(90));
        let shown = model.screen(at(92), SIZE).join("\n");
        assert!(shown.contains("AWAY for 2s") && shown.contains("after 1 reboot\n"), "{shown}");
    }

    #[test]
    fn any_size_is_kept_and_the_journal_has_its_rows() {
        let mut model = DashboardModel::new("n".to_owned());
        model.take(answer("boot-1", 50), at(1));
        for number in 0..299 {
            model.take(line(&format!("line {number}")), at(1));
        }
        model.take(line(&"x".repeat(9000)), at(1));
        assert_eq!(model.lines.pop_back().map(|line| line.len()), Some(LINE_CHARS_MAX));
        model.take(line("line 299"), at(1));
        for (rows, columns) in [(0, 0), (1, 1), (2, 80), (5, 10), (24, 80), (400, 200)] {
            let shown = model.screen(at(1), ScreenSize { rows, columns });
            assert!(
                shown.len() <= rows && shown.iter().all(|line| line.chars().count() <= columns),
                "{shown:?}"
            );
        }
        let shown = model.screen(at(1), SIZE);
        assert_eq!((shown.len(), shown[23].as_str(), shown[20].as_str()), (24, "line 299", "line 296"));
        assert!(shown[18].contains("more lines") && shown[19] == "-- journal", "{shown:?}");
        assert_eq!(model.lines.len(), LINES_MAX);
    }
}
