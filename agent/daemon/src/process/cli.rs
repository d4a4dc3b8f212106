//! The command line and the configuration files: all settings of the agent at its start.
//!
//! In: arguments, `--config`, `--config-dir`, `--node-config`. Out: [`Settings`], or every mistake at once.
//! The order is upstream's (`NewKubeletCommand` of cmd/kubelet/app/server.go): read flags, merge files, apply
//! flags over them, then validate all. The decisions are in [`orlop_config::kubelet`]; this module reads
//! files.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use orlop_config::ConfigError;
use orlop_config::kubelet::flags::args::{self, Options};
use orlop_config::kubelet::{DROP_IN_EXTENSION, DropIn, FeatureGates, load_kubelet_config_with, unread};
use orlop_config::node::{PODS_PER_SHIM_MAX, Runtime};
use serde_json::Value;

use crate::pods::url_source::Manifests;
use crate::process::cluster_settings;
use crate::settings::Settings;

/// File of the effective node configuration, written by init.
const NODE_CONFIG: &str = "/run/orlop/node-config.json";

/// The text of `--help`.
pub const HELP: &str = "\
orlop-agent: the node agent, a complete kubelet

Usage: orlop-agent --config FILE [FLAGS]

  --config FILE               KubeletConfiguration (kubelet.config.k8s.io/v1beta1)
  --config-dir DIR            drop-ins (*.conf), merged over it in lexical order
  --root-dir DIR              data directory (/var/lib/kubelet)
  --hostname-override NAME    node name (default: the host's name)
  --node-ip IP[,IP]           node addresses (default: of the default route)
  --kubeconfig FILE           identity in a cluster (default: none, a standalone node)
  --bootstrap-kubeconfig FILE credentials to ask for that identity
  --join FILE                 the same as a first-boot token: server, token, caData, caCertHashes
  --cert-dir DIR              certificates and keys (/var/lib/kubelet/pki)
  --cloud-provider external   a cloud controller manager initialises the node
  --node-labels K=V[,K=V]     labels at registration
  --node-config FILE          node configuration of the appliance (/run/orlop/node-config.json)
  --v N                       verbosity: 0 what changes, 2 every call, 6 everything
  --version, --help

Every flag of upstream that stands for a configuration field works as well.
Environment: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID.
";

/// The command to run.
#[derive(Clone, Debug)]
pub enum Command {
    /// Print this and end.
    Print(String),
    /// Run.
    Run(Box<Settings>),
}

/// Reads the arguments after the program's name, and the files that the arguments name.
///
/// # Errors
/// All mistakes of the first failing stage; each names flag or file, path, value and the allowed values.
pub fn command(arguments: Vec<String>) -> anyhow::Result<Command> {
    let given = given(&arguments);
    let (node_config, rest) = take_flag("--node-config", arguments)?;
    let (join, rest) = cluster_settings::take_join(rest)?;
    let parsed = args::parse(&rest)?;
    if parsed.options.help {
        return Ok(Command::Print(HELP.to_owned()));
    }
    if parsed.options.version {
        return Ok(Command::Print(format!("orlop-agent {}\n", env!("CARGO_PKG_VERSION"))));
    }
    supported(&parsed.options)?;
    let base = parsed.options.config.as_deref().map(|path| read(Path::new(path)).map(|text| (text, path)));
    let base = base.transpose()?;
    let drop_ins = parsed.options.config_dir.as_deref().map(|d| drop_ins(Path::new(d))).transpose()?;
    let kubelet = load_kubelet_config_with(
        base.as_ref().map(|(text, path)| (text.as_str(), *path)),
        &drop_ins.unwrap_or_default(),
        &parsed.overlay,
    )?;
    // The error does not name the file, the drop-in or the flag: the merged configuration has no record of them.
    ConfigError::check(unread::refused(&kubelet, "the kubelet's configuration"))?;
    Manifests::of(&kubelet)?;
    let mut warnings: Vec<String> =
        parsed.options.ignored.iter().map(|flag| format!("--{flag} has no effect")).collect();
    warnings.extend(unread::noted(&kubelet));
    let mut cluster = cluster_settings::read(&parsed.options, join.as_deref())?;
    if cluster.is_some()
        && let Some(reason) = cluster_settings::forbidden()
    {
        warnings.push(reason.to_string());
        cluster = None;
    }
    if !parsed.options.node_labels.is_empty() && (cluster.is_none() || !kubelet.register_node) {
        warnings.push("--node-labels is for admission only: this node registers nowhere".to_owned());
    }
    let of_node = match of_node(node_config.as_deref()) {
        Ok(of_node) => of_node,
        Err(e) => {
            // The node configuration decides about the console and the shims only; the node itself can do without.
            warnings.push(format!("{e:#}"));
            OfNode::default()
        }
    };
    Ok(Command::Run(Box::new(Settings {
        gates: FeatureGates::of(&kubelet),
        kubelet,
        options: parsed.options,
        cluster,
        pod_output: of_node.pod_output,
        pods_per_shim: of_node.pods_per_shim,
        given,
        warnings,
    })))
}

/// Names and values of flags; a switch without a value is on. The headers of `staticPodURL` are secret.
fn given(arguments: &[String]) -> Vec<(String, String)> {
    let mut flags = Vec::new();
    for (at, argument) in arguments.iter().enumerate().filter(|(_, a)| a.starts_with('-')) {
        let next = arguments.get(at + 1).filter(|next| !next.starts_with('-'));
        let (name, value) =
            argument.split_once('=').unwrap_or((argument, next.map_or("true", String::as_str)));
        let name = name.trim_start_matches('-').to_owned();
        let shown = if name.replace('_', "-") == "manifest-url-header" { "<secret>" } else { value };
        flags.push((name, shown.to_owned()));
    }
    flags
}

/// Takes a flag that upstream does not have out of the arguments; returns its value and the other arguments.
pub(crate) fn take_flag(
    flag: &str,
    arguments: Vec<String>,
) -> anyhow::Result<(Option<PathBuf>, Vec<String>)> {
    let mut path = None;
    let mut rest = Vec::with_capacity(arguments.len());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let name = argument.split('=').next().unwrap_or_default().replace('_', "-");
        if name != flag {
            rest.push(argument);
        } else if let Some((_, value)) = argument.split_once('=') {
            path = Some(PathBuf::from(value));
        } else {
            path = Some(PathBuf::from(arguments.next().with_context(|| format!("{flag}: needs a value"))?));
        }
    }
    Ok((path, rest))
}

/// Refuses flags that the agent does not implement: a node that ignores them silently would surprise its administrator
/// later.
fn supported(options: &Options) -> anyhow::Result<()> {
    let given =
        [("lock-file", options.lock_file.is_some()), ("runtime-cgroups", options.runtime_cgroups.is_some())];
    let missing: Vec<String> = given.iter().filter(|(_, g)| *g).map(|(n, _)| format!("--{n}")).collect();
    if !missing.is_empty() {
        bail!("{}: not supported yet (docs/status.md)", missing.join(", "));
    }
    if !options.root_dir.starts_with('/') {
        bail!("--root-dir: {:?} is not an absolute path", options.root_dir);
    }
    Ok(())
}

/// Every `*.conf` below `directory`, in lexical order of the whole path.
fn drop_ins(directory: &Path) -> anyhow::Result<Vec<DropIn>> {
    let mut paths = Vec::new();
    collect(directory, &mut paths)?;
    paths.sort();
    paths
        .into_iter()
        .map(|path| Ok(DropIn { text: read(&path)?, path: path.display().to_string() }))
        .collect()
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("--config-dir: read {}", directory.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("--config-dir: read {}", directory.display()))?;
        let path = entry.path();
        let kind = entry.file_type().with_context(|| format!("--config-dir: stat {}", path.display()))?;
        if kind.is_dir() {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|e| e == DROP_IN_EXTENSION) {
            paths.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read configuration {}", path.display()))
}

/// The agent's part of the effective node configuration.
struct OfNode {
    pod_output: bool,
    pods_per_shim: u32,
}

impl Default for OfNode {
    fn default() -> OfNode {
        OfNode { pod_output: false, pods_per_shim: Runtime::default().pods_per_shim }
    }
}

/// `console.podOutput` and `runtime.podsPerShim`; the defaults on a machine without a node configuration.
fn of_node(given: Option<&Path>) -> anyhow::Result<OfNode> {
    let path = given.unwrap_or(Path::new(NODE_CONFIG));
    let text = match std::fs::read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && given.is_none() => return Ok(OfNode::default()),
        text => text.with_context(|| format!("read node configuration {}", path.display()))?,
    };
    let document: Value = serde_json::from_str(&text)
        .with_context(|| format!("parse node configuration {}", path.display()))?;
    let value = |at: &str| document.pointer(&format!("/config{at}")).or_else(|| document.pointer(at));
    let default = OfNode::default();
    let pods_per_shim = match value("/runtime/podsPerShim") {
        None => default.pods_per_shim,
        Some(pods) => {
            let fits = pods.as_i64().filter(|pods| (1..=PODS_PER_SHIM_MAX).contains(pods));
            let fits = fits.and_then(|pods| u32::try_from(pods).ok());
            fits.with_context(|| {
                format!(
                    "{}: runtime.podsPerShim: {pods} must be an integer between 1 and {PODS_PER_SHIM_MAX}",
                    path.display()
                )
            })?
        }
    };
    let pod_output = value("/console/podOutput").and_then(Value::as_bool).unwrap_or(default.pod_output);
    Ok(OfNode { pod_output, pods_per_shim })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn run(arguments: &[&str]) -> anyhow::Result<Command> {
        command(arguments.iter().map(|a| (*a).to_owned()).collect())
    }

    fn settings(arguments: &[&str]) -> Settings {
        match run(arguments).unwrap() {
            Command::Run(settings) => *settings,
            Command::Print(text) => panic!("printed {text}"),
        }
    }

    fn refused(arguments: &[&str]) -> String {
        format!("{:#}", run(arguments).unwrap_err())
    }

    #[test]
    fn flags_are_shown_as_they_were_given() {
        let arguments =
            ["--a=1", "--b", "2", "--on", "--c=", "-v", "4", "--manifest-url-header=A:b"].map(str::to_owned);
        let flags: Vec<String> =
            given(&arguments).iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(flags, ["a=1", "b=2", "on=true", "c=", "v=4", "manifest-url-header=<secret>"]);
    }

    #[test]
    fn file_then_drop_ins_then_flags() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("kubelet.yaml");
        std::fs::write(&base, format!("{BASE}maxPods: 10\npodPidsLimit: 100\noomScoreAdj: -5\n")).unwrap();
        let drop_in = dir.path().join("conf.d");
        std::fs::create_dir_all(drop_in.join("20")).unwrap();
        for (name, text) in [
            ("10-a.conf", "maxPods: 20\npodPidsLimit: 200\n"),
            ("20/b.conf", "maxPods: 30\n"),
            ("30-c.yaml", "{"),
        ] {
            std::fs::write(drop_in.join(name), format!("{BASE}{text}")).unwrap();
        }
        let (base, drop_in) = (base.to_str().unwrap(), drop_in.to_str().unwrap());
        let node = dir.path().join("node.json");
        std::fs::write(&node, r#"{"config":{"console":{"podOutput":true}}}"#).unwrap();
        let given = settings(&[
            "--config",
            base,
            "--config_dir",
            drop_in,
            "--oom-score-adj=-7",
            "--node_config",
            node.to_str().unwrap(),
            "--hostname-override",
            "n1",
        ]);
        let k = &given.kubelet;
        assert_eq!((k.max_pods, k.pod_pids_limit, k.oom_score_adj), (30, 200, -7));
        assert_eq!(given.options.hostname_override.as_deref(), Some("n1"));
        assert!(given.pod_output && given.warnings.is_empty(), "{:?}", given.warnings);
        assert_eq!(given.pods_per_shim, 1);
    }

    #[test]
    fn pods_share_shims_as_the_node_configuration_says() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("node.json");
        let given = |pods: &str| {
            std::fs::write(&node, format!("{{\"config\":{{\"runtime\":{{\"podsPerShim\":{pods}}}}}}}"))
                .unwrap();
            settings(&["--node-config", node.to_str().unwrap()])
        };
        for pods in [1_u32, 16, 64] {
            let of = given(&pods.to_string());
            assert_eq!((of.pods_per_shim, of.warnings.len()), (pods, 0), "{:?}", of.warnings);
        }
        for pods in ["0", "65", "-1", "1.5", "\"2\""] {
            let of = given(pods);
            assert_eq!(of.pods_per_shim, 1);
            assert!(
                of.warnings[0].contains("runtime.podsPerShim") && of.warnings[0].contains(pods),
                "{:?}",
                of.warnings
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let bad = dir.path().join("bad.yaml");
        std::fs::write(&bad, format!("{BASE}maxPodz: 10\n")).unwrap();
        for (arguments, words) in [
            (vec!["--no-such-flag"], vec!["no-such-flag"]),
            (vec!["serve"], vec!["unknown command serve"]),
            (vec!["--node-config"], vec!["--node-config", "value"]),
            (vec!["--join"], vec!["--join", "value"]),
            (vec!["--join=/j"], vec!["--join", "needs --kubeconfig"]),
            (
                vec!["--runtime-cgroups", "/x", "--lock-file=/y"],
                vec!["--runtime-cgroups", "--lock-file", "not supported yet"],
            ),
            (vec!["--root-dir", "x"], vec!["--root-dir", "absolute"]),
            (vec!["--config", "/nonexistent.yaml"], vec!["/nonexistent.yaml"]),
            (vec!["--config-dir", "/nonexistent.d"], vec!["/nonexistent.d"]),
            (vec!["--config", bad.to_str().unwrap()], vec!["bad.yaml", "maxPodz"]),
            (vec!["--manifest-url", "file:///x"], vec!["staticPodURL", "http://"]),
            (vec!["--manifest-url", "http://u:p@x/"], vec!["staticPodURL", "staticPodURLHeader"]),
            (
                vec!["--manifest-url", "http://x/", "--manifest-url-header", "a b:secret"],
                vec!["staticPodURLHeader", "\"a b\""],
            ),
        ] {
            let message = refused(&arguments);
            for word in words {
                assert!(message.contains(word), "{arguments:?}: {message}");
            }
        }
    }

    #[test]
    fn help_names_flags_that_there_are() {
        let words = HELP.split([' ', ',', '\n', '[']).filter_map(|word| word.strip_prefix("--"));
        let mut names: Vec<&str> = words.filter(|name| !name.is_empty()).collect();
        assert!(names.len() > 12, "{names:?}");
        // The daemon takes these out before the others are read.
        names.retain(|name| !["join", "node-config"].contains(name));
        for name in names {
            let said = args::parse(&[format!("--{name}=x")]).err().map_or(String::new(), |e| e.to_string());
            assert!(!said.contains("is an unknown flag"), "--{name}: {said}");
        }
    }

    #[test]
    fn a_bad_node_configuration_is_only_a_warning() {
        let given = settings(&["--node-config=/nonexistent.json"]);
        assert!(!given.pod_output);
        assert!(given.warnings[0].contains("/nonexistent.json"), "{:?}", given.warnings);
    }

    #[test]
    fn help_and_version_end_at_once() {
        for (flag, word) in [("--help", "--config"), ("--version", "orlop-agent")] {
            let Command::Print(text) = run(&[flag]).unwrap() else { panic!("ran") };
            assert!(text.contains(word), "{text}");
        }
    }
}
