//! Hardening of the image against a process inside: kernel settings, signed modules, the agent's memory limits. The
//! checks run in the VM of `boot/*`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_config::procfs;
use orlop_harness::case::{Case, CaseContext};
use orlop_init::plan::agent_memory;

use crate::cases::boot::shared_vm::{HERE, Node, node};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "boot/hardening",
    6,
    "kernel settings are in force, cores are bounded, unsigned modules are refused, the agent's memory has limits",
    hardening,
)];

/// Below /proc/sys, with the value that the kernel must show. `kernel/kexec_load_disabled` is not among them: the test image
/// leaves it at 0 for `shutdown/kexec`.
const SETTINGS: [(&str, &str); 12] = [
    ("fs/protected_fifos", "2"),
    ("fs/protected_hardlinks", "1"),
    ("fs/protected_regular", "2"),
    ("fs/protected_symlinks", "1"),
    ("fs/suid_dumpable", "0"),
    ("kernel/core_pattern", "core"),
    ("kernel/dmesg_restrict", "1"),
    ("kernel/kptr_restrict", "1"),
    ("kernel/unprivileged_bpf_disabled", "1"),
    ("kernel/yama/ptrace_scope", "1"),
    ("net/core/bpf_jit_harden", "1"),
    ("net/ipv4/ip_forward", "1"),
];

fn hardening(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    for (name, want) in SETTINGS {
        let found = node.must(&format!("cat /proc/sys/{name}"))?;
        ensure!(found.trim() == want, "{name} is {found:?}, not {want}");
    }
    cores(node)?;
    modules(node)?;
    memory(node)?;
    // NRI's plugins connect (docs/decisions/nri.md); `boot/addon-paths` shows that containerd starts none from /opt.
    let nri = node.must("stat -c '%F %a %U' /run/nri /run/nri/nri.sock")?;
    let lines: Vec<&str> = nri.lines().collect();
    ensure!(lines.len() == 2 && lines[0] == "directory 700 root", "who may reach NRI's socket: {nri}");
    ensure!(lines[1].starts_with("socket "), "NRI: {nri}");
    Ok(())
}

/// A crash leaves one core file in the process's directory, and only if the process's limit allows it.
fn cores(node: &mut Node) -> Result<()> {
    let limits = node.must("cat /proc/$(systemctl show -P MainPID containerd)/limits")?;
    let core = limits.lines().find(|l| l.starts_with("Max core file size")).context("no limit of cores")?;
    let words: Vec<&str> = core.split_whitespace().skip(4).collect();
    ensure!(words == ["0", "unlimited", "bytes"], "containers inherit {core:?}");
    let crash = |limit: &str| {
        format!(
            "rm -rf /run/crash && mkdir /run/crash && cd /run/crash && \
             bash -c 'ulimit -S -c {limit}; kill -SEGV $$'; echo left: $(ls /run/crash)"
        )
    };
    for (limit, left) in [("0", ""), ("unlimited", "core")] {
        let output = node.vm()?.shell()?.run(&crash(limit), Duration::from_secs(30))?;
        let files = output.text.lines().find_map(|l| l.strip_prefix("left:")).context("no list of files")?;
        ensure!(files.trim() == left, "with a limit of {limit} a crash left {files:?}: {}", output.text);
    }
    node.must("rm -r /run/crash").map(drop)
}

/// The end of a signed module: without these bytes the kernel sees no signature.
const MARK: &str = "~Module signature appended~";

/// Every loaded module is signed, and the kernel accepts no other.
fn modules(node: &mut Node) -> Result<()> {
    let enforced = node.must("cat /sys/module/module/parameters/sig_enforce")?;
    ensure!(enforced.trim() == "Y", "module.sig_enforce is {enforced:?}");
    // Bits of Documentation/admin-guide/tainted-kernels.rst: 12 a module from outside of the kernel's tree, 13 unsigned.
    let tainted: u64 = node.must("cat /proc/sys/kernel/tainted")?.trim().parse().context("taint")?;
    ensure!(tainted & (1 << 12 | 1 << 13) == 0, "the kernel is tainted: {tainted}");
    let module = node.must("echo /usr/lib/modules/*/kernel/drivers/net/dummy.ko")?;
    let module = module.trim();
    let end = node.must(&format!("tail -c {} {module}", MARK.len() + 1))?;
    ensure!(end.trim() == MARK, "{module} ends with {end:?}");
    // kmod is insmod by that name.
    node.must(&format!(
        "ln -sf /usr/bin/kmod /run/insmod && head -c -{} {module} > /run/dummy.ko",
        MARK.len() + 1
    ))?;
    let unsigned = node.vm()?.shell()?.run("/run/insmod /run/dummy.ko", Duration::from_secs(30))?;
    ensure!(unsigned.status != 0, "an unsigned module was loaded: {}", unsigned.text);
    ensure!(unsigned.text.contains("rejected"), "refused, but not for its signature: {}", unsigned.text);
    node.must(&format!("/run/insmod {module} && lsmod | grep -q '^dummy ' && rm /run/dummy.ko /run/insmod"))
        .map(drop)
        .context("the signed module is not loaded either")
}

fn memory(node: &mut Node) -> Result<()> {
    let meminfo = node.must("cat /proc/meminfo")?;
    let total = procfs::kilobytes(&meminfo, "MemTotal").context("no MemTotal in /proc/meminfo")?;
    let limits = agent_memory::limits(total);
    for (file, mib) in [("memory.high", limits.high_mib), ("memory.max", limits.max_mib)] {
        let want = mib << 20;
        let path = format!("/sys/fs/cgroup/system.slice/kubelet.service/{file}");
        let found: u64 = node.must(&format!("cat {path}"))?.trim().parse().with_context(|| path.clone())?;
        ensure!(found == want, "{path} is {found}, not {want}");
    }
    Ok(())
}
