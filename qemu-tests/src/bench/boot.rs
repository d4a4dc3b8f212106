//! `bench boot`: the image's boot ledger and a stock Debian 13, one after the other in the same QEMU.
//!
//! The output has the time and QEMU's processor time until then: on a shared machine the processor time is the steadier
//! value.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use orlop_config::ledger::HostMessage;
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::disk;
use orlop_harness::vm::lab::{Firmware, Image, Lab, MEMORY_MIB};
use orlop_harness::vm::machine::Vm;

use super::native::processor_s;
use super::stock::{self, MARK};
use crate::cases::boot::shared_vm::{config_with_pod, render};

const LIMIT_S: u64 = 240;

/// Boots each twice (on a fresh disk, then again on it), `times` times; `alone`: without the stock Debian.
///
/// # Errors
/// If one of them does not come up.
pub fn run(run: &Arc<Run>, times: u32, alone: bool) -> Result<()> {
    let stock = if alone {
        None
    } else {
        orlop_harness::prepare::bench()?;
        Some(stock::build(run)?)
    };
    let artefacts = run.dir().join("bench-boot");
    fs::create_dir_all(&artefacts)?;
    let accelerator = Image::as_released()?.accelerator()?;
    say::line(format!("accelerator {}, 2 CPUs, {MEMORY_MIB} MiB", accelerator.argument()));
    for n in 1..=times {
        if let Some(stock) = &stock {
            debian(run, &artefacts, stock, n)?;
        }
        ours(run, &artefacts, n)?;
    }
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

fn ours(run: &Arc<Run>, artefacts: &Path, n: u32) -> Result<()> {
    // Like the stock Debian, and like all earlier figures.
    let lab = Lab::new(run, artefacts)?.as_shipped();
    for which in ["first", "second"] {
        let vm = lab.boot(Firmware::Direct, Some(&config_with_pod()))?;
        let running = vm.await_phase("pod.running", LIMIT_S)?;
        let used = processor_s(vm.pid())?;
        say::line(format!(
            "Orlop, run {n}, {which} boot: kernel to pod running {} ms, QEMU's processor time {used:.1} s",
            running.at_ms
        ));
        let entries: Vec<_> = vm
            .messages()
            .into_iter()
            .filter_map(|m| match m {
                HostMessage::Ledger(e) => Some(e),
                _ => None,
            })
            .collect();
        for line in render(&entries) {
            say::line(format!("  {line}"));
        }
        vm.power_off(LIMIT_S)?;
    }
    Ok(())
}

fn debian(run: &Arc<Run>, artefacts: &Path, stock: &stock::Stock, n: u32) -> Result<()> {
    let own = run.sockets().join("stock.raw");
    disk::copy(run, &stock.disk, &own, 4)?;
    for which in ["first", "second"] {
        let spec = stock::machine(run, stock, &own, (MEMORY_MIB, 2), "")?;
        let vm = Vm::start(run, artefacts, &spec, None)?;
        let line =
            vm.await_console(LIMIT_S, "stock Debian's report", |l| l.contains(MARK) && l.contains(" ms"))?;
        let used = processor_s(vm.pid())?;
        let figures = line.split_once(MARK).map_or(line.as_str(), |(_, figures)| figures.trim());
        say::line(format!(
            "stock Debian 13, run {n}, {which} boot: {figures}, QEMU's processor time {used:.1} s"
        ));
        vm.ended(LIMIT_S)?;
    }
    fs::remove_file(&own).context("remove the stock disk's copy")
}
