//! What `orlop-init configure` changes: whether there is something to do, which files of the last configuration go, and which
//! services read a file that changes.

use super::step::BootStep;
use orlop_config::node::derive::ENVIRONMENT_FILE;
use orlop_config::platform::{PlatformReport, UserDataState};
use serde_json::Value;

/// The file that `orlop-init resolv` fills in as well.
pub const RESOLV_CONF: &str = "/run/orlop/resolv.conf";
/// The effective configuration with its problems.
pub const NODE_CONFIG: &str = "/run/orlop/node-config.json";
/// The NodeConfig that follows from the platform's facts, next to the sources as found.
const FACTS_FILE: &str = "/run/orlop/config/05-platform.yaml";
/// What containerd reads at its start only.
const CONTAINERD: [&str; 3] = ["/run/orlop/containerd/", ENVIRONMENT_FILE, "/run/orlop/trust/"];
/// What networkd reads.
const NETWORK: &str = "/run/systemd/network/";
/// What timesyncd reads.
const TIME: &str = "/run/systemd/timesyncd.conf.d/";

/// Services that have to take new files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restarts {
    /// networkd.
    pub network: bool,
    /// containerd.
    pub containerd: bool,
    /// timesyncd.
    pub time: bool,
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

/// Steps that remove the files below /run of the last configuration that the new one does not have.
#[must_use]
pub fn stale(before: &[BootStep], after: &[BootStep]) -> Vec<BootStep> {
    let written = |steps: &[BootStep], path: &str| {
        steps.iter().any(|step| matches!(step, BootStep::WriteFile { path: p, .. } if p == path))
    };
    let of_run = before.iter().filter_map(|step| match step {
        BootStep::WriteFile { path, .. } if path.starts_with("/run/") && path != RESOLV_CONF => Some(path),
        _ => None,
    });
    let gone = of_run.filter(|path| !written(after, path));
    gone.map(|path| BootStep::RemoveFile(path.clone())).collect()
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
    Restarts { network: touched(&[NETWORK]), containerd: touched(&CONTAINERD), time: touched(&[TIME]) }
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

    fn write(path: &str, content: &str) -> BootStep {
        BootStep::WriteFile { path: path.into(), mode: 0o600, content: content.as_bytes().to_vec() }
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
        ];
        let after = [write("/run/orlop/hostname", "b")];
        let gone = BootStep::RemoveFile("/run/systemd/network/10-a.network".into());
        assert_eq!(stale(&before, &after), std::slice::from_ref(&gone));
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
        for path in ["/run/orlop/containerd/pod-network.toml", ENVIRONMENT_FILE, "/run/orlop/trust/a.pem"] {
            let wanted = Restarts { containerd: true, ..Restarts::default() };
            assert_eq!(restarts(&[write(path, "x")], disk), wanted, "{path}");
        }
        let servers = write("/run/systemd/timesyncd.conf.d/10-orlop.conf", "x");
        assert_eq!(restarts(&[servers], disk), Restarts { time: true, ..Restarts::default() });
    }
}
