//! `orlopctl bundle` on a booted node: whole while the node is well, and with agent, containerd and network dead it has everything that
//! these do not know. A planted secret is in neither.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;
use orlop_harness::vm::shell::Output;

use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, await_network, config_with_pod};

use super::status::{PROGRAM, kill_parts};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "manage/bundle",
    240,
    "orlopctl bundle has all parts; with agent, containerd and network dead all that these do not know; no planted secret",
    bundle,
)];

/// A bundle under TCG, and its way out of the machine.
const BUNDLE: Duration = Duration::from_secs(180);
/// In the configuration and in the kernel's log.
const SECRET: &str = "planted-hunter2";
/// Parts that need neither agent, containerd nor network.
const PARTS: [&str; 10] = [
    "version.json",
    "objects/node.json",
    "objects/problems.json",
    "objects/boot.json",
    "objects/services.json",
    "objects/processes.json",
    "configuration/explain.json",
    "files/boot.json",
    "kernel/boot-0.log",
    "journal/boot-0.log",
];

fn bundle(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = built::ctl(&cx.run)?;
    let disk = SecondDisk::make(&cx.artefacts, &[(program.as_path(), PROGRAM)], &[])?;
    let config = format!("{}proxy:\n  http: http://u:{SECRET}@192.0.2.1:3128\n", config_with_pod());
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    lab.attach(&[disk.file()]);
    let mut vm = lab.boot(Firmware::Direct, Some(&config))?;
    vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    await_network(&mut vm)?;
    disk.unpack(vm.shell()?)?;
    vm.shell()?.must(&format!("echo 'planted: password={SECRET}' > /dev/kmsg"))?;

    let healthy = make(&mut vm, &cx.artefacts, "healthy")?;
    ensure!(healthy.output.status == 0, "exit {}: {}", healthy.output.status, healthy.output.text);
    let kernel = healthy.read("kernel/boot-0.log")?;
    ensure!(kernel.contains("planted: password=<secret>"), "the planted line is not in: {kernel}");
    let processes = healthy.read("objects/processes.json")?;
    ensure!(processes.contains("\"default/hello"), "no process has the name of the pod: {processes}");

    kill_parts(&mut vm)?;
    let dead = make(&mut vm, &cx.artefacts, "dead").context("agent, containerd and network are dead")?;
    let problems = dead.read("objects/problems.json")?;
    for words in ["the node agent does not run: masked", "this machine has no address"] {
        ensure!(problems.contains(words), "{words:?} is not in: {problems}");
    }
    say::line(format!("  with dead parts: exit {}: {}", dead.output.status, dead.output.text.trim()));
    Ok(())
}

/// A bundle, unpacked on this machine.
struct MadeBundle {
    output: Output,
    directory: PathBuf,
}

impl MadeBundle {
    fn read(&self, part: &str) -> Result<String> {
        let file = self.directory.join(part);
        fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
    }
}

/// Makes a bundle, which has every part, and the secret nowhere.
fn make(vm: &mut Vm, artefacts: &Path, name: &str) -> Result<MadeBundle> {
    let began = Instant::now();
    let command = format!("{PROGRAM} --timeout 50 bundle /var/{name}.tar.gz --within 150");
    let output = vm.shell()?.run(&command, BUNDLE)?;
    let took = began.elapsed().as_secs_f64();
    let text = vm.shell()?.run(&format!("base64 /var/{name}.tar.gz"), BUNDLE)?;
    ensure!(text.status == 0, "{}: {}", output.text, text.text);
    let packed = orlop_config::base64::decode(&text.text).context("the bundle is no base64")?;
    say::line(format!("  {name}: {took:.1} s, {} bytes", packed.len()));
    let file = artefacts.join(format!("{name}.tar.gz"));
    fs::write(&file, packed).with_context(|| format!("write {}", file.display()))?;
    let directory = artefacts.join(name);
    fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&file).arg("-C").arg(&directory).arg("--strip-components=1");
    ensure!(tar.status().context("run tar")?.success(), "tar does not read {}", file.display());
    let made = MadeBundle { output, directory };
    for part in PARTS {
        let text = made.read(part).with_context(|| made.output.text.clone())?;
        ensure!(!text.is_empty() && !text.contains(SECRET), "{part} is empty, or has the planted secret");
    }
    Ok(made)
}
