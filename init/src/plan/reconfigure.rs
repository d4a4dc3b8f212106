//! What `orlop-init configure` and `orlop-init change` change: whether there is something to do, which files of the last configuration
//! go, and which services read a file that changes.

use super::step::BootStep;
use orlop_config::node::derive::{CREDENTIAL_PROVIDERS_FILE, ENVIRONMENT_FILE, JOIN_FILE, UPDATE_FILE};
use orlop_config::platform::{PlatformReport, UserDataState};
use serde_json::Value;

/// The file that `orlop-init resolv` fills in as well.
pub const RESOLV_CONF: &str = "/run/orlop/resolv.conf";
/// The effective configuration with its problems.
pub const NODE_CONFIG: &str = "/run/orlop/node-config.json";
/// The NodeConfig that follows from the platform's facts, next to the sources as found.
pub const FACTS_FILE: &str = "/run/orlop/config/05-platform.yaml";
/// Where files are that a configuration alone brings.
const BROUGHT: [&str; 3] =
    ["/run/", "/var/lib/orlop/kubernetes/manifests/", "/var/lib/orlop/containerd/certs.d/"];
/// What containerd reads at its start only.
const CONTAINERD: [&str; 3] = ["/run/orlop/containerd/", ENVIRONMENT_FILE, "/run/orlop/trust/"];
/// What the agent reads at its start only.
const AGENT: [&str; 7] = [
    "/run/orlop/kubelet.yaml",
    "/run/orlop/agent.env",
    JOIN_FILE,
    CREDENTIAL_PROVIDERS_FILE,
    UPDATE_FILE,
    ENVIRONMENT_FILE,
    "/run/orlop/trust/",
];
/// What networkd reads.
const NETWORK: &str = "/run/systemd/network/";
/// What timesyncd reads.
const TIME: &str = "/run/systemd/timesyncd.conf.d/";
/// Settings and modules of the kernel.
const KERNEL: [&str; 2] = ["/run/sysctl.d/", "/run/modules-load.d/"];

/// Services that have to take new files, and the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restarts {
    /// networkd.
    pub network: bool,
    /// containerd.
    pub containerd: bool,
    /// timesyncd.
    pub time: bool,
    /// The agent.
    pub agent: bool,
    /// The kernel. An add-on may have changed settings of the image, so they are not set without need.
    pub kernel: bool,
}

impl Restarts {
    /// Those of both.
    #[must_use]
    pub fn and(self, other: Restarts) -> Restarts {
        Restarts {
            network: self.network || other.network,
            containerd: self.containerd || other.containerd,
            time: self.time || other.time,
            agent: self.agent || other.agent,
            kernel: self.kernel || other.kernel,
        }
    }
}

/// The file with what follows from the platform's facts.
#[must_use]
pub fn facts_file(facts: Option<&str>) -> Option<BootStep> {
    let content = facts?.as_bytes().to_vec();
    Some(BootStep::WriteFile { path: FACTS_FILE.into(), mode: 0o600, content })
}

/// What the ledger says of a platform that has given no answer that counts; `None` if it has given one, or is not asked.
#[must_use]
pub fn unanswered(report: &PlatformReport) -> Option<String> {
    let is_pending = report.user_data == UserDataState::Pending;
    is_pending.then(|| report.problem.clone().unwrap_or_else(|| "no answer yet".to_owned()))
}

/// What init had to say before it merged, from the problems of [`NODE_CONFIG`]: the file is written again, and they still hold.
#[must_use]
pub fn said(node_config: &str) -> Vec<String> {
    let document: Value = serde_json::from_str(node_config).unwrap_or_default();
    let problems = document["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_init = problems.iter().filter(|problem| problem["source"] == "init");
    of_init.filter_map(|problem| Some(problem["reason"].as_str()?.to_owned())).collect()
}

/// Whether a source is not what the node runs with. `read` gives what is in a file.
#[must_use]
pub fn pending(sources: &[BootStep], read: impl Fn(&str) -> Option<Vec<u8>>) -> bool {
    sources.iter().any(|step| changes(step, &read))
}

/// Steps that remove what the last configuration brought and the new one does not have: files below /run, manifests of static pods,
/// files of registries, and `files`. A source that is refused keeps none of these: it is refused in both.
#[must_use]
pub fn stale(before: &[BootStep], after: &[BootStep]) -> Vec<BootStep> {
    let written = |path: &str| {
        after.iter().any(|step| matches!(step, BootStep::WriteFile { path: p, .. } if p == path))
    };
    let placed =
        |path: &str| after.iter().any(|step| matches!(step, BootStep::PlaceFile(file) if file.path == path));
    let brought = |path: &str| path != RESOLV_CONF && BROUGHT.iter().any(|start| path.starts_with(start));
    let gone = before.iter().filter_map(|step| match step {
        BootStep::WriteFile { path, .. } if brought(path) && !written(path) => {
            Some(BootStep::RemoveFile(path.clone()))
        }
        BootStep::PlaceFile(file) if !placed(&file.path) => {
            Some(BootStep::RemovePlacedFile { path: file.path.clone(), below_var: file.below_var.clone() })
        }
        _ => None,
    });
    gone.collect()
}

/// What these steps write to a file.
#[must_use]
pub fn content(steps: &[BootStep], path: &str) -> Option<Vec<u8>> {
    steps.iter().rev().find_map(|step| match step {
        BootStep::WriteFile { path: p, content, .. } if p == path => Some(content.clone()),
        _ => None,
    })
}

/// The services that read what these steps change. `read` gives what was in a file before.
#[must_use]
pub fn restarts(steps: &[BootStep], read: impl Fn(&str) -> Option<Vec<u8>>) -> Restarts {
    let touched = |prefixes: &[&str]| {
        let mut concerned = steps.iter().filter(|step| {
            step.path().is_some_and(|path| prefixes.iter().any(|prefix| path.starts_with(prefix)))
        });
        concerned.any(|step| changes(step, &read))
    };
    Restarts {
        network: touched(&[NETWORK]),
        containerd: touched(&CONTAINERD),
        time: touched(&[TIME]),
        agent: touched(&AGENT),
        kernel: touched(&KERNEL),
    }
}

fn changes(step: &BootStep, read: &impl Fn(&str) -> Option<Vec<u8>>) -> bool {
    match step {
        BootStep::WriteFile { path, content, .. } => read(path).as_ref() != Some(content),
        BootStep::RemoveFile(path) => read(path).is_some(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_config::node::PlacedFile;

    fn write(path: &str, content: &str) -> BootStep {
        BootStep::WriteFile { path: path.into(), mode: 0o600, content: content.as_bytes().to_vec() }
    }

    fn place(path: &str) -> BootStep {
        let below_var = path.replacen("/etc/kubernetes", "lib/orlop/kubernetes", 1);
        let (mode, uid, gid, content) = (0o600, 0, 0, Vec::new());
        BootStep::PlaceFile(PlacedFile { path: path.into(), below_var, mode, uid, gid, content })
    }

    fn disk(path: &str) -> Option<Vec<u8>> {
        let files = [("/run/orlop/config/10-image.yaml", "i"), ("/run/systemd/network/10-a.network", "dhcp")];
        files.iter().find(|(name, _)| *name == path).map(|(_, text)| text.as_bytes().to_vec())
    }

    #[test]
    fn a_source_that_the_node_runs_with_is_nothing_to_do() {
        let image = write("/run/orlop/config/10-image.yaml", "i");
        assert!(!pending(std::slice::from_ref(&image), disk));
        assert!(pending(&[image.clone(), write("/run/orlop/config/35-metadata.yaml", "m")], disk));
        let facts = facts_file(Some("node: {}"));
        assert!(pending(&facts.into_iter().chain([image]).collect::<Vec<_>>(), disk));
        assert_eq!(facts_file(None), None);
    }

    #[test]
    fn an_answer_that_is_missing_is_named() {
        use orlop_config::platform::PlatformName;
        let report = |state| PlatformReport::new(PlatformName::Aws, state);
        for state in
            [UserDataState::Local, UserDataState::None, UserDataState::Kept, UserDataState::Unsupported]
        {
            assert_eq!(unanswered(&report(state)), None, "{state:?}");
        }
        let mut pending = report(UserDataState::Pending);
        assert_eq!(unanswered(&pending).as_deref(), Some("no answer yet"));
        pending.problem = Some("REFUSED".into());
        assert_eq!(unanswered(&pending).as_deref(), Some("REFUSED"));
    }

    #[test]
    fn what_init_said_is_said_again() {
        let document =
            r#"{"problems": [{"source": "init", "reason": "a"}, {"source": "ESP", "reason": "b"}, 7]}"#;
        assert_eq!(said(document), ["a"]);
        for nothing in ["", "[", "{}", r#"{"problems": [{"source": "init"}]}"#] {
            assert!(said(nothing).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn what_only_the_last_configuration_has_goes() {
        let before = [
            write("/run/systemd/network/10-a.network", "dhcp"),
            write("/run/orlop/hostname", "a"),
            write(RESOLV_CONF, ""),
            write("/var/lib/orlop/x", ""),
            write("/var/lib/orlop/kubernetes/manifests/orlop-web.yaml", "pod"),
            place("/etc/kubernetes/a.crt"),
            place("/etc/kubernetes/b.crt"),
        ];
        let after = [write("/run/orlop/hostname", "b"), place("/etc/kubernetes/b.crt")];
        let gone = BootStep::RemoveFile("/run/systemd/network/10-a.network".into());
        let expected = [
            gone.clone(),
            BootStep::RemoveFile("/var/lib/orlop/kubernetes/manifests/orlop-web.yaml".into()),
            BootStep::RemovePlacedFile {
                path: "/etc/kubernetes/a.crt".into(),
                below_var: "lib/orlop/kubernetes/a.crt".into(),
            },
        ];
        assert_eq!(stale(&before, &after), expected);
        assert_eq!(restarts(&[gone], disk), Restarts { network: true, ..Restarts::default() });
    }

    #[test]
    fn a_service_takes_what_a_call_before_this_one_has_written() {
        let before = [write("/run/systemd/network/10-a.network", "dhcp"), write("/run/orlop/hostname", "a")];
        let after = [write("/run/systemd/network/20-b.network", "static"), write("/run/orlop/hostname", "b")];
        let steps: Vec<BootStep> = stale(&before, &after).into_iter().chain(after).collect();
        let services = restarts(&steps, |path| content(&before, path));
        assert_eq!(services, Restarts { network: true, ..Restarts::default() });
        assert_eq!(restarts(&before, |path| content(&before, path)), Restarts::default());
        assert_eq!(content(&before, "/run/orlop/hostname"), Some(b"a".to_vec()));
    }

    #[test]
    fn a_service_takes_what_changes_only() {
        let same = write("/run/systemd/network/10-a.network", "dhcp");
        assert_eq!(restarts(&[same, write("/run/orlop/hostname", "b")], disk), Restarts::default());
        for (path, agent) in [
            ("/run/orlop/containerd/pod-network.toml", false),
            (ENVIRONMENT_FILE, true),
            ("/run/orlop/trust/a.pem", true),
        ] {
            let wanted = Restarts { containerd: true, agent, ..Restarts::default() };
            assert_eq!(restarts(&[write(path, "x")], disk), wanted, "{path}");
        }
        for path in ["/run/orlop/kubelet.yaml", "/run/orlop/agent.env", JOIN_FILE, UPDATE_FILE] {
            let wanted = Restarts { agent: true, ..Restarts::default() };
            assert_eq!(restarts(&[write(path, "x")], disk), wanted, "{path}");
            let network = Restarts { network: true, ..Restarts::default() };
            assert_eq!(wanted.and(network), Restarts { network: true, ..wanted });
        }
        let servers = write("/run/systemd/timesyncd.conf.d/10-orlop.conf", "x");
        assert_eq!(restarts(&[servers], disk), Restarts { time: true, ..Restarts::default() });
        for path in ["/run/sysctl.d/90-orlop.conf", "/run/modules-load.d/90-orlop.conf"] {
            let kernel = Restarts { kernel: true, ..Restarts::default() };
            assert_eq!(restarts(&[write(path, "x")], disk), kernel, "{path}");
            assert_eq!(Restarts::default().and(kernel), kernel);
        }
    }
}
