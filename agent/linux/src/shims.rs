//! The runtime's shims as /proc shows them, and the end of those that the runtime has forgotten.
//!
//! In: the runtime's socket. Out: shims whose bundle is gone, and processes that shims have left unstarted
//! ([`agent_types::runtime::lost_shims`] says why that matters and decides). Invariants: a shim that a container's bundle
//! names is never seen, because several pods may share a shim, which works in the bundle of the first one and outlives it;
//! nor is a shim of another runtime: its address, looked up in its own root without leaving it, must be the very socket that
//! the agent speaks to; nor are processes that another runtime's shim has left: PID 1 of its own container inherits those,
//! not the machine's; no process is signalled by a number that may have become another process's.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use agent_types::runtime::lost_shims::{Kind, Shim};
use orlop_config::procfs::{ProcessStat, process_stat};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::containerd_state::{NAMESPACE, bundles};
use crate::files::FilesError;
use crate::shim_sockets;

/// What the names of all shims begin with; the rest is the runtime's kind.
const PROGRAM: &str = "containerd-shim-";
/// Who inherits the children of a shim that died.
const INIT: i32 = 1;
/// Longest command line that is looked at, bytes. That of a shim has some hundred. A process of any pod makes its own as long as it
/// likes (prctl(2), `PR_SET_MM_MAP`).
const COMMAND_MAX: u64 = 16 * 1024;
/// File of a bundle with the number of the container's first process, which crun writes (`InitPidFile` of containerd's shim).
const FIRST_PROCESS: &str = "init.pid";
/// File of a bundle with the program of the OCI runtime, which the shim writes.
const OCI_RUNTIME: &str = "runtime";
/// Characters of the id of a container of CRI, all of them hexadecimal digits.
const ID_CHARS: usize = 64;
/// What systemd's name of a container's cgroup begins with; the id follows.
const SCOPE: &str = "cri-containerd-";
/// What the kernel adds to the name of a directory that was removed (proc(5): `/proc/pid/cwd`).
const REMOVED: &str = " (deleted)";

/// The shims of the runtime behind `socket` that have no bundle any more, what shims have left that was never started, and the
/// containers of shims that died.
///
/// # Errors
/// /proc cannot be listed, or the socket is not there. Processes that end while they are looked at are left out.
pub fn without_bundle(socket: &Path) -> Result<Vec<Shim>, FilesError> {
    let runtime = Runtime::behind(socket)?;
    let lost = pids()?.into_iter().filter_map(|pid| runtime.lost(pid));
    let orphans = children_of_init().into_iter().filter_map(|pid| runtime.orphan(pid));
    Ok(lost.chain(orphans).collect())
}

/// What distinguishes the runtime's processes from those of others.
struct Runtime {
    socket: (u64, u64),
    bundles: PathBuf,
    /// The sockets that bundles name, read for the first suspect alone; `None` if they cannot be read.
    named: OnceCell<Option<BTreeSet<String>>>,
}

impl Runtime {
    fn behind(socket: &Path) -> Result<Runtime, FilesError> {
        let found = identity(socket).map_err(FilesError::at("look at", socket))?;
        Ok(Runtime { socket: found, bundles: bundles(socket), named: OnceCell::new() })
    }

    /// The process as one that the runtime has forgotten; `None` for every other.
    fn lost(&self, pid: i32) -> Option<Shim> {
        let command = read_at_most(Path::new(&format!("/proc/{pid}/cmdline")), COMMAND_MAX)?;
        self.lost_shim(pid, &command).or_else(|| self.unstarted(pid, &command))
    }

    /// The process as a lost shim; `None` for every other.
    fn lost_shim(&self, pid: i32, command: &[u8]) -> Option<Shim> {
        let of = |what: &str| PathBuf::from(format!("/proc/{pid}/{what}"));
        let (id, address) = parse_command(command)?;
        let bundle = fs::read_link(of("cwd")).ok()?;
        if !bundle.to_str()?.ends_with(REMOVED) {
            return None;
        }
        if identity_below(&of("root"), &address).ok()? != self.socket {
            return None;
        }
        let named = self.named.get_or_init(|| shim_sockets::named_by(&self.bundles)).as_ref()?;
        if shim_sockets::is_asked_on(pid, named) {
            return None;
        }
        Some(Shim { kind: Kind::Shim, pid, started_ticks: stat(pid)?.started_ticks, id })
    }

    /// What was to become a container, orphaned and without a bundle.
    fn unstarted(&self, pid: i32, command: &[u8]) -> Option<Shim> {
        let bundle = parse_create(command)?;
        let id = bundle.strip_prefix(&self.bundles).ok()?.to_str()?.to_owned();
        let is_gone = fs::symlink_metadata(&bundle).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        if !is_gone {
            return None;
        }
        let ProcessStat { parent, started_ticks, .. } = stat(pid)?;
        (parent == INIT).then_some(Shim { kind: Kind::Unstarted, pid, started_ticks, id })
    }

    /// The first process of a container whose shim died: while a shim lives, it is the parent. The container's cgroup and its bundle
    /// both name it, so no other process with this number is taken for it.
    fn orphan(&self, pid: i32) -> Option<Shim> {
        let ProcessStat { parent, started_ticks, .. } = stat(pid)?;
        if parent != INIT {
            return None;
        }
        let cgroups = read_at_most(Path::new(&format!("/proc/{pid}/cgroup")), COMMAND_MAX)?;
        let id = self.first_process_of(pid, std::str::from_utf8(&cgroups).ok()?)?;
        Some(Shim { kind: Kind::Orphan, pid, started_ticks, id: id.to_owned() })
    }

    /// The container that these cgroups name, if its bundle names the process as its first one and crun as its OCI runtime.
    fn first_process_of<'a>(&self, pid: i32, cgroups: &'a str) -> Option<&'a str> {
        let id = container_of(cgroups)?;
        let file = |name: &str| {
            let content = read_at_most(&self.bundles.join(id).join(name), COMMAND_MAX)?;
            String::from_utf8(content).ok()
        };
        let is_first = file(FIRST_PROCESS)?.trim().parse::<i32>().ok() == Some(pid);
        // The shim for crun and its kind is the parent of its containers; that of another runtime may not be.
        let is_of_crun = file(OCI_RUNTIME)?.trim().rsplit('/').next() == Some("crun");
        (is_first && is_of_crun).then_some(id)
    }
}

/// The id of CRI's container in the paths of a process's cgroups: a directory of that name, or a scope of systemd.
fn container_of(cgroups: &str) -> Option<&str> {
    let paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let parts = paths.flat_map(|path| path.split('/'));
    let mut names =
        parts.map(|part| part.strip_suffix(".scope").and_then(|s| s.strip_prefix(SCOPE)).unwrap_or(part));
    names.find(|name| name.len() == ID_CHARS && name.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The children of PID 1: none on a kernel that does not list them.
fn children_of_init() -> Vec<i32> {
    let all = fs::read_to_string(format!("/proc/{INIT}/task/{INIT}/children")).unwrap_or_default();
    all.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// What ending a shim did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShimKillResult {
    /// It was killed.
    Shim,
    /// So many processes of its task were; a later call ends the shim itself, once it has none.
    Children(usize),
    /// It had ended, or is not without a bundle any more.
    Nothing,
}

/// Kills what a shim has made, or, if nothing of it is left, the shim.
///
/// # Errors
/// The kernel's refusal, or /proc's.
pub fn end(shim: &Shim, socket: &Path) -> Result<ShimKillResult, FilesError> {
    let Some(handle) = open(shim.pid)? else { return Ok(ShimKillResult::Nothing) };
    let runtime = Runtime::behind(socket)?;
    // From here on the number cannot be another process's without the handle's telling.
    let found = if shim.kind == Kind::Orphan { runtime.orphan(shim.pid) } else { runtime.lost(shim.pid) };
    if found.as_ref() != Some(shim) {
        return Ok(ShimKillResult::Nothing);
    }
    if shim.kind == Kind::Orphan {
        // The kernel ends what is in its process namespace with it. Other processes of a pod in the host's are left alone.
        return Ok(if kill(&handle, shim.pid)? { ShimKillResult::Shim } else { ShimKillResult::Nothing });
    }
    let mut children = 0;
    for pid in pids()? {
        let Some(child) = open(pid)? else { continue };
        if parent(pid) == Some(shim.pid) {
            children += usize::from(kill(&child, pid)?);
        }
    }
    if children > 0 {
        return Ok(ShimKillResult::Children(children));
    }
    Ok(if kill(&handle, shim.pid)? { ShimKillResult::Shim } else { ShimKillResult::Nothing })
}

/// Sandbox and the runtime's address of a shim's command line (`-namespace NS -id ID -address PATH`).
fn parse_command(command: &[u8]) -> Option<(String, String)> {
    let words = words(command)?;
    if !program(&words)?.starts_with(PROGRAM) || after(&words, "-namespace")? != NAMESPACE {
        return None;
    }
    Some((after(&words, "-id")?.to_owned(), after(&words, "-address")?.to_owned()))
}

/// The bundle in the command line of crun making a container, which its first process keeps until it is started.
fn parse_create(command: &[u8]) -> Option<PathBuf> {
    let words = words(command)?;
    let creates = program(&words)? == "crun" && words.contains(&"create");
    after(&words, "--bundle").filter(|_| creates).map(PathBuf::from)
}

fn words(command: &[u8]) -> Option<Vec<&str>> {
    command.split(|byte| *byte == 0).map(|word| std::str::from_utf8(word).ok()).collect()
}

fn program<'a>(words: &[&'a str]) -> Option<&'a str> {
    words.first()?.rsplit('/').next()
}

fn after<'a>(words: &[&'a str], flag: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == flag)?;
    words.get(at + 1).copied()
}

fn stat(pid: i32) -> Option<ProcessStat> {
    process_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parent(pid: i32) -> Option<i32> {
    stat(pid).map(|of| of.parent)
}

fn pids() -> Result<Vec<i32>, FilesError> {
    let proc = Path::new("/proc");
    let all = fs::read_dir(proc).map_err(FilesError::at("list", proc))?;
    Ok(all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The whole file; `None` if it is longer than `max` bytes or cannot be read.
fn read_at_most(path: &Path, max: u64) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    fs::File::open(path).ok()?.take(max + 1).read_to_end(&mut content).ok()?;
    (content.len() as u64 <= max).then_some(content)
}

/// Device and inode of `path` as a process sees it whose root is `root`: no link of the process leads out of there.
fn identity_below(root: &Path, path: &str) -> io::Result<(u64, u64)> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags | OFlags::DIRECTORY, Mode::empty())?;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = fstat(openat2(&root, path, flags, Mode::empty(), how)?)?;
    Ok((found.st_dev, found.st_ino))
}

/// Device and inode: they identify a file across mount namespaces.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|of| (of.dev(), of.ino()))
}

/// `None` if there is no such process (any more).
fn open(pid: i32) -> Result<Option<OwnedFd>, FilesError> {
    let Some(id) = Pid::from_raw(pid) else { return Ok(None) };
    match pidfd_open(id, PidfdFlags::empty()) {
        Ok(handle) => Ok(Some(handle)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(error) => Err(failed("pidfd_open", pid, error)),
    }
}

/// False if it had ended.
fn kill(handle: &OwnedFd, pid: i32) -> Result<bool, FilesError> {
    match pidfd_send_signal(handle, Signal::KILL) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(error) => Err(failed("kill", pid, error)),
    }
}

fn failed(operation: &'static str, pid: i32, error: rustix::io::Errno) -> FilesError {
    FilesError::at(operation, Path::new(&format!("/proc/{pid}")))(error.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that looks like a shim for `id` behind `address` and has a child. It works in `bundle`.
    fn start(program: &str, namespace: &str, (id, address): (&str, &Path), bundle: &Path) -> Child {
        let mut command = Command::new("sh");
        // Its child is there once it has written a line.
        command.arg0(program).args(["-c", "sleep 600 & echo; wait", "-namespace", namespace, "-id", id]);
        command.arg("-address").arg(address).current_dir(bundle).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        child
    }

    #[test]
    fn a_command_line_without_end_is_no_shims() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cmdline");
        fs::write(&file, [0; 100]).unwrap();
        assert_eq!(read_at_most(&file, 100).map(|all| all.len()), Some(100));
        assert_eq!(read_at_most(&file, 99), None);
    }

    #[test]
    fn a_link_of_the_process_stays_in_its_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("run")).unwrap();
        fs::write(root.join("run/own"), "").unwrap();
        let host = dir.path().join("host");
        fs::write(&host, "").unwrap();
        std::os::unix::fs::symlink(&host, root.join("away")).unwrap();
        std::os::unix::fs::symlink("/run/own", root.join("within")).unwrap();
        let own = identity(&root.join("run/own")).unwrap();
        assert_eq!(identity_below(&root, "/run/own").unwrap(), own);
        assert_eq!(identity_below(&root, "/within").unwrap(), own);
        assert_eq!(identity_below(&root, "/../../run/own").unwrap(), own);
        assert!(identity_below(&root, "/away").is_err(), "the host's file is not below the root");
    }

    #[test]
    fn a_shim_is_known_by_its_command() {
        let parse = |words: &[&str]| parse_command(words.join("\0").as_bytes());
        let of = [
            "/usr/bin/containerd-shim-runc-v2",
            "-namespace",
            "k8s.io",
            "-id",
            "a",
            "-address",
            "/run/c.sock",
        ];
        assert_eq!(parse(&of), Some(("a".to_owned(), "/run/c.sock".to_owned())));
        let with = |at: usize, word| {
            let mut other = of;
            other[at] = word;
            parse(&other)
        };
        assert_eq!(
            (with(0, "containerd"), with(2, "moby"), with(3, "-x"), with(5, "-x")),
            (None, None, None, None)
        );
        assert_eq!((parse(&of[..6]), parse(&[]), parse_command(&[0xff, 0])), (None, None, None));
    }

    #[test]
    fn what_a_dead_shim_left_is_known_by_its_command_its_parent_and_its_bundle() {
        let parse = |text: &str| parse_create(text.replace(' ', "\0").as_bytes());
        assert_eq!(parse("/usr/bin/crun --root /r create --bundle /b/x x"), Some(PathBuf::from("/b/x")));
        for other in
            ["crun start --bundle /b x", "runc create --bundle /b x", "crun create x", "crun create --bundle"]
        {
            assert_eq!(parse(other), None, "{other}");
        }
        // The parent of these tests' orphans depends on the environment: it is PID 1 only in a container's first
        // process.
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("c.sock");
        let _listening = UnixListener::bind(&socket).unwrap();
        let bundle = bundles(&socket).join("c1");
        fs::create_dir_all(&bundle).unwrap();
        let mut command = Command::new("sh");
        command.arg0("crun").args(["-c", "echo; read x", "create", "--bundle"]).arg(&bundle);
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        fs::remove_dir(&bundle).unwrap();
        let seen = Runtime::behind(&socket).unwrap().lost(child.id().cast_signed());
        assert_eq!(seen, None, "its parent lives and knows of it");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_container_of_a_process_is_in_its_cgroup() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
            format!("0::/kubepods.slice/cri-containerd-{id}.scope/init.scope"),
            format!("12:memory:/e2e/k8s.io/{id}\n1:name=systemd:/e2e/k8s.io/{id}\n"),
        ] {
            assert_eq!(container_of(&path), Some(&*id), "{path}");
        }
        for path in ["", "0::/", "0::/system.slice/containerd.service", "0::/cri-containerd-12.scope"] {
            assert_eq!(container_of(path), None, "{path}");
        }
        assert_eq!(container_of(&format!("0::/{}", "z".repeat(64))), None);
    }

    #[test]
    fn the_first_process_of_a_container_is_the_one_that_the_bundle_names() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("c.sock");
        let _listening = UnixListener::bind(&socket).unwrap();
        let runtime = Runtime::behind(&socket).unwrap();
        let id = "0123456789abcdef".repeat(4);
        let cgroups = format!("0::/kubepods.slice/cri-containerd-{id}.scope\n");
        assert_eq!(runtime.first_process_of(7, &cgroups), None, "there is no bundle");
        let bundle = bundles(&socket).join(&id);
        fs::create_dir_all(&bundle).unwrap();
        for (first, program, is_first) in [
            ("7", "/usr/bin/crun", true),
            ("7\n", "crun", true),
            ("70", "/usr/bin/crun", false),
            ("", "/usr/bin/crun", false),
            ("7", "/usr/bin/runc", false),
            ("7", "", false),
        ] {
            fs::write(bundle.join(FIRST_PROCESS), first).unwrap();
            fs::write(bundle.join(OCI_RUNTIME), program).unwrap();
            let found = runtime.first_process_of(7, &cgroups);
            assert_eq!(found, is_first.then_some(&*id), "{first:?} {program:?}");
        }
        fs::write(bundle.join(OCI_RUNTIME), "crun").unwrap();
        assert_eq!(runtime.first_process_of(7, "0::/system.slice/containerd.service\n"), None);
        fs::remove_file(bundle.join(FIRST_PROCESS)).unwrap();
        assert_eq!(runtime.first_process_of(7, &cgroups), None, "in doubt it is left alone");
    }

    #[test]
    fn a_process_that_its_shim_has_not_lost_is_no_orphan() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("c.sock");
        let _listening = UnixListener::bind(&socket).unwrap();
        let runtime = Runtime::behind(&socket).unwrap();
        // These tests' own process has a parent, and children of PID 1 belong to no bundle here.
        assert_eq!(runtime.orphan(std::process::id().cast_signed()), None);
        assert!(children_of_init().into_iter().all(|pid| runtime.orphan(pid).is_none()));
    }

    #[test]
    fn a_process_has_its_parent() {
        assert_eq!(
            parent(std::process::id().cast_signed()),
            Some(std::os::unix::process::parent_id().cast_signed())
        );
    }

    #[test]
    fn who_has_lost_its_bundle_goes_with_what_it_made_and_nobody_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let [ours, other] = ["ours.sock", "other.sock"].map(|name| dir.path().join(name));
        let _listening = [&ours, &other].map(|path| UnixListener::bind(path).unwrap());
        let bundle = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (kept, gone) = (bundle("kept"), bundle("gone"));
        let shim = "containerd-shim-runc-v2";
        let mut lost = start(shim, NAMESPACE, ("lost", &ours), &gone);
        let mut others = [
            start(shim, NAMESPACE, ("kept", &ours), &kept),
            start(shim, NAMESPACE, ("elsewhere", &other), &gone),
            start(shim, "moby", ("moby", &ours), &gone),
            start("sh", NAMESPACE, ("sh", &ours), &gone),
        ];
        assert_eq!(without_bundle(&ours).unwrap(), []);
        fs::remove_dir(&gone).unwrap();
        let found = without_bundle(&ours).unwrap();
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!((one.kind, one.pid.cast_unsigned(), &*one.id), (Kind::Shim, lost.id(), "lost"));
        let younger = Shim { started_ticks: one.started_ticks + 1, ..one.clone() };
        assert_eq!(end(&younger, &ours).unwrap(), ShimKillResult::Nothing);
        assert_eq!(end(one, &other).unwrap(), ShimKillResult::Nothing);
        // Its child first; it then goes by itself, as a shell does, or is killed.
        assert_eq!(end(one, &ours).unwrap(), ShimKillResult::Children(1));
        lost.wait().unwrap();
        assert_eq!(end(one, &ours).unwrap(), ShimKillResult::Nothing);
        assert_eq!(without_bundle(&ours).unwrap(), []);
        for child in &mut others {
            assert_eq!(child.try_wait().unwrap(), None);
            let pid = child.id().cast_signed();
            for of in pids().unwrap().into_iter().filter(|of| parent(*of) == Some(pid)) {
                kill(&open(of).unwrap().unwrap(), of).unwrap();
            }
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_shim_that_several_pods_share_is_lost_when_no_bundle_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("c.sock");
        let _listening = UnixListener::bind(&socket).unwrap();
        let asked = dir.path().join("shim.sock");
        let listener = UnixListener::bind(&asked).unwrap();
        let [first, second] = ["first", "second"].map(|name| bundles(&socket).join(name));
        for bundle in [&first, &second] {
            fs::create_dir_all(bundle).unwrap();
            let address =
                format!(r#"{{"version":3,"address":"unix://{}","protocol":"ttrpc"}}"#, asked.display());
            fs::write(bundle.join("bootstrap.json"), address).unwrap();
        }
        let mut command = Command::new("sh");
        command.arg0("containerd-shim-runc-v2").args([
            "-c",
            "sleep 600 & echo; wait",
            "-namespace",
            NAMESPACE,
        ]);
        command.args(["-id", "first", "-address"]).arg(&socket).current_dir(&first).stdout(Stdio::piped());
        // The shell keeps the socket open, as a shim does.
        let mut child = command.stdin(Stdio::from(OwnedFd::from(listener))).spawn().unwrap();
        drop(command);
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        fs::remove_dir_all(&first).unwrap();
        assert_eq!(without_bundle(&socket).unwrap(), [], "the second pod is there");
        let lost = Shim {
            kind: Kind::Shim,
            pid: child.id().cast_signed(),
            started_ticks: stat(child.id().cast_signed()).unwrap().started_ticks,
            id: "first".to_owned(),
        };
        assert_eq!(end(&lost, &socket).unwrap(), ShimKillResult::Nothing);
        fs::remove_dir_all(&second).unwrap();
        assert_eq!(without_bundle(&socket).unwrap(), std::slice::from_ref(&lost));
        assert_eq!(end(&lost, &socket).unwrap(), ShimKillResult::Children(1));
        child.wait().unwrap();
    }

    #[test]
    fn a_shim_without_children_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("c.sock");
        let _listening = UnixListener::bind(&socket).unwrap();
        let bundle = dir.path().join("bundle");
        fs::create_dir(&bundle).unwrap();
        let mut command = Command::new("sh");
        command.arg0("containerd-shim-runc-v2").args([
            "-c",
            "echo; read x",
            "-namespace",
            NAMESPACE,
            "-id",
            "a",
        ]);
        command
            .arg("-address")
            .arg(&socket)
            .current_dir(&bundle)
            .stdout(Stdio::piped())
            .stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        fs::remove_dir(&bundle).unwrap();
        let found = without_bundle(&socket).unwrap();
        assert_eq!((found.len(), end(&found[0], &socket).unwrap()), (1, ShimKillResult::Shim));
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
        assert!(without_bundle(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
    }
}
