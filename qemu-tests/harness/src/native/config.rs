//! Configuration files of a native node: containerd, CNI, agent. Pure.

use orlop_config::node::{NodeConfig, derive};
use serde_json::{Value, json};

/// Directory of static pods.
pub const MANIFESTS: &str = "/var/lib/orlop/kubernetes/manifests";

/// The kubelet's configuration file inside the node.
pub const KUBELET: &str = "/run/e2e/kubelet.yaml";

/// Target of the image's link `/etc/hosts`; containerd copies it for sandboxes and refuses to start without it.
pub const HOSTS: &str = "/run/orlop/hosts";

/// containerd's socket inside the node.
pub const CRI_SOCKET: &str = "/run/containerd/containerd.sock";

/// The node's effective configuration, where the agent looks for it; only some nodes have one.
pub const NODE_CONFIG: &str = "/run/orlop/node-config.json";

/// The node's pod network.
pub const CNI: &str = "/var/lib/orlop/cni/net.d/10-e2e.conflist";

/// The node's name: suffix of every static pod.
pub const NODE_NAME: &str = "native";

/// The image's configuration of containerd.
const OF_IMAGE: &str = include_str!("../../../../image/rootfs/common/etc/containerd/config.toml");

/// On a host with cgroup v1 this plugin reports kills for want of memory. The image, which has cgroup v2, has it off.
const MONITOR: &str = "io.containerd.monitor.task.v1.cgroups";

/// The plugins that the image's configuration turns off, by type and id with a dot between them.
#[must_use]
pub fn disabled_plugins() -> Vec<&'static str> {
    let list = OF_IMAGE.lines().skip_while(|line| !line.starts_with("disabled_plugins = ["));
    let quoted = list.take_while(|line| *line != "]").filter_map(|line| line.trim().strip_prefix('\''));
    quoted.filter_map(|name| name.split('\'').next()).collect()
}

/// containerd 2 configuration with the image's plugins and the one for cgroup v1: no AppArmor, no lowering of oom_score_adj (it needs CAP_SYS_RESOURCE), the
/// cgroupfs driver. The handler has the name of the OCI runtime's program, as in the image.
#[must_use]
pub fn containerd(sandbox_image: &str, runtime: &str) -> String {
    let handler = runtime.rsplit('/').next().unwrap_or(runtime);
    let off: Vec<String> =
        disabled_plugins().iter().filter(|name| **name != MONITOR).map(|name| format!("{name:?}")).collect();
    let off = off.join(", ");
    format!(
        r#"version = 3
imports = ["/run/orlop/containerd/*.toml"]
disabled_plugins = [{off}]
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "{CRI_SOCKET}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{sandbox_image}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "/run/e2e/certs.d"

[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  cdi_spec_dirs = ["/run/cdi"]
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "{handler}"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{handler}]
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = ["io.containerd.runc.v2.group"]
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{handler}.options]
        BinaryName = "{runtime}"
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/orlop/cni", "/usr/lib/cni", "/opt/cni/bin"]
    conf_dir = "/var/lib/orlop/cni/net.d"
    use_internal_loopback = true
"#
    )
}

/// A node's effective configuration in which so many pods share a shim.
#[must_use]
pub fn sharing_shims(pods_per_shim: u32) -> String {
    json!({"config": {"runtime": {"podsPerShim": pods_per_shim}}}).to_string()
}

/// containerd's `hosts.toml` for the registry at `address` (host and port): plain HTTP.
#[must_use]
pub fn hosts_of(address: &str) -> String {
    format!(
        "server = \"http://{address}\"\n\n[host.\"http://{address}\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
    )
}

/// Bridge network, as `orlop-init bringup` writes it for a standalone node but without masquerading: the
/// node has no way out. `subnet` is its pods'.
#[must_use]
pub fn cni(subnet: &str) -> String {
    format!(
        r#"{{"cniVersion":"1.0.0","name":"e2e","plugins":[{{"type":"bridge","bridge":"cni0","isGateway":true,
"ipMasq":false,"hairpinMode":true,"ipam":{{"type":"host-local","ranges":[[{{"subnet":"{subnet}"}}]],
"routes":[{{"dst":"0.0.0.0/0"}}]}}}}]}}
"#
    )
}

/// The same with host ports, as a node's own network has them, and a range of addresses for each subnet.
#[must_use]
pub fn cni_with_host_ports(subnets: &[String]) -> String {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    let everywhere = |subnet: &String| if subnet.contains(':') { "::/0" } else { "0.0.0.0/0" };
    let routes: Vec<Value> = subnets.iter().map(|subnet| json!({"dst": everywhere(subnet)})).collect();
    let bridge = json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
        "capabilities": {"portMappings": true}, "portmap": {"backend": "nftables"},
    });
    format!("{}\n", json!({"cniVersion": "1.0.0", "name": "e2e", "plugins": [bridge]}))
}

/// Names as a booted node of this name, without a configured address, has them.
#[must_use]
pub fn hosts(name: &str) -> String {
    let mut node = NodeConfig::default();
    name.clone_into(&mut node.node.name);
    derive::hosts(&node, "")
}

/// KubeletConfiguration for a machine that may have cgroup v1 only.
#[must_use]
pub fn kubelet() -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\n\
         kind: KubeletConfiguration\n\
         staticPodPath: {MANIFESTS}\n\
         containerRuntimeEndpoint: unix://{CRI_SOCKET}\n\
         cgroupDriver: cgroupfs\n\
         cgroupsPerQOS: false\n\
         enforceNodeAllocatable: []\n\
         failCgroupV1: false\n\
         failSwapOn: false\n\
         maxPods: 200\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerd_has_the_images_plugins_and_the_one_for_cgroup_v1() {
        let off = disabled_plugins();
        assert!(off.contains(&MONITOR) && off.contains(&"io.containerd.internal.v1.opt"), "{off:?}");
        let text = containerd("pause", "/usr/bin/crun");
        let line = text.lines().find_map(|line| line.strip_prefix("disabled_plugins = ")).unwrap();
        let own: Vec<String> = serde_json::from_str(line).unwrap();
        assert_eq!(own.len(), off.len() - 1);
        assert!(own.iter().all(|name| name != MONITOR && off.contains(&name.as_str())), "{own:?}");
        // Pods share shims on a native node as they do in the image.
        let annotation = "io.containerd.runc.v2.group";
        assert!(OF_IMAGE.contains(&format!("pod_annotations = ['{annotation}']")));
        assert!(text.contains(&format!("pod_annotations = [\"{annotation}\"]")));
        // A key behind the first table would belong to that table.
        assert!(text.find("disabled_plugins") < text.find("\n["));
    }

    #[test]
    fn the_two_networks_differ_in_host_ports_and_families_alone() {
        let read = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
        let plain = read(&cni("10.88.10.0/24"));
        let mut ported = read(&cni_with_host_ports(&["10.88.10.0/24".to_owned()]));
        let bridge = ported["plugins"][0].as_object_mut().unwrap();
        assert_eq!(bridge.remove("capabilities").unwrap(), json!({"portMappings": true}));
        assert_eq!(bridge.remove("portmap").unwrap(), json!({"backend": "nftables"}));
        assert_eq!(ported, plain);
        let both = read(&cni_with_host_ports(&["10.88.10.0/24".to_owned(), "fd88::/112".to_owned()]));
        let ipam = &both["plugins"][0]["ipam"];
        assert_eq!(ipam["ranges"][1], json!([{"subnet": "fd88::/112"}]));
        assert_eq!(ipam["routes"][1], json!({"dst": "::/0"}));
    }
}
