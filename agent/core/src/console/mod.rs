//! What the node writes on its consoles: each problem with its remedy, its end, and a banner.
//!
//! In: present problems by source, the node's state, its addresses, its place in a cluster, ticks. Out: lines for the kernel's
//! log, which the kernel shows on every console (docs/reference/boot.md). Invariants:
//! - a problem is written once, when it has lasted for its own time, and its end when it has been gone for a while;
//! - a banner follows each change of what it shows, never sooner than [`SETTLE`] after it; changes that go on make the pauses
//!   between banners longer, up to [`BANNER_PAUSE_MAX`];
//! - texts of pods and strangers are short printable ASCII ([`text::clean`]), and their number is bounded for each source: more of
//!   them are not distinguishable to a person at a console.
//!
//! Upstream has no counterpart.

pub mod banner;
pub mod problem;
pub mod runbook;
pub mod text;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now};
use agent_types::token_bucket::TokenBucket;

use banner::{BannerFacts, ClusterPlace, NodeTitle};
use problem::{ConsoleProblem, ProblemSource};

/// What changes together is in one banner.
pub const SETTLE: Duration = Duration::from_secs(2);
/// A problem that is gone for less than this is the same problem.
pub const GONE_AFTER: Duration = Duration::from_secs(10);
/// Another wording of a problem is written after this.
pub const REWORD_AFTER: Duration = Duration::from_secs(60);
/// First pause between two banners, and the longest one.
const BANNER_PAUSE: Duration = Duration::from_secs(10);
/// Banners that may follow each other after that pause: a boot and a cable that is pulled have them. Each further one doubles it.
const QUICK_BANNERS: u32 = 3;
/// Longest pause between two banners.
pub const BANNER_PAUSE_MAX: Duration = Duration::from_secs(600);
/// A node that is not ready by then has a banner that says so, from the agent's start on.
pub const BANNER_WITHOUT_READY: Duration = Duration::from_secs(30);
/// Lines about problems at once, and then one in each period.
const LINES: (u32, Duration) = (20, Duration::from_secs(3));
/// Longest line about a problem, characters: a record of the kernel's log has some 1000.
const LINE_CHARS_MAX: usize = 480;

/// What the machine reacts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsoleEvent {
    /// All present problems of a source.
    Problems(ProblemSource, Vec<ConsoleProblem>),
    /// What the agent does: `running`, or what it waits for.
    State(&'static str),
    /// The node's addresses, the primary first.
    Addresses(Vec<String>),
    /// The node's place in a cluster.
    Cluster(ClusterPlace),
    /// Message of the Node's condition Ready while it is not True; empty without one.
    NotReady(String),
    /// The deadline came, or the machine begins.
    Tick,
}

/// How loud a line is; the kernel's levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineLevel {
    /// KERN_WARNING, 4.
    Warning,
    /// KERN_NOTICE, 5.
    Notice,
}

/// Lines to write, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleLines {
    /// Of all of them.
    pub level: LineLevel,
    /// Printable ASCII, without a line end.
    pub lines: Vec<String>,
}

/// A problem and its course.
#[derive(Clone, Debug)]
struct ProblemCourse {
    /// As its source has it now.
    present: ConsoleProblem,
    since: Mono,
    /// From when on the source does not have it any more.
    gone: Option<Mono>,
    /// As it was written, and when.
    written: Option<(ConsoleProblem, Mono)>,
}

impl ProblemCourse {
    /// When it is to be written; `None` if it is written, or gone.
    fn due(&self) -> Option<Mono> {
        if self.gone.is_some() {
            return None;
        }
        match &self.written {
            None => Some(self.since.after(self.present.lasts)),
            Some((written, at)) if written.kind != self.present.kind => Some(at.after(REWORD_AFTER)),
            Some(_) => None,
        }
    }

    fn ends(&self) -> Option<Mono> {
        self.gone.map(|gone| gone.after(GONE_AFTER))
    }
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Console {
    title: NodeTitle,
    state: &'static str,
    addresses: Vec<String>,
    cluster: ClusterPlace,
    /// Message of the Node's condition Ready.
    not_ready: String,
    problems: BTreeMap<(ProblemSource, String), ProblemCourse>,
    /// A serial port is slow, and the kernel keeps few lines.
    limit: TokenBucket,
    /// When the machine began.
    began: Option<Mono>,
    /// What the last banner showed, and when it was written.
    shown: Option<(Vec<String>, Mono)>,
    /// When something was first seen to differ from the last banner.
    changed: Option<Mono>,
    pause: Duration,
    /// Banners without a long pause between them.
    in_a_row: u32,
}

impl Console {
    /// A machine that has written nothing; step it with [`ConsoleEvent::Tick`] to start.
    #[must_use]
    pub fn new(title: NodeTitle, state: &'static str, cluster: ClusterPlace) -> Console {
        Console {
            title,
            state,
            addresses: Vec::new(),
            cluster,
            not_ready: String::new(),
            problems: BTreeMap::new(),
            limit: TokenBucket::new(LINES.1, LINES.0),
            began: None,
            shown: None,
            changed: None,
            pause: BANNER_PAUSE,
            in_a_row: 0,
        }
    }

    /// Present problems of these sources that were written, the most important first.
    pub fn present(&self, sources: &'static [ProblemSource]) -> impl Iterator<Item = &ConsoleProblem> {
        let courses = self.problems.iter().filter(|((source, _), _)| sources.contains(source));
        let present = courses.filter(|(_, course)| course.gone.is_none() && course.written.is_some());
        present.map(|(_, course)| &course.present)
    }

    fn replace(&mut self, now: Mono, source: ProblemSource, all: Vec<ConsoleProblem>) {
        for ((of, subject), course) in &mut self.problems {
            if *of == source && course.gone.is_none() && !all.iter().any(|p| p.subject == *subject) {
                course.gone = Some(now);
            }
        }
        let mut taken = self.problems.keys().filter(|(of, _)| *of == source).count();
        for problem in all {
            let key = (source, problem.subject.clone());
            if let Some(course) = self.problems.get_mut(&key) {
                course.gone = None;
                course.present = problem;
            } else if taken < source.places() {
                let course = ProblemCourse { present: problem, since: now, gone: None, written: None };
                self.problems.insert(key, course);
                taken += 1;
            }
        }
    }

    /// Writes what is due, and forgets what is over.
    fn write_problems(&mut self, now: Mono, out: &mut Outbox<ConsoleLines>) {
        let Console { problems, limit, .. } = self;
        for course in problems.values_mut() {
            if course.due().is_some_and(|due| now >= due) && limit.reserve(now, Duration::ZERO).is_ok() {
                let line = format!("problem: {}", course.present.line());
                course.written = Some((course.present.clone(), now));
                push(out, LineLevel::Warning, &line);
            }
        }
        problems.retain(|(_, subject), course| {
            let over = course.ends().is_some_and(|end| now >= end);
            if over && course.written.is_some() {
                if limit.reserve(now, Duration::ZERO).is_err() {
                    return true;
                }
                push(out, LineLevel::Notice, &format!("resolved: {subject}"));
            }
            !over
        });
    }

    fn write_banner(&mut self, now: Mono, out: &mut Outbox<ConsoleLines>) {
        let content = self.content();
        if self.shown.as_ref().is_some_and(|(shown, _)| *shown == content) {
            self.changed = None;
            return;
        }
        self.changed.get_or_insert(now);
        if self.banner_due().is_none_or(|due| now < due) {
            return;
        }
        if let Some((_, last)) = self.shown {
            // Changes that go on are shown less and less often.
            let busy = now.since(last) < self.pause.saturating_mul(4);
            self.in_a_row = if busy { self.in_a_row.saturating_add(1) } else { 0 };
            let doubled = self.in_a_row.saturating_sub(QUICK_BANNERS).min(BANNER_PAUSE_MAX.as_secs().ilog2());
            self.pause = BANNER_PAUSE.saturating_mul(1 << doubled).min(BANNER_PAUSE_MAX);
        }
        let mut lines = vec![self.title.line(now)];
        lines.extend(content.iter().cloned());
        out.push(ConsoleLines { level: LineLevel::Notice, lines });
        (self.shown, self.changed) = (Some((content, now)), None);
    }

    /// When the changed banner may be written; `None` if nothing has changed.
    fn banner_due(&self) -> Option<Mono> {
        let settled = self.changed?.after(SETTLE);
        match &self.shown {
            Some((_, last)) => Some(settled.max(last.after(self.pause))),
            None if self.state == banner::RUNNING => Some(settled),
            // The first banner waits for a node that is ready, up to a point.
            None => Some(self.began?.after(BANNER_WITHOUT_READY)),
        }
    }

    fn content(&self) -> Vec<String> {
        let written = self.problems.values().filter_map(|course| course.written.as_ref());
        let problems: Vec<&ConsoleProblem> = written.map(|(problem, _)| problem).collect();
        banner::content(&BannerFacts {
            state: self.state,
            firmware: &self.title.firmware,
            addresses: &self.addresses,
            cluster: self.cluster,
            not_ready: &self.not_ready,
            problems: &problems,
        })
    }
}

fn push(out: &mut Outbox<ConsoleLines>, level: LineLevel, line: &str) {
    out.push(ConsoleLines { level, lines: vec![text::clean(line, LINE_CHARS_MAX)] });
}

impl Machine for Console {
    type Event = ConsoleEvent;
    type Action = ConsoleLines;

    fn step(&mut self, now: Now, event: ConsoleEvent, out: &mut Outbox<ConsoleLines>) {
        let now = now.mono;
        self.began.get_or_insert(now);
        match event {
            ConsoleEvent::Problems(source, all) => self.replace(now, source, all),
            ConsoleEvent::State(state) if state != self.state => {
                // An address that comes right after it is in the same banner.
                (self.state, self.changed) = (state, None);
            }
            ConsoleEvent::State(_) | ConsoleEvent::Tick => {}
            ConsoleEvent::Addresses(addresses) => self.addresses = addresses,
            ConsoleEvent::Cluster(cluster) => self.cluster = cluster,
            ConsoleEvent::NotReady(message) => self.not_ready = message,
        }
        self.write_problems(now, out);
        self.write_banner(now, out);
    }

    /// The next line that is due. A line that the limit holds back is due with the limit's next token.
    fn deadline(&self) -> Option<Mono> {
        let of_problems = self.problems.values().filter_map(|course| {
            let ends = course.ends().filter(|_| course.written.is_some());
            let due = course.due().or(ends)?;
            Some(due.after(self.limit.wait(due)))
        });
        let unwritten_ends =
            self.problems.values().filter(|c| c.written.is_none()).filter_map(ProblemCourse::ends);
        of_problems.chain(unwritten_ends).chain(self.banner_due()).min()
    }
}
