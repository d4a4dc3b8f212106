//! Runs cases: groups in order, lanes side by side, one verdict each, artefacts of failures kept.
//!
//! In: the selected cases. Out: progress lines, [`Counts`]. Invariant: a case that panics is a failed
//! case, and its guards have run.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow};

use crate::case::{Case, CaseContext, Level, NO_TIME, SharedFixture, Skip, human};
use crate::counts::Counts;
use crate::gate::{Area, tier};
use crate::history::{self, History};
use crate::run::Run;
use crate::schedule::{Limit, Planned, Unit, VM_LANES, plan};
use crate::vm::machine::EmulatorFault;
use crate::{prepare, say};

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Largest number of groups at once; of VMs [`VM_LANES`] at most.
    pub jobs: usize,
    /// Seed of everything random; printed with a failure.
    pub seed: u64,
    /// Failed cases run again, up to [`ATTEMPTS`] times, alone, after all others: an emulated machine on a busy host is
    /// late for reasons that are not the product's. A case that passes then counts as passed. The end of the output
    /// names the case as unsteady, with the reason of its first failure.
    pub again: bool,
    /// When all cases must be over: the runner begins no case that would last longer, but those of the fixed set. Cases without
    /// time count as skipped, and the end of the output names them.
    pub until: Option<SystemTime>,
    /// Areas that the change touches: their cases get the time before others do. Without a limit this has no effect.
    pub touched: BTreeSet<Area>,
    /// File of the results of cases: earlier ones are read, the present ones written.
    pub history: Option<PathBuf>,
}

impl Options {
    /// Time until the end of the run.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.until.map(|until| until.duration_since(SystemTime::now()).unwrap_or_default())
    }

    fn has_time_for(&self, planned: &Planned) -> bool {
        planned.must_run || self.time_left().is_none_or(|left| Duration::from_secs(planned.expected_s) < left)
    }

    fn note(&self, report: &Report) {
        let Some(file) = &self.history else { return };
        let case = report.case.name;
        let noted = match &report.verdict {
            Verdict::Passed => history::passed(file, case, history::now(), report.took.as_secs().max(1)),
            Verdict::Failed(_) => history::failed(file, case),
            Verdict::Skipped(why) if why == NO_TIME => history::left_out(file, case),
            Verdict::Skipped(_) => history::skipped(file, case),
        };
        if let Err(e) = noted {
            say::line(format!("  not written for the next run: {e:#}"));
        }
    }
}

/// Largest number of failed cases that run again: if more fail, the product or the harness is broken.
const AGAIN_MAX: usize = 5;

/// Largest number of repetitions of a failed case.
pub const ATTEMPTS: usize = 2;

/// No failed case begins again later than so long after the time limit: the machine that runs CI ends the run at some time.
const AGAIN_LATEST: Duration = Duration::from_secs(25 * 60);

/// Result of one case.
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

struct Report {
    case: Case,
    verdict: Verdict,
    took: Duration,
}

/// Runs the cases and prints a line for each.
///
/// # Errors
/// If no worker thread can be started, or the disk is short.
pub fn run_cases(run: &Arc<Run>, cases: &[Case], options: Options) -> Result<Counts> {
    prepare::room()?;
    prepare::control_plane(run, cases, options.time_left());
    prepare::browser(cases);
    let past = options.history.as_deref().map_or_else(History::new, history::read);
    let tier = |case: &Case| tier(case, &options.touched);
    let limit = options.time_left().map(|left| Limit { time_s: left.as_secs(), tier: &tier });
    let queue = Arc::new(Queue::new(plan(cases, &past, limit.as_ref(), options.jobs)));
    let (send, reports) = channel::<Report>();
    let mut workers = Vec::new();
    for n in 0..options.jobs.clamp(1, 8) {
        let (queue, send, run, options) = (queue.clone(), send.clone(), run.clone(), options.clone());
        let work = move || {
            while let Some(unit) = queue.next(n < VM_LANES) {
                run_unit(&run, &unit, &options, &send);
                queue.is_done(&unit);
            }
        };
        workers.push(
            std::thread::Builder::new().name(format!("lane-{n}")).spawn(work).context("start a thread")?,
        );
    }
    drop(send);
    let mut counts = Counts::default();
    let mut failed = Vec::new();
    for (done, report) in (1..).zip(reports) {
        show(run, &report, &format!("[{done}/{}]", cases.len()), options.seed);
        options.note(&report);
        match report.verdict {
            Verdict::Passed => counts.passed += 1,
            Verdict::Skipped(why) => {
                counts.skipped += 1;
                if why == NO_TIME {
                    run.note_left_out(report.case.name);
                }
            }
            Verdict::Failed(why) => failed.push((report.case, why)),
        }
    }
    for worker in workers {
        worker.join().map_err(|_| anyhow!("a lane of the runner died"))?;
    }
    let again = options.again && failed.len() <= AGAIN_MAX;
    for (case, why) in failed {
        let failure = format!("{}: {why}", case.name);
        if again && (1..=ATTEMPTS).any(|attempt| passes_again(run, case, &options, attempt)) {
            run.note_unsteady(failure);
            counts.passed += 1;
        } else {
            run.note_failure(failure);
            counts.failed += 1;
        }
    }
    Ok(counts)
}

/// The units that are left, and the groups that are running.
struct Queue(Mutex<(VecDeque<Unit>, Vec<&'static str>)>);

impl Queue {
    fn new(units: Vec<Unit>) -> Queue {
        Queue(Mutex::new((units.into(), Vec::new())))
    }

    /// The first unit that the lane may take. A lane for VMs takes units without VMs only when no VMs are left: the VMs
    /// determine the length of a run. Two parts of one group write their logs to the same directory: the lane that runs
    /// the first part runs the second one later.
    fn next(&self, vms: bool) -> Option<Unit> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (units, running) = &mut *inner;
        let find = |vms: bool| {
            let is_of = |unit: &Unit| unit.iter().any(|p| p.case.level == Level::L4v) == vms;
            let is_free = |unit: &Unit| unit[0].case.group.is_none_or(|group| !running.contains(&group));
            units.iter().position(|unit| is_of(unit) && is_free(unit))
        };
        let place = if vms { find(true).or_else(|| find(false)) } else { find(false) };
        let unit = units.remove(place?)?;
        running.extend(unit[0].case.group);
        Some(unit)
    }

    fn is_done(&self, unit: &Unit) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.retain(|group| unit[0].case.group != Some(group));
    }
}

fn run_unit(run: &Arc<Run>, unit: &[Planned], options: &Options, reports: &Sender<Report>) {
    let mut shared: SharedFixture = None;
    let mut failed = false;
    for planned in unit {
        let case = planned.case;
        let report = if options.has_time_for(planned) {
            run_once(run, case, &mut shared, options.seed)
        } else {
            Report { case, verdict: Verdict::Skipped(NO_TIME.to_owned()), took: Duration::ZERO }
        };
        failed |= matches!(report.verdict, Verdict::Failed(_));
        let _ = reports.send(report);
    }
    drop(shared);
    if let Some(group) = unit[0].case.group.filter(|_| !failed) {
        let _ = fs::remove_dir_all(shared_artefacts(run, group));
    }
}

/// Runs a case; if the emulator fell, a second time.
fn run_once(run: &Arc<Run>, case: Case, shared: &mut SharedFixture, seed: u64) -> Report {
    let start = Instant::now();
    let mut verdict = run_case(run, &case, shared, seed);
    if matches!(verdict, Verdict::Failed(_)) && emulator_failed(run, &case) {
        say::line(format!("  {}: {EmulatorFault}: once more, with processors in turn", case.name));
        *shared = None;
        verdict = run_case(run, &case, shared, seed);
    }
    if matches!(verdict, Verdict::Failed(_)) {
        // Remains of a failed case must not fail later cases, and a new fixture must not overwrite the failed one's
        // logs.
        *shared = None;
        let of_group = shared_artefacts(run, case.group.unwrap_or(case.name));
        let _ = fs::rename(of_group, run.dir().join(case.name).join("group"));
    }
    Report { case, verdict, took: start.elapsed() }
}

/// Runs a failed case again, with no other case next to it, and keeps the artefacts of the last attempt.
fn passes_again(run: &Arc<Run>, case: Case, options: &Options, attempt: usize) -> bool {
    if options.until.is_some_and(|until| SystemTime::now() > until + AGAIN_LATEST) {
        return false;
    }
    for dir in [run.dir().join(case.name), shared_artefacts(run, case.group.unwrap_or(case.name))] {
        let _ = fs::rename(&dir, dir.with_extension(format!("attempt-{attempt}")));
    }
    let mut shared: SharedFixture = None;
    let report = run_once(run, case, &mut shared, options.seed);
    drop(shared);
    show(run, &report, &format!("[again, {attempt}]"), options.seed);
    options.note(&report);
    let passed = matches!(report.verdict, Verdict::Passed);
    if let Some(group) = case.group.filter(|_| passed) {
        let _ = fs::remove_dir_all(shared_artefacts(run, group));
    }
    passed
}

/// Directory of the logs of a group's fixture.
fn shared_artefacts(run: &Run, group: &str) -> PathBuf {
    run.dir().join("groups").join(group)
}

/// True if a guest of the case, or of its group, crashed because of the emulator; the call resets this.
fn emulator_failed(run: &Run, case: &Case) -> bool {
    let dirs = [run.dir().join(case.name), shared_artefacts(run, case.group.unwrap_or(case.name))];
    dirs.iter().filter(|dir| EmulatorFault.pass(dir)).count() > 0
}

fn run_case(run: &Arc<Run>, case: &Case, shared: &mut SharedFixture, seed: u64) -> Verdict {
    let artefacts = run.dir().join(case.name);
    if let Err(e) = fs::create_dir_all(&artefacts) {
        return Verdict::Failed(format!("make {}: {e}", artefacts.display()));
    }
    let shared_artefacts = shared_artefacts(run, case.group.unwrap_or(case.name));
    let mut context =
        CaseContext { run: run.clone(), artefacts: artefacts.clone(), shared_artefacts, shared, seed };
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| (case.run)(&mut context)));
    match outcome {
        Ok(Ok(())) => {
            remove_artefacts(run, &artefacts);
            Verdict::Passed
        }
        Ok(Err(e)) => match e.downcast_ref::<Skip>() {
            Some(skip) => {
                remove_artefacts(run, &artefacts);
                Verdict::Skipped(skip.0.clone())
            }
            None => Verdict::Failed(format!("{e:#}")),
        },
        Err(panic) => Verdict::Failed(format!("panicked: {}", panic_text(panic.as_ref()))),
    }
}

fn remove_artefacts(run: &Run, artefacts: &Path) {
    let _ = fs::remove_dir_all(artefacts);
    if let Some(area) = artefacts.parent().filter(|p| *p != run.dir()) {
        let _ = fs::remove_dir(area);
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "no message".into())
}

fn show(run: &Run, report: &Report, place: &str, seed: u64) {
    let head = format!("{place} {} ({})", report.case.name, human(report.took));
    match &report.verdict {
        Verdict::Passed => say::line(format!("{head} ok")),
        Verdict::Skipped(why) => say::line(format!("{head} skipped: {why}")),
        Verdict::Failed(why) => {
            say::line(format!("{head} FAILED"));
            for line in why.lines() {
                say::line(format!("    {line}"));
            }
            say::line(format!(
                "    seed {seed}, artefacts in {}",
                run.dir().join(report.case.name).display()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::skip;

    fn case(
        name: &'static str,
        group: Option<&'static str>,
        run: fn(&mut CaseContext<'_>) -> Result<()>,
    ) -> Case {
        Case { name, level: Level::L3, expected_s: 1, about: "", group, run }
    }

    fn options(jobs: usize, again: bool, history: Option<PathBuf>) -> Options {
        Options { jobs, seed: 1, again, until: None, touched: BTreeSet::new(), history }
    }

    #[test]
    fn two_lanes_have_vms_and_the_others_take_what_has_none() {
        let vm = Case { level: Level::L4v, ..case("vm", None, |_| Ok(())) };
        let queue = |cases: &[Case]| Queue::new(plan(cases, &History::new(), None, 3));
        let name = |unit: Option<Unit>| unit.map(|unit| unit[0].case.name);
        let both = queue(&[vm, case("native", None, |_| Ok(()))]);
        assert_eq!(name(both.next(false)), Some("native"));
        assert_eq!(name(both.next(false)), None);
        assert_eq!(name(both.next(true)), Some("vm"));
        assert_eq!(name(both.next(true)), None);
        let longer = Case { expected_s: 9, ..case("native", None, |_| Ok(())) };
        let both = queue(&[longer, vm]);
        assert_eq!(name(both.next(true)), Some("vm"), "the shorter one, because it has a VM");
        assert_eq!(name(both.next(true)), Some("native"));
    }

    #[test]
    fn parts_of_a_group_run_one_after_the_other() {
        let planned = |case| Planned { case, expected_s: 1, must_run: false };
        let part = |name| vec![planned(case(name, Some("g"), |_| Ok(())))];
        let other = vec![planned(case("other", None, |_| Ok(())))];
        let queue = Queue::new(vec![part("first"), part("second"), other]);
        let name = |unit: &Option<Unit>| unit.as_ref().map(|unit| unit[0].case.name);
        let first = queue.next(false);
        assert_eq!(name(&first), Some("first"));
        assert_eq!(name(&queue.next(false)), Some("other"));
        assert_eq!(name(&queue.next(true)), None, "the lane of the first part comes back for the second");
        queue.is_done(&first.unwrap());
        assert_eq!(name(&queue.next(false)), Some("second"));
    }

    #[test]
    fn every_case_has_a_verdict_and_a_failure_keeps_its_artefacts() {
        let run = Run::start().unwrap();
        let cases = [
            case("t/good", None, |cx| Ok(fs::write(cx.artefacts.join("log"), "x")?)),
            case("t/bad", None, |cx| {
                fs::write(cx.artefacts.join("log"), "why")?;
                anyhow::bail!("refuted")
            }),
            case("t/panics", Some("g"), |_| panic!("on purpose")),
            case("t/shares", Some("g"), |cx| {
                anyhow::ensure!(*cx.shared_or(|_, _| Ok(7_u32))? == 7);
                fs::write(cx.shared_artefacts.join("log"), "unspoilt")?;
                Ok(())
            }),
            case("t/absent", None, |_| skip("not here")),
            // A failed case's changes to its group's fixture must not reach the next case.
            case("t/spoils", Some("s"), |cx| {
                *cx.shared_or(|_, _| Ok(7_u32))? = 8;
                fs::write(cx.shared_artefacts.join("log"), "spoilt")?;
                anyhow::bail!("spoilt")
            }),
            case("t/unspoilt", Some("s"), |cx| {
                anyhow::ensure!(*cx.shared_or(|_, _| Ok(7_u32))? == 7);
                Ok(())
            }),
            // The emulator fails it once: the second attempt has a fixture of its own.
            case("t/unlucky", Some("u"), |cx| {
                let first = !cx.artefacts.join("first").exists();
                fs::write(cx.artefacts.join("first"), "")?;
                anyhow::ensure!(*cx.shared_or(|_, _| Ok(u32::from(first)))? == u32::from(first));
                if first {
                    let logs = cx.artefacts.join("vm");
                    fs::create_dir(&logs)?;
                    EmulatorFault.note(&logs)?;
                    anyhow::bail!("no pod");
                }
                Ok(())
            }),
            case("t/unsteady", Some("n"), |cx| {
                // The third attempt is the first to pass.
                let before = cx.artefacts.with_extension("attempt-2");
                fs::write(cx.artefacts.join("log"), "x")?;
                anyhow::ensure!(before.join("log").exists(), "late");
                Ok(())
            }),
            case("t/bad2", None, |_| anyhow::bail!("refuted")),
            case("t/bad3", None, |_| anyhow::bail!("refuted")),
        ];
        let past = run.dir().join("cases.json");
        let options = options(2, true, Some(past.clone()));
        let counts = run_cases(&run, &cases, options.clone()).unwrap();
        // Too many failures: they are not repeated.
        assert_eq!(counts, Counts { passed: 4, failed: 6, skipped: 1 });
        let mut failures = run.failures();
        failures.sort_unstable();
        let expected = [
            "t/bad2: refuted",
            "t/bad3: refuted",
            "t/bad: refuted",
            "t/panics: panicked: on purpose",
            "t/spoils: spoilt",
            "t/unsteady: late",
        ];
        assert_eq!(failures, expected);
        assert!(!run.dir().join("t/good").exists());
        assert_eq!(fs::read_to_string(run.dir().join("t/bad/log")).unwrap(), "why");
        assert_eq!(fs::read_to_string(run.dir().join("t/spoils/group/log")).unwrap(), "spoilt");

        let known = history::read(&past);
        let good = known.values().filter(|past| past.good_since().is_some()).count();
        assert!(good == 4 && known["t/good"].passed_at > 0, "{known:?}");

        let few = |name: &str| matches!(name, "t/bad" | "t/unsteady");
        let few: Vec<Case> = cases.iter().filter(|c| few(c.name)).copied().collect();
        let counts = run_cases(&run, &few, options.clone()).unwrap();
        assert_eq!(counts, Counts { passed: 1, failed: 1, skipped: 0 });
        assert_eq!(run.unsteady(), ["t/unsteady: late"]);
        assert!(history::read(&past)["t/unsteady"].good_since().is_some(), "it did, in the end");
        let never = Options { again: false, ..options.clone() };
        for attempt in 1..=ATTEMPTS {
            fs::remove_dir_all(run.dir().join(format!("t/unsteady.attempt-{attempt}"))).unwrap();
        }
        let counts = run_cases(&run, &few[1..], never).unwrap();
        assert_eq!(counts, Counts { passed: 0, failed: 1, skipped: 0 });
        assert_eq!(history::read(&past)["t/unsteady"].good_since(), None, "the next run begins with it");
        let late = Options { until: Some(SystemTime::now()), ..options };
        let counts = run_cases(&run, &cases[..2], late).unwrap();
        assert_eq!(counts, Counts { passed: 0, failed: 0, skipped: 2 });
        let known = history::read(&past);
        assert_eq!(known["t/unsteady"].good_since(), None);
        let runs = |case: &str| known[case].left_out_runs;
        assert_eq!((runs("t/good"), runs("t/bad"), runs("t/unsteady"), runs("t/absent")), (1, 1, 0, 0));
        // The lanes note them side by side.
        let mut left_out = run.left_out();
        left_out.sort_unstable();
        assert!(left_out == ["t/bad", "t/good"] && !counts.is_success(), "nothing was asked");
        assert!(run.close().is_empty());
        fs::remove_dir_all(run.dir()).unwrap();
    }
}
