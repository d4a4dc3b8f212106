//! Prerequisites of cases: packages of the host, the built image.
//!
//! orlop-image has the list of packages, and decides which parts of an earlier build can be used.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_image::arch::Arch;
use orlop_image::host::tools;

use crate::built;
use crate::case::{Case, Level};
use crate::cluster::programs::{self, More};
use crate::gate::area;
use crate::native::root::ROOT_VARIABLE;
use crate::process::stream;
use crate::run::{Run, cache_dir};
use crate::say;
use crate::workspace::{cargo, workspace};

/// Installs the missing packages (as root), or names them.
///
/// # Errors
/// The command to run.
pub fn host() -> Result<()> {
    let needs = [tools::BUILD, tools::BOOT, tools::TEST].concat();
    let dir = cache_dir();
    std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    tools::ensure(&needs, &dir.join("host-packages.log"))
}

/// The same for a benchmark.
///
/// # Errors
/// The command to run.
pub fn bench() -> Result<()> {
    tools::ensure(tools::BENCH, &cache_dir().join("host-packages.log"))
}

/// The same for the upstream suite.
///
/// # Errors
/// The command to run.
pub fn suite() -> Result<()> {
    tools::ensure(tools::SUITE, &cache_dir().join("host-packages.log"))
}

/// The same for an emulated machine of an architecture.
///
/// # Errors
/// The command to run.
pub fn machine_of(arch: Arch) -> Result<()> {
    tools::ensure(arch.facts().emulator.host_tools, &cache_dir().join("host-packages.log"))
}

/// The case that needs a browser.
const OF_BROWSER: &str = "manage/web";

/// Installs the browser if one of the cases needs it. A failure is reported here, and again by the case.
pub fn browser(cases: &[Case]) {
    if cases.iter().any(|case| case.name == OF_BROWSER)
        && let Err(e) = tools::ensure(tools::BROWSER, &cache_dir().join("host-packages.log"))
    {
        say::line(format!("  no browser: {e:#}"));
    }
}

/// Space that cases may need on the cache's disk, bytes: disks of VMs that are filled, images of the control plane's
/// containers, and compilations.
const ROOM: u64 = 8 << 30;

/// Checks that the cache's disk has room for cases: without room they fail one by one, far from the cause.
///
/// # Errors
/// If there is no room: the disk, the missing space, and the files that may be deleted.
pub fn room() -> Result<()> {
    let dir = cache_dir();
    let disk = rustix::fs::statvfs(&dir).with_context(|| format!("look at the disk of {}", dir.display()))?;
    enough(&dir, disk.f_bavail * disk.f_frsize)
}

fn enough(dir: &Path, free: u64) -> Result<()> {
    let mib = |bytes: u64| bytes >> 20;
    ensure!(
        free >= ROOM,
        "the disk of {dir} has {} MiB free, and cases may need {}; what may go, because it is made again: \
         {dir}/target/*/incremental, {dir}/target, {dir}/e2e",
        mib(free),
        mib(ROOM),
        dir = dir.display(),
    );
    Ok(())
}

/// True if any of the cases needs the built image of this machine's architecture.
#[must_use]
pub fn needs_image(cases: &[Case]) -> bool {
    let own_root = std::env::var_os(ROOT_VARIABLE).is_some();
    let has_another = |case: &Case| Arch::ALL.iter().any(|arch| area(case) == arch.name());
    let needs_one = |case: &Case| case.level == Level::L4v || (case.level == Level::L4n && !own_root);
    cases.iter().any(|case| needs_one(case) && !has_another(case))
}

/// Builds the test profile's image, or sees that it is up to date.
///
/// # Errors
/// If it cannot be started.
pub fn image(run: &Arc<Run>) -> Result<bool> {
    image_of(run, Arch::HOST)
}

/// The same for an architecture.
///
/// # Errors
/// If it cannot be started.
pub fn image_of(run: &Arc<Run>, arch: Arch) -> Result<bool> {
    Ok(image_builder(run)? && build_image(run, arch)?)
}

/// Links the program that builds images; this waits for other calls of cargo.
///
/// # Errors
/// If it cannot be started.
pub fn image_builder(run: &Arc<Run>) -> Result<bool> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--bin", IMAGE_BUILDER]);
    Ok(stream(run, &mut command, |line| say::line(format!("  {line}")))?.success())
}

/// Builds the test profile's image with the linked program. It waits for no other call of cargo, because the image's programs have
/// profiles of their own, and cargo locks each profile's directory apart.
///
/// # Errors
/// If it cannot be started.
pub fn build_image(run: &Arc<Run>, arch: Arch) -> Result<bool> {
    let mut command = Command::new(built::development()?.join(IMAGE_BUILDER));
    command.current_dir(workspace()).env("CARGO_TERM_COLOR", "never").env("RUST_BACKTRACE", "0");
    command.args(["build", "--profile", "test", "--arch", arch.name()]);
    Ok(stream(run, &mut command, |line| say::line(format!("  {line}")))?.success())
}

/// The program that builds images.
const IMAGE_BUILDER: &str = "orlop-image";

/// True if the case may need the control plane.
fn needs_control_plane(case: &Case) -> bool {
    let areas = [
        "addons/",
        "api/",
        "config/confirm-ca",
        "config/confirm-cut",
        "config/confirm-server",
        "config/confirm-vlan",
        "console/",
        "controlplane/",
        "defence/",
        "join/",
        "lifecycle/shared-shims",
        "manage/metrics",
        "net/",
        "provision/",
        "resources/",
        "shutdown/",
        "time/",
        "update/examined",
        "update/fleet",
        "update/orders",
        "update/returns-unready",
        "volumes/",
    ];
    areas.iter().any(|area| case.name.starts_with(area))
}

/// The programs that only some cases need, and these cases; a name with a slash at its end stands for all cases of an area.
const OF_SOME_CASES: [(More, &[&str]); 7] = [
    (More::MetricsServer, &["addons/metrics-server", "api/top", "join/vm"]),
    (
        More::Drivers,
        &["resources/claims", "resources/devices", "resources/devices-vm", "resources/killed-steps"],
    ),
    (More::AddOns, &["addons/"]),
    (More::Flannel, &["addons/cni-replaced", "addons/flannel", "addons/flannel-vm"]),
    (More::KubeRouter, &["addons/cni-replaced", "addons/kube-router", "addons/kube-router-vm"]),
    (More::Multus, &["addons/multus"]),
    (More::Promtool, &["manage/metrics"]),
];

/// The programs beyond the control plane that the cases need. Pure.
#[must_use]
pub fn needs_more(cases: &[Case]) -> Vec<More> {
    let is_of = |case: &Case, name: &str| {
        if name.ends_with('/') { case.name.starts_with(name) } else { case.name == name }
    };
    let need = |names: &[&str]| cases.iter().any(|case| names.iter().any(|name| is_of(case, name)));
    OF_SOME_CASES.iter().filter(|(_, names)| need(names)).map(|(more, _)| *more).collect()
}

/// The time that a run needs to compile the programs of [`OF_SOME_CASES`] and to ask their cases. A run with less compiles the control
/// plane only.
const MORE: Duration = Duration::from_secs(10 * 60);

/// Fetches and compiles the control plane alone, if one of the cases may need it.
pub fn plane(run: &Arc<Run>, cases: &[Case]) {
    plane_and(run, cases, &[]);
}

/// Fetches and compiles the control plane before the first case that needs it, so that no case's time holds it, and the programs that
/// only some of the cases need. `left` is the time until all cases must be over. A failure is reported here and again by the cases.
pub fn control_plane(run: &Arc<Run>, cases: &[Case], left: Option<Duration>) {
    let has_time = left.is_none_or(|left| left > MORE);
    plane_and(run, cases, &if has_time { needs_more(cases) } else { Vec::new() });
}

fn plane_and(run: &Arc<Run>, cases: &[Case], more: &[More]) {
    if cases.iter().any(needs_control_plane)
        && let Err(e) = programs::prepare(run, more)
    {
        say::line(format!("  no control plane: {e:#}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_with_an_image_of_its_own_needs_not_this_machines() {
        let vm =
            |name| Case { name, level: Level::L4v, expected_s: 1, about: "", group: None, run: |_| Ok(()) };
        assert!(!needs_image(&[vm("arm64/boot")]));
        assert!(needs_image(&[vm("arm64/boot"), vm("boot/uefi")]));
    }

    #[test]
    fn an_area_stands_for_all_of_its_cases_and_a_name_for_one() {
        let needs = |names: &[&'static str]| {
            let case = |name| Case {
                name,
                level: Level::L4n,
                expected_s: 1,
                about: "",
                group: None,
                run: |_| Ok(()),
            };
            needs_more(&names.iter().map(|name| case(*name)).collect::<Vec<_>>())
        };
        assert_eq!(needs(&["addons/any", "api/top"]), [More::MetricsServer, More::AddOns]);
        assert!(needs(&["api/top-of-all", "resources/numa", "addons"]).is_empty());
    }

    #[test]
    fn a_disk_that_is_short_is_named_with_what_may_go() {
        let dir = Path::new("/the/cache");
        assert!(enough(dir, ROOM).is_ok());
        let said = enough(dir, ROOM - 1).unwrap_err().to_string();
        assert!(
            said.starts_with("the disk of /the/cache has 8191 MiB free, and cases may need 8192;"),
            "{said}"
        );
        assert!(said.contains("/the/cache/target/*/incremental"), "{said}");
    }
}
