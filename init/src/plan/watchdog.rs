//! The hardware watchdog of a boot on trial. Pure.
//!
//! In: whether this boot is a trial, and what the kernel shows of the watchdog. Out: what init does with it. Invariant: only a boot on
//! trial arms it here; in every other boot systemd is the first that does. The reasons are in docs/decisions/watchdog.md.

/// What the drivers are asked for as in the initrd's list of modules.
pub const MODULES: &str = "watchdog";
/// Time without a beat after which the watchdog resets the machine, seconds. init beats after each phase; the longest ones without a beat
/// of their own are the search for configuration, and systemd's start on a slow machine.
pub const TRIAL_TIMEOUT_S: u32 = 180;
/// Making, checking, mounting and growing the state partition may take longer than the timeout. A child beats meanwhile, for so long at
/// most, seconds: a trial that hangs there ends as well.
pub const LONG_STEP_MAX_S: i64 = 2 * 3600;
/// How often it beats then, seconds.
pub const BEAT_EVERY_S: i64 = 10;
/// A watchdog that cannot wait so long could end a boot that is only slow, seconds.
pub const SHORTEST_TIMEOUT_S: u32 = 60;

/// What the kernel shows of a watchdog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchdogFound {
    /// The driver's name of it.
    pub identity: String,
    /// Its longest timeout, seconds; none if the driver names none.
    pub longest_s: Option<u32>,
    /// It can be stopped once it runs: it knows the magic character, and the kernel was not asked to let none stop.
    pub stops: bool,
}

/// `WDIOF_MAGICCLOSE` of linux/watchdog.h.
const MAGIC_CLOSE: u32 = 0x100;

impl WatchdogFound {
    /// Of the texts in `/sys/class/watchdog/watchdog0`: `identity`, and `max_timeout`, `nowayout` and `options` as far as they can be read.
    #[must_use]
    pub fn parse(
        identity: &str,
        max_timeout: Option<&str>,
        nowayout: Option<&str>,
        options: Option<&str>,
    ) -> WatchdogFound {
        let options = options.and_then(|text| u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok());
        let knows_magic = options.is_some_and(|options| options & MAGIC_CLOSE != 0);
        let stops = knows_magic && nowayout.is_some_and(|text| text.trim() == "0");
        let number = max_timeout.and_then(|text| text.trim().parse::<u32>().ok());
        // 0: the kernel beats in the driver's place as often as the hardware needs.
        WatchdogFound { identity: identity.trim().to_owned(), longest_s: number.filter(|s| *s > 0), stops }
    }
}

/// What init does with the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialWatchdog {
    /// The boot is not on trial: systemd arms it.
    NotOnTrial,
    /// The machine has none.
    Absent,
    /// Nothing could stop it again: a systemd that does not take it over would lose a healthy trial.
    Unstoppable,
    /// It cannot wait as long as a boot may take.
    TooShort {
        /// Its longest timeout, seconds.
        longest_s: u32,
    },
    /// It is armed.
    Arm {
        /// Its timeout, seconds.
        timeout_s: u32,
    },
}

/// Decides.
#[must_use]
pub fn decide(on_trial: bool, found: Option<&WatchdogFound>) -> TrialWatchdog {
    if !on_trial {
        return TrialWatchdog::NotOnTrial;
    }
    let Some(found) = found else { return TrialWatchdog::Absent };
    match found.longest_s {
        _ if !found.stops => TrialWatchdog::Unstoppable,
        Some(longest_s) if longest_s < SHORTEST_TIMEOUT_S => TrialWatchdog::TooShort { longest_s },
        longest => TrialWatchdog::Arm { timeout_s: longest.unwrap_or(TRIAL_TIMEOUT_S).min(TRIAL_TIMEOUT_S) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trial_arms_it() {
        let found = |max| WatchdogFound::parse("i6300ESB timer\n", max, Some("0\n"), Some("0x8180\n"));
        assert_eq!(found(Some("2046\n")).identity, "i6300ESB timer");
        let arm = |timeout_s| TrialWatchdog::Arm { timeout_s };
        for (on_trial, watchdog, want) in [
            (false, Some(found(Some("2046\n"))), TrialWatchdog::NotOnTrial),
            (false, None, TrialWatchdog::NotOnTrial),
            (true, None, TrialWatchdog::Absent),
            (true, Some(found(Some("2046\n"))), arm(180)),
            (true, Some(found(Some("120\n"))), arm(120)),
            (true, Some(found(Some("60\n"))), arm(60)),
            (true, Some(found(Some("59\n"))), TrialWatchdog::TooShort { longest_s: 59 }),
            (true, Some(found(Some("0\n"))), arm(180)),
            (true, Some(found(Some("x"))), arm(180)),
            (true, Some(found(None)), arm(180)),
        ] {
            assert_eq!(decide(on_trial, watchdog.as_ref()), want, "{watchdog:?}");
        }
    }

    #[test]
    fn one_that_nothing_stops_is_left_to_systemd() {
        for (nowayout, options, want) in [
            (Some("0\n"), Some("0x8180\n"), true),
            (Some("1\n"), Some("0x8180\n"), false),
            (None, Some("0x8180\n"), false),
            (Some("0\n"), Some("0x8080\n"), false),
            (Some("0\n"), Some("8180"), false),
            (Some("0\n"), None, false),
        ] {
            let found = WatchdogFound::parse("w", Some("2046\n"), nowayout, options);
            assert_eq!(found.stops, want, "{nowayout:?} {options:?}");
            assert_eq!(decide(true, Some(&found)) == TrialWatchdog::Unstoppable, !want);
        }
    }
}
