//! `orlop-init bringup`: the second stage, a service of systemd. Checks what init promised, applies what the
//! node's configuration asks of a running system, lets the agent start, then waits for the runtime as well.
//!
//! A failed step is a problem, not the end: the agent starts all the same and reports what it finds.

use super::clock::boottime_ms;
use super::error::InitError;
use super::report::Report;
use super::steps::read;
use super::{
    DEGRADED, apparmor, coldplug, notify, pod_network, reserve, runtime, seed, settings, swap,
    systemd_started,
};
use crate::plan::promises;
use orlop_config::error_chain::chain;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

const CGROUP: &str = "/sys/fs/cgroup";
/// The slice all services live in: what is enabled there reaches containerd and the agent.
const SYSTEM_SLICE: &str = "/sys/fs/cgroup/system.slice";

struct Bringup {
    report: Report,
    degraded: bool,
    failed: bool,
}

/// Runs the subcommand.
#[must_use]
pub fn main() -> ExitCode {
    let report = Report::new("bringup", "orlop-bringup");
    let degraded = Path::new(DEGRADED).exists();
    let mut bringup = Bringup { report, degraded, failed: false };
    systemd_started(&mut bringup.report);
    bringup.step("bringup.mounts", Bringup::mounts);
    bringup.step("bringup.cgroup", Bringup::cgroup);
    bringup.step("bringup.settings", Bringup::settings);
    bringup.step("bringup.apparmor", |_| apparmor::load());
    if let Some(size) = swap::asked() {
        bringup.step("bringup.swap", |bringup| bringup.swap(&size));
    }
    if let Err(e) = notify::ready() {
        bringup.failed = true;
        bringup.report.problem(&format!("systemd is not told that the agent may start: {e}"));
    }
    bringup.step("bringup.devices", |_| coldplug::run());
    bringup.step("containerd.ready", |_| runtime::await_ready().map(|version| version.to_string()));
    bringup.step("bringup.images", Bringup::images);
    bringup.step("bringup.reserve", Bringup::reserve);
    bringup.report.flush();
    // Last: it waits for the network.
    if let Some(networks) = pod_network::networks() {
        bringup.step("bringup.pod-network", |_| pod_network::masquerade_at_way_out(&networks));
        bringup.report.flush();
    }
    if bringup.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Bringup {
    fn step(&mut self, name: &str, work: impl FnOnce(&mut Bringup) -> Result<String, InitError>) {
        let started = boottime_ms();
        match work(self) {
            Ok(detail) => self.report.stamp(name, Some(started), &detail, true),
            Err(e) => {
                let why = chain(&e);
                self.failed = true;
                self.report.problem(&format!("{name}: {why}"));
                self.report.stamp(name, Some(started), &why, false);
            }
        }
    }

    fn mounts(&mut self) -> Result<String, InitError> {
        let text = read("/proc/self/mounts")?;
        let broken = promises::broken_mounts(&text, self.degraded);
        if broken.is_empty() { Ok("as promised".into()) } else { Err(InitError::Refused(broken.join("; "))) }
    }

    /// systemd delegates the controllers it knows; hugetlb, rdma and misc it does not know and leaves alone, so
    /// they are enabled here, for the root and for the slice of the services.
    fn cgroup(&mut self) -> Result<String, InitError> {
        let mut broken = Vec::new();
        for group in [CGROUP, SYSTEM_SLICE] {
            let control = format!("{group}/cgroup.subtree_control");
            let available = read(&format!("{group}/cgroup.controllers"))?;
            for controller in promises::controllers_to_enable(&available, &read(&control)?) {
                // What fails is found below, with the controller's name.
                let _ = fs::write(&control, format!("+{controller}"));
            }
            broken.extend(promises::broken_controllers(&available, &read(&control)?));
        }
        if broken.is_empty() {
            Ok(read(&format!("{CGROUP}/cgroup.subtree_control"))?.trim_end().to_string())
        } else {
            broken.dedup();
            Err(InitError::Refused(broken.join("; ")))
        }
    }

    fn settings(&mut self) -> Result<String, InitError> {
        let outcome = settings::run()?;
        for problem in &outcome.problems {
            self.failed = true;
            self.report.problem(problem);
        }
        Ok(outcome.detail)
    }

    fn images(&mut self) -> Result<String, InitError> {
        if self.degraded {
            return Ok("none: /var is volatile".into());
        }
        seed::check()
    }

    fn swap(&mut self, size: &str) -> Result<String, InitError> {
        if self.degraded {
            return Ok("none: /var is volatile".into());
        }
        swap::turn_on(Path::new("/var"), size)
    }

    fn reserve(&mut self) -> Result<String, InitError> {
        if self.degraded {
            return Ok("none: /var is volatile".into());
        }
        reserve::make(Path::new("/var"))
    }
}
