//! What add-ons, CSI drivers and charts expect of a node: paths of the host, modules, settings, mounts that are shared.
//! One static pod in the VM of `boot/*` mounts every path.
//!
//! Case: `boot/addon-paths`.

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext};
use serde_json::json;

use crate::cases::boot::bash_pod::{self, MANIFESTS};
use crate::cases::boot::shared_vm::{HERE, Node, node};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "boot/addon-paths",
    25,
    "a pod mounts the paths that add-ons mount and writes to some; modules and settings of pod networks; tracing; shared mounts",
    addon_paths,
)];

const NAME: &str = "addon-paths";
/// On the node, and `/out` in the pod.
const OUT: &str = "/var/lib/e2e-addon-paths";
/// Places of a pod's own files.
const WRITABLE: [&str; 6] = [
    "/opt/local-path-provisioner",
    "/srv/fluentbit-tail",
    "/mnt/data",
    "/media/data",
    "/etc/iscsi",
    "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/nodeagent~uds",
];
/// hostPaths of published manifests, with their types.
const MOUNTED: [(&str, &str); 30] = [
    ("/etc/localtime", "File"),
    ("/usr/share/zoneinfo", "Directory"),
    ("/sys/kernel/debug", "Directory"),
    ("/sys/kernel/tracing", "Directory"),
    ("/opt/cni/bin", "DirectoryOrCreate"),
    ("/etc/cni/net.d", "DirectoryOrCreate"),
    ("/etc/selinux", "DirectoryOrCreate"),
    ("/etc/udev", "Directory"),
    ("/lib/udev", "Directory"),
    ("/run/udev", "Directory"),
    ("/etc/systemd/system", "Directory"),
    ("/etc/multipath", ""),
    ("/etc/lvm", "DirectoryOrCreate"),
    ("/etc/nvme", "DirectoryOrCreate"),
    ("/etc/ceph", "DirectoryOrCreate"),
    ("/etc/modprobe.d", "DirectoryOrCreate"),
    ("/etc/os-release", "File"),
    ("/etc/passwd", "File"),
    ("/etc/machine-id", "File"),
    ("/etc/ssl/certs", "DirectoryOrCreate"),
    ("/usr/share/ca-certificates", "DirectoryOrCreate"),
    ("/run/dbus/system_bus_socket", "Socket"),
    ("/run/systemd/private", "Socket"),
    ("/run/lvm", ""),
    ("/run/lock", "Directory"),
    ("/run/netns", "Directory"),
    ("/var/log/journal", "Directory"),
    ("/sys/fs/bpf", "Directory"),
    ("/lib/modules", "Directory"),
    ("/usr/src", "Directory"),
];

/// What the kernel asks for when a program uses a protocol, a link, a file system, a netlink family or an expression of
/// rules: iptables, nftables and IPVS of kube-proxy, flannel, Calico, Cilium, Open vSwitch, CSI drivers.
const ALIASES: [&str; 22] = [
    "net-pf-2-proto-132",
    "net-pf-16-proto-16-family-ovs_datapath",
    "net-pf-16-proto-16-family-IPVS",
    "nfnetlink-subsys-6",
    "nfnetlink-subsys-11",
    "nft-chain-2-nat",
    "nft-expr-masq",
    "nft-expr-numgen",
    "ipt_sctp",
    "ipt_MASQUERADE",
    "ipt_set",
    "ip_set_hash:ip,port",
    "ip_vs_rr",
    "rtnl-link-vxlan",
    "rtnl-link-geneve",
    "rtnl-link-ipip",
    "rtnl-link-wireguard",
    "rtnl-link-macvlan",
    "rtnl-link-ipvlan",
    "fs-ceph",
    "fs-cifs",
    "fs-nfs4",
];

/// Where a path of the host is in the pod.
fn inside(path: &str) -> String {
    let mounted = WRITABLE.iter().chain(MOUNTED.iter().map(|(path, _)| path));
    let index = mounted.take_while(|other| **other != path).count();
    format!("/h/{index}")
}

/// Prints lines `NAME=VALUE`.
fn script() -> String {
    let [debug, tracing, zone] = ["/sys/kernel/debug", "/sys/kernel/tracing", "/etc/localtime"].map(inside);
    let writes: String =
        WRITABLE.map(inside).map(|at| format!("(echo x > {at}/e2e); echo write=$?; ")).concat();
    let limit = "/proc/sys/net/netfilter/nf_conntrack_max";
    format!(
        "{writes}\
         echo bridge=$(cat /proc/sys/net/bridge/bridge-nf-call-ip{{,6}}tables); \
         read -r max < {limit}; (echo $max > {limit}); echo conntrack=$?; \
         echo files=$(ulimit -S -n):$(ulimit -H -n); \
         echo tracing=$(ls {tracing} | grep -cx available_events); \
         echo debug=$(ls {debug} | grep -cx bdi); \
         echo zone=$(TZ=:{zone} date +%Z); \
         echo name=$(grep -cw $(hostname) /etc/hosts); \
         mount -t ceph none /h/0 2>/dev/null; mount -t cifs none /h/0 2>/dev/null; \
         echo filesystems=$(grep -cwE \"ceph|cifs\" /proc/filesystems);"
    )
}

fn addon_paths(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let mut pod = bash_pod::manifest(NAME, OUT, &script(), &json!({"privileged": true, "runAsUser": 0}));
    pod["spec"]["hostNetwork"] = json!(true);
    let created = WRITABLE.map(|path| (path, "DirectoryOrCreate"));
    for (path, kind) in created.iter().chain(&MOUNTED) {
        let at = inside(path);
        let name = at.trim_start_matches('/').replace('/', "");
        let volume = json!({"name": name, "hostPath": {"path": path, "type": kind}});
        pod["spec"]["volumes"].as_array_mut().context("volumes")?.push(volume);
        let mount = json!({"name": name, "mountPath": at});
        pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().context("mounts")?.push(mount);
    }
    node.must(&format!("mkdir -p {OUT}"))?;
    bash_pod::start(node, NAME, &pod)?;
    let said = bash_pod::output(node, OUT, NAME)?;
    let values = |key: &str| -> Vec<&str> { said.lines().filter_map(|l| l.strip_prefix(key)).collect() };
    ensure!(values("write=") == ["0"; WRITABLE.len()], "some of {WRITABLE:?} cannot be written to: {said}");
    for (key, want) in [
        ("bridge=", "1 1"),
        ("conntrack=", "0"),
        ("files=", "1024:524288"),
        ("tracing=", "1"),
        ("debug=", "1"),
        ("zone=", "UTC"),
        ("name=", "1"),
        ("filesystems=", "2"),
    ] {
        ensure!(values(key) == [want], "{key}{want} is expected: {said}");
    }
    on_the_node(node)?;
    let written = WRITABLE.map(|path| format!("{path}/e2e")).join(" ");
    node.must(&format!("rm -rf {MANIFESTS}/{NAME}.json {OUT} {written}")).map(drop)
}

fn on_the_node(node: &mut Node) -> Result<()> {
    // A driver's directory is where the agent looks for it, and a plugin of a network where containerd does.
    node.must("test -d /var/lib/kubelet/volumeplugins/nodeagent~uds && test -d /var/lib/orlop/cni/bin")?;
    // On a state partition of this image a pod that has /opt somewhere else finds the plugins there, too.
    node.must("test $(readlink -f /var/lib/orlop/cni/bin) = /var/opt/cni/bin")?;
    let missing =
        node.must(&format!("for a in {}; do modprobe -qn $a || echo $a; done", ALIASES.join(" ")))?;
    ensure!(missing.trim().is_empty(), "nothing is loaded for: {missing}");
    let shared = node.must("for m in / /var /sys /sys/fs/bpf /run; do findmnt -no PROPAGATION $m; done")?;
    ensure!(shared.lines().all(|l| l.trim() == "shared"), "not shared: {shared}");
    let modes = node.must("stat -c %a /sys/fs/bpf /sys/kernel/debug /sys/kernel/tracing")?;
    // bpffs adds the sticky bit.
    ensure!(modes.lines().all(|l| l.trim().ends_with("700")), "open to others than root: {modes}");
    // containerd starts programs from no place that can be written to (docs/decisions/nri.md), but for networks' plugins.
    let places = node.must("containerd config dump | grep -E '^ *plugin_(config_)?path|/opt/'")?;
    let nri = places.lines().filter(|l| l.contains("path = '/usr/lib/orlop/nri/")).count();
    ensure!(nri == 2 && places.contains("'/opt/cni/bin'"), "NRI, and plugins of networks: {places}");
    let writable = started_from_opt(&places);
    ensure!(writable.is_empty(), "containerd looks for programs on the state partition: {writable:?}");
    Ok(())
}

/// Lines of containerd's effective configuration that name a place below /opt, other than that of networks' plugins.
fn started_from_opt(settings: &str) -> Vec<&str> {
    settings.lines().filter(|line| line.replace("/opt/cni/bin", "").contains("/opt/")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_a_place_of_its_own() {
        let mut places: Vec<String> =
            WRITABLE.iter().chain(MOUNTED.iter().map(|(path, _)| path)).map(|path| inside(path)).collect();
        assert_eq!((places[0].as_str(), places[6].as_str()), ("/h/0", "/h/6"));
        places.sort();
        places.dedup();
        assert_eq!(places.len(), WRITABLE.len() + MOUNTED.len());
    }

    #[test]
    fn a_setting_below_opt_is_found() {
        let settings = "  bin_dirs = ['/usr/lib/cni', '/opt/cni/bin']\n  plugin_path = '/usr/lib/orlop/nri/plugins'\n\
                    bin_dir = '/opt/containerd/image-verifier/bin'\n  both = ['/opt/cni/bin', '/opt/x']\n";
        let found = started_from_opt(settings);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("bin_dir =") && found[1].contains("/opt/x"));
    }

    #[test]
    fn the_shell_can_take_the_script() {
        let script = script();
        assert!(!script.contains('\'') && script.contains("/h/8 | grep -cx bdi"), "{script}");
    }
}
