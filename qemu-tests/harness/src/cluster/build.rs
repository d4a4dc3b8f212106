//! Compiles Kubernetes from `qemu-tests/controlplane`, metrics-server from `qemu-tests/metrics-server`, CoreDNS from
//! `qemu-tests/coredns`, flannel from `qemu-tests/flannel` and `qemu-tests/flannel-cni`, kube-router from `qemu-tests/kube-router`, Multus from
//! `qemu-tests/multus`, promtool from `qemu-tests/promtool`, and the end-to-end suite from `qemu-tests/conformance` (each a go.mod with a few lines of Go or none) and keeps the results.
//!
//! In: this machine's Go compiler if it is new enough, otherwise Debian's; the module proxy in `go`'s configuration.
//! Out: static programs in `$ORLOP_CACHE/controlplane/<key>`. Invariants: the key covers every input, so an existing
//! program is the right one; the build never writes to the checkout.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use super::debs;
use crate::case::human;
use crate::process::stream;
use crate::run::Run;
use crate::say;
use crate::workspace::workspace;

/// A go.mod of the harness: its directory below `qemu-tests`, and the texts that determine the result of its build.
struct Module {
    dir: &'static str,
    go_mod: &'static str,
    inputs: &'static [&'static str],
}

const GO_MOD: &str = include_str!("../../../controlplane/go.mod");
const METRICS_SERVER_GO_MOD: &str = include_str!("../../../metrics-server/go.mod");
const COREDNS_GO_MOD: &str = include_str!("../../../coredns/go.mod");
const FLANNEL_GO_MOD: &str = include_str!("../../../flannel/go.mod");
const FLANNEL_CNI_GO_MOD: &str = include_str!("../../../flannel-cni/go.mod");
const KUBE_ROUTER_GO_MOD: &str = include_str!("../../../kube-router/go.mod");
const MULTUS_GO_MOD: &str = include_str!("../../../multus/go.mod");
const PROMTOOL_GO_MOD: &str = include_str!("../../../promtool/go.mod");
const SUITE_GO_MOD: &str = include_str!("../../../conformance/go.mod");

const CONTROL_PLANE: Module = Module {
    dir: "controlplane",
    go_mod: GO_MOD,
    inputs: &[
        GO_MOD,
        include_str!("../../../controlplane/go.sum"),
        include_str!("../../../controlplane/cmd/controlplane/main.go"),
        include_str!("../../../controlplane/cmd/kube-proxy/main.go"),
        include_str!("../../../controlplane/cmd/kubelet/main.go"),
    ],
};

const METRICS_SERVER: Module = Module {
    dir: "metrics-server",
    go_mod: METRICS_SERVER_GO_MOD,
    inputs: &[
        METRICS_SERVER_GO_MOD,
        include_str!("../../../metrics-server/go.sum"),
        include_str!("../../../metrics-server/cmd/metrics-server/main.go"),
    ],
};

const COREDNS: Module = Module {
    dir: "coredns",
    go_mod: COREDNS_GO_MOD,
    inputs: &[
        COREDNS_GO_MOD,
        include_str!("../../../coredns/go.sum"),
        include_str!("../../../coredns/cmd/coredns/main.go"),
    ],
};

const FLANNEL: Module = Module {
    dir: "flannel",
    go_mod: FLANNEL_GO_MOD,
    inputs: &[FLANNEL_GO_MOD, include_str!("../../../flannel/go.sum")],
};

const FLANNEL_CNI: Module = Module {
    dir: "flannel-cni",
    go_mod: FLANNEL_CNI_GO_MOD,
    inputs: &[FLANNEL_CNI_GO_MOD, include_str!("../../../flannel-cni/go.sum")],
};

const KUBE_ROUTER: Module = Module {
    dir: "kube-router",
    go_mod: KUBE_ROUTER_GO_MOD,
    inputs: &[KUBE_ROUTER_GO_MOD, include_str!("../../../kube-router/go.sum")],
};

const MULTUS: Module = Module {
    dir: "multus",
    go_mod: MULTUS_GO_MOD,
    inputs: &[MULTUS_GO_MOD, include_str!("../../../multus/go.sum")],
};

const PROMTOOL: Module = Module {
    dir: "promtool",
    go_mod: PROMTOOL_GO_MOD,
    inputs: &[PROMTOOL_GO_MOD, include_str!("../../../promtool/go.sum")],
};

const SUITE: Module = Module {
    dir: "conformance",
    go_mod: SUITE_GO_MOD,
    inputs: &[
        SUITE_GO_MOD,
        include_str!("../../../conformance/go.sum"),
        include_str!("../../../conformance/cmd/curl/main.go"),
        include_str!("../../../conformance/cmd/pause/main.go"),
        include_str!("../../../conformance/cmd/sshd/main.go"),
    ],
};

/// Programs that can be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// kube-apiserver, kube-controller-manager, kube-scheduler and kubectl in one program.
    ControlPlane,
    /// The upstream kubelet, for comparison.
    Kubelet,
    /// Routes of Services on a node, for clusters with add-ons.
    KubeProxy,
    /// Names of Services, for clusters with add-ons.
    CoreDns,
    /// The pod network flannel, for clusters with add-ons.
    Flannel,
    /// Installs flannel's CNI configuration on a node.
    FlannelInstallConf,
    /// flannel's CNI plugin.
    FlannelCni,
    /// The pod network kube-router, for clusters with add-ons.
    KubeRouter,
    /// The thin CNI plugin Multus, for clusters with add-ons.
    Multus,
    /// The CNI plugin of Multus that hands its configuration on.
    MultusPassthru,
    /// Installs both on a node.
    MultusInstall,
    /// Configures Multus on a node.
    MultusEntrypoint,
    /// The source of `kubectl top`: collects the nodes' metrics.
    MetricsServer,
    /// Checks rules and metrics as Prometheus reads them.
    Promtool,
    /// Upstream's DRA driver for tests.
    ClaimsDriver,
    /// Upstream's sample of a device plugin.
    DevicePlugin,
    /// The upstream end-to-end suite.
    EndToEnd,
    /// The upstream suite of the node itself, which runs on the node.
    NodeEndToEnd,
    /// Runs the suite in several processes.
    Ginkgo,
    /// The program of most of the suite's images.
    Agnhost,
    /// HTTP client of the suite's pods.
    Curl,
    /// Prints its effective user.
    NoNewPrivs,
    /// Runs until it is signalled.
    Pause,
    /// Upstream's sample of an API server behind the aggregation layer.
    SampleApiServer,
    /// SSH server by which the suite logs in to a node.
    Sshd,
}

impl Target {
    /// Name of the program.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Target::ControlPlane => "controlplane",
            Target::Kubelet => "kubelet",
            Target::KubeProxy => "kube-proxy",
            Target::CoreDns => "coredns",
            Target::Flannel => "flanneld",
            Target::FlannelInstallConf => "install-conf",
            Target::FlannelCni => "flannel",
            Target::KubeRouter => "kube-router",
            Target::Multus => "multus",
            Target::MultusPassthru => "passthru",
            Target::MultusInstall => "install_multus",
            Target::MultusEntrypoint => "thin_entrypoint",
            Target::MetricsServer => "metrics-server",
            Target::Promtool => "promtool",
            Target::ClaimsDriver => "dra-test-driver",
            Target::DevicePlugin => "sample-device-plugin",
            Target::EndToEnd => "e2e.test",
            Target::NodeEndToEnd => "e2e_node.test",
            Target::Ginkgo => "ginkgo",
            Target::Agnhost => "agnhost",
            Target::Curl => "curl",
            Target::NoNewPrivs => "nonewprivs",
            Target::Pause => "pause",
            Target::SampleApiServer => "sample-apiserver",
            Target::Sshd => "sshd",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Target::ControlPlane => "./cmd/controlplane",
            Target::Kubelet => "./cmd/kubelet",
            Target::KubeProxy => "./cmd/kube-proxy",
            Target::CoreDns => "./cmd/coredns",
            Target::Flannel => "github.com/flannel-io/flannel",
            Target::FlannelInstallConf => "github.com/flannel-io/flannel/cmd/install_conf",
            Target::FlannelCni => "github.com/containernetworking/plugins/plugins/meta/flannel",
            Target::KubeRouter => "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
            Target::Multus => "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus",
            Target::MultusPassthru => "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/passthru-cni",
            Target::MultusInstall => "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/install_multus",
            Target::MultusEntrypoint => "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/thin_entrypoint",
            Target::MetricsServer => "./cmd/metrics-server",
            Target::Promtool => "github.com/prometheus/prometheus/cmd/promtool",
            Target::ClaimsDriver => "k8s.io/kubernetes/test/e2e/dra/test-driver",
            Target::DevicePlugin => "k8s.io/kubernetes/test/images/sample-device-plugin",
            Target::EndToEnd => "k8s.io/kubernetes/test/e2e",
            Target::NodeEndToEnd => "k8s.io/kubernetes/test/e2e_node",
            Target::Ginkgo => "github.com/onsi/ginkgo/v2/ginkgo",
            Target::Agnhost => "k8s.io/kubernetes/test/images/agnhost",
            Target::Curl => "./cmd/curl",
            Target::NoNewPrivs => "k8s.io/kubernetes/test/images/nonewprivs",
            Target::Pause => "./cmd/pause",
            Target::SampleApiServer => "k8s.io/sample-apiserver",
            Target::Sshd => "./cmd/sshd",
        }
    }

    fn module(self) -> &'static Module {
        match self {
            // The drivers consist of the control plane's packages.
            Target::ControlPlane
            | Target::Kubelet
            | Target::KubeProxy
            | Target::ClaimsDriver
            | Target::DevicePlugin => &CONTROL_PLANE,
            Target::CoreDns => &COREDNS,
            Target::Flannel | Target::FlannelInstallConf => &FLANNEL,
            Target::FlannelCni => &FLANNEL_CNI,
            Target::KubeRouter => &KUBE_ROUTER,
            Target::Multus | Target::MultusPassthru | Target::MultusInstall | Target::MultusEntrypoint => {
                &MULTUS
            }
            Target::MetricsServer => &METRICS_SERVER,
            Target::Promtool => &PROMTOOL,
            _ => &SUITE,
        }
    }

    /// `go`'s command to build it: the suites are test programs.
    fn verb(self) -> &'static [&'static str] {
        match self {
            Target::EndToEnd | Target::NodeEndToEnd => &["test", "-c", "-vet=off"],
            Target::Flannel => &["build", "-tags", "netgo,osusergo"],
            // Clients of twenty clouds, which no check of a file needs.
            Target::Promtool => &["build", "-tags", "remove_all_sd"],
            _ => &["build"],
        }
    }

    /// One of flannel's backends is written in C, so that it does not compile without a C compiler.
    fn is_partly_c(self) -> bool {
        self == Target::Flannel
    }
}

/// The Kubernetes version that go.mod names, for example `v1.36.3`.
///
/// # Errors
/// If go.mod does not name one.
pub fn version() -> Result<&'static str> {
    GO_MOD
        .lines()
        .find_map(|l| l.trim().strip_prefix("k8s.io/kubernetes ")?.split_whitespace().next())
        .context("go.mod requires no k8s.io/kubernetes")
}

/// The version of CoreDNS that its go.mod names, for example `v1.15.0`.
///
/// # Errors
/// If go.mod does not name one.
pub fn coredns_version() -> Result<&'static str> {
    COREDNS_GO_MOD
        .lines()
        .find_map(|l| l.strip_prefix("require github.com/coredns/coredns ")?.split_whitespace().next())
        .context("go.mod requires no github.com/coredns/coredns")
}

/// The version of metrics-server that its go.mod names, for example `v0.9.0`.
///
/// # Errors
/// If go.mod does not name one.
pub fn metrics_server_version() -> Result<&'static str> {
    required(METRICS_SERVER_GO_MOD, "sigs.k8s.io/metrics-server")
}

/// The version of flannel that its go.mod names, for example `v0.28.10`.
///
/// # Errors
/// If go.mod does not name one.
pub fn flannel_version() -> Result<&'static str> {
    required(FLANNEL_GO_MOD, "github.com/flannel-io/flannel")
}

/// The version of the reference plugins that flannel's CNI plugin is from, for example `v0.9.1`.
///
/// # Errors
/// If go.mod does not name one.
pub fn flannel_cni_version() -> Result<&'static str> {
    required(FLANNEL_CNI_GO_MOD, "github.com/containernetworking/plugins")
}

/// The version of kube-router that its go.mod names, for example `v2.1.0`.
///
/// # Errors
/// If go.mod does not name one.
pub fn kube_router_version() -> Result<&'static str> {
    required(KUBE_ROUTER_GO_MOD, "github.com/cloudnativelabs/kube-router/v2")
}

/// The version of Multus that its go.mod names, for example `v4.2.4`.
///
/// # Errors
/// If go.mod does not name one.
pub fn multus_version() -> Result<&'static str> {
    required(MULTUS_GO_MOD, "gopkg.in/k8snetworkplumbingwg/multus-cni.v4")
}

/// The version of Prometheus that promtool is from, for example `v0.311.0`.
///
/// # Errors
/// If go.mod does not name one.
pub fn promtool_version() -> Result<&'static str> {
    required(PROMTOOL_GO_MOD, "github.com/prometheus/prometheus")
}

/// The version of a module in the `require` block of a go.mod.
fn required(go_mod: &'static str, module: &str) -> Result<&'static str> {
    go_mod
        .lines()
        .find_map(|l| l.trim().strip_prefix(module)?.strip_prefix(' ')?.split_whitespace().next())
        .with_context(|| format!("go.mod requires no {module}"))
}

/// The oldest compiler that go.mod accepts, for example `1.26.0`.
fn oldest_go(go_mod: &'static str) -> Result<&'static str> {
    go_mod.lines().find_map(|l| l.strip_prefix("go ")).context("go.mod names no Go version")
}

/// Builds targets unless they exist; returns the directory with the programs of the first target's module. Packages of
/// several modules are compiled once if their versions are equal.
///
/// # Errors
/// No compiler is available, or the compiler's message.
pub fn programs(run: &Arc<Run>, cache: &Path, targets: &[Target]) -> Result<PathBuf> {
    let first = targets.first().context("nothing to build")?.module();
    fs::create_dir_all(cache).with_context(|| format!("make {}", cache.display()))?;
    // Two runs at once: the second finds the programs of the first.
    let lock = fs::File::create(cache.join("lock")).context("make the lock")?;
    let _locked = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, e)| e).context("lock the cache")?;
    let place = |module: &Module| -> Result<(Go, PathBuf)> {
        let go = compiler(cache, module)?;
        let dir = cache.join(key(&go.version, module));
        Ok((go, dir))
    };
    let mut compiled = false;
    for &target in targets {
        let (go, dir) = place(target.module())?;
        let program = dir.join(target.program());
        if program.exists() {
            continue;
        }
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let partial = dir.join(format!("{}.partial", target.program()));
        compile(run, cache, &go, target, &partial)?;
        fs::rename(&partial, &program).with_context(|| format!("rename to {}", program.display()))?;
        compiled = true;
    }
    if compiled {
        // Three gigabytes that only another release would use, and hardly.
        let objects = cache.join("go/build");
        fs::remove_dir_all(&objects).with_context(|| format!("remove {}", objects.display()))?;
    }
    Ok(place(first)?.1)
}

struct Go {
    program: PathBuf,
    version: String,
}

/// This machine's `go` if it is new enough, else Debian's.
fn compiler(cache: &Path, module: &Module) -> Result<Go> {
    let oldest = oldest_go(module.go_mod)?;
    let own = PathBuf::from("go");
    if let Ok(version) = go_version(&own)
        && is_new_enough(&version, oldest)
    {
        return Ok(Go { program: own, version });
    }
    let root = debs::unpacked(cache, &["golang-1.26-src", "golang-1.26-go"])?;
    let program = root.join("usr/lib/go-1.26/bin/go");
    let version = go_version(&program)?;
    anyhow::ensure!(is_new_enough(&version, oldest), "{version} is older than go.mod's {oldest}");
    Ok(Go { program, version })
}

fn go_version(program: &Path) -> Result<String> {
    // `local`: the version of the installed compiler, not of one that it could download.
    let output = Command::new(program)
        .args(["env", "GOVERSION"])
        .env("GOTOOLCHAIN", "local")
        .output()
        .context("run go")?;
    anyhow::ensure!(output.status.success(), "go env GOVERSION: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Compares `go1.26.8` or `go1.26.10-X:something` with `1.26.0`. Pure.
fn is_new_enough(version: &str, oldest: &str) -> bool {
    let numbers = |text: &str| -> Vec<u32> {
        let text = text.trim_start_matches("go");
        let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].split('.').filter_map(|n| n.parse().ok()).collect()
    };
    let (has, needs) = (numbers(version), numbers(oldest));
    !has.is_empty() && has >= needs
}

fn key(go_version: &str, module: &Module) -> String {
    let mut digest = Sha256::new();
    for part in [go_version].iter().chain(module.inputs).chain(&[FLAGS]) {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    let hex = hex::encode(digest.finalize());
    hex[..16].to_owned()
}

/// Smaller programs that do not depend on the checkout's path.
const FLAGS: &str = "-s -w";

fn linker_flags(version: &str) -> String {
    // Without a version the programs report v0.0.0 and refuse each other.
    let minor = version.split('.').nth(1).unwrap_or_default();
    let values = [("gitVersion", version), ("gitMajor", "1"), ("gitMinor", minor), ("gitTreeState", "clean")];
    let packages = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"];
    let set = packages.iter().flat_map(|p| values.map(|(k, v)| format!(" -X {p}.{k}={v}")));
    set.fold(FLAGS.to_owned(), |all, one| all + &one)
}

fn compile(run: &Arc<Run>, cache: &Path, go: &Go, target: Target, out: &Path) -> Result<()> {
    let (name, version) = (target.program(), version()?);
    let long = if target.verb().contains(&"test") { ", ten or more without a word" } else { "" };
    let mut linker_flags = linker_flags(version);
    if target.is_partly_c() {
        // The result needs no library of this machine.
        linker_flags.push_str(" -linkmode external -extldflags -static");
    }
    say::line(format!("  compiling Kubernetes {version} ({name}) with {}: minutes, once{long}", go.version));
    let start = Instant::now();
    let mut command = Command::new(&go.program);
    command
        .current_dir(workspace().join("qemu-tests").join(target.module().dir))
        .args(target.verb())
        .args(["-v", "-trimpath", "-mod=readonly", "-modcacherw", "-buildvcs=false"])
        .args(["-ldflags", &linker_flags, "-o"])
        .arg(out)
        .arg(target.package())
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "")
        .env("CGO_ENABLED", if target.is_partly_c() { "1" } else { "0" })
        .env("GOPATH", cache.join("go"))
        .env("GOMODCACHE", cache.join("go/mod"))
        .env("GOCACHE", cache.join("go/build"));
    let mut progress = Progress { last: start, packages: 0, tail: Vec::new() };
    let status = stream(run, &mut command, |line| progress.line(line, start))?;
    let tail = progress.tail.join("\n");
    anyhow::ensure!(status.success(), "go build of Kubernetes {version} ({name}): {status}\n{tail}");
    let mib = fs::metadata(out).map_or(0, |m| m.len()) >> 20;
    say::line(format!(
        "  Kubernetes {version} ({name}): {} packages, {mib} MiB, {}",
        progress.packages,
        human(start.elapsed())
    ));
    Ok(())
}

/// A line now and then, instead of one for each package.
struct Progress {
    last: Instant,
    packages: u32,
    tail: Vec<String>,
}

impl Progress {
    fn line(&mut self, line: &str, start: Instant) {
        if !line.starts_with("go: ") && !line.contains(' ') {
            self.packages += 1;
        }
        if self.tail.len() >= 30 {
            self.tail.remove(0);
        }
        self.tail.push(line.to_owned());
        if self.last.elapsed() >= Duration::from_secs(30) {
            self.last = Instant::now();
            say::line(format!("    {} packages so far ({})", self.packages, human(start.elapsed())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        for (version, new) in
            [("go1.26.8", true), ("go1.26", false), ("go1.27", true), ("go1.9.9", false), ("devel", false)]
        {
            assert_eq!(is_new_enough(version, "1.26.0"), new, "{version}");
        }
        assert!(is_new_enough("go1.26.10-X:nodwarf5", "1.26.0"));
    }

    #[test]
    fn go_mod_names_one_release_everywhere() {
        let version = version().unwrap();
        assert!(version.starts_with("v1.36."), "{version}");
        let staging = version.replacen("v1", "v0", 1);
        for module in [GO_MOD, SUITE_GO_MOD] {
            assert!(
                module.contains(&format!("k8s.io/kubernetes {version}\n")),
                "the suite is of the same release"
            );
            let replaced: Vec<&str> = module.lines().filter(|l| l.contains(" => ")).collect();
            assert!(replaced.len() > 25 && replaced.iter().all(|l| l.ends_with(&staging)), "{replaced:?}");
        }
        assert!(linker_flags(version).contains("version.gitMinor=36"));
        assert_eq!(oldest_go(GO_MOD).unwrap(), "1.26.0");
    }

    #[test]
    fn go_mod_names_a_release_of_coredns() {
        let version = coredns_version().unwrap();
        assert!(version.starts_with("v1.") && !version.contains('-'), "{version} is no release");
        assert_eq!(oldest_go(COREDNS_GO_MOD).unwrap(), "1.26.0");
    }

    #[test]
    fn go_mod_names_releases_of_the_pod_networks_and_of_promtool() {
        for version in [flannel_version().unwrap(), flannel_cni_version().unwrap()] {
            assert!(version.starts_with("v0.") && !version.contains('-'), "{version} is no release");
        }
        assert!(required(FLANNEL_GO_MOD, "github.com/flannel-io").is_err());
        assert!(multus_version().unwrap().starts_with("v4."));
        let version = kube_router_version().unwrap();
        assert!(version.starts_with("v2.") && !version.contains('-'), "{version} is no release");
        let version = promtool_version().unwrap();
        assert!(version.starts_with("v0.") && !version.contains('-'), "{version} is no release");
        for go_mod in [FLANNEL_GO_MOD, FLANNEL_CNI_GO_MOD, KUBE_ROUTER_GO_MOD, MULTUS_GO_MOD, PROMTOOL_GO_MOD]
        {
            assert_eq!(oldest_go(go_mod).unwrap(), "1.26.0");
        }
    }

    #[test]
    fn metrics_server_is_of_the_control_planes_packages() {
        let required = |text: &'static str| -> BTreeMap<&str, &str> {
            let lines = text.lines().filter(|line| line.starts_with('\t') && !line.contains(" => "));
            lines.filter_map(|line| line.trim().split(" //").next()?.split_once(' ')).collect()
        };
        let replaced: BTreeMap<&str, &str> = METRICS_SERVER_GO_MOD
            .lines()
            .filter_map(|line| Some((line.trim().split_once(" => ")?.0, line.rsplit_once(' ')?.1)))
            .collect();
        let of_plane = required(GO_MOD);
        let own: Vec<&str> = required(METRICS_SERVER_GO_MOD)
            .into_iter()
            .filter(|(name, version)| of_plane.get(name) != Some(replaced.get(name).unwrap_or(version)))
            .map(|(name, _)| name)
            .collect();
        let expected =
            ["github.com/grafana/regexp", "github.com/prometheus/prometheus", "sigs.k8s.io/metrics-server"];
        assert_eq!(own, expected, "other versions are compiled once more");
    }
}
