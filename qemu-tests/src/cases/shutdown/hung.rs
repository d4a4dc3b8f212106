//! A stop with hanging parts: a pod whose shim does not react, and a unit whose stop never ends. The machine goes down
//! in time nevertheless, and the next boot reports the pod that was left.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::say;

use super::interrupted::{await_terminated, delete, ensure_last_end};
use super::{
    BEYOND_S, Fixture, HERE, OFF_LIMIT_S, PERIODS_S, Periods, ReceiptFile, await_boot, await_lock,
    await_settled, boot_id, fixture, pod, receipt, run_pods, terminated,
};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "shutdown/hung",
    90,
    "a pod whose shim hangs and a unit that never stops: the machine starts again within its time, and the next boot \
     says who was left",
    hung,
)];

/// The image's limit for the units of a reboot, and the shorter limit of this case, seconds: the case uses the image's
/// setting with another value.
const IMAGE_LIMIT: &str = "3min";
const LIMIT_S: u64 = 15;
/// A unit that never stops by itself, after any signal.
const UNIT: &str = "systemd-run -q --unit=deaf -p TimeoutStopSec=infinity -p 'ExecStop=/usr/bin/sleep infinity' \
                    /usr/bin/sleep infinity";

fn hung(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx, Periods::Short)?;
    await_lock(vm)?;
    run_pods(cluster, vec![pod("stuck", None, 0, 2), pod("fine", Some("system-node-critical"), 0, 2)])?;
    let before = boot_id(cluster)?;
    let shim = "set -- $(ctr -n k8s.io containers ls | grep localhost/orlop/hello | cut -d\" \" -f1); \
                for id; do ctr -n k8s.io containers info $id | grep -q '\"io.kubernetes.pod.name\": \"stuck\"' && \
                found=$id; done; \
                pid=$(ctr -n k8s.io tasks ls | grep ^$found | { read -r id pid rest; echo $pid; }); \
                shim=$(grep ^PPid: /proc/$pid/status | { read -r key value; echo $value; }); \
                grep -q containerd-shim /proc/$shim/cmdline && kill -STOP $shim";
    let shell = vm.vm()?.shell()?;
    shell.must(shim).context("the shim of the pod that is to hang")?;
    let limit = shell.must("systemctl show -P JobTimeoutUSec reboot.target")?;
    ensure!(limit.trim() == IMAGE_LIMIT, "the image gives the units {limit}, not {IMAGE_LIMIT}");
    shell.must(&format!(
        "{UNIT} && mkdir -p /run/systemd/system/reboot.target.d && \
         printf '[Unit]\\nJobTimeoutSec={LIMIT_S}s\\n' > /run/systemd/system/reboot.target.d/20-short.conf && \
         systemctl daemon-reload"
    ))?;
    let asked = Instant::now();
    vm.vm()?.restarts("systemctl reboot", OFF_LIMIT_S)?;
    let took = asked.elapsed().as_secs_f64();
    say::line(format!("  started again {took:.1} s after it was asked to, with a pod and a unit that hang"));
    ensure!(took >= f64::from(u32::try_from(LIMIT_S)?), "the unit did not hang: {took:.1} s");

    await_boot(cluster, vm, &before)?;
    let ReceiptFile { pods, took, .. } = receipt(vm, &before, "reboot")?;
    ensure!(took <= PERIODS_S.0 + BEYOND_S, "the pods' part took {took} s");
    let mut pods: Vec<_> = pods.iter().map(|p| (p.name.as_str(), p.ended)).collect();
    pods.sort_unstable();
    ensure!(pods == [("fine", true), ("stuck", false)], "{pods:?}");
    let said = ensure_last_end(cluster, "False", "PodsNotEnded")?;
    ensure!(said.contains("default/stuck") && !said.contains("default/fine"), "{said}");
    terminated(cluster, "fine")?;
    await_terminated(cluster, "stuck", 60)?;
    delete(cluster, &["fine", "stuck"])?;
    await_settled(cluster)?;
    cluster.ensure_nothing_forbidden()
}
