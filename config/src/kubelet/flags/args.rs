//! The agent's whole command line: flags that are no configuration, and those that are.
//!
//! In: arguments after the program's name. Out: [`Arguments`], or what is wrong. Both `--name=value` and
//! `--name value`, `_` for `-`; a bare boolean flag is true. Upstream term: `KubeletFlags`.

use super::{Form, Overlay, flag, pairs, read_bool};
use crate::formats;
use crate::problem::{ConfigError, Problem};
use serde_json::json;
use std::collections::BTreeMap;

/// Settings that exist as flags only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Configuration file.
    pub config: Option<String>,
    /// Directory of drop-in files.
    pub config_dir: Option<String>,
    /// How to reach the API server; none: standalone.
    pub kubeconfig: Option<String>,
    /// How to ask for the first client certificate.
    pub bootstrap_kubeconfig: Option<String>,
    /// The node's name, instead of the host's.
    pub hostname_override: Option<String>,
    /// The node's address, or an IPv4 and IPv6 pair with a comma between.
    pub node_ip: Option<String>,
    /// Directory of certificates and keys.
    pub cert_dir: String,
    /// `external` or nothing.
    pub cloud_provider: Option<String>,
    /// The agent's data directory.
    pub root_dir: String,
    /// Labels of the node at registration.
    pub node_labels: BTreeMap<String, String>,
    /// File to hold a lock on.
    pub lock_file: Option<String>,
    /// End when another process wants the lock.
    pub exit_on_lock_contention: bool,
    /// The runtime's cgroup.
    pub runtime_cgroups: Option<String>,
    /// Configuration of credential provider plugins.
    pub image_credential_provider_config: Option<String>,
    /// Directory of credential provider plugins.
    pub image_credential_provider_bin_dir: Option<String>,
    /// Show help and end.
    pub help: bool,
    /// Show the version and end.
    pub version: bool,
    /// Flags taken for compatibility that have no effect; worth a line in the log.
    pub ignored: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            config: None,
            config_dir: None,
            kubeconfig: None,
            bootstrap_kubeconfig: None,
            hostname_override: None,
            node_ip: None,
            cert_dir: "/var/lib/kubelet/pki".to_owned(),
            cloud_provider: None,
            root_dir: "/var/lib/kubelet".to_owned(),
            node_labels: BTreeMap::new(),
            lock_file: None,
            exit_on_lock_contention: false,
            runtime_cgroups: None,
            image_credential_provider_config: None,
            image_credential_provider_bin_dir: None,
            help: false,
            version: false,
            ignored: Vec::new(),
        }
    }
}

/// A parsed command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arguments {
    /// What is no configuration.
    pub options: Options,
    /// What wins over the configuration file.
    pub overlay: Overlay,
}

/// Flags that are no configuration, and whether they are boolean.
pub const OPTIONS: [(&str, bool); 17] = [
    ("help", true),
    ("version", true),
    ("exit-on-lock-contention", true),
    ("config", false),
    ("config-dir", false),
    ("kubeconfig", false),
    ("bootstrap-kubeconfig", false),
    ("hostname-override", false),
    ("node-ip", false),
    ("cert-dir", false),
    ("cloud-provider", false),
    ("root-dir", false),
    ("node-labels", false),
    ("lock-file", false),
    ("runtime-cgroups", false),
    ("image-credential-provider-config", false),
    ("image-credential-provider-bin-dir", false),
];

/// Deprecated upstream flags without effect here, and whether they are boolean.
pub const IGNORED: [(&str, bool); 24] = [
    ("application-metrics-count-limit", false),
    ("boot-id-file", false),
    ("container-hints", false),
    ("containerd", false),
    ("containerd-namespace", false),
    ("enable-load-reader", true),
    ("event-storage-age-limit", false),
    ("event-storage-event-limit", false),
    ("experimental-allocatable-ignore-eviction", true),
    ("experimental-mounter-path", false),
    ("global-housekeeping-interval", false),
    ("housekeeping-interval", false),
    ("log-cadvisor-usage", true),
    ("machine-id-file", false),
    ("max-housekeeping-interval", false),
    ("maximum-dead-containers", false),
    ("maximum-dead-containers-per-container", false),
    ("minimum-container-ttl-duration", false),
    ("storage-driver-buffer-duration", false),
    ("storage-driver-db", false),
    ("storage-driver-host", false),
    ("storage-driver-password", false),
    ("storage-driver-secure", true),
    ("storage-driver-user", false),
];

/// Reads the arguments after the program's name.
///
/// # Errors
/// Every unknown flag, missing or wrong value, and positional argument.
pub fn parse<S: AsRef<str>>(args: &[S]) -> Result<Arguments, ConfigError> {
    let mut parsed = Arguments::default();
    let mut problems = Vec::new();
    let mut rest = args.iter().map(AsRef::as_ref);
    while let Some(arg) = rest.next() {
        let Some(name) = arg.strip_prefix("--").or_else(|| short(arg)).filter(|n| !n.is_empty()) else {
            let reason = format!("unknown command {arg}: only flags are allowed");
            problems.push(problem("command line", reason));
            continue;
        };
        let (name, mut value) = match name.split_once('=') {
            Some((name, value)) => (name.replace('_', "-"), Some(value.to_owned())),
            None => (name.replace('_', "-"), None),
        };
        let Some(bare) = is_bare(&name) else {
            problems.push(problem(&format!("--{name}"), "is an unknown flag".to_owned()));
            continue;
        };
        if value.is_none() {
            value = if bare { Some("true".to_owned()) } else { rest.next().map(str::to_owned) };
        }
        match value {
            Some(value) => problems.extend(take(&mut parsed, &name, &value).err()),
            None => problems.push(problem(&format!("--{name}"), "needs a value".to_owned())),
        }
    }
    problems.extend(check_labels(&parsed.options.node_labels));
    if parsed.options.exit_on_lock_contention && parsed.options.lock_file.is_none() {
        problems.push(problem("--exit-on-lock-contention", "needs --lock-file".to_owned()));
    }
    ConfigError::check(problems)?;
    Ok(parsed)
}

/// `-v` and `-h` are the only short flags.
fn short(arg: &str) -> Option<&str> {
    match arg {
        "-h" => Some("help"),
        "-v" => Some("v"),
        arg => arg.strip_prefix('-').filter(|a| a.starts_with("v=")),
    }
}

/// Whether the flag may come without a value; `None`: there is no such flag.
fn is_bare(name: &str) -> Option<bool> {
    if let Some(flag) = flag(name) {
        return Some(flag.form == Form::Bool);
    }
    OPTIONS.iter().chain(&IGNORED).find(|(known, _)| *known == name).map(|(_, bare)| *bare)
}

fn take(parsed: &mut Arguments, name: &str, value: &str) -> Result<(), Problem> {
    let wrong = |reason: &str| Problem {
        source: format!("--{name}"),
        value: Some(json!(value).to_string()),
        reason: reason.to_owned(),
        ..Problem::default()
    };
    let boolean = || read_bool(value).ok_or_else(|| wrong("must be true or false"));
    let text = (!value.is_empty()).then(|| value.to_owned());
    let options = &mut parsed.options;
    match name {
        "help" => options.help = boolean()?,
        "version" => options.version = boolean()?,
        "exit-on-lock-contention" => options.exit_on_lock_contention = boolean()?,
        "config" => options.config = text,
        "config-dir" => options.config_dir = text,
        "kubeconfig" => options.kubeconfig = text,
        "bootstrap-kubeconfig" => options.bootstrap_kubeconfig = text,
        "hostname-override" => options.hostname_override = text,
        "node-ip" => {
            let valid = value.split(',').count() <= 2 && value.split(',').all(|ip| formats::is_ip(ip.trim()));
            if !valid && !value.is_empty() {
                return Err(wrong("must be an IP address, or an IPv4 and an IPv6 one with a comma between"));
            }
            options.node_ip = text;
        }
        "cert-dir" => value.clone_into(&mut options.cert_dir),
        "root-dir" => value.clone_into(&mut options.root_dir),
        "cloud-provider" if value.is_empty() || value == "external" => options.cloud_provider = text,
        "cloud-provider" => return Err(wrong("must be external or empty")),
        "lock-file" => options.lock_file = text,
        "runtime-cgroups" => options.runtime_cgroups = text,
        "image-credential-provider-config" => options.image_credential_provider_config = text,
        "image-credential-provider-bin-dir" => options.image_credential_provider_bin_dir = text,
        "node-labels" => {
            let map =
                pairs(value, '=', "").map_err(|_| wrong("must be key=value pairs with commas between"))?;
            for (key, label) in map.as_object().into_iter().flatten() {
                options.node_labels.insert(key.clone(), label.as_str().unwrap_or_default().to_owned());
            }
        }
        _ => match flag(name) {
            Some(flag) => parsed.overlay.set(flag, value)?,
            None => options.ignored.push(name.to_owned()),
        },
    }
    Ok(())
}

/// Labels a node may give itself; others under kubernetes.io and k8s.io belong to the control plane.
///
/// Returns every label that is not allowed.
#[must_use]
pub fn check_labels(labels: &BTreeMap<String, String>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let unknown: Vec<&str> = labels.keys().map(String::as_str).filter(|k| !is_self_label(k)).collect();
    if !unknown.is_empty() {
        let reason = format!(
            "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{}]; \
             kubelet.kubernetes.io/ and node.kubernetes.io/ are a node's own",
            unknown.join(" ")
        );
        problems.push(problem("--node-labels", reason));
    }
    for (key, value) in labels {
        if !formats::is_qualified_name(key) {
            problems.push(problem("--node-labels", format!("{key:?} is no qualified name")));
        }
        if !formats::is_label_value(value) {
            problems.push(problem("--node-labels", format!("{key}={value:?} is no label value")));
        }
    }
    problems
}

/// Whether a node may set this label on itself.
#[must_use]
pub fn is_self_label(key: &str) -> bool {
    const WELL_KNOWN: [&str; 11] = [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
    ];
    let Some((namespace, _)) = key.split_once('/') else { return true };
    let within =
        |domain: &str| namespace.strip_suffix(domain).is_some_and(|p| p.is_empty() || p.ends_with('.'));
    if !within("kubernetes.io") && !within("k8s.io") {
        return true;
    }
    WELL_KNOWN.contains(&key) || within("kubelet.kubernetes.io") || within("node.kubernetes.io")
}

fn problem(source: &str, reason: String) -> Problem {
    Problem { source: source.to_owned(), reason, ..Problem::default() }
}
