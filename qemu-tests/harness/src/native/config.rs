//! Configuration files of a native node: containerd, CNI, agent. Pure.

/// Directory of static pods.
pub const MANIFESTS: &str = "/var/lib/orlop/kubernetes/manifests";

/// The kubelet's configuration file inside the node.
pub const KUBELET: &str = "/run/e2e/kubelet.yaml";

/// containerd's socket inside the node.
pub const CRI_SOCKET: &str = "/run/containerd/containerd.sock";

/// The node's name: suffix of every static pod.
pub const NODE_NAME: &str = "native";

/// containerd 2 configuration: no AppArmor, no lowering of oom_score_adj (it needs CAP_SYS_RESOURCE), the
/// cgroupfs driver. The handler has the name of the OCI runtime's program, as in the image.
#[must_use]
pub fn containerd(sandbox_image: &str, runtime: &str) -> String {
    let handler = runtime.rsplit('/').next().unwrap_or(runtime);
    format!(
        r#"version = 3
imports = ["/run/orlop/containerd/*.toml"]
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
