//! The command line, and what it asks for. Pure.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;
use orlop_proto::node_api::v1alpha1::ReadRequest;
use orlop_proto::node_api::{PORT, SOCKET};

use crate::failure::CtlError;
use crate::target::Target;

const EXAMPLES: &str = "Examples:
  orlopctl status                               on the node itself
  orlopctl --vsock 3 status                     on the machine's host
  orlopctl --tcp edge-7 --key ops-1.key --node-key SHA256:... status
  orlopctl key new ops-1.key --name ops-1       prints the line for api.admins
  orlopctl get services,disks
  orlopctl get services kubelet.service -o yaml
  orlopctl logs kubelet -f --since 10m
Exit codes: 0 fine, 1 the node says no or has a problem, 2 usage, 3 unreachable, 4 not allowed, 5 timed out";

/// Asks an Orlop node what it knows about itself
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
    /// The node's name or address in the network, and a port if it is not 10270
    #[arg(long, global = true, value_name = "HOST[:PORT]", conflicts_with_all = ["socket", "vsock", "vsock_socket"])]
    tcp: Option<String>,
    /// File with the key of an administrator, for --tcp
    #[arg(long, global = true, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Fingerprint of the node's key, for --tcp
    #[arg(long, global = true, value_name = "SHA256:...", default_value = "")]
    node_key: String,
    /// Form of the output
    #[arg(short, long, global = true, value_enum, default_value_t = OutputForm::Table)]
    pub(crate) output: OutputForm,
    /// Longest wait for a connection, and for an answer, seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    /// For people
    Table,
    /// One document
    Json,
    /// One document
    Yaml,
    /// One line for each object: kind/name
    Name,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows the node on one screen, with its problems and their remedies
    Status,
    /// Shows objects: a kind or several (services,disks), and names
    Get(GetArgs),
    /// Lists the kinds of objects
    Kinds,
    /// Shows lines of the journal, or a file of the node
    Logs(LogArgs),
    /// Shows the versions of this program and of the node
    Version,
    /// Makes or shows a key of an administrator
    #[command(subcommand)]
    Key(KeyVerb),
}

/// Keys are made and shown without a node.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyVerb {
    /// Makes a key in a new file, and prints the line for api.admins of the NodeConfig
    New(KeyArgs),
    /// Prints the line for api.admins of the NodeConfig
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
    since: Option<String>,
    /// Messages that match this regular expression
    #[arg(long, value_name = "PATTERN", default_value = "")]
    grep: String,
    /// The last N lines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    lines: Option<u32>,
    /// Only lines after this one, by its cursor (`-o json` has them)
    #[arg(long, value_name = "CURSOR", default_value = "")]
    after: String,
    /// Lists units and files instead
    #[arg(long, conflicts_with_all = ["units", "kernel", "follow", "file"])]
    pub(crate) list: bool,
}

impl Cli {
    /// The way to the node.
    ///
    /// # Errors
    /// `--tcp` without `--key`.
    pub(crate) fn target(&self) -> Result<Target, CtlError> {
        if let Some(host) = &self.tcp {
            let missing = || CtlError::Usage("--tcp needs --key: `orlopctl key new` makes one".to_owned());
            let key = self.key.clone().ok_or_else(missing)?;
            return Ok(Target::Tcp { address: address(host), key, pin: self.node_key.clone() });
        }
        Ok(match (&self.socket, self.vsock, &self.vsock_socket) {
            (_, Some(cid), _) => Target::Vsock(cid),
            (_, _, Some(path)) => Target::VsockSocket(path.clone()),
            (path, None, None) => Target::Unix(path.clone().unwrap_or_else(|| PathBuf::from(SOCKET))),
        })
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

/// Host and port: `edge-7`, `edge-7:443`, `192.0.2.1`, `2001:db8::1`, `[2001:db8::1]:443`.
fn address(text: &str) -> String {
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
fn since(text: &str, now: Timestamp) -> Result<i64, CtlError> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time.as_second());
    }
    let factor = match text.chars().next_back() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86400,
        _ => 0,
    };
    let number: Option<i64> = text.get(..text.len().saturating_sub(1)).and_then(|digits| digits.parse().ok());
    let seconds =
        number.filter(|number| factor > 0 && *number >= 0).and_then(|number| number.checked_mul(factor));
    let wrong =
        || CtlError::Usage(format!("--since {text:?} is neither a time nor a duration: 90s, 10m, 2h, 1d"));
    Ok(now.as_second().saturating_sub(seconds.ok_or_else(wrong)?).max(0))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parsed(words: &[&str]) -> Cli {
        Cli::try_parse_from(["orlopctl"].iter().chain(words)).unwrap()
    }

    fn request(words: &[&str]) -> ReadRequest {
        let Verb::Logs(args) = parsed(words).verb else { panic!("{words:?}") };
        args.request(Timestamp::from_second(100_000).unwrap()).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ways_to_the_node() {
        for (words, target) in [
            (&["status"][..], Target::Unix(PathBuf::from("/run/orlop/api.sock"))),
            (&["--socket", "/x", "status"][..], Target::Unix(PathBuf::from("/x"))),
            (&["status", "--vsock", "3"][..], Target::Vsock(3)),
            (&["--vsock-socket", "/v", "kinds"][..], Target::VsockSocket(PathBuf::from("/v"))),
        ] {
            assert_eq!(parsed(words).target().unwrap(), target, "{words:?}");
        }
    }

    #[test]
    fn the_network_needs_a_key_and_has_a_port() {
        for (host, expected) in [
            ("edge-7", "edge-7:10270"),
            ("edge-7:443", "edge-7:443"),
            ("192.0.2.1", "192.0.2.1:10270"),
            ("2001:db8::1", "[2001:db8::1]:10270"),
            ("[2001:db8::1]:443", "[2001:db8::1]:443"),
            ("[2001:db8::1]", "[2001:db8::1]:10270"),
        ] {
            assert_eq!(address(host), expected);
        }
        let words = ["--tcp", "edge-7", "--key", "k", "--node-key", "SHA256:x", "status"];
        let expected = Target::Tcp {
            address: "edge-7:10270".to_owned(),
            key: PathBuf::from("k"),
            pin: "SHA256:x".to_owned(),
        };
        assert_eq!(parsed(&words).target().unwrap(), expected);
        assert_eq!(parsed(&["--tcp", "edge-7", "status"]).target().unwrap_err().exit_code(), 2);
    }

    #[test]
    fn kinds_have_commas_and_names_follow() {
        let Verb::Get(args) = parsed(&["get", "services,disks", "a.service", "b"]).verb else {
            panic!("no get")
        };
        assert_eq!(args.kinds(), ["services", "disks"]);
        assert_eq!(args.names, ["a.service", "b"]);
    }

    #[test]
    fn requests_for_logs() {
        let found = request(&["logs", "kubelet", "-f", "--since", "10m", "--lines", "5", "--grep", "x"]);
        assert_eq!((found.units.len(), found.follow, found.since_seconds), (1, true, 99_400));
        assert_eq!((found.lines, found.grep.as_str(), found.boot), (5, "x", 0));
        assert_eq!(request(&["logs", "--boot", "-1"]).boot, -1);
        assert_eq!(request(&["logs", "--since", "2d"]).since_seconds, 0);
        assert_eq!(request(&["logs", "--since", "1970-01-02T00:00:00Z"]).since_seconds, 86400);
        assert_eq!(request(&["logs", "--file", "boot.json"]).file, "boot.json");
    }

    #[test]
    fn command_lines_without_sense_are_refused() {
        for words in [
            &["status", "--vsock", "3", "--socket", "/x"][..],
            &["get"],
            &["logs", "--file", "a", "-f"],
            &["logs", "--list", "-k"],
            &["logs", "--lines", "0"],
            &["status", "--timeout", "0"],
            &["status", "-o", "xml"],
            &["reboot"],
            &[],
        ] {
            assert!(Cli::try_parse_from(["orlopctl"].iter().chain(words)).is_err(), "{words:?}");
        }
        for text in ["", "m", "-5m", "5", "5w", "x5m", "99999999999999999d", "é"] {
            let error = since(text, Timestamp::from_second(5).unwrap()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{text}");
        }
    }
}
