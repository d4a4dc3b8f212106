//! A directory of an NFS server (`nfs`), and the arguments of mount(8) for it.
//!
//! In: server, path, options, whether the node has the helper mount.nfs. Out: arguments of mount(8).
//! Invariants: with a helper the options are passed to it; without one the kernel mounts version 4 only,
//! which needs no other program on the node, and an option that only the helper knows is dropped or refused,
//! never passed on. Upstream: pkg/volume/nfs.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What the helper does by itself: how often and where it tries.
const OF_THE_HELPER: &[&str] = &["bg", "fg", "retry"];
/// Versions that are tried if the mount options name none, the newest first.
const VERSIONS: [&str; 3] = ["4.2", "4.1", "4.0"];
/// What mount(8) says if the server does not know the version.
const OTHER_VERSION: &str = "Protocol not supported";

/// A directory of an NFS server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nfs {
    /// Name or address of the server.
    pub server: String,
    /// Absolute path there.
    pub path: String,
    /// It is read-only.
    pub read_only: bool,
    /// `mountOptions` of the PersistentVolume.
    pub options: Vec<String>,
}

/// Who makes the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfsMounter {
    /// mount.nfs(8).
    Helper,
    /// The kernel, which needs the server's address.
    Kernel(IpAddr),
}

impl Nfs {
    /// `server:path`; the address of the sixth version in brackets.
    #[must_use]
    pub fn source(&self) -> String {
        match self.server.contains(':') && !self.server.starts_with('[') {
            true => format!("[{}]:{}", self.server, self.path),
            false => format!("{}:{}", self.server, self.path),
        }
    }

    /// The server as a resolver wants it.
    #[must_use]
    pub fn host(&self) -> &str {
        self.server.trim_start_matches('[').trim_end_matches(']')
    }

    fn options(&self) -> Vec<&str> {
        let mut options: Vec<&str> = Vec::new();
        for option in self.options.iter().flat_map(|o| o.split(',')).map(str::trim) {
            if !option.is_empty() && !options.contains(&option) {
                options.push(option);
            }
        }
        if self.read_only && !options.contains(&"ro") {
            options.push("ro");
        }
        options
    }

    /// Arguments of mount(8) for a mount at `target`; each is tried if the server did not know the version of the one before.
    ///
    /// # Errors
    /// The server would be read as an option, by mount(8) or by the helper that it calls, or an option asks for what only the
    /// helper can do.
    pub fn arguments(&self, way: NfsMounter, target: &str) -> Result<Vec<Vec<String>>, String> {
        if self.server.starts_with('-') {
            return Err(format!(
                "nfs: the server's name {:?} begins with a dash: nothing is mounted",
                self.server
            ));
        }
        let options = self.options();
        let with = |first: &[&str], options: &[&str]| -> Vec<String> {
            let joined = options.join(",");
            let given = if joined.is_empty() { vec![] } else { vec!["-o", joined.as_str()] };
            let source = self.source();
            let ends = ["--", source.as_str(), target];
            first.iter().chain(&given).chain(&ends).map(|&a| a.to_owned()).collect()
        };
        let NfsMounter::Kernel(address) = way else { return Ok(vec![with(&["-t", "nfs"], &options)]) };
        let name = |option: &str| option.split('=').next().unwrap_or_default().to_owned();
        let mut asked = None;
        for option in &options {
            match option.split_once('=') {
                Some(("vers" | "nfsvers", version)) => asked = Some(version),
                Some(("proto", "udp")) => return Err(self.needs_helper(option)),
                _ if name(option).starts_with("mount") => return Err(self.needs_helper(option)),
                _ => {}
            }
        }
        if let Some(version) = asked.filter(|v| !v.starts_with('4')) {
            return Err(self.needs_helper(&format!("vers={version}")));
        }
        let address = format!("addr={address}");
        let kept = options.into_iter().filter(|o| !OF_THE_HELPER.contains(&name(o).as_str()));
        let kept: Vec<&str> = kept.collect();
        let one = |version: Option<&str>| {
            let version = version.map(|v| format!("vers={v}"));
            let own: Vec<&str> = version.iter().map(String::as_str).chain([address.as_str()]).collect();
            with(&["-i", "-t", "nfs4"], &kept.iter().copied().chain(own).collect::<Vec<_>>())
        };
        Ok(match asked {
            Some(_) => vec![one(None)],
            None => VERSIONS.iter().map(|v| one(Some(v))).collect(),
        })
    }

    fn needs_helper(&self, option: &str) -> String {
        format!(
            "mount option {option:?} needs mount.nfs, which this node does not have; the kernel alone mounts version 4 over TCP"
        )
    }
}

/// mount(8) ended with these words: another version may do.
#[must_use]
pub fn is_other_version(words: &str) -> bool {
    words.contains(OTHER_VERSION)
}

/// The message about a mount(8) that failed, as upstream writes it.
#[must_use]
pub fn failed(why: &str, arguments: &[String], words: &str) -> String {
    format!(
        "mount failed: {why}\nMounting command: mount\nMounting arguments: {}\nOutput: {}\n",
        arguments.join(" "),
        words.trim_end()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nfs(server: &str, read_only: bool, options: &[&str]) -> Nfs {
        let options = options.iter().map(|o| (*o).to_owned()).collect();
        Nfs { server: server.to_owned(), path: "/srv/x".to_owned(), read_only, options }
    }

    fn lines(nfs: &Nfs, way: NfsMounter) -> Result<Vec<String>, String> {
        Ok(nfs.arguments(way, "/t")?.iter().map(|a| a.join(" ")).collect())
    }

    #[test]
    fn the_helper_is_told_what_the_volume_says() {
        let table = [
            (nfs("files", false, &[]), "-t nfs -- files:/srv/x /t"),
            (nfs("files", true, &[]), "-t nfs -o ro -- files:/srv/x /t"),
            (
                nfs("fd00::1", true, &["nfsvers=3", "bg,nolock", "ro"]),
                "-t nfs -o nfsvers=3,bg,nolock,ro -- [fd00::1]:/srv/x /t",
            ),
            (nfs("[fd00::1]", false, &[" hard ", "", "hard"]), "-t nfs -o hard -- [fd00::1]:/srv/x /t"),
        ];
        for (nfs, line) in table {
            assert_eq!(lines(&nfs, NfsMounter::Helper).unwrap(), [line]);
        }
    }

    #[test]
    fn a_server_is_never_an_option() {
        for server in ["-o", "--bind", "-"] {
            for way in [NfsMounter::Helper, NfsMounter::Kernel("192.0.2.7".parse().unwrap())] {
                let error = lines(&nfs(server, false, &[]), way).unwrap_err();
                assert!(error.contains("begins with a dash"), "{error}");
            }
        }
    }

    #[test]
    fn the_kernel_is_told_the_address_and_the_version() {
        let way = NfsMounter::Kernel("192.0.2.7".parse().unwrap());
        let versions = |before: &str| {
            ["4.2", "4.1", "4.0"]
                .map(|v| format!("-i -t nfs4 -o {before}vers={v},addr=192.0.2.7 -- files:/srv/x /t"))
        };
        assert_eq!(lines(&nfs("files", false, &[]), way).unwrap(), versions(""));
        let helpers = nfs("files", true, &["retry=2,bg", "fg", "hard", "timeo=50"]);
        assert_eq!(lines(&helpers, way).unwrap(), versions("hard,timeo=50,ro,"));
        let asked = nfs("files", false, &["nfsvers=4.1"]);
        assert_eq!(
            lines(&asked, way).unwrap(),
            ["-i -t nfs4 -o nfsvers=4.1,addr=192.0.2.7 -- files:/srv/x /t"]
        );
        let six = NfsMounter::Kernel("fd00::1".parse().unwrap());
        let line = &lines(&nfs("fd00::1", false, &["vers=4"]), six).unwrap()[0];
        assert_eq!(line, "-i -t nfs4 -o vers=4,addr=fd00::1 -- [fd00::1]:/srv/x /t");
        for option in ["vers=3", "nfsvers=3", "proto=udp", "mountport=7", "mountproto=tcp"] {
            let error = lines(&nfs("files", false, &[option]), way).unwrap_err();
            let shown = option.replace("nfsvers", "vers");
            assert!(error.contains(&format!("{shown:?}")) && error.contains("mount.nfs"), "{error}");
        }
    }

    #[test]
    fn a_failure_is_told_with_what_was_asked_for() {
        let arguments = nfs("files", false, &[]).arguments(NfsMounter::Helper, "/t").unwrap().remove(0);
        let words = "mount.nfs: Connection refused\n";
        let expected = "mount failed: exit status: 32\nMounting command: mount\nMounting arguments: -t nfs -- files:/srv/x /t\n\
                        Output: mount.nfs: Connection refused\n";
        assert_eq!(failed("exit status: 32", &arguments, words), expected);
        assert!(is_other_version("mount: /t: mount(2) system call failed: Protocol not supported."));
        assert!(!is_other_version(words));
    }
}
