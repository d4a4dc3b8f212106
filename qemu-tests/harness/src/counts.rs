//! Counts of verdicts, and a parser of the counts in `cargo test`'s output.

use std::fmt;

/// Verdicts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed.
    pub passed: u64,
    /// Did not.
    pub failed: u64,
    /// Could not run here (the reason was printed).
    pub skipped: u64,
}

impl Counts {
    /// Sum of two.
    #[must_use]
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }

    /// One verdict.
    #[must_use]
    pub fn one(ok: bool) -> Counts {
        if ok { Counts { passed: 1, ..Counts::default() } } else { Counts { failed: 1, ..Counts::default() } }
    }

    /// One skipped case or test.
    #[must_use]
    pub fn one_skipped() -> Counts {
        Counts { skipped: 1, ..Counts::default() }
    }

    /// True if there was no failure, and at least one case or test ran.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl fmt::Display for Counts {
    /// The closing line: `N passed, N failed`, then `, N skipped` if there are any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 { write!(f, ", {} skipped", self.skipped) } else { Ok(()) }
    }
}

/// Reads one line of a test harness's output; `None` if it is not a `test result:` line.
#[must_use]
pub fn parse_test_result(line: &str) -> Option<Counts> {
    let rest = line.trim().strip_prefix("test result: ")?;
    let (_, numbers) = rest.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split(';') {
        let mut words = part.split_whitespace();
        let (Some(number), Some(word)) = (words.next(), words.next()) else { continue };
        let Ok(n) = number.parse::<u64>() else { continue };
        match word {
            "passed" => counts.passed = n,
            "failed" => counts.failed = n,
            "ignored" => counts.skipped = n,
            _ => {}
        }
    }
    Some(counts)
}

/// Verdict over a whole `cargo test`: the sum of its result lines, plus one failure if the command failed
/// although no test did (it did not compile, or a test binary died).
#[must_use]
pub fn of_cargo_test<'a>(lines: impl Iterator<Item = &'a str>, command_ok: bool) -> Counts {
    let sum = lines.filter_map(parse_test_result).fold(Counts::default(), Counts::plus);
    if !command_ok && sum.failed == 0 { sum.plus(Counts::one(false)) } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_summed() {
        let text = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
            noise\n\
            test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        let counts = of_cargo_test(text.lines(), false);
        assert_eq!(counts, Counts { passed: 5, failed: 4, skipped: 1 });
        assert_eq!(counts.to_string(), "5 passed, 4 failed, 1 skipped");
    }

    #[test]
    fn a_command_that_fails_without_a_failing_test_is_one_failure() {
        assert_eq!(of_cargo_test(["error: could not compile"].into_iter(), false), Counts::one(false));
    }

    #[test]
    fn the_closing_line_names_skips_only_if_there_are_some() {
        assert_eq!(Counts { passed: 2, failed: 0, skipped: 0 }.to_string(), "2 passed, 0 failed");
    }

    #[test]
    fn nothing_asked_is_no_success() {
        assert!(!Counts::one_skipped().is_success());
        assert!(Counts::one(true).is_success());
        assert!(!Counts::one(false).is_success());
    }
}
