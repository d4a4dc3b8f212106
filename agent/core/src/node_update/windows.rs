//! Windows: when a node may reboot for an update. Times are UTC.
//!
//! In: windows, the time. Out: open or not, and when the next one opens. Pure. A window belongs to the day on which it begins and
//! may last past midnight.

use std::collections::BTreeSet;
use std::str::FromStr;

use orlop_config::release::UtcSecond;

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 3600;
/// Days of a week.
const WEEK: u64 = 7;
/// Longest window, minutes: a week, so that no window is always open twice.
pub const WINDOW_MINUTES_MAX: u32 = 7 * 24 * 60;

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weekday {
    /// `mon`.
    Monday,
    /// `tue`.
    Tuesday,
    /// `wed`.
    Wednesday,
    /// `thu`.
    Thursday,
    /// `fri`.
    Friday,
    /// `sat`.
    Saturday,
    /// `sun`.
    Sunday,
}

impl Weekday {
    /// All of them, Monday first.
    pub const ALL: [Weekday; 7] = [
        Weekday::Monday,
        Weekday::Tuesday,
        Weekday::Wednesday,
        Weekday::Thursday,
        Weekday::Friday,
        Weekday::Saturday,
        Weekday::Sunday,
    ];

    /// As in a configuration: three letters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Weekday::Monday => "mon",
            Weekday::Tuesday => "tue",
            Weekday::Wednesday => "wed",
            Weekday::Thursday => "thu",
            Weekday::Friday => "fri",
            Weekday::Saturday => "sat",
            Weekday::Sunday => "sun",
        }
    }

    /// The day of the week of a day since 1970 began, which was a Thursday.
    fn of_day(day: u64) -> Weekday {
        let index = usize::try_from((day + 3) % WEEK).unwrap_or(0);
        Weekday::ALL[index]
    }
}

/// A text that is no window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// No day of the week.
    #[error("{0:?} is no day: mon, tue, wed, thu, fri, sat or sun is expected")]
    Day(String),
    /// No time of a day.
    #[error("{0:?} is no time of a day: four digits are expected, as in 02:30")]
    Start(String),
    /// Too short or too long, minutes.
    #[error("a window has 1 to {max} minutes, not {0}", max = WINDOW_MINUTES_MAX)]
    Minutes(u32),
}

impl FromStr for Weekday {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Weekday, WindowError> {
        let found = Weekday::ALL.into_iter().find(|day| day.name() == text);
        found.ok_or_else(|| WindowError::Day(text.chars().take(20).collect()))
    }
}

/// A time in each week.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateWindow {
    /// On these days; every day if there are none.
    days: BTreeSet<Weekday>,
    /// Minutes after midnight.
    start: u64,
    /// Its length, minutes.
    minutes: u32,
}

impl UpdateWindow {
    /// A window, as a configuration states it: `["tue", "thu"]`, `02:00`, 180.
    ///
    /// # Errors
    /// A day, the time or the length is none.
    pub fn new(days: &[&str], start: &str, minutes: u32) -> Result<UpdateWindow, WindowError> {
        if !(1..=WINDOW_MINUTES_MAX).contains(&minutes) {
            return Err(WindowError::Minutes(minutes));
        }
        let days = days.iter().map(|day| day.parse::<Weekday>()).collect::<Result<BTreeSet<_>, _>>()?;
        let refused = || WindowError::Start(start.chars().take(20).collect());
        let digits = |text: &str| {
            let is = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
            if is { text.parse::<u64>().ok() } else { None }
        };
        let (hour, minute) = start.split_once(':').ok_or_else(refused)?;
        match (digits(hour), digits(minute)) {
            (Some(hour), Some(minute)) if hour < 24 && minute < 60 => {
                Ok(UpdateWindow { days, start: hour * 60 + minute, minutes })
            }
            _ => Err(refused()),
        }
    }

    fn is_on(&self, day: u64) -> bool {
        self.days.is_empty() || self.days.contains(&Weekday::of_day(day))
    }

    /// Beginning of the window of this day, seconds since 1970.
    fn begins(&self, day: u64) -> u64 {
        day * DAY + self.start * MINUTE
    }

    fn is_open(&self, now: u64) -> bool {
        let today = now / DAY;
        let length = u64::from(self.minutes) * MINUTE;
        (today.saturating_sub(WEEK)..=today)
            .any(|day| self.is_on(day) && (self.begins(day)..self.begins(day) + length).contains(&now))
    }
}

/// May the node reboot now? Without windows it always may.
#[must_use]
pub fn is_open(windows: &[UpdateWindow], now: UtcSecond) -> bool {
    windows.is_empty() || windows.iter().any(|window| window.is_open(now.seconds()))
}

/// When the node may reboot next: now, if a window is open.
#[must_use]
pub fn next_opening(windows: &[UpdateWindow], now: UtcSecond) -> UtcSecond {
    if is_open(windows, now) {
        return now;
    }
    let today = now.seconds() / DAY;
    let begins = windows.iter().flat_map(|window| {
        (today..=today + WEEK).filter(move |day| window.is_on(*day)).map(move |day| window.begins(day))
    });
    begins.filter(|at| *at > now.seconds()).min().map_or(now, UtcSecond::new)
}
