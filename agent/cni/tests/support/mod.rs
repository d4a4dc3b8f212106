//! A node and its containers as network namespaces of threads, and the plugin's program called as a runtime calls it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

/// A directory with the plugin under its names, and one for reservations.
pub(crate) struct Node {
    dir: tempfile::TempDir,
}

/// A network namespace without processes.
pub(crate) struct Pod {
    file: File,
}

/// What a call printed, and whether it succeeded.
pub(crate) type Outcome = Result<Value, Value>;

/// Runs the test in a namespace of its own; without root it says so and is skipped.
pub(crate) fn on_a_node(test: impl FnOnce(Node) + Send + 'static) {
    let thread = std::thread::spawn(|| {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            eprintln!("skipped: no network namespace without root");
            return;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        for name in ["bridge", "host-local", "portmap"] {
            let program = env!("CARGO_BIN_EXE_orlop-cni");
            std::os::unix::fs::symlink(program, dir.path().join(name)).expect("link");
        }
        test(Node { dir });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

impl Pod {
    /// A new one.
    pub(crate) fn new() -> Pod {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
            sender.send(File::open("/proc/thread-self/ns/net").expect("its file")).expect("received");
        });
        let file = receiver.recv().expect("sent");
        thread.join().expect("no panic");
        Pod { file }
    }

    /// Under which others open it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Runs it inside, in a thread of its own.
    pub(crate) fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let file = self.file.try_clone().expect("a descriptor");
        let thread = std::thread::spawn(move || {
            nix::sched::setns(file, CloneFlags::CLONE_NEWNET).expect("entered");
            work()
        });
        thread.join().expect("no panic")
    }
}

impl Node {
    /// Below which the plugin writes.
    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The directory of the plugin.
    pub(crate) fn plugins(&self) -> &Path {
        self.dir.path()
    }

    /// A dual-stack bridge network with further fields.
    pub(crate) fn network(&self, rest: &str) -> String {
        let data = self.data();
        format!(
            r#"{{"cniVersion":"1.1.0","name":"net","type":"bridge","bridge":"br0","isDefaultGateway":true,
            "hairpinMode":true,"ipam":{{"type":"host-local","dataDir":"{}",
            "ranges":[[{{"subnet":"10.1.0.0/24"}}],[{{"subnet":"fd00:1::/64"}}]]}}{rest}}}"#,
            data.display()
        )
    }

    /// Starts a call.
    pub(crate) fn start(&self, plugin: &str, command: &str, config: &str, id: &str, netns: &str) -> Child {
        let mut child = Command::new(self.dir.path().join(plugin))
            .env_clear()
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", id)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_NETNS", netns)
            .env("CNI_PATH", format!("{0}:{0}/more", self.dir.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        // It may have been killed, or answered, before it reads.
        let _ = child.stdin.take().expect("piped").write_all(config.as_bytes());
        child
    }

    /// Makes a call.
    pub(crate) fn call(&self, plugin: &str, command: &str, config: &str, id: &str, netns: &str) -> Outcome {
        ended(self.start(plugin, command, config, id, netns))
    }

    /// Makes a call of `bridge`.
    pub(crate) fn bridge(&self, command: &str, config: &str, id: &str, pod: &Pod) -> Outcome {
        self.call("bridge", command, config, id, &pod.path())
    }

    /// Addresses that are reserved.
    pub(crate) fn reserved(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.data().join("net")).into_iter().flatten().flatten();
        let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|n| n.parse::<std::net::IpAddr>().is_ok()).collect();
        names.sort();
        names
    }
}

/// Waits for a call's end.
pub(crate) fn ended(child: Child) -> Outcome {
    let output = child.wait_with_output().expect("ended");
    let value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if output.status.success() { Ok(value) } else { Err(value) }
}

/// Interfaces of the namespace that this thread is in, without loopback.
pub(crate) fn interfaces() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").expect("a list");
    let names = text.lines().skip(2).filter_map(|line| line.split(':').next()).map(|n| n.trim().to_owned());
    names.filter(|n| n != "lo").collect()
}
