//! Which crate may use which: the table of docs/internals/architecture.md, checked against `cargo metadata`.

use serde_json::Value;

use crate::Finding;

/// One crate of the workspace.
struct Room {
    /// Package name.
    name: &'static str,
    /// Directory, as docs/internals/architecture.md's table names it.
    directory: &'static str,
    /// Packages of ours that it may use.
    may_use: &'static [&'static str],
    /// Packages of others that would take its purity away.
    must_not_use: &'static [&'static str],
}

/// What a pure crate does without.
const IMPURE: &[&str] = &[
    "tokio",
    "tokio-util",
    "futures-util",
    "nix",
    "libc",
    "rustix",
    "rand",
    "getrandom",
    "tracing",
    "inotify",
    "tonic",
    "hyper",
    "hyper-util",
    "tower",
    "anyhow",
];

const ROOMS: &[Room] = &[
    Room { name: "orlop-config", directory: "config", may_use: &[], must_not_use: IMPURE },
    Room {
        name: "orlop-proto",
        directory: "proto",
        may_use: &[],
        must_not_use: &["tokio", "nix", "libc", "rustix"],
    },
    Room { name: "agent-types", directory: "agent/types", may_use: &["orlop-config"], must_not_use: IMPURE },
    Room {
        name: "agent-volumes",
        directory: "agent/volumes",
        may_use: &["agent-types", "orlop-config"],
        must_not_use: IMPURE,
    },
    Room {
        name: "agent-managers",
        directory: "agent/managers",
        may_use: &["orlop-config"],
        must_not_use: IMPURE,
    },
    Room {
        name: "agent-kubelet-api",
        directory: "agent/kubelet-api",
        may_use: &["agent-types", "agent-volumes", "orlop-config"],
        must_not_use: IMPURE,
    },
    Room {
        name: "agent-core",
        directory: "agent/core",
        may_use: &["agent-kubelet-api", "agent-managers", "agent-types", "agent-volumes", "orlop-config"],
        must_not_use: IMPURE,
    },
    Room {
        name: "agent-cri",
        directory: "agent/cri",
        may_use: &["agent-kubelet-api", "agent-types", "agent-volumes", "orlop-config", "orlop-proto"],
        must_not_use: &["nix", "libc", "rustix", "inotify"],
    },
    Room {
        name: "agent-apiserver",
        directory: "agent/apiserver",
        may_use: &["agent-kubelet-api", "agent-types", "agent-volumes", "orlop-config", "orlop-files"],
        must_not_use: &["nix", "libc", "rustix", "inotify"],
    },
    Room {
        name: "agent-linux",
        directory: "agent/linux",
        may_use: &[
            "agent-kubelet-api",
            "agent-managers",
            "agent-types",
            "agent-volumes",
            "orlop-config",
            "orlop-files",
            "orlop-proto",
        ],
        must_not_use: &["tonic", "axum"],
    },
    Room {
        name: "agent-plugins",
        directory: "agent/plugins",
        may_use: &["agent-kubelet-api", "agent-types", "agent-volumes", "orlop-proto"],
        must_not_use: &["nix", "libc", "rustix", "inotify"],
    },
    Room {
        name: "agent-provision",
        directory: "agent/provision",
        may_use: &["orlop-config", "orlop-files"],
        must_not_use: &["nix", "libc", "rustix", "inotify", "tonic", "axum"],
    },
    Room {
        name: "agent-server",
        directory: "agent/server",
        may_use: &["agent-kubelet-api", "agent-types", "agent-volumes", "orlop-config", "orlop-proto"],
        must_not_use: &["nix", "libc", "rustix", "inotify"],
    },
    Room {
        name: "orlop-files",
        directory: "agent/files",
        may_use: &["orlop-config"],
        must_not_use: &["tokio", "nix", "libc", "rustix"],
    },
    Room {
        name: "orlop-update",
        directory: "agent/update",
        may_use: &["orlop-config", "orlop-files", "orlop-init"],
        must_not_use: &["libc", "rustix", "inotify", "tonic", "axum"],
    },
    Room {
        name: "orlop-node-api",
        directory: "agent/node-api",
        may_use: &[
            "agent-core",
            "agent-kubelet-api",
            "agent-linux",
            "agent-types",
            "orlop-config",
            "orlop-files",
            "orlop-proto",
            // What the updater is asked for over its socket.
            "orlop-update",
        ],
        must_not_use: &["libc", "rustix", "inotify", "axum", "hyper"],
    },
    Room {
        name: "orlopctl",
        directory: "agent/ctl",
        may_use: &["orlop-config", "orlop-proto"],
        must_not_use: &["nix", "libc", "rustix", "inotify", "axum", "anyhow"],
    },
    Room {
        name: "orlop-netlink",
        directory: "agent/netlink",
        may_use: &[],
        must_not_use: &["tokio", "serde_json", "libc", "rustix"],
    },
    Room {
        name: "orlop-cni",
        directory: "agent/cni",
        may_use: &["orlop-config", "orlop-netlink"],
        must_not_use: &["tokio", "libc", "rustix", "tracing", "clap"],
    },
    Room {
        name: "orlop-agent",
        directory: "agent/daemon",
        may_use: &[
            "agent-apiserver",
            "agent-core",
            "agent-cri",
            "agent-kubelet-api",
            "agent-managers",
            "agent-types",
            "agent-volumes",
            "agent-linux",
            "agent-plugins",
            "agent-provision",
            "agent-server",
            "orlop-config",
            "orlop-node-api",
            "orlop-proto",
            "orlop-update",
        ],
        must_not_use: &["libc"],
    },
    Room {
        name: "agent-sim",
        directory: "agent/sim",
        may_use: &[
            "agent-core",
            "agent-kubelet-api",
            "agent-managers",
            "agent-types",
            "agent-volumes",
            "orlop-config",
            // The arbiter and the guard of its `plan`, which is pure.
            "orlop-init",
        ],
        must_not_use: IMPURE,
    },
    Room {
        name: "agent-faults",
        directory: "agent/faults",
        may_use: &["orlop-config"],
        must_not_use: &["tokio"],
    },
    Room {
        name: "agent-features",
        directory: "agent/features",
        may_use: &["agent-apiserver", "agent-cri", "agent-plugins", "orlop-config", "orlop-proto"],
        must_not_use: &[],
    },
    Room { name: "agent-tidy", directory: "agent/tidy", may_use: &[], must_not_use: &["tokio"] },
    Room {
        name: "orlop-init",
        directory: "init",
        may_use: &["orlop-config", "orlop-files", "orlop-netlink"],
        must_not_use: &["tokio", "tonic", "clap", "tracing-subscriber"],
    },
    Room {
        name: "orlop-image",
        directory: "image",
        may_use: &["orlop-config", "orlop-files", "orlop-init", "orlop-update"],
        must_not_use: &[],
    },
    Room {
        name: "orlop-harness",
        directory: "qemu-tests/harness",
        may_use: &["agent-provision", "orlop-config", "orlop-image", "orlop-proto"],
        must_not_use: &[],
    },
    Room {
        name: "orlop-qemu-tests",
        directory: "qemu-tests",
        may_use: &["orlop-config", "orlop-harness", "orlop-image", "orlop-init", "orlop-proto"],
        must_not_use: &[],
    },
];

/// What tests of any crate may use of ours in addition: the library of fakes, the crates it stands on, and the kernel
/// that refuses.
const TESTS_MAY_USE: &[&str] = &[
    "agent-sim",
    "agent-faults",
    "agent-core",
    "agent-kubelet-api",
    "agent-types",
    "agent-volumes",
    "agent-cri",
    "agent-linux",
    "orlop-config",
    "orlop-proto",
];

/// Banned as direct dependencies, with the reason.
const BANNED: &[(&str, &str)] = &[
    ("openssl", "one TLS provider: rustls with ring"),
    ("native-tls", "one TLS provider: rustls with ring"),
    ("serde_yaml", "unmaintained: orlop_config::yaml"),
    ("async-trait", "async fn in traits is in the language"),
];

/// Checks `cargo metadata --no-deps --format-version 1`.
///
/// # Errors
/// The text is no such document.
pub fn directions(metadata: &str) -> Result<Vec<Finding>, serde_json::Error> {
    let metadata: Value = serde_json::from_str(metadata)?;
    let mut findings = Vec::new();
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(room) = ROOMS.iter().find(|r| r.name == name) else {
            findings.push(Finding::new(
                name,
                0,
                "is no crate of the plan: agent/tidy/src/crates.rs lists them",
            ));
            continue;
        };
        let manifest = format!("{}/Cargo.toml", room.directory);
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if let Some(message) = judge(room, dependency) {
                findings.push(Finding::new(&manifest, 0, message));
            }
        }
    }
    for room in ROOMS {
        if !packages.iter().any(|p| p["name"] == room.name) {
            findings.push(Finding::new(
                room.directory,
                0,
                format!("crate {} of the plan is missing", room.name),
            ));
        }
    }
    Ok(findings)
}

fn judge(room: &Room, dependency: &Value) -> Option<String> {
    let name = dependency["name"].as_str()?;
    if let Some((_, reason)) = BANNED.iter().find(|(banned, _)| *banned == name) {
        return Some(format!("{name} is banned as a direct dependency: {reason}"));
    }
    let in_tests = dependency["kind"] == "dev";
    if ROOMS.iter().any(|r| r.name == name) {
        // Optional: behind a feature that only tests turn on.
        let for_tests = (in_tests || dependency["optional"] == true)
            && (name == room.name || TESTS_MAY_USE.contains(&name));
        // The fake API server over TLS is the client's, and stands in for the API server that the node's API asks.
        let for_tests = for_tests || (in_tests && (room.name, name) == ("agent-server", "agent-apiserver"));
        // The command line is asked against the server itself.
        let for_tests = for_tests || (in_tests && (room.name, name) == ("orlopctl", "orlop-node-api"));
        let allowed = for_tests || room.may_use.contains(&name);
        return (!allowed)
            .then(|| format!("{} may not use {name}; it may use: {}", room.name, room.may_use.join(", ")));
    }
    (!in_tests && room.must_not_use.contains(&name))
        .then(|| format!("{} does without {name} (docs/internals/architecture.md, Crates)", room.name))
}

/// Every crate stands in the table of docs/internals/architecture.md.
#[must_use]
pub fn documented(architecture: &str) -> Vec<Finding> {
    ROOMS
        .iter()
        .filter(|r| !architecture.lines().any(|l| l.starts_with(&format!("| `{}` |", r.directory))))
        .map(|r| {
            Finding::new(
                "docs/internals/architecture.md",
                0,
                format!("the table of crates lacks `{}`", r.directory),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata in which every crate exists and `name` has one more dependency.
    fn with(name: &str, dependency: &str, kind: &str) -> String {
        let packages: Vec<String> = ROOMS
            .iter()
            .map(|r| {
                let dependencies = if r.name == name {
                    format!(r#"{{"name":"{dependency}","kind":{kind}}}"#)
                } else {
                    String::new()
                };
                format!(r#"{{"name":"{}","dependencies":[{dependencies}]}}"#, r.name)
            })
            .collect();
        format!(r#"{{"packages":[{}]}}"#, packages.join(","))
    }

    #[test]
    fn directions_are_those_of_the_table() {
        let table = [
            ("agent-core", "orlop-config", "null", true),
            ("agent-core", "agent-linux", "null", false),
            ("agent-core", "tokio", "null", false),
            ("agent-cri", "agent-linux", "null", false),
            ("agent-linux", "agent-server", "null", false),
            ("agent-server", "agent-types", "null", true),
            ("agent-server", "agent-core", "null", false),
            ("agent-types", "agent-core", "null", false),
            ("agent-volumes", "agent-kubelet-api", "null", false),
            ("agent-server", "agent-apiserver", "null", false),
            ("agent-server", "agent-apiserver", "\"dev\"", true),
            ("orlop-agent", "agent-server", "null", true),
            ("orlopctl", "orlop-node-api", "null", false),
            ("orlopctl", "orlop-node-api", "\"dev\"", true),
            ("orlop-node-api", "agent-server", "null", false),
            ("orlop-agent", "agent-sim", "null", false),
            ("orlop-agent", "agent-sim", "\"dev\"", true),
            ("orlop-agent", "orlop-image", "null", false),
            ("orlop-config", "agent-core", "null", false),
            ("orlop-init", "tokio", "null", false),
            ("orlop-init", "serde_yaml", "\"dev\"", false),
            ("agent-cri", "async-trait", "null", false),
            ("agent-core", "proptest", "\"dev\"", true),
        ];
        for (name, dependency, kind, good) in table {
            let findings = directions(&with(name, dependency, kind)).unwrap();
            assert_eq!(findings.is_empty(), good, "{name} -> {dependency} ({kind}): {findings:?}");
        }
    }

    #[test]
    fn strange_and_missing_crates_are_found() {
        let findings = directions(r#"{"packages":[{"name":"agent-extra","dependencies":[]}]}"#).unwrap();
        assert_eq!(findings.len(), 1 + ROOMS.len());
        assert!(directions("{").is_err());
        assert_eq!(directions("{}").unwrap().len(), ROOMS.len());
    }

    #[test]
    fn an_undocumented_crate_is_found() {
        assert_eq!(documented("| `config` | nothing |\n").len(), ROOMS.len() - 1);
    }
}
