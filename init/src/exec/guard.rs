//! `orlop-init guard`: ends the trial of a version, whatever works on this node (orlop-trial.service).
//!
//! In: what init has left about this boot (`/run/orlop/slot.json`), the agent's words (`/run/orlop/trial/verdict.json`). Out: a
//! commit or a return in the boot record and on the ESP, and for a return a reboot. Decisions are `plan::guard`'s. It needs
//! neither the state partition nor the agent nor the network.

use super::clock::boottime_ms;
use super::console::{Console, Level};
use super::error::InitError;
use super::slot::Arbiter;
use super::sources::read_at_most;
use super::{stop, watchdog};
use crate::plan::guard::{
    GuardStep, GuardWord, LOOK_S, TrialGuard, TrialStanding, WORD_BYTES_MAX, WORD_DIRECTORY, parse,
};
use orlop_config::error_chain::chain;
use orlop_config::slots::{SlotName, TRIAL_BOOT_FILE, TrialBoot};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Longest text of the file about this boot, bytes.
const BOOT_BYTES_MAX: u64 = 16 << 10;
/// A record that so many looks could not write is given up: the node returns, and the loader's used try takes it back.
const COMMITS_MAX: u32 = 12;
/// The check that failed then.
const BOOT_RECORD: &str = "boot-record";
/// An orderly reboot has this long, seconds, as long as reboot.target gives itself; then the kernel is asked.
const REBOOT_MAX_S: i64 = 300;

/// Runs the subcommand, until the trial is over.
#[must_use]
pub fn main() -> ExitCode {
    let mut console = Console::open("orlop-guard");
    let Some(boot) = trial_boot(Path::new(TRIAL_BOOT_FILE)) else {
        console.say(Level::Info, "no slot is on trial in this boot");
        return ExitCode::SUCCESS;
    };
    watchdog::take_back(&mut console);
    let mut arbiter = Arbiter::of(&boot);
    if let Some(code) = ended(&mut console, &mut arbiter, boot.slot) {
        return code;
    }
    let mut guard = TrialGuard::new(u64::from(boot.deadline_s));
    let mut refused = 0;
    loop {
        let said = word(&Path::new(WORD_DIRECTORY).join("verdict.json"));
        let step = guard.step(boottime_ms() / 1000, said);
        // A write that seemed to fail may have reached the disk; and a good slot is never left.
        if !matches!(step, GuardStep::Wait(_))
            && let Some(code) = ended(&mut console, &mut arbiter, boot.slot)
        {
            return code;
        }
        match step {
            GuardStep::Wait(seconds) => stop::wait(i64::try_from(seconds).unwrap_or(1)),
            GuardStep::Commit => match commit(&mut arbiter, boot.slot) {
                Ok(line) => {
                    console.say(Level::Info, &line);
                    return ExitCode::SUCCESS;
                }
                Err(e) if refused < COMMITS_MAX => {
                    refused += 1;
                    console.say(Level::Error, &format!("slot {} is not committed: {}", boot.slot, chain(&e)));
                    stop::wait(i64::try_from(LOOK_S).unwrap_or(1));
                }
                Err(e) => return go_back(&mut console, &mut arbiter, boot.slot, BOOT_RECORD, &chain(&e)),
            },
            GuardStep::Return { check, words } => {
                return go_back(&mut console, &mut arbiter, boot.slot, &check, &words);
            }
        }
    }
}

/// What is done about a trial that has ended already: by this guard before it died, or by a write that seemed to fail.
fn ended(console: &mut Console, arbiter: &mut Arbiter, slot: SlotName) -> Option<ExitCode> {
    match arbiter.standing() {
        Ok(TrialStanding::OnTrial) => None,
        Ok(TrialStanding::Committed) => Some(ExitCode::SUCCESS),
        Ok(TrialStanding::Over) => {
            console.say(Level::Error, &format!("the trial of slot {slot} is over; the other slot boots"));
            Some(restart())
        }
        // Watched all the same: the old slot has to come back.
        Err(e) => {
            console.say(Level::Error, &chain(&e));
            None
        }
    }
}

fn trial_boot(path: &Path) -> Option<TrialBoot> {
    TrialBoot::parse(&String::from_utf8(read_at_most(path, BOOT_BYTES_MAX).ok()?).ok()?)
}

fn word(path: &Path) -> Option<GuardWord> {
    parse(&String::from_utf8(read_at_most(path, WORD_BYTES_MAX).ok()?).ok()?)
}

fn commit(arbiter: &mut Arbiter, slot: SlotName) -> Result<String, InitError> {
    let failures = arbiter.change(|record| record.commit_trial(slot, None))?;
    let more: String = failures.iter().map(|failure| format!("; {failure}")).collect();
    Ok(format!("slot {slot} is good from now on{more}"))
}

/// Writes why, and reboots. Returns only if the kernel refuses: then systemd starts the guard again.
fn go_back(
    console: &mut Console,
    arbiter: &mut Arbiter,
    slot: SlotName,
    check: &str,
    words: &str,
) -> ExitCode {
    let line = format!("the version in slot {slot} failed its trial: {check}: {words}; the other slot boots");
    console.say(Level::Error, &line);
    match arbiter.change(|record| record.return_from_trial(slot, check, words)) {
        Ok(failures) => failures.iter().for_each(|failure| console.say(Level::Error, failure)),
        // The loader's try is used: the other slot boots, and its arbiter notes that no verdict came.
        Err(e) => console.say(Level::Error, &chain(&e)),
    }
    restart()
}

/// Reboots in order, and then at any rate. Returns only if the kernel refuses.
pub(super) fn restart() -> ExitCode {
    // systemd says what it cannot do. Nobody waits for an answer, which a systemd that hangs does not give.
    let asked =
        Command::new("/usr/bin/systemctl").args(["--no-block", "reboot"]).stdin(Stdio::null()).spawn();
    stop::reboot_after(REBOOT_MAX_S);
    if let Ok(mut asked) = asked {
        let _ = asked.kill();
        let _ = asked.wait();
    }
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::guard::GuardVerdict;
    use std::fs;

    #[test]
    fn files_are_read_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("file");
        assert_eq!((trial_boot(&file), word(&file)), (None, None));
        fs::write(&file, r#"{"upS":3,"verdict":"wait"}"#).expect("fixture");
        assert_eq!(word(&file), Some(GuardWord { up_s: 3, verdict: GuardVerdict::Wait }));
        assert_eq!(trial_boot(&file), None);
        for bad in [vec![0xff; 3], vec![b' '; 1 << 20]] {
            fs::write(&file, bad).expect("fixture");
            assert_eq!((trial_boot(&file), word(&file)), (None, None));
        }
        let boot = TrialBoot {
            slot: SlotName::B,
            update: "u".into(),
            deadline_s: 600,
            record: dir.path().join("none").to_string_lossy().into_owned(),
            esp: None,
        };
        fs::write(&file, boot.render()).expect("fixture");
        assert_eq!(trial_boot(&file), Some(boot.clone()));
        assert!(commit(&mut Arbiter::of(&boot), SlotName::B).is_err());
    }
}
