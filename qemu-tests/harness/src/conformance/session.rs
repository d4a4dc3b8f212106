//! A run of the suite from the choice of its tests to its results: at once, or in parts whose results are kept.
//!
//! ```text
//! suite ── dry run ─► Selection ── what is left ─► Part ─► the place runs it ─► Watcher ─► results.jsonl, e2e.log
//!                                                    ▲ next ──────────────────────┘ └─► junit_01.xml, table.md
//! ```
//! In: [`Options`], the suite's program, and for each part a report from the place that runs it. Out: counts; with kept
//! results a folder ([`Folder`]) with `results.jsonl`, `e2e.log`, `junit_01.xml`, `table.md` and `version.txt`, for a
//! certified run also `README.md` and `PRODUCT.yaml`; with `--page` the table is in docs/internals/conformance.md, too. Invariant:
//! each test that is left runs once in a session.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::kept::{Folder, TestResult, named};
use super::lines::{EndedTest, Lines};
use super::product::Product;
use super::report::{self, Outcome, Verdict};
use super::selection::{self, Part, Selection};
use super::skips::Skip;
use super::{Options, junit, summary, table};
use crate::case::human;
use crate::cluster::build;
use crate::cluster::plane::Cluster;
use crate::counts::Counts;
use crate::process::must;
use crate::run::Run;
use crate::say;
use crate::workspace::workspace;

/// Names the place's own folder of results (`--resume` without a name).
pub(super) const OWN: &str = ".";

/// A session.
pub(super) struct Session {
    run: Arc<Run>,
    artefacts: PathBuf,
    parts: Vec<Part>,
    keeper: Option<Keeper>,
    product: Option<Product>,
    /// The tests that the run leaves out.
    left_out: Vec<Skip>,
    /// Name of the table in docs/internals/conformance.md that has these results, too.
    page: Option<String>,
}

impl Session {
    /// Chooses the tests; `listed` are left out.
    ///
    /// # Errors
    /// If the suite does not list its tests, or the folder of results cannot be used.
    pub(super) fn prepare(
        run: &Arc<Run>,
        options: &Options,
        suite: &Path,
        artefacts: &Path,
        listed: &[Skip],
    ) -> Result<Session> {
        let whole = options.whole(listed);
        let (run, artefacts) = (run.clone(), artefacts.to_owned());
        if !(options.list || options.certified || options.resume.is_some()) {
            let parts = vec![whole];
            return Ok(Session {
                run,
                artefacts,
                parts,
                keeper: None,
                product: None,
                left_out: Vec::new(),
                page: None,
            });
        }
        let selection = selection::read(&run, suite, &artefacts, &whole)?;
        ensure!(!selection.tests.is_empty(), "no test of the suite matches {}", whole.focus);
        if options.certified {
            let (chosen, all) =
                (selection.tests.len(), selection::conformance_tests(&run, suite, &artefacts)?);
            ensure!(chosen == all, "the release's conformance list has {all} tests, the selection {chosen}");
        }
        let dir = match options.resume.as_deref() {
            None => artefacts.join("results"),
            Some(OWN) => named(&options.place())?,
            Some(name) => named(name)?,
        };
        let mut keeper = Keeper::open(&dir, selection, commit(&run))?;
        if let Some(file) = &options.from_junit {
            keeper.take_junit(file)?;
        }
        let (selection, results) = (&keeper.selection, &keeper.results);
        let left = selection::left(&selection.tests, results, options.certified);
        let parts = selection::parts(&selection.suite, &left, usize::from(options.part), whole.procs);
        let (chosen, left) = (selection.tests.len(), left.len());
        if !options.list {
            let (count, folder) = (parts.len(), dir.display());
            say::line(format!(
                "{chosen} tests, {left} of them without a result or failed, in {count} parts: {folder}"
            ));
        }
        let product = Product::of(options, build::version()?);
        let page = options.page.then(|| options.place());
        page.as_deref().map_or(Ok(()), table::ensure_place)?;
        let (keeper, left_out) = (Some(keeper), listed.to_vec());
        Ok(Session { run, artefacts, parts, keeper, product, left_out, page })
    }

    /// True if no test is left.
    pub(super) fn is_over(&self) -> bool {
        self.parts.is_empty()
    }

    /// Prints the tests with their results.
    pub(super) fn say_list(&self) {
        let Some(keeper) = &self.keeper else { return };
        let tests = &keeper.selection.tests;
        say::line(summary::list(tests, &keeper.results).trim_end());
        let (all, missing) = (tests.len(), summary::missing(tests, &keeper.results));
        say::line(format!("{all} tests: {}, {missing} not run", summary::counts(tests, &keeper.results)));
    }

    /// Notes what is tested: the releases of suite, control plane and nodes. Only for a run whose results are kept.
    ///
    /// # Errors
    /// If the cluster does not answer, or the disk is full.
    pub(super) fn note_versions(&self, cluster: &Cluster) -> Result<()> {
        let Some(keeper) = &self.keeper else { return Ok(()) };
        let (server, nodes) =
            (cluster.kubectl(&["version"])?, cluster.kubectl(&["get", "nodes", "-o", "wide"])?);
        let (suite, commit, date) = (build::version()?, &keeper.commit, now());
        let text = format!("{date}\nsuite: {suite}\ncommit: {commit}\n{server}\n{nodes}\n\n");
        let path = keeper.folder.dir().join("version.txt");
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        file.write_all(text.as_bytes()).with_context(|| format!("write {}", path.display()))
    }

    /// Runs all parts with `execute`, which returns the report that the suite left; returns the counts.
    ///
    /// # Errors
    /// Of a part, or a part without any result.
    pub(super) fn play(
        mut self,
        mut execute: impl FnMut(&Part, &mut Watcher<'_>) -> Result<Vec<u8>>,
    ) -> Result<Counts> {
        let start = Instant::now();
        let (parts, dir) = (std::mem::take(&mut self.parts), self.artefacts.clone());
        let log = self.keeper.as_ref().map_or(dir.as_path(), |keeper| keeper.folder.dir()).join("e2e.log");
        let mut counts = Counts::default();
        for (at, part) in parts.iter().enumerate() {
            if self.keeper.is_some() {
                say::line(format!("\npart {} of {}, {} at once", at + 1, parts.len(), part.procs));
            }
            let mut watcher = Watcher::new(&log, self.keeper.as_mut())?;
            let report = execute(part, &mut watcher)
                .with_context(|| format!("the suite's output is in {}", log.display()))?;
            watcher.end()?;
            fs::write(dir.join("report.json"), &report).context("write the report")?;
            let results = report::results(&report)?;
            say_failures(&results);
            counts = counts.plus(match &mut self.keeper {
                None => {
                    fs::write(dir.join("results.txt"), report::table(&results))
                        .context("write the results")?;
                    report::counts(&results)
                }
                Some(keeper) => keeper.take(&results)?,
            });
            // A run that is killed leaves the summaries of the parts before.
            self.write()?;
        }
        let where_to = self.close()?;
        say::line(format!("\n{}; everything is in {}", human(start.elapsed()), where_to.display()));
        Ok(counts.plus(self.counts()))
    }

    /// The counts of the kept results of all selected tests. A test without a result has not passed.
    pub(super) fn counts(&self) -> Counts {
        let Some(keeper) = &self.keeper else { return Counts::default() };
        let tests = &keeper.selection.tests;
        let mut counts = summary::counts(tests, &keeper.results);
        counts.failed += summary::missing(tests, &keeper.results) as u64;
        counts
    }

    /// Writes the summaries of kept results, and their table into docs/internals/conformance.md if the run is to do so.
    ///
    /// # Errors
    /// If the disk is full, or the page has no place for the table.
    pub(super) fn write(&self) -> Result<()> {
        let Some(keeper) = &self.keeper else { return Ok(()) };
        let (dir, selection, results) = (keeper.folder.dir(), &keeper.selection, &keeper.results);
        let table = table::render(&selection.tests, results, &self.left_out);
        if let Some(page) = &self.page {
            table::write_to_page(page, &table)?;
        }
        let mut files = vec![
            ("junit_01.xml", summary::junit(selection, results)),
            ("table.md", table),
            ("results.txt", summary::list(&selection.tests, results)),
        ];
        if let Some(product) = &self.product {
            files.extend(product.files(&selection.tests, results));
        }
        for (name, text) in files {
            fs::write(dir.join(name), text).with_context(|| format!("write {name}"))?;
        }
        Ok(())
    }

    /// Writes the summaries of kept results, and notes what is missing; returns the directory with the results.
    ///
    /// # Errors
    /// If the disk is full.
    pub(super) fn close(&self) -> Result<PathBuf> {
        self.write()?;
        let Some(keeper) = &self.keeper else { return Ok(self.artefacts.clone()) };
        let (dir, selection, results) = (keeper.folder.dir(), &keeper.selection, &keeper.results);
        let missing = summary::missing(&selection.tests, results);
        if missing > 0 {
            self.note_failure(format!("{missing} selected tests have no result"));
        }
        let skipped = summary::counts(&selection.tests, results).skipped;
        if self.product.is_some() && skipped > 0 {
            self.note_failure(format!(
                "{skipped} tests were skipped by the suite: a certified cluster passes all of them"
            ));
        }
        Ok(dir.to_owned())
    }

    fn note_failure(&self, what: String) {
        say::line(&what);
        self.run.note_failure(what);
    }
}

/// Keeps the results of the selected tests.
struct Keeper {
    folder: Folder,
    selection: Selection,
    results: BTreeMap<String, TestResult>,
    commit: String,
    /// Tests of this session that have a line in the file.
    added: BTreeSet<String>,
}

impl Keeper {
    fn open(dir: &Path, selection: Selection, commit: String) -> Result<Keeper> {
        let folder = Folder::open(dir)?;
        let results = folder.results()?;
        Ok(Keeper { folder, selection, results, commit, added: BTreeSet::new() })
    }

    /// Keeps the results of a junit file: those of a run of the same suite in another place.
    fn take_junit(&mut self, file: &Path) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let names: BTreeSet<&str> = self.selection.tests.iter().map(|test| test.name.as_str()).collect();
        let outcomes = junit::read(&text, &names).with_context(|| file.display().to_string())?;
        let ours = std::mem::replace(&mut self.commit, "a junit file".to_owned());
        let number = outcomes.len();
        let kept = outcomes.iter().try_for_each(|outcome| self.add(outcome));
        self.commit = ours;
        // A test that fails in that run runs again in this one.
        self.added.clear();
        say::line(format!("{number} results of {}", file.display()));
        kept
    }

    /// Keeps a test that has passed, before there is a report. Other results wait for the report and its messages.
    fn note(&mut self, ended: &EndedTest) -> Result<()> {
        if ended.state != "PASSED" {
            return Ok(());
        }
        let names: BTreeSet<&str> = self.selection.tests.iter().map(|test| test.name.as_str()).collect();
        let Some(name) = ended.name(&names).map(str::to_owned) else { return Ok(()) };
        self.add(&Outcome { name, verdict: Verdict::Passed, seconds: ended.seconds, message: String::new() })
    }

    fn add(&mut self, outcome: &Outcome) -> Result<()> {
        if !self.added.insert(outcome.name.clone()) {
            return Ok(());
        }
        let kept = TestResult {
            test: outcome.name.clone(),
            result: outcome.verdict,
            seconds: outcome.seconds,
            commit: self.commit.clone(),
            date: now(),
            message: outcome.message.clone(),
        };
        self.folder.add(&kept)?;
        self.results.insert(kept.test.clone(), kept);
        Ok(())
    }

    /// Keeps the results of a part; returns the failures that are not the selected tests', but steps of the suite.
    fn take(&mut self, results: &[Outcome]) -> Result<Counts> {
        let is_selected: BTreeSet<String> = self.selection.tests.iter().map(|t| t.name.clone()).collect();
        let (tests, steps): (Vec<&Outcome>, Vec<&Outcome>) =
            results.iter().partition(|outcome| is_selected.contains(&outcome.name));
        ensure!(!tests.is_empty(), "a part has ended without the result of any of its tests");
        for outcome in tests {
            self.add(outcome)?;
        }
        let failed = steps.iter().filter(|step| step.verdict == Verdict::Failed);
        Ok(failed.fold(Counts::default(), |all, _| all.plus(Counts::one(false))))
    }
}

/// Reads the suite's output while it runs: keeps it, and prints a line for every test that ends.
pub(super) struct Watcher<'a> {
    log: BufWriter<File>,
    lines: Lines,
    keeper: Option<&'a mut Keeper>,
    failed: Option<anyhow::Error>,
}

impl<'a> Watcher<'a> {
    fn new(log: &Path, keeper: Option<&'a mut Keeper>) -> Result<Watcher<'a>> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open {}", log.display()))?;
        Ok(Watcher { log: BufWriter::new(file), lines: Lines::default(), keeper, failed: None })
    }

    /// Takes a line of the output.
    pub(super) fn line(&mut self, line: &str) {
        // A disk that is full shows at the end.
        let _ = writeln!(self.log, "{line}");
        let Some(ended) = self.lines.next(line) else { return };
        say::line(ended.to_string());
        if let Some(keeper) = &mut self.keeper
            && let Err(e) = keeper.note(&ended)
        {
            self.failed = self.failed.take().or(Some(e));
        }
    }

    fn end(mut self) -> Result<()> {
        self.log.flush().context("write the suite's output")?;
        self.failed.map_or(Ok(()), Err)
    }
}

/// Prints the failures with their reasons.
fn say_failures(results: &[Outcome]) {
    for failure in results.iter().filter(|r| r.verdict == Verdict::Failed) {
        say::line(format!("\nFAILED {}\n{}", failure.name, report::indented(&failure.message)));
    }
}

/// The checkout's commit; with a mark if files differ from it.
fn commit(run: &Arc<Run>) -> String {
    let mut git = Command::new("git");
    git.arg("-C").arg(workspace()).args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    must(run, &mut git).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Date and time of day, UTC.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::selection::Test;

    fn keeper(dir: &Path, names: &[&str]) -> Keeper {
        let test = |name: &&str| Test { name: (*name).into(), group: "g".into() };
        let selection = Selection { suite: "S".into(), tests: names.iter().map(test).collect() };
        Keeper::open(dir, selection, "c".into()).unwrap()
    }

    fn outcome(name: &str, verdict: Verdict) -> Outcome {
        Outcome { name: name.into(), verdict, seconds: 1.0, message: String::new() }
    }

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("orlop-session-{name}-{}", std::process::id()))
    }

    #[test]
    fn what_passed_before_a_kill_is_not_left() {
        let dir = place("kill");
        let log = dir.join("e2e.log");
        {
            let mut keeper = keeper(&dir, &["[a] b runs", "[a] b waits"]);
            let mut watcher = Watcher::new(&log, Some(&mut keeper)).unwrap();
            for line in [
                "• [5.045 seconds]",
                "[a] b runs [a, Slow]",
                "• [FAILED] [1.0 seconds]",
                "[a] b [It] waits [a]",
            ] {
                watcher.line(line);
            }
            // The run is killed here: no report.
        }
        let keeper = keeper(&dir, &["[a] b runs", "[a] b waits"]);
        let left: Vec<&str> = selection::left(&keeper.selection.tests, &keeper.results, false)
            .into_iter()
            .map(|test| test.name.as_str())
            .collect();
        assert_eq!(left, ["[a] b waits"]);
        drop(keeper);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn results_of_a_junit_file_are_kept_and_what_failed_there_is_left() {
        let dir = place("junit");
        let mut keeper = keeper(&dir, &["a", "b"]);
        let file = dir.join("other.xml");
        let text = "<testsuite><testcase name=\"[It] a\" time=\"1\"/>\
                    <testcase name=\"[It] b\" time=\"1\"><failure message=\"no\"/></testcase></testsuite>";
        fs::write(&file, text).unwrap();
        keeper.take_junit(&file).unwrap();
        let counts = summary::counts(&keeper.selection.tests, &keeper.results);
        assert_eq!(counts, Counts { passed: 1, failed: 1, skipped: 0 });
        assert_eq!((keeper.results["a"].commit.as_str(), keeper.commit.as_str()), ("a junit file", "c"));
        assert_eq!(keeper.take(&[outcome("b", Verdict::Passed)]).unwrap(), Counts::default());
        assert_eq!(keeper.results["b"].commit, "c");
        drop(keeper);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_part_needs_results_and_steps_of_the_suite_count_once() {
        let dir = place("part");
        let mut keeper = keeper(&dir, &["a", "b"]);
        let step = outcome("SynchronizedAfterSuite", Verdict::Failed);
        assert!(keeper.take(std::slice::from_ref(&step)).is_err());
        let part = [outcome("a", Verdict::Passed), outcome("b", Verdict::Failed), step];
        assert_eq!(keeper.take(&part).unwrap(), Counts::one(false));
        let counts = summary::counts(&keeper.selection.tests, &keeper.results);
        assert_eq!(counts, Counts { passed: 1, failed: 1, skipped: 0 });
        drop(keeper);
        fs::remove_dir_all(dir).unwrap();
    }
}
