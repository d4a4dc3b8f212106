//! Extends PCRs by the TPM's device. Without a TPM 2.0 nothing is done, and nothing said.
//!
//! The kernel's drivers are built in (TIS, CRB), so the device is there before init. One command, one answer; the device is opened for
//! each measurement, because whatever holds it open keeps others out. A child process does it: a call of the driver returns when the TPM
//! answers, or after two minutes, and the boot does not wait that long.

use super::report::Report;
use crate::plan::tpm::{ANSWER_BYTES_MAX, check, pcr_event};
use crate::sys::child;
use orlop_config::error_chain::chain;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// The TPM.
const DEVICE: &str = "/dev/tpm0";
/// 2, or 1 for a TPM 1.2, which knows no such commands.
const VERSION: &str = "/sys/class/tpm/tpm0/tpm_version_major";
/// Longest time for the events of one measurement. A command takes some milliseconds, in slow chips a tenth of a second.
const LIMIT: Duration = Duration::from_secs(10);
/// The child's word for success.
const DONE: &str = "done";

/// Extends a PCR by each event, in order. What goes wrong is a problem: who trusts the PCRs will refuse this boot.
pub fn measure(report: &mut Report, what: &str, pcr: u32, events: impl IntoIterator<Item = Vec<u8>>) {
    if !is_version_2(Path::new(VERSION)) {
        return;
    }
    if let Err(why) = within(LIMIT, || extend(Path::new(DEVICE), pcr, events)) {
        report.problem(&format!("TPM: {what} is not measured into PCR {pcr}: {why}"));
    }
}

fn is_version_2(version: &Path) -> bool {
    fs::read_to_string(version).is_ok_and(|text| text.trim() == "2")
}

/// Does `work` in a child; the words are for a person.
fn within(limit: Duration, work: impl FnOnce() -> io::Result<()>) -> Result<(), String> {
    let words = || work().map_or_else(|e| chain(&e), |()| DONE.to_owned());
    match child::words_within(limit, words) {
        Ok(Some(words)) if words == DONE => Ok(()),
        Ok(Some(words)) if words.is_empty() => Err("the process that measures has died".to_owned()),
        Ok(Some(words)) => Err(words),
        Ok(None) => Err(format!("it is not done within {} ms", limit.as_millis())),
        Err(e) => Err(format!("no process can measure: {e}")),
    }
}

fn extend(device: &Path, pcr: u32, events: impl IntoIterator<Item = Vec<u8>>) -> io::Result<()> {
    let mut tpm = OpenOptions::new().read(true).write(true).open(device)?;
    converse(&mut tpm, pcr, events)
}

fn converse(
    tpm: &mut (impl Read + Write),
    pcr: u32,
    events: impl IntoIterator<Item = Vec<u8>>,
) -> io::Result<()> {
    let mut answer = [0; ANSWER_BYTES_MAX];
    for event in events {
        // The driver takes a command by one write, and gives the answer to one read.
        let command = pcr_event(pcr, &event);
        if tpm.write(&command)? != command.len() {
            return Err(io::Error::other("the driver takes a part of a command only"));
        }
        let length = tpm.read(&mut answer)?;
        check(&answer[..length]).map_err(io::Error::other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many commands, and answers each by these codes.
    struct FakeTpm {
        taken: Vec<Vec<u8>>,
        codes: Vec<u32>,
        takes: usize,
    }

    impl Write for FakeTpm {
        fn write(&mut self, command: &[u8]) -> io::Result<usize> {
            self.taken.push(command.to_vec());
            Ok(command.len().min(self.takes))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for FakeTpm {
        fn read(&mut self, answer: &mut [u8]) -> io::Result<usize> {
            let code = self.codes.remove(0);
            let bytes = [&[0x80, 0x02, 0, 0, 0, 10][..], &code.to_be_bytes()].concat();
            answer[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        }
    }

    #[test]
    fn each_event_is_a_command_and_an_answer() {
        let events = || [b"a".to_vec(), b"b".to_vec(), b"c".to_vec()];
        let mut tpm = FakeTpm { taken: Vec::new(), codes: vec![0, 0, 0], takes: usize::MAX };
        converse(&mut tpm, 11, events()).expect("done");
        assert_eq!(tpm.taken, events().map(|event| pcr_event(11, &event)));
        // The second one is refused: the third is not sent.
        let mut tpm = FakeTpm { taken: Vec::new(), codes: vec![0, 0x907], takes: usize::MAX };
        let failed = converse(&mut tpm, 11, events()).expect_err("refused");
        assert_eq!((failed.to_string().as_str(), tpm.taken.len()), ("the TPM answers 0x00000907", 2));
        let mut tpm = FakeTpm { taken: Vec::new(), codes: Vec::new(), takes: 9 };
        assert!(converse(&mut tpm, 11, events()).is_err());
    }

    #[test]
    fn only_a_tpm_of_version_2_is_used() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let version = dir.path().join("tpm_version_major");
        assert!(!is_version_2(&version));
        for (text, is_used) in [("1\n", false), ("2\n", true), ("", false), ("20\n", false)] {
            fs::write(&version, text).expect("fixture");
            assert_eq!(is_version_2(&version), is_used, "{text:?}");
        }
    }

    #[test]
    fn what_does_not_answer_is_a_failure_in_time() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let device = dir.path().join("tpm0");
        let limit = Duration::from_secs(30);
        let measured = || within(limit, || extend(&device, 11, [b"x".to_vec()]));
        assert!(measured().expect_err("no device").contains("No such file"));
        // What is there, but does not answer as a TPM.
        fs::write(&device, b"").expect("fixture");
        assert_eq!(measured(), Err("the TPM's answer is cut short".to_owned()));
        assert!(extend(dir.path(), 11, [b"x".to_vec()]).is_err());
        assert_eq!(within(limit, || Ok(())), Ok(()));
        let hangs = || -> io::Result<()> {
            loop {
                nix::unistd::pause();
            }
        };
        let short = Duration::from_millis(50);
        assert_eq!(within(short, hangs), Err("it is not done within 50 ms".to_owned()));
    }
}
