//! The machine: looks, what they prove, and the setting of the clock.

use std::time::Duration;

use agent_types::api_time::text;
use agent_types::certificates::ServerClock;
use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now, Wall};

use super::{
    ClockAction, ClockEvent, ClockFact, DATES_COUNT_AFTER, DISPUTE, PATIENCE, PERIOD, RETRY, TOLERANCE,
};

/// Shortest time between two looks that a problem causes.
const SPACING: Duration = Duration::from_secs(1);
/// The same while the clock is verified: the problem is likely another one.
const SPACING_VERIFIED: Duration = Duration::from_secs(30);
/// A setting is watched this often.
const POLL: Duration = Duration::from_millis(250);
/// A setting takes at most this long.
const SET_MAX: Duration = Duration::from_secs(10);
/// A clock that is this near to the wanted time was set. Less than [`TOLERANCE`], or one that must be set would count as set.
const NEAR: Duration = Duration::from_millis(900);
/// The NTP client, when it is refused, has at most this long to end: it would set the clock back. The next look follows its end
/// at once.
const NTP_ENDS_MAX: Duration = Duration::from_secs(10);
/// With NTP, dates count although this many looks in a row failed.
const FAILURES_WITH_NTP: u32 = 3;
/// `Date` is cut to whole seconds: on average it is this much behind.
const HALF_SECOND: Duration = Duration::from_millis(500);
const DAY_S: u64 = 24 * 3600;

/// Who vouches for what the clock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Nobody,
    /// The NTP client. The API server agrees, if it was `compared`.
    Ntp {
        compared: bool,
    },
    /// The API server.
    Server,
}

/// A setting under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    from: Wall,
    to: Wall,
    at: Mono,
    /// Who vouches for it when it is done.
    source: Source,
}

/// The machine; see the module.
#[derive(Clone, Debug)]
pub struct NodeClock {
    /// Build time of the image.
    floor: Wall,
    started: Option<Mono>,
    source: Source,
    trouble: bool,
    looking: bool,
    last_look: Option<Mono>,
    next_look: Mono,
    /// Looks in a row that failed, and the reason of the last failure.
    failures: u32,
    failure: Option<String>,
    setting: Option<Setting>,
    /// The clock was not set when it had to be.
    stuck: Option<String>,
    /// What NTP claimed against the API server; it is refused since.
    dispute: Option<String>,
    /// The refused NTP client is ending; until then there is no look, and no setting.
    ntp_ends: Option<Mono>,
    verified: Option<bool>,
    shown: String,
    wake: Option<Mono>,
}

fn later(wall: Wall, by: Duration) -> Wall {
    Wall(wall.0.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
}

fn apart(a: Wall, b: Wall) -> Duration {
    Duration::from_nanos(a.0.abs_diff(b.0))
}

impl NodeClock {
    /// The machine of a node whose image was built at `floor`.
    #[must_use]
    pub fn new(floor: Wall) -> NodeClock {
        NodeClock {
            floor,
            started: None,
            source: Source::Nobody,
            trouble: false,
            looking: false,
            last_look: None,
            next_look: Mono(0),
            failures: 0,
            failure: None,
            setting: None,
            stuck: None,
            dispute: None,
            ntp_ends: None,
            verified: None,
            shown: String::new(),
            wake: None,
        }
    }

    fn age(&self, now: Now) -> Duration {
        self.started.map_or(Duration::ZERO, |started| now.mono.since(started))
    }

    fn synchronized(&mut self, is: bool, now: Now) {
        if !is && self.ntp_ends.take().is_some() {
            self.next_look = now.mono;
            return;
        }
        match (is && self.dispute.is_none(), self.source) {
            (true, Source::Ntp { .. }) | (false, Source::Nobody | Source::Server) => {}
            (true, _) => {
                self.source = Source::Ntp { compared: false };
                (self.setting, self.stuck, self.failures) = (None, None, 0);
                let patience = self.started.unwrap_or(now.mono).after(PATIENCE);
                self.next_look = if self.trouble { now.mono } else { patience.max(now.mono) };
            }
            (false, Source::Ntp { .. }) => {
                self.source = Source::Nobody;
                self.next_look = now.mono.after(PATIENCE);
            }
        }
    }

    fn troubled(&mut self, is: bool, now: Now) {
        self.trouble = is;
        if !is || self.ntp_ends.is_some() {
            return;
        }
        let spacing = match self.source {
            Source::Nobody | Source::Ntp { compared: false } => SPACING,
            Source::Ntp { compared: true } | Source::Server => SPACING_VERIFIED,
        };
        let soonest = self.last_look.map_or(now.mono, |last| last.after(spacing).max(now.mono));
        self.next_look = self.next_look.min(soonest);
    }

    /// The look failed.
    fn failed(&mut self, why: String, now: Now) {
        self.next_look = now.mono.after(RETRY.next(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(why);
    }

    fn set(&mut self, to: Wall, source: Source, now: Now, out: &mut Outbox<ClockAction>) {
        self.setting = Some(Setting { from: now.wall, to, at: now.mono, source });
        out.push(ClockAction::Set(to));
    }

    fn looked(
        &mut self,
        pinned: Option<Wall>,
        own: Option<Wall>,
        result: Result<ServerClock, String>,
        now: Now,
        out: &mut Outbox<ClockAction>,
    ) {
        self.looking = false;
        let proven = [Some(self.floor), pinned, own].into_iter().flatten().max().unwrap_or(self.floor);
        match result {
            Ok(seen) if seen.not_after < proven => {
                let (ended, begun) = (text(seen.not_after), text(proven));
                self.failed(
                    format!("its certificate ended at {ended}, before {begun}, which is past for certain"),
                    now,
                );
            }
            Ok(seen) => self.judge(seen, proven, now, out),
            Err(why) => {
                self.failed(why, now);
                // The authority was made then: it is not earlier.
                let least = self.floor.max(pinned.unwrap_or(self.floor));
                if now.wall < least && self.source == Source::Nobody && self.setting.is_none() {
                    self.set(least, Source::Nobody, now, out);
                }
            }
        }
    }

    /// The server is the cluster's: what it says counts. The true time is later than `proven`, the latest beginning of image, pinned
    /// authority and own certificate.
    fn judge(&mut self, seen: ServerClock, proven: Wall, now: Now, out: &mut Outbox<ClockAction>) {
        let least = self.floor.max(seen.not_before);
        let Some(date) = seen.date else {
            self.failed("its answer has no Date".to_owned(), now);
            if now.wall < least && self.source == Source::Nobody {
                self.set(least, Source::Nobody, now, out);
            }
            return;
        };
        (self.failures, self.failure) = (0, None);
        let time = later(date, HALF_SECOND).max(least);
        let difference = apart(now.wall, time);
        if matches!(self.source, Source::Ntp { .. }) {
            if difference <= DISPUTE {
                self.source = Source::Ntp { compared: true };
                self.next_look = now.mono.after(PERIOD);
                return;
            }
            self.dispute = Some(format!(
                "the NTP server's time ({}) and the API server's ({}) are {} days apart: the API server's is used, and NTP is \
                 stopped until the next boot; correct the NTP servers (time.servers, or those of DHCP)",
                text(now.wall),
                text(time),
                difference.as_secs() / DAY_S,
            ));
            self.source = Source::Nobody;
            out.push(ClockAction::RefuseNtp);
            let ends = now.mono.after(NTP_ENDS_MAX);
            (self.ntp_ends, self.next_look) = (Some(ends), ends);
            return;
        }
        // The chain may have begun years ago: the certificate that the node has just got proves more.
        let certainly_wrong = now.wall < least.max(proven) || now.wall > seen.not_after;
        let may_set =
            certainly_wrong || self.trouble || self.dispute.is_some() || self.source == Source::Server;
        if difference <= TOLERANCE {
            self.source = Source::Server;
            self.next_look = now.mono.after(PERIOD);
        } else if may_set || self.age(now) >= PATIENCE {
            self.set(time, Source::Server, now, out);
        } else {
            // A clock that may be right: NTP has its time.
            self.next_look = self.started.unwrap_or(now.mono).after(PATIENCE);
        }
    }

    /// Was the clock set?
    fn watch(&mut self, now: Now, out: &mut Outbox<ClockAction>) {
        let Some(setting) = self.setting else { return };
        let took = now.mono.since(setting.at);
        if apart(now.wall, later(setting.to, took)) <= NEAR {
            (self.setting, self.stuck, self.failures) = (None, None, 0);
            self.source = setting.source;
            out.push(ClockAction::Fact(ClockFact::Set { from: setting.from, to: now.wall }));
            // A floor is not the time.
            let pause = if setting.source == Source::Server { PERIOD } else { RETRY.first };
            self.next_look = now.mono.after(pause);
        } else if took >= SET_MAX {
            self.setting = None;
            self.stuck = Some(format!(
                "the clock shows {}, and could not be set to {}: the log of orlop-clock.service says why",
                text(now.wall),
                text(later(setting.to, took))
            ));
            self.next_look = now.mono.after(RETRY.max);
        }
    }

    fn advance(&mut self, now: Now, out: &mut Outbox<ClockAction>) {
        self.watch(now, out);
        let mut due = Vec::new();
        if self.setting.is_some() {
            due.push(now.mono.after(POLL));
        } else if !self.looking && self.next_look <= now.mono {
            (self.looking, self.ntp_ends) = (true, None);
            self.last_look = Some(now.mono);
            out.push(ClockAction::Look);
        } else if !self.looking {
            due.push(self.next_look);
        }
        // What is said and what counts change with time alone.
        let started = self.started.unwrap_or(now.mono);
        let changes = [PATIENCE, DATES_COUNT_AFTER].map(|after| started.after(after));
        due.extend(changes.into_iter().filter(|at| *at > now.mono));
        self.wake = due.into_iter().min();
    }

    fn dates_count(&self, now: Now) -> bool {
        let vouched = match self.source {
            Source::Nobody => false,
            Source::Ntp { compared } => compared || self.failures >= FAILURES_WITH_NTP,
            Source::Server => true,
        };
        self.setting.is_none() && (vouched || self.age(now) >= DATES_COUNT_AFTER)
    }

    fn sentence(&self, now: Now) -> String {
        const DO: &str = "name NTP servers in time.servers, or let DHCP name them";
        if let Some(told) = self.stuck.as_ref().or(self.dispute.as_ref()) {
            return told.clone();
        }
        if self.age(now) < PATIENCE {
            return String::new();
        }
        match self.source {
            Source::Ntp { .. } => String::new(),
            Source::Server => format!(
                "ClockUnverified: no NTP server answers; the clock follows the API server's, to the second: {DO}"
            ),
            Source::Nobody => {
                // A look or a setting under way ends within seconds: its result is said, not that there is none yet.
                let Some(why) = self.failure.as_deref() else { return String::new() };
                format!(
                    "ClockUnverified: no NTP server answers, and the API server's clock is not known: {why}; {DO}"
                )
            }
        }
    }

    fn tell(&mut self, now: Now, out: &mut Outbox<ClockAction>) {
        let verified = self.dates_count(now);
        if self.verified != Some(verified) {
            self.verified = Some(verified);
            out.push(ClockAction::Verified(verified));
        }
        let sentence = self.sentence(now);
        if sentence != self.shown {
            self.shown.clone_from(&sentence);
            out.push(ClockAction::Show(sentence));
        }
    }
}

impl Machine for NodeClock {
    type Event = ClockEvent;
    type Action = ClockAction;

    fn step(&mut self, now: Now, event: ClockEvent, out: &mut Outbox<ClockAction>) {
        if self.started.is_none() {
            self.started = Some(now.mono);
            self.next_look = now.mono.after(PATIENCE);
        }
        match event {
            ClockEvent::Tick => {}
            ClockEvent::Synchronized(is) => self.synchronized(is, now),
            ClockEvent::Trouble(is) => self.troubled(is, now),
            ClockEvent::Looked { pinned, own, result } => self.looked(pinned, own, result, now, out),
        }
        self.advance(now, out);
        self.tell(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.wake
    }
}
