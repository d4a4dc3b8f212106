//! Rotation of containers' logs on a real runtime: no line is lost, also if processes are killed meanwhile.
//!
//! Cases: `defence/log-rotation`, `defence/log-rotation-containerd`.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::pods::Pod;
use orlop_harness::say;

use crate::cases::lifecycle::static_pods::{await_gone, run_pod};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "defence/log-rotation",
        90,
        "a log written at full speed is rotated, compressed and bounded; every line is there once, though agents are killed",
        at_full_speed,
    ),
    HERE.case(
        "defence/log-rotation-containerd",
        60,
        "a log is rotated on after containerd was killed: lines are in order, none is there twice",
        without_containerd,
    ),
];

/// Lines written in bursts at full speed: some 40 MB.
const LINES: u64 = 800_000;

/// A node whose agent rotates logs of more than `size` as often as possible, keeping `files`.
fn start(cx: &CaseContext<'_>, size: &str, files: u32) -> Result<NativeNode> {
    let agent = built::agent(&cx.run, false)?;
    let mut node = NativeNode::start(&cx.run, &cx.artefacts, agent)?;
    configure(&node, size, files)?;
    node.start_agent_ready()?;
    Ok(node)
}

fn configure(node: &NativeNode, size: &str, files: u32) -> Result<()> {
    let path = node.inside("/run/e2e/kubelet.yaml");
    let text = fs::read_to_string(&path).context("read the agent's configuration")?;
    let kept = text.lines().filter(|line| !line.starts_with("containerLog"));
    let mut text: String = kept.flat_map(|line| [line, "\n"]).collect();
    text += &format!(
        "containerLogMaxSize: {size}\ncontainerLogMaxFiles: {files}\ncontainerLogMonitorInterval: 3s\n"
    );
    fs::write(&path, text).context("write the agent's configuration")
}

/// The files of a container's log, the oldest first, as readers of rotated logs choose them.
fn files_of(node: &NativeNode, container: &str) -> Result<Vec<PathBuf>> {
    let log = node.inside(&node.cri().status(container)?.log_path);
    let directory = log.parent().context("directory of a log")?;
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .context("read the directory of logs")?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    // A file that is half compressed, and one that is there compressed, too, are no part of the log.
    let compressed: Vec<PathBuf> =
        files.iter().filter(|f| f.extension().is_some_and(|e| e == "gz")).cloned().collect();
    let is_part = |file: &PathBuf| {
        let name = file.display().to_string();
        *file != log && !name.ends_with(".tmp") && !compressed.contains(&PathBuf::from(format!("{name}.gz")))
    };
    files.retain(is_part);
    files.sort();
    // An agent that was killed in the middle leaves none for a while.
    files.extend(log.exists().then_some(log));
    Ok(files)
}

fn text_of(file: &PathBuf) -> Result<String> {
    let opened = File::open(file).with_context(|| format!("open {}", file.display()))?;
    let mut text = String::new();
    let read = if file.extension().is_some_and(|e| e == "gz") {
        GzDecoder::new(opened).read_to_string(&mut text)
    } else {
        (&opened).read_to_string(&mut text)
    };
    read.with_context(|| format!("read {}", file.display()))?;
    Ok(text)
}

/// The numbers that the container printed, from all its files: the oldest file first.
fn numbers(files: &[PathBuf]) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for file in files {
        for line in text_of(file)?.lines() {
            let number = line.rsplit_once(" stdout F ").and_then(|(_, text)| text.parse().ok());
            numbers.push(number.with_context(|| format!("{}: no record: {line:?}", file.display()))?);
        }
    }
    Ok(numbers)
}

/// Waits until the newest file holds the line.
fn await_line(node: &mut NativeNode, container: &str, limit_s: u64, line: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(limit_s);
    let log = node.inside(&node.cri().status(container)?.log_path);
    let ending = format!(" stdout F {line}\n");
    // The file may be renamed between two looks; it contains the last line, so it appears again.
    while !fs::read_to_string(&log).is_ok_and(|text| text.ends_with(&ending)) {
        ensure!(Instant::now() < deadline, "{line} was not written within {limit_s} s");
        node.pass(Duration::from_millis(50))?;
    }
    Ok(())
}

/// Waits until there are more files than `before`.
fn await_rotation(node: &mut NativeNode, container: &str, before: usize) -> Result<usize> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let there = files_of(node, container)?.len();
        if there > before {
            return Ok(there);
        }
        ensure!(Instant::now() < deadline, "no rotation within 30 s: {before} files");
        node.pass(Duration::from_millis(20))?;
    }
}

fn at_full_speed(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut node = start(cx, "256Ki", 1000)?;
    // With a pause after each two thousand lines: otherwise the script would end before the third rotation.
    let script = format!(
        "trap 'exit 0' TERM; i=0; while [ $i -lt {LINES} ]; do echo $i; i=$((i+1)); \
         [ $((i % 2000)) -ne 0 ] || sleep 0.1; done; while :; do sleep 3600 & wait; done"
    );
    let pod = Pod::script("talks", &script);
    let container = run_pod(&node, &pod)?;
    let mut rotations = 1;
    // Killed right after a rotation, and during the next one.
    for after_ms in [0, 10, 2900, 3000, 3050] {
        rotations = await_rotation(&mut node, &container, rotations)?;
        node.pass(Duration::from_millis(after_ms))?;
        node.kill_agent()?;
        node.start_agent_ready()?;
    }
    let last = (LINES - 1).to_string();
    let deadline = Instant::now() + Duration::from_secs(240);
    loop {
        let files = files_of(&node, &container)?;
        let newest = numbers(&files[files.len().saturating_sub(2)..]).unwrap_or_default();
        if newest.last().is_some_and(|n| *n + 1 == LINES) {
            break;
        }
        ensure!(Instant::now() < deadline, "line {last} was not written: {:?}", newest.last());
        node.pass(Duration::from_millis(200))?;
    }
    // Files may be compressed while they are read: stop the agent, so that they do not change.
    node.kill_agent()?;
    let files = files_of(&node, &container)?;
    let found = numbers(&files)?;
    let compressed = files.iter().filter(|f| f.extension().is_some_and(|e| e == "gz")).count();
    say::line(format!("{} lines in {} files, {compressed} compressed", found.len(), files.len()));
    let expected: Vec<u64> = (0..LINES).collect();
    ensure!(
        found == expected,
        "lines are missing, twice or out of order: {} of {LINES}; the first at {:?}",
        found.len(),
        found.iter().zip(&expected).position(|(a, b)| a != b)
    );
    ensure!(files.len() > 5 && compressed >= 3, "rotated {} times, {compressed} compressed", files.len());
    node.start_agent_ready()?;
    node.remove_manifest(&pod.file())?;
    await_gone(&node, 60, &pod.full_name())?;
    bounded(&mut node)
}

/// At most the configured number of files, the older ones compressed; `kubectl logs` shows the newest.
fn bounded(node: &mut NativeNode) -> Result<()> {
    node.stop_agent()?;
    configure(node, "4Ki", 3)?;
    node.start_agent_ready()?;
    let script = "trap 'exit 0' TERM; i=0; while :; do echo $i; i=$((i+1)); sleep 0.005; done";
    let pod = Pod::script("goes-on", script);
    let container = run_pod(node, &pod)?;
    let (mut names, mut most) = (std::collections::BTreeSet::new(), 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    // A name is seen with and without its ending.
    while names.len() < 5 {
        ensure!(Instant::now() < deadline, "rotated files within a minute: {names:?}");
        let files = files_of(node, &container)?;
        most = most.max(files.len());
        let rotated = files.iter().take(files.len() - 1).filter_map(|f| f.file_name()?.to_str());
        names.extend(rotated.map(|name| name.trim_end_matches(".gz").to_owned()));
        node.pass(Duration::from_millis(50))?;
    }
    // A directory that is read while names change may show a file under both.
    ensure!(most <= 4, "{most} files at once");
    node.kill_agent()?;
    let files = files_of(node, &container)?;
    let found = numbers(&files)?;
    ensure!(files.len() <= 3, "{files:?}");
    ensure!(found.windows(2).all(|w| w[1] == w[0] + 1), "lines are missing among {} kept ones", found.len());
    node.start_agent_ready()?;
    node.remove_manifest(&pod.file())?;
    await_gone(node, 60, &pod.full_name())
}

fn without_containerd(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut node = start(cx, "4Ki", 1000)?;
    let script = "trap 'exit 0' TERM; i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); sleep 0.01; done; \
                  echo 2000; while :; do sleep 3600 & wait; done";
    let pod = Pod::script("talks", script);
    let container = run_pod(&node, &pod)?;
    let (mut rotations, kills) = (1, 3_usize);
    for _ in 0..kills {
        rotations = await_rotation(&mut node, &container, rotations)?;
        node.kill_containerd()?;
        node.start_containerd()?;
    }
    await_rotation(&mut node, &container, rotations).context("after containerd came back")?;
    await_line(&mut node, &container, 120, "2000").or_else(|_| {
        // The last line may have been rotated away.
        let found = numbers(&files_of(&node, &container)?)?;
        ensure!(found.last() == Some(&2000), "the last line is {:?}", found.last());
        Ok(())
    })?;
    node.kill_agent()?;
    let found = numbers(&files_of(&node, &container)?)?;
    ensure!(found.windows(2).all(|w| w[0] < w[1]), "lines are there twice or out of order");
    // A killed containerd loses data that it has read and not written, with any kubelet.
    let gaps = found.windows(2).filter(|w| w[1] != w[0] + 1).count();
    say::line(format!("{} of 2001 lines, {gaps} gaps by {kills} kills of containerd", found.len()));
    ensure!(gaps <= kills && found.first() == Some(&0), "{gaps} gaps, the first line is {:?}", found.first());
    node.start_agent_ready()?;
    node.remove_manifest(&pod.file())?;
    await_gone(&node, 60, &pod.full_name())
}
