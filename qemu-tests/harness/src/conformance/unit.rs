//! The kubelet as a unit of the node's suite, whose serial tests stop it, write its configuration and start it again.
//!
//! ```text
//! suite ── sudo systemctl list-units "*kubelet*" | kill | restart | reset-failed ──► kubelet-orlop
//!   └──── kubelet-config, kubelet.conf.d/*.conf in the suite's directory ──── --config, --config-dir ───┘
//! ```
//! In: a VM or a native node whose kubelet has joined, the scripts of `qemu-tests/conformance/suite`. Out: the same kubelet
//! under the unit's name, with a copy of its configuration. Invariants: only this node has the unit, the image is as it is
//! shipped; the kubelet never starts by itself again.
//!
//! Upstream: test/e2e_node/util.go (`findKubeletServiceName` takes the first word `kubelet-…` of the list, `mustStopKubelet`
//! kills the unit and waits until healthz is silent), test/e2e_node/kubeletconfig (the file is in the working directory, its
//! content comes from the API server's proxy to `/configz`).

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};
use nix::sys::stat::Mode;

use crate::cluster::join::{self, JoinMethod};
use crate::native::config;
use crate::native::node::NativeNode;
use crate::vm::shell::Shell;

/// Directory of the scripts, the first of the suite's search path.
pub(super) const BIN: &str = "/var/lib/suite/bin";
/// The configuration that the suite writes.
const CONFIG: &str = "/var/lib/suite/kubelet-config";
/// The drop-ins that the suite writes.
const DROP_INS: &str = "/var/lib/suite/kubelet.conf.d";
/// Log of the unit in a VM.
pub(super) const LOG: &str = "/var/lib/suite/agent.log";

const SUDO: (&str, &str) = (include_str!("../../../conformance/suite/sudo"), "/var/lib/suite/bin/sudo");
const LSCPU: (&str, &str) = (include_str!("../../../conformance/suite/lscpu"), "/var/lib/suite/bin/lscpu");
/// Changes of the agent's unit.
const CHANGES: (&str, &str) =
    (include_str!("../../../conformance/suite/kubelet-orlop.conf"), "/var/lib/suite/kubelet-orlop.conf");
const SYSTEMCTL: (&str, &str) =
    (include_str!("../../../conformance/suite/systemctl"), "/var/lib/suite/bin/systemctl");
const SERVICE: (&str, &str) =
    (include_str!("../../../conformance/suite/service"), "/var/lib/suite/bin/service");
/// State of the unit of a native node: the FIFO that starts it, the number of its process.
const STATE: &str = "/var/lib/suite/unit";

/// Files for a VM: content and path.
pub(super) const FILES: [(&str, &str); 3] = [SUDO, LSCPU, CHANGES];

/// Command that makes the directories of [`FILES`]. Pure.
pub(super) fn directories() -> String {
    format!("mkdir -p {BIN} {DROP_INS}")
}

/// Replaces the image's unit with the suite's, which systemd runs from /run; [`FILES`] are in their places.
///
/// # Errors
/// The message of systemctl or of a copy.
pub(super) fn start_in_vm(shell: &mut Shell) -> Result<()> {
    let unit = "/run/systemd/system/kubelet-orlop.service";
    let changes = CHANGES.1;
    for command in [
        format!("mkdir -p {unit}.d && cp /usr/lib/systemd/system/kubelet.service {unit}"),
        format!("cat {changes} >{unit}.d/10-suite.conf"),
        format!("cp /run/orlop/kubelet.yaml {CONFIG}"),
        "systemctl daemon-reload && systemctl stop kubelet && systemctl start kubelet-orlop".to_owned(),
    ] {
        shell.must(&command)?;
    }
    Ok(())
}

/// The configuration of a native node with a list that stays: the suite writes no empty lists, and the default, `pods`,
/// wants cgroups for the classes of pods. Pure.
fn that_stays(configuration: &str) -> String {
    configuration.replace("enforceNodeAllocatable: []", "enforceNodeAllocatable: [none]")
}

/// Stops the kubelet and starts it again under the script that stands for systemd.
///
/// # Errors
/// If a file cannot be written, or the kubelet does not stop.
pub(super) fn start_natively(node: &mut NativeNode) -> Result<()> {
    for dir in [BIN, DROP_INS, STATE] {
        fs::create_dir_all(node.inside(dir)).with_context(|| format!("make {dir} in the node"))?;
    }
    for (text, to) in [SUDO, LSCPU, SYSTEMCTL, SERVICE] {
        let file = node.inside(to);
        fs::write(&file, text).with_context(|| format!("write {to} in the node"))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).context("set a mode")?;
    }
    let fifo = node.inside(&format!("{STATE}/start"));
    nix::unistd::mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR)
        .with_context(|| format!("make {}", fifo.display()))?;
    let own = fs::read_to_string(node.inside(config::KUBELET)).context("read the kubelet's configuration")?;
    fs::write(node.inside(CONFIG), that_stays(&own)).context("copy the kubelet's configuration")?;
    let mut flags = join::flags(JoinMethod::BootstrapKubeconfig);
    flags.push(format!("--config-dir={DROP_INS}"));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    node.stop_agent()?;
    node.start_agent_under(SERVICE.1, CONFIG, &flags)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// A directory with the scripts, whose paths lead to it.
    fn place() -> PathBuf {
        let dir = std::env::temp_dir().join(format!("orlop-unit-{}", std::process::id()));
        fs::create_dir_all(dir.join("unit")).unwrap();
        fs::create_dir_all(dir.join("bin")).unwrap();
        for (text, to) in [SUDO, LSCPU, SYSTEMCTL, SERVICE] {
            let (file, draft) = (dir.join(to.trim_start_matches("/var/lib/suite/")), dir.join("draft"));
            fs::write(&draft, text.replace("/var/lib/suite", &dir.display().to_string())).unwrap();
            // A file that this process has written is busy for a moment when another thread starts a program.
            let installed =
                Command::new("install").args(["-m", "755"]).args([&draft, &file]).status().unwrap();
            assert!(installed.success(), "{to}");
        }
        nix::unistd::mkfifo(&dir.join("unit/start"), Mode::S_IRWXU).unwrap();
        dir
    }

    fn sudo(dir: &Path, args: &str) -> String {
        let path = format!("{}:/usr/bin:/bin", dir.join("bin").display());
        let mut command = Command::new(dir.join("bin/sudo"));
        let output = command.args(args.split(' ')).env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    struct Service(Child);

    impl Drop for Service {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn the_suites_verbs_act_on_the_service_of_a_native_node() {
        let dir = place();
        let (state, list) = (dir.join("unit/pid"), "systemctl list-units *kubelet* --state=running");
        let mut service = Command::new(dir.join("bin/service"));
        let service = service.args(["sleep", "1000"]).stdin(Stdio::null()).spawn().unwrap();
        let service = Service(service);
        let deadline = Instant::now() + Duration::from_secs(20);
        let wait = |is: bool| {
            while sudo(&dir, list).starts_with("kubelet-orlop.service ") != is {
                assert!(Instant::now() < deadline, "the service runs: {}", !is);
            }
        };
        let number = || fs::read_to_string(&state).unwrap().trim().to_owned();
        wait(true);
        let first = number();
        sudo(&dir, "systemctl reset-failed kubelet-orlop");
        sudo(&dir, "systemctl kill kubelet-orlop");
        wait(false);
        assert!(sudo(&dir, "systemctl list-units *kubelet*").contains(" exited "));
        sudo(&dir, "systemctl restart kubelet-orlop");
        let second = number();
        sudo(&dir, "systemctl restart kubelet-orlop");
        let third = number();
        assert!(first != second && second != third, "{first} {second} {third}");
        sudo(&dir, "systemctl stop kubelet-orlop");
        drop(service);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn no_list_of_a_native_node_is_empty() {
        let text = that_stays(&join::kubelet_configuration());
        assert!(text.contains("enforceNodeAllocatable: [none]\n") && !text.contains("[]"), "{text}");
    }

    #[test]
    fn processors_are_counted_as_lscpu_does() {
        let output = Command::new("sh").args(["-c", LSCPU.0]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let value = |key: &str| -> usize {
            text.lines().find_map(|l| l.strip_prefix(key)?.trim().parse().ok()).unwrap()
        };
        let product = value("Thread(s) per core:") * value("Core(s) per socket:") * value("Socket(s):");
        assert_eq!(product, value("CPU(s):"), "{text}");
        assert!(value("NUMA node(s):") >= 1 && text.contains("\nNUMA node0 CPU(s):"), "{text}");
    }

    #[test]
    fn the_unit_starts_nothing_by_itself_and_reads_the_suites_files() {
        let all: Vec<&str> = CHANGES.0.lines().collect();
        for line in ["Restart=no", "RemainAfterExit=yes", "ExecStart="] {
            assert!(all.contains(&line), "{line}");
        }
        let start = format!("ExecStart=/usr/bin/orlop-agent --config {CONFIG} --config-dir {DROP_INS} ");
        assert!(all.iter().any(|line| line.starts_with(&start)), "{start}");
        let scripts = [SUDO, LSCPU, SYSTEMCTL, SERVICE];
        assert!(scripts.iter().all(|(_, to)| to.starts_with(BIN)));
        assert!(SYSTEMCTL.0.contains(STATE) && SERVICE.0.contains(STATE));
        assert!(CHANGES.0.contains(&format!("append:{LOG}")));
    }
}
