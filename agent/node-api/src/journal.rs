//! Requests for logs as arguments of journalctl, and its lines as log lines. Pure.
//!
//! In: a `ReadRequest`; lines of `journalctl --output=json`. Out: arguments, `LogLine`s. Invariants: every value of a request is checked
//! and joined to its option by `=`, so none can become another option; a line of any form is skipped or becomes a log line. Formats:
//! journalctl(1), systemd.journal-fields(7).

use orlop_proto::node_api::v1alpha1::{LogLine, ReadRequest};
use serde_json::Value;

use crate::refusal::{Reason, Refusal};

/// Units of one request.
const UNITS_MAX: usize = 8;
/// Characters of a unit's name (systemd: UNIT_NAME_MAX).
const UNIT_CHARS_MAX: usize = 255;
/// Characters of a pattern and of a cursor.
const WORDS_MAX: usize = 512;
/// Earlier boots that can be named.
const BOOTS_MAX: i32 = 1000;
/// Fields that lines have.
const FIELDS: &str = "MESSAGE,PRIORITY,_SYSTEMD_UNIT,SYSLOG_IDENTIFIER,_TRANSPORT,UNIT";

/// The arguments for a request of the journal.
///
/// # Errors
/// A value that cannot be.
pub fn arguments(request: &ReadRequest) -> Result<Vec<String>, Refusal> {
    check(request).map_err(|message| Refusal::new(Reason::BadRequest, "log request", message))?;
    let mut arguments: Vec<String> =
        ["--no-pager", "--quiet", "--output=json"].into_iter().map(str::to_owned).collect();
    arguments.push(format!("--output-fields={FIELDS}"));
    // A cursor names its boot itself: a reader goes on through a reboot.
    if request.after_cursor.is_empty() {
        arguments.push(format!("--boot={}", request.boot));
    } else {
        arguments.push(format!("--after-cursor={}", request.after_cursor));
    }
    if request.since_seconds > 0 {
        arguments.push(format!("--since=@{}", request.since_seconds));
    }
    if !request.grep.is_empty() {
        arguments.push(format!("--grep={}", request.grep));
    }
    match (request.lines, request.follow) {
        // journalctl alone would begin with ten lines.
        (0, true) => arguments.push("--lines=all".to_owned()),
        (0, false) => {}
        (lines, _) => arguments.push(format!("--lines={lines}")),
    }
    if request.follow {
        arguments.push("--follow".to_owned());
    }
    arguments.extend(request.units.iter().map(|unit| format!("--unit={unit}")));
    if request.kernel {
        arguments.push("_TRANSPORT=kernel".to_owned());
    }
    Ok(arguments)
}

fn check(request: &ReadRequest) -> Result<(), String> {
    if request.units.len() > UNITS_MAX {
        return Err(format!("it names more than {UNITS_MAX} units"));
    }
    for unit in &request.units {
        if !is_unit(unit) {
            let shown: String = unit.chars().take(64).collect();
            return Err(format!("{shown:?} is no name of a unit"));
        }
    }
    if request.kernel && !request.units.is_empty() {
        return Err("the kernel's log has no units".to_owned());
    }
    if !(-BOOTS_MAX..=0).contains(&request.boot) {
        return Err(format!("boot {} is not from -{BOOTS_MAX} to 0", request.boot));
    }
    if request.follow && request.boot != 0 {
        return Err("an earlier boot writes no new lines".to_owned());
    }
    if request.since_seconds < 0 {
        return Err("since is before 1970".to_owned());
    }
    let is_plain = |text: &str| text.chars().count() <= WORDS_MAX && !text.chars().any(char::is_control);
    if !is_plain(&request.grep) {
        return Err(format!("the pattern has control characters, or more than {WORDS_MAX}"));
    }
    let is_cursor = |c: char| c.is_ascii_alphanumeric() || matches!(c, '=' | ';' | '-' | '_');
    if !is_plain(&request.after_cursor) || !request.after_cursor.chars().all(is_cursor) {
        return Err("the cursor is none of the journal's".to_owned());
    }
    Ok(())
}

/// A name without patterns, whose first character cannot begin an option.
pub(crate) fn is_unit(name: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@' | '\\');
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    first && name.len() <= UNIT_CHARS_MAX && name.chars().all(safe)
}

/// A line of the journal; `None` for a text of another form.
#[must_use]
pub fn line(text: &[u8]) -> Option<LogLine> {
    let entry: Value = serde_json::from_slice(text).ok()?;
    let word = |key: &str| entry[key].as_str().unwrap_or_default();
    if word("__CURSOR").is_empty() {
        return None;
    }
    // What the manager says about a unit has the unit in a field of its own.
    let sources = ["UNIT", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER", "_TRANSPORT"].map(word);
    let source = sources.into_iter().find(|source| !source.is_empty()).unwrap_or_default();
    Some(LogLine {
        cursor: word("__CURSOR").to_owned(),
        time_us: word("__REALTIME_TIMESTAMP").parse().unwrap_or(0),
        source: source.to_owned(),
        priority: word("PRIORITY").parse().ok().filter(|priority: &u32| *priority <= 7).unwrap_or(6),
        message: message(&entry["MESSAGE"]),
    })
}

/// A message that is no UTF-8 is a list of bytes; one that is too long for journalctl is null; a repeated field is a list.
fn message(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) if list.iter().all(Value::is_u64) => {
            let byte =
                |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok()).unwrap_or(b'?');
            let bytes: Vec<u8> = list.iter().map(byte).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        Value::Array(list) => list.iter().map(message).collect::<Vec<_>>().join("\n"),
        _ => "(a message that journalctl does not print: it is longer than 4096 bytes)".to_owned(),
    }
}

/// Names of units from `journalctl --field=_SYSTEMD_UNIT`, sorted, at most `units_max`.
#[must_use]
pub fn units(text: &str, units_max: usize) -> Vec<String> {
    let mut units: Vec<String> =
        text.lines().map(str::trim).filter(|name| is_unit(name)).map(str::to_owned).collect();
    units.sort_unstable();
    units.dedup();
    units.truncate(units_max);
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ReadRequest {
        ReadRequest::default()
    }

    #[test]
    fn arguments_are_options_with_their_values() {
        let all = ReadRequest {
            units: vec!["kubelet.service".to_owned(), "a@b\\x2d.service".to_owned()],
            since_seconds: 5,
            grep: "--file=/etc/shadow".to_owned(),
            lines: 10,
            follow: true,
            ..request()
        };
        let found = arguments(&all).unwrap();
        let expected = [
            "--boot=0",
            "--since=@5",
            "--grep=--file=/etc/shadow",
            "--lines=10",
            "--follow",
            "--unit=kubelet.service",
            "--unit=a@b\\x2d.service",
        ];
        assert_eq!(found[4..], expected);
        let cursor =
            ReadRequest { after_cursor: "s=1;i=2".to_owned(), kernel: true, follow: true, ..request() };
        let found = arguments(&cursor).unwrap();
        assert_eq!(found[4..], ["--after-cursor=s=1;i=2", "--lines=all", "--follow", "_TRANSPORT=kernel"]);
        assert_eq!(arguments(&ReadRequest { boot: -1, ..request() }).unwrap()[4..], ["--boot=-1"]);
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        let unit = |name: &str| ReadRequest { units: vec![name.to_owned()], ..request() };
        for bad in [
            unit(""),
            unit("-x"),
            unit("--file=/x"),
            unit("a b"),
            unit("*.service"),
            unit("a/b"),
            unit(&"x".repeat(256)),
            ReadRequest { units: vec!["a".to_owned(); 9], ..request() },
            ReadRequest { kernel: true, ..unit("a") },
            ReadRequest { boot: 1, ..request() },
            ReadRequest { boot: -1001, ..request() },
            ReadRequest { boot: i32::MIN, ..request() },
            ReadRequest { boot: -1, follow: true, ..request() },
            ReadRequest { since_seconds: -1, ..request() },
            ReadRequest { grep: "a\nb".to_owned(), ..request() },
            ReadRequest { grep: "x".repeat(513), ..request() },
            ReadRequest { after_cursor: "s=1 --x".to_owned(), ..request() },
        ] {
            assert_eq!(arguments(&bad).unwrap_err().reason, Reason::BadRequest, "{bad:?}");
        }
    }

    #[test]
    fn lines_of_each_form() {
        let read = |text: &str| line(text.as_bytes());
        let full = r#"{"__CURSOR":"s=1;i=2","__REALTIME_TIMESTAMP":"1700000000000001","PRIORITY":"4","_SYSTEMD_UNIT":"kubelet.service","MESSAGE":"a"}"#;
        let expected = LogLine {
            cursor: "s=1;i=2".to_owned(),
            time_us: 1_700_000_000_000_001,
            source: "kubelet.service".to_owned(),
            priority: 4,
            message: "a".to_owned(),
        };
        assert_eq!(read(full), Some(expected));
        let message =
            |value: &str| read(&format!(r#"{{"__CURSOR":"c","MESSAGE":{value}}}"#)).unwrap().message;
        assert_eq!(message("[104, 105, 255]"), "hi\u{fffd}");
        assert_eq!(message(r#"["a", "b"]"#), "a\nb");
        assert_eq!(message("[104, 999]"), "h?");
        assert!(message("null").contains("4096"));
        let of_manager = r#"{"__CURSOR":"c","UNIT":"x.service","_SYSTEMD_UNIT":"init.scope","PRIORITY":"99","MESSAGE":"m"}"#;
        let found = read(of_manager).unwrap();
        assert_eq!((found.source.as_str(), found.priority), ("x.service", 6));
        let kernel = read(r#"{"__CURSOR":"c","SYSLOG_IDENTIFIER":"kernel","MESSAGE":"m"}"#).unwrap();
        assert_eq!(kernel.source, "kernel");
        for other in ["", "{", "[]", "{}", "-- No entries --", r#"{"__CURSOR":7}"#] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn units_are_sorted_and_bounded() {
        assert_eq!(units("b.service\na.service\nb.service\n\n--x\n", 9), ["a.service", "b.service"]);
        assert_eq!(units("c\nb\na\n", 2), ["a", "b"]);
    }
}
