//! Called as `containerd-shim-runc-v2`: answers containerd's `-info` from the record in the image, and becomes the
//! real shim for everything else. Why, and why the record is true: docs/internals/image.md.

use super::stand_in;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// The name under which containerd knows it.
pub const NAME: &str = "containerd-shim-runc-v2";
const SHIM: &str = "/usr/bin/containerd-shim-runc-v2";
const INFO: &str = "-info";
/// Made by `orlop-image build` with the programs of the same image.
const RECORD: &str = "/usr/share/orlop/shim-info";

/// Runs the shim or answers for it. Does not return if it became the shim.
#[must_use]
pub fn main(args: &[OsString]) -> ExitCode {
    let outcome = if args == [INFO] { info() } else { stand_in::become_program(SHIM, args) };
    stand_in::ended(SHIM, outcome)
}

fn info() -> io::Result<ExitCode> {
    let question = stand_in::question()?;
    match recorded(Path::new(RECORD), &question) {
        Some(Ok(answer)) => super::print(&answer).map(|()| ExitCode::SUCCESS),
        Some(Err(why)) => io::stderr().write_all(&why).map(|()| ExitCode::FAILURE),
        None => stand_in::pass_on(SHIM, &[INFO], &question),
    }
}

/// What is on record for this question: `NAME.answer` or `NAME.error` to `NAME.question`.
fn recorded(record: &Path, question: &[u8]) -> Option<Result<Vec<u8>, Vec<u8>>> {
    let files = fs::read_dir(record).ok()?.flatten().map(|entry| entry.path());
    let mut questions = files.filter(|path| path.extension().is_some_and(|e| e == "question"));
    let asked = questions.find(|path| fs::read(path).is_ok_and(|asked| asked == question))?;
    let answer = fs::read(asked.with_extension("answer")).ok().map(Ok);
    answer.or_else(|| fs::read(asked.with_extension("error")).ok().map(Err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_question_on_record_is_answered_from_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let record = dir.path();
        assert_eq!(recorded(record, b"q"), None, "no record");
        for (name, content) in [("x.question", "q"), ("y.question", "r")] {
            fs::write(record.join(name), content).expect("fixture");
        }
        assert_eq!(recorded(record, b"q"), None, "half a record");
        for (name, content) in [("x.answer", "a"), ("y.error", "b")] {
            fs::write(record.join(name), content).expect("fixture");
        }
        assert_eq!(recorded(record, b"q"), Some(Ok(b"a".to_vec())));
        assert_eq!(recorded(record, b"r"), Some(Err(b"b".to_vec())));
        for other in [&b""[..], b"qq"] {
            assert_eq!(recorded(record, other), None);
        }
    }
}
