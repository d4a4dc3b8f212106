//! ginkgo's junit file as results: those of a run in another place. Pure.
//!
//! In: the text of the file, the names of the selected tests. Out: a result for each selected test that began. Steps of the
//! suite, tests that a filter excluded and tests of other selections are not results.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::report::{Outcome, Verdict};

/// Beginning and end of an element with a test.
const BEGIN: &str = "<testcase ";
const END: &str = "</testcase>";
/// ginkgo's mark of a test in its name.
const TEST: &str = "[It] ";
/// ginkgo's message of a test that a filter excluded; that of another skipped test follows it.
const FILTERED: &str = "skipped";

/// Reads the file.
///
/// # Errors
/// If an element of a test has no end, no name or no time.
pub(super) fn read(text: &str, names: &BTreeSet<&str>) -> Result<Vec<Outcome>> {
    ensure!(text.contains("<testsuite"), "no junit file: it has no <testsuite>");
    let (mut outcomes, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(BEGIN) {
        let element = &rest[at..];
        let end = tag_end(element).context("an element <testcase> of the junit file has no end")?;
        let (tag, after) = (&element[..end], &element[end + 1..]);
        let body = if tag.ends_with('/') {
            rest = after;
            ""
        } else {
            let length = after.find(END).context("an element <testcase> of the junit file has no end")?;
            rest = &after[length..];
            &after[..length]
        };
        outcomes.extend(outcome(tag, body, names)?);
    }
    Ok(outcomes)
}

/// The result in an element; `None` if it is none.
fn outcome(tag: &str, body: &str, names: &BTreeSet<&str>) -> Result<Option<Outcome>> {
    let printed = attribute(tag, "name").context("a test of the junit file has no name")?;
    let Some(name) = printed.strip_prefix(TEST).and_then(|name| known(name, names)) else {
        return Ok(None);
    };
    let seconds = attribute(tag, "time").and_then(|time| time.parse::<f64>().ok());
    let seconds = seconds.with_context(|| format!("{name} has no time in the junit file"))?;
    let is_bad = |kind: &&str| body.contains(&format!("<{kind}"));
    let (verdict, message) = if let Some(kind) = ["failure", "error"].into_iter().find(is_bad) {
        (Verdict::Failed, message(body, kind))
    } else if body.contains("<skipped") {
        let message = message(body, "skipped");
        if message.is_empty() || message == FILTERED {
            return Ok(None);
        }
        let own = message.strip_prefix(FILTERED).and_then(|rest| rest.strip_prefix(" - "));
        (Verdict::Skipped, own.unwrap_or(&message).to_owned())
    } else {
        (Verdict::Passed, String::new())
    };
    Ok(Some(Outcome { name: name.to_owned(), verdict, seconds, message }))
}

/// The message of an element of this kind: its attribute, or its text if the attribute is empty. Upstream's suites write a
/// failure's message only once, in the text.
fn message(body: &str, kind: &str) -> String {
    let element = body.find(&format!("<{kind}")).map(|at| &body[at..]);
    let Some((tag, after)) = element.and_then(|element| element.split_at_checked(tag_end(element)?)) else {
        return String::new();
    };
    let short = attribute(tag, "message").unwrap_or_default();
    if !short.is_empty() || tag.ends_with('/') {
        return short;
    }
    let text = after.split_once(&format!("</{kind}>")).map_or("", |(text, _)| text);
    unescape(text.trim_start_matches('>').trim())
}

/// The name without the labels that ginkgo adds, if it is one of `names`.
fn known<'a>(name: &'a str, names: &BTreeSet<&str>) -> Option<&'a str> {
    let mut name = name;
    while !names.contains(name) {
        name = name.rsplit_once(" [")?.0;
    }
    Some(name)
}

/// Where a tag at the beginning of the text ends: at the first `>` outside of quotes.
fn tag_end(text: &str) -> Option<usize> {
    let mut is_quoted = false;
    text.char_indices().find_map(|(at, c)| {
        if c == '"' {
            is_quoted = !is_quoted;
        }
        (c == '>' && !is_quoted).then_some(at)
    })
}

/// The value of an attribute of a tag.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, value) = tag.split_once(&format!(" {name}=\""))?;
    Some(unescape(value.split_once('"')?.0))
}

/// Text without XML's escapes. An unknown one stays as it is.
fn unescape(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let escaped = after.split_once(';').and_then(|(name, after)| Some((character(name)?, after)));
        rest = if let Some((c, after)) = escaped {
            plain.push(c);
            after
        } else {
            plain.push('&');
            after
        };
    }
    plain + rest
}

fn character(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_those_of_selected_tests_that_began() {
        let text = "<testsuite name=\"S\"><testcase name=\"[It] a > b\" time=\"1.5\"/>\
                    <testcase name=\"[It] c\" time=\"2\"><error message=\"&lt;gone&gt;\"/></testcase>\
                    <testcase name=\"[It] of another selection\" time=\"2\"></testcase>\
                    <testcase name=\"[AfterSuite]\" time=\"2\"><failure message=\"x\"/></testcase></testsuite>";
        let read = read(text, &BTreeSet::from(["a > b", "c", "d"])).unwrap();
        let of = |name: &str, verdict, seconds, message: &str| Outcome {
            name: name.into(),
            verdict,
            seconds,
            message: message.into(),
        };
        let expected = [of("a > b", Verdict::Passed, 1.5, ""), of("c", Verdict::Failed, 2.0, "<gone>")];
        assert_eq!(read, expected);
    }

    #[test]
    fn a_failure_with_an_empty_message_has_its_text() {
        let text = "<testsuite><testcase name=\"[It] a\" time=\"1\"><failure message=\"\" type=\"failed\">\n\
                    [FAILED] not &#34;b&#34;&#xA;at c.go:1\n</failure><system-err>d</system-err></testcase></testsuite>";
        let read = read(text, &BTreeSet::from(["a"])).unwrap();
        let messages: Vec<&str> = read.iter().map(|outcome| outcome.message.as_str()).collect();
        assert_eq!(messages, ["[FAILED] not \"b\"\nat c.go:1"]);
        assert_eq!(message("<error message=\"\"/>", "error"), "");
    }

    #[test]
    fn a_file_that_is_cut_off_or_no_junit_is_refused() {
        let names = BTreeSet::from(["a"]);
        for wrong in [
            "",
            "{}",
            "<testsuite><testcase name=\"[It] a",
            "<testsuite><testcase name=\"[It] a\" time=\"1\">",
            "<testsuite><testcase time=\"1\"/>",
            "<testsuite><testcase name=\"[It] a\"/>",
        ] {
            assert!(read(wrong, &names).is_err(), "{wrong}");
        }
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape("a &amp;&lt;&#34;&#xA;&nbsp; &"), "a &<\"\n&nbsp; &");
    }
}
