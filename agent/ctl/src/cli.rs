//! The command line, and what it asks for. Pure, but for the file of a token.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use jiff::Timestamp;
use orlop_proto::node_api::v1alpha1::ReadRequest;
use orlop_proto::node_api::{PORT, SOCKET};

use crate::boot_verb::BootArgs;
use crate::bundle::BundleArgs;
use crate::capture::CaptureArgs;
use crate::cluster_node::ClusterNode;
use crate::completion::CompletionArgs;
use crate::config_args::ConfigVerb;
use crate::controlplane::args::ControlplaneVerb;
use crate::dashboard::DashboardArgs;
use crate::explain::ExplainArgs;
use crate::failure::CtlError;
use crate::nodes::NodeWay;
use crate::operations::{ResetArgs, RestartArgs, StopArgs, WaitArgs};
use crate::render::jsonpath::JsonPath;
use crate::target::{BearerToken, NodeCredential, Target};
use crate::top::TopArgs;
use crate::upgrade::{RollbackArgs, UpgradeArgs};

const EXAMPLES: &str = "Examples:
  orlopctl status                               on the node itself
  orlopctl --vsock 3 status                     on the machine's host
  orlopctl --serial /run/vm7/api status         on the machine's host, without network and vsock
  orlopctl --tcp edge-7 --key ops-1.key --node-key SHA256:... status
  kubectl orlop --node edge-7 --service-account ops/reader status
  orlopctl key new ops-1.key --name ops-1       prints a NodeConfig with the key
  orlopctl --node edge-1,edge-2 --service-account ops/reader get problems
  orlopctl get services,disks
  orlopctl get services kubelet.service -o yaml
  orlopctl get disks -o 'jsonpath={.items[*].metadata.name}'
  orlopctl logs kubelet -f --since 10m
  orlopctl logs --pod shop/web-0 -c app -f      of a container, also if agent and containerd are dead
  orlopctl --vsock 3 dashboard                  stays, through reboots of the node
  orlopctl --vsock 3 dashboard --web            the same as a page for browsers on this machine
  orlopctl top -n 1 --sort memory               processes and their pods, once
  orlopctl bundle                               an archive of all that the node says, without secrets
  orlopctl capture eth0 eth0.pcap --port 443    packets, for a minute
  orlopctl config diff edge-7.yaml              which keys would change, and when each change acts
  orlopctl config apply edge-7.yaml --confirm 5m, then: orlopctl config confirm
  orlopctl controlplane gen --single --endpoint 192.0.2.10:6443
  orlopctl reboot                               waits until the node is back
  orlopctl upgrade --now --version 0.2.0        waits until the version is committed, or the node has gone back
Exit codes: 0 fine, 1 the node says no or has a problem, 2 usage, 3 unreachable, 4 not allowed, 5 timed out";

/// Asks an Orlop node what it knows about itself, changes its configuration, reboots it, restarts its services
#[derive(Debug, Parser)]
#[command(name = "orlopctl", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Unix socket of the node's API; without a way in: /run/orlop/api.sock
    #[arg(long, global = true, value_name = "PATH", conflicts_with_all = ["vsock", "vsock_socket"])]
    socket: Option<PathBuf>,
    /// Context identifier of the machine, on its host
    #[arg(long, global = true, value_name = "CID", conflicts_with = "vsock_socket")]
    vsock: Option<u32>,
    /// Unix socket of a hypervisor's vsock device (Firecracker, Cloud Hypervisor, vhost-device-vsock)
    #[arg(long, global = true, value_name = "PATH")]
    vsock_socket: Option<PathBuf>,
    /// Unix socket of a hypervisor's virtio-serial port org.orlop.api.0
    #[arg(long, global = true, value_name = "PATH", conflicts_with_all = ["socket", "vsock", "vsock_socket"])]
    serial: Option<PathBuf>,
    /// The node's name or address in the network, and a port if it is not 10270; several with commas between them
    #[arg(long, global = true, value_name = "HOST[:PORT]", value_delimiter = ',', conflicts_with_all = ["socket", "vsock", "vsock_socket", "serial"])]
    tcp: Vec<String>,
    /// File with the key of an administrator, for --tcp
    #[arg(long, global = true, value_name = "FILE")]
    key: Option<PathBuf>,
    /// File with a token of the cluster, for --tcp
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "key")]
    token_file: Option<PathBuf>,
    /// Name of a Node: kubectl knows its address and its key; several with commas between them
    #[arg(long, global = true, value_name = "NAME", value_delimiter = ',', conflicts_with_all = ["socket", "vsock", "vsock_socket", "serial", "token_file"])]
    node: Vec<String>,
    /// ServiceAccount whose token kubectl asks for, for --node
    #[arg(long, global = true, value_name = "NAMESPACE/NAME", conflicts_with = "key")]
    service_account: Option<String>,
    /// kubectl's kubeconfig, for --node
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, for --node
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Started as `kubectl orlop`.
    #[arg(skip)]
    pub(crate) is_plugin: bool,
    /// Fingerprint of the node's key, for --tcp; of several nodes in their order
    #[arg(long, global = true, value_name = "SHA256:...", value_delimiter = ',')]
    node_key: Vec<String>,
    /// Form of the output: table, json, yaml, name, or jsonpath=TEMPLATE as kubectl has it
    #[arg(short, long, global = true, value_parser = output_form, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
    /// Longest wait for a connection, and for an answer, seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OutputForm {
    /// For people
    Table,
    /// One document
    Json,
    /// One document
    Yaml,
    /// One line for each object: kind/name
    Name,
    /// Values of the document. A command line lives as long as the program.
    JsonPath(&'static JsonPath),
}

fn output_form(text: &str) -> Result<OutputForm, String> {
    match text {
        "table" => Ok(OutputForm::Table),
        "json" => Ok(OutputForm::Json),
        "yaml" => Ok(OutputForm::Yaml),
        "name" => Ok(OutputForm::Name),
        other => match other.strip_prefix("jsonpath=") {
            Some(template) => Ok(OutputForm::JsonPath(Box::leak(Box::new(JsonPath::parse(template)?)))),
            None => Err("it is none of table, json, yaml, name, jsonpath=TEMPLATE".to_owned()),
        },
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows the node on one screen, with its problems and their remedies
    Status,
    /// Shows objects: a kind or several (services,disks), and names
    Get(GetArgs),
    /// Lists the kinds of objects
    Kinds,
    /// Shows the fields of a kind, with their types and meanings
    Explain(ExplainArgs),
    /// Shows lines of the journal, or a file of the node
    Logs(LogArgs),
    /// Shows the node, its problems and its last lines on a screen that stays, through reboots, or as a page; Ctrl-C ends it
    Dashboard(DashboardArgs),
    /// Shows the processes that use the most CPU or memory, again and again
    Top(TopArgs),
    /// Shows the phases of this boot, or draws them
    Boot(BootArgs),
    /// Makes an archive of all that the node says, without secrets, for whoever looks for the cause of a problem
    Bundle(BundleArgs),
    /// Captures packets of an interface, for tcpdump and Wireshark
    Capture(CaptureArgs),
    /// Shows the versions of this program and of the node
    Version,
    /// Checks, explains and changes the configuration of a node; checks files without one
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Ends the pods in order, and starts the machine again
    Reboot(StopArgs),
    /// Ends the pods in order, and switches the machine off
    Shutdown(StopArgs),
    /// Restarts a service that the node needs, or one that has failed
    Restart(RestartArgs),
    /// Gives up the state of the node's pods, by a reboot; keeps the node's identity, or forgets it
    Reset(ResetArgs),
    /// Brings another version to the node, and tries it by a reboot; a version that is not good is given up by the node itself
    Upgrade(UpgradeArgs),
    /// Tries the version before, which is in the other slot, by a reboot
    Rollback(RollbackArgs),
    /// Waits for the end of an operation, through a reboot
    Wait(WaitArgs),
    /// Calls off an operation whose time has not come
    Cancel(WaitArgs),
    /// Prints a script that completes this command line in a shell
    Completion(CompletionArgs),
    /// Makes or shows a key of an administrator
    #[command(subcommand)]
    Key(KeyVerb),
    /// Makes a control plane: keys, certificates, and a NodeConfig for each node
    #[command(subcommand)]
    Controlplane(ControlplaneVerb),
}

/// Keys are made and shown without a node.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyVerb {
    /// Makes a key in a new file, and prints a NodeConfig that lets its owner in
    New(KeyArgs),
    /// Prints the line for api.admins of a NodeConfig that has more keys
    Show(KeyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// File of the private key
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Name of the administrator
    #[arg(long, default_value = "admin")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Kinds, with commas between them
    #[arg(value_name = "KIND[,KIND]")]
    kinds: String,
    /// Names of objects; none: all
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Stays, and shows each change
    #[arg(short, long)]
    pub(crate) watch: bool,
}

#[derive(Debug, Default, Args)]
pub(crate) struct LogArgs {
    /// Units; none: the whole journal
    #[arg(value_name = "UNIT")]
    units: Vec<String>,
    /// Stays, and shows new lines; goes on through a reboot of the node
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// The kernel's log alone
    #[arg(short, long, conflicts_with = "units")]
    kernel: bool,
    /// A file below /var/log/orlop instead of the journal
    #[arg(long, value_name = "PATH", conflicts_with_all = ["units", "kernel", "follow", "boot", "since", "grep", "lines", "after"])]
    file: Option<String>,
    /// 0: this boot, -1: the one before
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    boot: i32,
    /// From this time on: 90s, 10m, 2h, 1d, or a time (2026-11-30T09:00:00Z)
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Messages that match this regular expression
    #[arg(long, value_name = "PATTERN", default_value = "")]
    grep: String,
    /// The last N lines
    #[arg(long, visible_alias = "tail", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) lines: Option<u32>,
    /// Only lines after this one, by its cursor (`-o json` has them)
    #[arg(long, value_name = "CURSOR", default_value = "")]
    after: String,
    /// The log of a container of this pod instead of the journal; without a namespace: of `default`
    #[arg(long, value_name = "NAMESPACE/POD", conflicts_with_all = ["units", "kernel", "file", "boot", "grep", "after"])]
    pub(crate) pod: Option<String>,
    /// Container of the pod; without it: the only one
    #[arg(short, long, value_name = "CONTAINER", default_value = "", requires = "pod")]
    pub(crate) container: String,
    /// The instance of the container before the last one
    #[arg(short, long, requires = "pod", conflicts_with = "follow")]
    pub(crate) previous: bool,
    /// Lists units, files and pods instead
    #[arg(long, conflicts_with_all = ["units", "kernel", "follow", "file", "pod"])]
    pub(crate) list: bool,
}

impl Cli {
    /// The way to the node.
    ///
    /// # Errors
    /// `--tcp` without `--key` or `--token-file`; a token that cannot be read.
    pub(crate) fn target(&self) -> Result<Target, CtlError> {
        if let Some(host) = self.tcp.first() {
            return self.network(host, self.node_key.first());
        }
        if let Some(path) = &self.serial {
            return Ok(Target::Serial(path.clone()));
        }
        Ok(match (&self.socket, self.vsock, &self.vsock_socket) {
            (_, Some(cid), _) => Target::Vsock(cid),
            (_, _, Some(path)) => Target::VsockSocket(path.clone()),
            (path, None, None) => Target::Unix(path.clone().unwrap_or_else(|| PathBuf::from(SOCKET))),
        })
    }

    /// The way to a node by the network.
    fn network(&self, host: &str, pin: Option<&String>) -> Result<Target, CtlError> {
        let missing = || CtlError::Usage("--tcp needs --key: `orlopctl key new` makes one".to_owned());
        let credential = match &self.token_file {
            Some(file) => NodeCredential::Token(token(file)?),
            None => NodeCredential::Key(self.key.clone().ok_or_else(missing)?),
        };
        Ok(Target::Tcp { address: address(host), credential, pin: pin.cloned().unwrap_or_default() })
    }

    /// Whether several nodes are meant: also one with several fingerprints, which is refused there.
    pub(crate) fn is_several(&self) -> bool {
        self.node.len().max(self.tcp.len()).max(self.node_key.len()) > 1
    }

    /// The ways to several nodes, in their order.
    ///
    /// # Errors
    /// Flags that belong to one node, or not as many keys as nodes.
    pub(crate) fn several(&self) -> Result<Vec<NodeWay>, CtlError> {
        if self.node.len() > 1 {
            if !self.tcp.is_empty() || !self.node_key.is_empty() {
                let message = "several nodes of --node have their own addresses and keys: leave --tcp and --node-key out";
                return Err(CtlError::Usage(message.to_owned()));
            }
            return Ok(self.node.iter().map(|name| NodeWay::Cluster(self.node_of_cluster(name))).collect());
        }
        // It also refuses flags that only a node of a cluster has.
        if self.cluster_node()?.is_some() {
            let message = "several hosts or fingerprints are for --tcp alone: leave --node out";
            return Err(CtlError::Usage(message.to_owned()));
        }
        if !self.node_key.is_empty() && self.node_key.len() != self.tcp.len() {
            let message = "--node-key needs a fingerprint for each node of --tcp, in the same order";
            return Err(CtlError::Usage(message.to_owned()));
        }
        let way = |(number, host): (usize, &String)| -> Result<NodeWay, CtlError> {
            Ok(NodeWay::Known(host.clone(), self.network(host, self.node_key.get(number))?))
        };
        self.tcp.iter().enumerate().map(way).collect()
    }

    /// The node of a cluster that is meant; `None`: another way.
    ///
    /// # Errors
    /// `kubectl orlop` without a node, or a flag that only a node of a cluster has.
    pub(crate) fn cluster_node(&self) -> Result<Option<ClusterNode>, CtlError> {
        let Some(name) = self.node.first() else {
            let has_way = !self.tcp.is_empty() || self.vsock.is_some();
            let has_way = has_way || self.socket.is_some() || self.vsock_socket.is_some();
            let has_way = has_way || self.serial.is_some();
            if self.is_plugin && !has_way {
                return Err(CtlError::Usage("`kubectl orlop` needs --node NAME".to_owned()));
            }
            let only = [self.service_account.is_some(), self.kubeconfig.is_some(), self.context.is_some()];
            if only.contains(&true) {
                let message = "--service-account, --kubeconfig and --context need --node";
                return Err(CtlError::Usage(message.to_owned()));
            }
            return Ok(None);
        };
        Ok(Some(self.node_of_cluster(name)))
    }

    fn node_of_cluster(&self, name: &str) -> ClusterNode {
        ClusterNode {
            name: name.to_owned(),
            host: self.tcp.first().cloned(),
            pin: self.node_key.first().cloned().unwrap_or_default(),
            key: self.key.clone(),
            service_account: self.service_account.clone(),
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
        }
    }

    /// Longest wait.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

impl GetArgs {
    /// The kinds.
    pub(crate) fn kinds(&self) -> Vec<String> {
        self.kinds.split(',').map(str::to_owned).collect()
    }
}

impl LogArgs {
    /// The request. `now` is for times that are relative.
    pub(crate) fn request(&self, now: Timestamp) -> Result<ReadRequest, CtlError> {
        let since = self.since.as_deref().map(|text| since(text, now)).transpose()?;
        Ok(ReadRequest {
            units: self.units.clone(),
            kernel: self.kernel,
            file: self.file.clone().unwrap_or_default(),
            boot: self.boot,
            since_seconds: since.unwrap_or(0),
            grep: self.grep.clone(),
            lines: self.lines.unwrap_or(0),
            follow: self.follow,
            after_cursor: self.after.clone(),
        })
    }
}

/// Whether a program of this name is the plugin of kubectl.
pub(crate) fn is_plugin(argument: &OsStr) -> bool {
    Path::new(argument).file_name() == Some(OsStr::new("kubectl-orlop"))
}

fn token(file: &Path) -> Result<BearerToken, CtlError> {
    let text = std::fs::read_to_string(file);
    BearerToken::new(&text.map_err(|e| CtlError::Key(format!("{}: {e}", file.display())))?)
}

/// Host and port: `edge-7`, `edge-7:443`, `192.0.2.1`, `2001:db8::1`, `[2001:db8::1]:443`.
pub(crate) fn address(text: &str) -> String {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return match ip {
            IpAddr::V4(ip) => format!("{ip}:{PORT}"),
            IpAddr::V6(ip) => format!("[{ip}]:{PORT}"),
        };
    }
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { text.to_owned() } else { format!("{text}:{PORT}") }
}

/// Seconds since 1970 of a time, or of a duration before `now`.
pub(crate) fn since(text: &str, now: Timestamp) -> Result<i64, CtlError> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time.as_second());
    }
    let wrong =
        || CtlError::Usage(format!("--since {text:?} is neither a time nor a duration: 90s, 10m, 2h, 1d"));
    Ok(now.as_second().saturating_sub(seconds(text).ok_or_else(wrong)?).max(0))
}

/// Seconds of a duration: 90s, 10m, 2h, 1d.
pub(crate) fn seconds(text: &str) -> Option<i64> {
    let factor = match text.chars().next_back()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86400,
        _ => return None,
    };
    let number: i64 = text.get(..text.len().saturating_sub(1))?.parse().ok()?;
    number.checked_mul(factor).filter(|seconds| *seconds >= 0)
}

#[cfg(test)]
mod tests;
