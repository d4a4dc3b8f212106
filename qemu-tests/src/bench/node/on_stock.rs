//! The stock Debian 13 of `bench boot` as a column of `bench node --vm`: the same memory and processors, no kubelet, no
//! containerd, no pods. Its own unit takes both samples and writes them to the console.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::disk;
use orlop_harness::vm::machine::Vm;

use super::Options;
use super::in_vm::PROCESSORS;
use super::sample::parse;
use super::usage::NodeUsage;
use crate::bench::stock;

/// Its boot under emulation, the samples and the end, seconds.
const LIMIT_S: u64 = 420;

pub(super) fn measure(run: &Arc<Run>, artefacts: &Path, options: &Options) -> Result<NodeUsage> {
    orlop_harness::prepare::bench()?;
    let stock = stock::build(run)?;
    let own = run.sockets().join("stock.raw");
    disk::copy(run, &stock.disk, &own, 4)?;
    let window = options.window();
    let arguments = format!("{}={}", stock::USAGE, window.as_secs());
    let artefacts = artefacts.join("stock");
    fs::create_dir_all(&artefacts)?;
    let spec = stock::machine(run, &stock, &own, (options.memory, PROCESSORS), &arguments)?;
    let vm = Vm::start(run, &artefacts, &spec, None)?;
    let [_, end] = stock::marks("second");
    vm.await_console(LIMIT_S + window.as_secs(), "stock Debian's second sample", |line| line == end)?;
    let lines = vm.console.since(0);
    vm.ended(LIMIT_S)?;
    fs::remove_file(&own).context("remove the stock disk's copy")?;
    let sample = |which: &str| {
        let text = between(&lines, stock::marks(which)).with_context(|| format!("no {which} sample"))?;
        anyhow::Ok(parse(&text))
    };
    say::line("measured: stock Debian, in a VM");
    Ok(NodeUsage::between(&sample("first")?, &sample("second")?, Some(options.memory)))
}

/// The lines between two marks.
fn between(lines: &[String], [begin, end]: [String; 2]) -> Option<String> {
    let from = lines.iter().position(|line| *line == begin)?;
    let length = lines[from..].iter().position(|line| *line == end)?;
    Some(lines[from + 1..from + length].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_what_stands_between_its_marks() {
        let [begin, end] = stock::marks("first");
        let lines = ["boot".to_owned(), begin, "uptime:1.0 2.0".to_owned(), "x".to_owned(), end];
        assert_eq!(between(&lines, stock::marks("first")).unwrap(), "uptime:1.0 2.0\nx");
        assert_eq!(between(&lines, stock::marks("second")), None);
        assert_eq!(between(&lines[..4], stock::marks("first")), None);
    }
}
