//! The configuration phase: sources collected, merged by `orlop_config`, and the run-time files written.
//!
//! `exec::configure` does the same once more after the hand-over, when the platform's metadata service has answered.

use super::error::InitError;
use super::report::Report;
use super::sources::{FoundSources, read_at_most};
use super::steps::{apply, apply_all};
use super::{DEGRADED, files, kept, platform, tpm};
use crate::plan::cmdline::BootArgs;
use crate::plan::install;
use crate::plan::mounts::SYSROOT;
use crate::plan::node_files::{CERTS, CNI, HOSTS_MARKED, Inputs, MANIFESTS, VAR, plan, source_files};
use crate::plan::reconfigure::facts_file;
use crate::plan::step::BootStep;
use crate::plan::swap;
use crate::plan::tpm::{PCR_NODE, config_events};
use orlop_config::Problem;
use orlop_config::error_chain::chain;
use orlop_config::node::{Effective, Source, derive, load};
use orlop_config::platform::{PlatformReport, document};
use std::fs;
use std::path::{Path, PathBuf};

/// Source of the problems of `orlop.set=`.
const SETS: &str = "orlop.set";
/// A larger `hosts.toml` is none that was made here, bytes.
const HOSTS_BYTES_MAX: u64 = 1 << 20;

/// Is a state partition that is about to be made to have project quotas? What is wrong with the configuration is said later.
#[must_use]
pub fn wants_project_quotas(found: &FoundSources, args: &BootArgs) -> bool {
    let sources: Vec<Source> = found.documents.iter().map(source).collect();
    load(&sources, &args.sets).config.storage.project_quotas
}

/// Runs the phase; returns what the ledger says. `is_node`: the disk had a node's state when this boot began, so that it does not
/// install.
///
/// # Errors
/// A run-time file could not be written. What is wrong with the configuration itself is a problem, not an error.
pub fn run(
    report: &mut Report,
    found: &FoundSources,
    args: &BootArgs,
    is_node: bool,
) -> Result<String, InitError> {
    let kept_report = platform::kept(Path::new(SYSROOT), report);
    let facts = platform::counting(kept_report.as_ref());
    let merged = Merged { found, sets: &args.sets, platform: facts, said: report.problems() }.merge();
    let MergeResult { mut effective, refused, facts } = merged;
    let (written, unusable) = match files::written(Path::new(VAR)) {
        Ok(written) => (written, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let stale: &[String] = if refused { &[] } else { &written };
    let missing = missing_files(&effective, Path::new(SYSROOT), stale);
    effective.problems.extend(missing);
    for problem in &effective.problems[report.problems().len()..] {
        report.problem(&format!("configuration: {problem}"));
    }
    if let Some(why) = unusable {
        report.problem(&why);
    }
    measure(report, &effective);
    if let Some(note) = install_too_late(&effective).filter(|_| is_node) {
        report.line(&note);
        report.stamp(install::PHASE, None, &note, true);
    }
    let degraded = Path::new(DEGRADED).exists();
    // Before anything that follows from it: a pod must not find a node that is still at its first boot.
    if !degraded && let Err(e) = kept::write(found, &effective.accepted) {
        report.problem(&chain(&e));
    }
    platform::begin(report, found, kept_report.as_ref(), degraded);
    apply_all(&source_files(&found.documents, &args.sets))?;
    apply_all(facts_file(facts.as_deref()).as_slice())?;
    let machine_id = machine_id();
    let mut failed = None;
    let steps = steps(&effective, (refused, degraded), &written, &machine_id, SYSROOT);
    for step in steps {
        // One that fails (a full /var) must not keep the others from being written.
        if let Err(source) = apply(&step) {
            failed.get_or_insert(InitError::Step { step: step.describe(), source });
        }
    }
    if let Err(e) = set_hostname(&derive::hostname(&effective.config, &machine_id)) {
        // All else of the configuration holds.
        report.problem(&chain(&e));
    }
    let offered: Vec<String> = found.documents.iter().map(|document| document.shown()).collect();
    let refusals = refusals(&offered, &effective);
    match failed {
        Some(e) => Err(e),
        None if !refusals.is_empty() => Err(InitError::Refused(refusals)),
        None if effective.accepted.is_empty() => Ok("no source: defaults".into()),
        None => Ok(effective.accepted.join(", ")),
    }
}

/// Each configuration that counts goes to the TPM. Without a source there is none.
pub(super) fn measure(report: &mut Report, effective: &Effective) {
    if !effective.accepted.is_empty() {
        tpm::measure(report, "the configuration", PCR_NODE, config_events(&effective.measured()));
    }
}

/// What is to be said if a configuration asks a node's disk to install; its source is named.
pub(super) fn install_too_late(effective: &Effective) -> Option<String> {
    let asked = effective.config.install.as_ref()?;
    let source = effective.provenance.get("install.disk").map_or("the configuration", String::as_str);
    Some(install::too_late(asked, source))
}

/// Of this boot; empty if it could not be made.
pub(super) fn machine_id() -> String {
    fs::read_to_string("/run/machine-id").unwrap_or_default().trim().to_string()
}

/// The steps that follow from a configuration and from what is there already; `files` are those that earlier boots placed.
/// `root` is where the node's root is: [`SYSROOT`] before the hand-over, nothing after it.
pub(super) fn steps(
    effective: &Effective,
    (refused, degraded): (bool, bool),
    files: &[String],
    machine_id: &str,
    root: &str,
) -> Vec<BootStep> {
    let below = |path: &str| PathBuf::from(path.replacen(SYSROOT, root, 1));
    let hosts = own_hosts(&below(CERTS), below(HOSTS_MARKED).exists());
    let manifests = names(below(MANIFESTS));
    // What init made of a configuration without the platform's user data is none that an add-on brought.
    let only_own = || root.is_empty() && names(below(CNI)) == ["10-orlop.conflist"];
    let steps = plan(&Inputs {
        effective,
        machine_id,
        degraded,
        refused,
        manifests: &manifests,
        hosts: &hosts,
        files,
        cni_empty: !has_network(&below(CNI)) || only_own(),
        swap_file: below(VAR).join(swap::FILE).exists(),
    });
    if root == SYSROOT { steps } else { steps.into_iter().map(BootStep::handed_over).collect() }
}

/// The refused sources, and the sources that count; empty if every source counts. The mistakes themselves are on the console before.
fn refusals(offered: &[String], effective: &Effective) -> String {
    let by_set = effective.problems.iter().filter(|p| p.source == SETS).count();
    let refused = offered.iter().filter(|origin| !effective.accepted.contains(origin));
    let count = |origin: &String| effective.problems.iter().filter(|p| p.source == *origin).count();
    let all = refused.map(|origin| (origin.as_str(), count(origin)));
    let all = all.chain((by_set > 0).then_some((SETS, by_set)));
    let line = |(origin, n): (&str, usize)| {
        let plural = if n == 1 { "" } else { "s" };
        format!("{origin} REFUSED ({n} mistake{plural} above)")
    };
    let all: Vec<String> = all.map(line).collect();
    if all.is_empty() {
        return String::new();
    }
    let rest = effective.accepted.join(", ");
    let rest = if rest.is_empty() { "the defaults" } else { &rest };
    format!("{}; this node runs with {rest}", all.join(", "))
}

pub(super) fn source(document: &crate::plan::source::Document) -> Source {
    let (name, origin) = (document.kind.name().to_string(), document.shown());
    Source { name, origin, text: document.text.clone() }
}

/// What a merge is made of.
pub(super) struct Merged<'a> {
    /// The sources.
    pub found: &'a FoundSources,
    /// `orlop.set=` of the command line.
    pub sets: &'a [String],
    /// What the platform said about the machine.
    pub platform: Option<&'a PlatformReport>,
    /// What init said before.
    pub said: &'a [String],
}

/// Its result.
pub(super) struct MergeResult {
    /// What counts.
    pub effective: Effective,
    /// Something was refused.
    pub refused: bool,
    /// The NodeConfig that follows from the platform's facts.
    pub facts: Option<String>,
}

impl Merged<'_> {
    /// Merges, and puts what init has to say before what the merge has: all of it is in node-config.json.
    pub(super) fn merge(&self) -> MergeResult {
        let mut sources: Vec<Source> = self.found.documents.iter().map(source).collect();
        let mut effective = load(&sources, self.sets);
        // Which facts count is for the other sources to say.
        let facts = self.platform.and_then(|report| document(&report.facts, &effective.config));
        if let (Some(report), Some(text)) = (self.platform, &facts) {
            let origin = format!("facts of the platform {}", report.platform.name());
            sources.insert(0, Source { name: "platform".into(), origin, text: text.clone() });
            effective = load(&sources, self.sets);
        }
        let offered = sources.len() + self.sets.len();
        let refused = effective.accepted.len() < offered || !self.found.problems.is_empty();
        let own =
            |reason: &String| Problem { source: "init".into(), reason: reason.clone(), ..Problem::default() };
        let before = self.said.iter().map(own).chain(self.found.problems.iter().cloned());
        effective.problems = before.chain(effective.problems.drain(..)).collect();
        MergeResult { effective, refused, facts }
    }
}

/// Files that keys name, and that are not below `root`: a pod may bring them later, so this is no mistake. `stale` are files of
/// an earlier configuration: they go in this boot unless the configuration brings them, too.
pub(super) fn missing_files(effective: &Effective, root: &Path, stale: &[String]) -> Vec<Problem> {
    let is_there = |path: &String| {
        !stale.contains(path) && fs::symlink_metadata(root.join(path.trim_start_matches('/'))).is_ok()
    };
    derive::named_files(effective)
        .into_iter()
        .filter(|(_, path)| !is_there(path))
        .map(|(key, path)| Problem {
            source: "effective".into(),
            path: key.into(),
            value: Some(format!("{path:?}")),
            reason: "is neither in the image nor on the state partition: bring it with files".into(),
            ..Problem::default()
        })
        .collect()
}

fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries =
        fs::read_dir(dir).map(|d| d.flatten().filter_map(|e| e.file_name().into_string().ok()).collect());
    entries.unwrap_or_default()
}

/// Registry hosts whose file was made here. An add-on may have written others: they are its own to remove. With
/// `all_marked` those are an add-on's, too, that only look like a file of an earlier version.
fn own_hosts(dir: &Path, all_marked: bool) -> Vec<String> {
    let made_here = |host: &String| {
        let bytes = read_at_most(&dir.join(host).join("hosts.toml"), HOSTS_BYTES_MAX).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        derive::is_own_hosts(&text) || !all_marked && derive::is_unmarked_hosts(&text)
    };
    names(dir).into_iter().filter(made_here).collect()
}

/// True if there is a configuration of a pod network. One without content is what a power cut leaves of a file.
fn has_network(dir: &Path) -> bool {
    let configures = |entry: &fs::DirEntry| {
        let path = entry.path();
        let named = path.extension().is_some_and(|e| e == "conf" || e == "conflist" || e == "json");
        named && fs::metadata(&path).is_ok_and(|file| file.len() > 0)
    };
    fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(|entry| configures(&entry)))
}

/// systemd keeps a name that is set already when /etc/hostname says the same or is absent.
pub(super) fn set_hostname(name: &str) -> Result<(), InitError> {
    nix::unistd::sethostname(name).map_err(|e| InitError::Kernel("set the host name", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::source::{Document, Kind};
    use orlop_config::platform::{PlatformName, UserDataState};

    #[test]
    fn every_problem_reaches_the_document() {
        let text = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\nnoSuchField: 1\n";
        let origin = "fw_cfg:opt/org.orlop/config".into();
        let bad = Document { kind: Kind::FwCfg, origin, text: text.into(), kept: false };
        let esp = Problem { source: "ESP".into(), reason: "cannot be read".into(), ..Problem::default() };
        let found = FoundSources { documents: vec![bad], problems: vec![esp], ..FoundSources::default() };
        let said = ["state partition is full".to_owned()];
        let MergeResult { effective, refused, .. } =
            Merged { found: &found, sets: &[], platform: None, said: &said }.merge();
        assert!(refused && effective.accepted.is_empty());
        let said: Vec<String> = effective.problems.iter().map(ToString::to_string).collect();
        assert_eq!(said[..2], ["init: state partition is full", "ESP: cannot be read"]);
        assert!(
            said[2].starts_with("fw_cfg:opt/org.orlop/config") && said[2].contains("noSuchField"),
            "{said:?}"
        );
        assert!(effective.document().contains("noSuchField"));
    }

    #[test]
    fn a_file_that_a_key_names_and_nobody_brings_is_told() {
        let root = tempfile::tempdir().expect("temporary directory");
        fs::create_dir_all(root.path().join("etc/kubernetes")).expect("fixture");
        // A link of the image that leads to /run, where nothing is yet.
        std::os::unix::fs::symlink("../run/orlop/resolv.conf", root.path().join("etc/resolv.conf"))
            .expect("fixture");
        fs::write(root.path().join("etc/kubernetes/a.crt"), "").expect("fixture");
        let body = "kubelet: {tlsCertFile: /etc/kubernetes/a.crt, tlsPrivateKeyFile: /etc/kubernetes/a.key}";
        let text = format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}\n");
        let effective = load(&[Source { name: "esp".into(), origin: "ESP".into(), text }], &[]);
        let missing = |stale: &[String]| -> Vec<String> {
            missing_files(&effective, root.path(), stale).iter().map(ToString::to_string).collect()
        };
        let key = "effective: kubelet.tlsPrivateKeyFile: \"/etc/kubernetes/a.key\" is neither in the image nor on the state \
                   partition: bring it with files";
        assert_eq!(missing(&[]), [key]);
        // A file that goes in this boot is as good as gone.
        assert_eq!(missing(&["/etc/kubernetes/a.crt".to_owned()]).len(), 2);
    }

    #[test]
    fn files_of_registries_that_an_add_on_wrote_are_its_own() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let body = "registries: {mirrors: {a: {endpoints: ['http://m']}}}";
        let text = format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}\n");
        let effective = load(&[Source { name: "esp".into(), origin: "ESP".into(), text }], &[]);
        let made = derive::hosts_files(&effective.config).swap_remove(0).text;
        let (_, unmarked) = made.split_once('\n').expect("the mark");
        for (host, text) in
            [("a", made.as_str()), ("b", "server = \"https://b\"\n"), ("c", ""), ("e", unmarked)]
        {
            fs::create_dir(dir.path().join(host)).expect("fixture");
            fs::write(dir.path().join(host).join("hosts.toml"), text).expect("fixture");
        }
        fs::create_dir(dir.path().join("d")).expect("fixture");
        assert_eq!(own_hosts(dir.path(), true), ["a"]);
        // The first boot of a version that marks them takes those of the versions before for its own.
        let mut own = own_hosts(dir.path(), false);
        own.sort();
        assert_eq!(own, ["a", "e"]);
        assert!(own_hosts(&dir.path().join("none"), false).is_empty());
    }

    #[test]
    fn a_file_without_content_is_no_network() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert!(!has_network(&dir.path().join("none")));
        for (name, content, has) in [
            (&*orlop_files::temporary_name("10.conflist".as_ref()), "{}", false),
            ("10-orlop.conflist", "", false),
            ("readme", "{}", false),
            ("20-calico.conflist", "{}", true),
        ] {
            fs::write(dir.path().join(name), content).expect("fixture");
            assert_eq!(has_network(dir.path()), has, "{name}");
        }
    }

    #[test]
    fn a_refused_source_is_named_with_what_counts_instead() {
        let text = |body: &str| format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}");
        let of = |name: &str, body: &str| Source { name: name.into(), origin: name.into(), text: text(body) };
        let offered = ["image".to_owned(), "fw-cfg".to_owned()];
        let refused = |bad: &str, sets: &[String]| {
            refusals(&offered, &load(&[of("image", "labels: {a: b}\n"), of("fw-cfg", bad)], sets))
        };
        assert_eq!(refused("labels: {c: d}\n", &[]), "");
        assert_eq!(
            refused("noSuchField: 1\nnode: {name: Edge_7}\n", &[]),
            "fw-cfg REFUSED (2 mistakes above); this node runs with image"
        );
        assert_eq!(
            refused("", &["kubelet.maxPods=many".to_owned()]),
            "orlop.set REFUSED (1 mistake above); this node runs with image, fw-cfg"
        );
        let alone = load(&[of("fw-cfg", "noSuchField: 1\n")], &[]);
        assert!(refusals(&offered[1..], &alone).ends_with("; this node runs with the defaults"));
    }

    #[test]
    fn install_in_a_node_s_configuration_is_named_with_its_source() {
        let with = |body: &str| {
            let text = format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}");
            install_too_late(&load(&[Source { name: "smbios".into(), origin: "smbios".into(), text }], &[]))
        };
        assert_eq!(with("node: {name: a}"), None);
        let said = with("install: {disk: S1}").expect("asked for");
        assert!(said.contains("\"S1\" of smbios does not count"), "{said}");
    }

    #[test]
    fn nothing_offered_nothing_refused() {
        let found = FoundSources::default();
        let MergeResult { effective, refused, facts } =
            Merged { found: &found, sets: &[], platform: None, said: &[] }.merge();
        assert!(!refused && effective.problems.is_empty() && facts.is_none());
    }

    #[test]
    fn facts_of_the_platform_stand_below_every_document() {
        let mut report = PlatformReport::new(PlatformName::Aws, UserDataState::Kept);
        report.facts.hostname = Some("ip-10-0-0-5".into());
        report.facts.zone = Some("eu-west-1a".into());
        let with = |body: &str| {
            let text = format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}");
            let document = Document { kind: Kind::Metadata, origin: "metadata".into(), text, kept: false };
            let found = FoundSources { documents: vec![document], ..FoundSources::default() };
            Merged { found: &found, sets: &[], platform: Some(&report), said: &[] }.merge()
        };
        let plain = with("");
        assert!(!plain.refused, "{:?}", plain.effective.problems);
        assert_eq!(plain.effective.config.node.name, "ip-10-0-0-5");
        assert_eq!(plain.effective.accepted, ["facts of the platform aws", "metadata"]);
        let named = with("node: {name: n1}\nplatform: {labels: true}\n");
        assert_eq!(named.effective.config.node.name, "n1");
        assert_eq!(named.effective.config.labels["topology.kubernetes.io/zone"], "eu-west-1a");
    }
}
