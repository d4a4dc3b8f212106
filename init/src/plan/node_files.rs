//! What is written for a node's configuration: the effective configuration and what is there already in, steps
//! out. Seam: docs/internals/architecture.md, "Run-time files".
//!
//! Invariants: nothing is written outside /run, init's own places in /var and the places for `files`; a manifest is removed only if the
//! configuration was read whole and no longer has it; a degraded node gets no static pod.

use super::files;
use super::mounts::SYSROOT;
use super::source::Document;
use super::step::BootStep;
use super::swap;
use orlop_config::node::{Effective, derive};
use std::collections::BTreeSet;

/// The state partition, as init sees it.
pub const VAR: &str = "/sysroot/var";
/// Static pod manifests, as init sees them.
pub const MANIFESTS: &str = "/sysroot/var/lib/orlop/kubernetes/manifests";
/// CNI configuration, as init sees it.
pub const CNI: &str = "/sysroot/var/lib/orlop/cni/net.d";
/// containerd's registry hosts, as init sees them.
pub const CERTS: &str = "/sysroot/var/lib/orlop/containerd/certs.d";
/// It is there if each `hosts.toml` that init wrote has a mark: earlier versions made none, and a file of theirs that the
/// configuration no longer has is looked for once.
pub const HOSTS_MARKED: &str = "/sysroot/var/lib/orlop/containerd/hosts-marked";

/// Copy of `/run/orlop/node-config.json`, which has no secrets, among the node's logs.
const CONFIG_COPY: &str = "/sysroot/var/log/orlop/node-config.json";
/// CNI configuration that containerd writes with the ranges of the Node (`network.podNetwork: bridge`).
const CONTAINERDS: &str = "10-containerd-net.conflist";

/// Pods of a node whose configuration names no range of its own.
const POD_CIDR: &str = "10.88.0.0/16";

/// What is known.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// What counts.
    pub effective: &'a Effective,
    /// Of this node; empty if it could not be made.
    pub machine_id: &'a str,
    /// /var is volatile.
    pub degraded: bool,
    /// Something of the configuration was refused: what an earlier boot wrote may still be wanted.
    pub refused: bool,
    /// Names in the manifest directory.
    pub manifests: &'a [String],
    /// Registry hosts whose `hosts.toml` init wrote at an earlier boot.
    pub hosts: &'a [String],
    /// Files that earlier boots wrote for `files`, by their paths in documents.
    pub files: &'a [String],
    /// The directory of CNI configuration has none.
    pub cni_empty: bool,
    /// A swap file is there.
    pub swap_file: bool,
}

/// The steps, in order.
#[must_use]
pub fn plan(inputs: &Inputs<'_>) -> Vec<BootStep> {
    let config = &inputs.effective.config;
    let files = derive::run_files(inputs.effective, inputs.machine_id);
    let wanted: BTreeSet<String> = files.iter().map(|f| f.path.clone()).collect();
    let mut steps: Vec<BootStep> = files
        .into_iter()
        .map(|f| {
            let path = if f.path.starts_with("/run/") { f.path } else { format!("{SYSROOT}{}", f.path) };
            BootStep::WriteFile { path, mode: f.mode, content: f.text.into_bytes() }
        })
        .collect();
    // The node's logs can be read from outside, /run cannot.
    steps.push(file(CONFIG_COPY.into(), 0o644, inputs.effective.document()));
    // DHCP's servers come later (`orlop-init resolv`); a sandbox needs the file to exist.
    let resolv_conf = derive::resolv_conf(config);
    steps.push(file("/run/orlop/resolv.conf".into(), 0o644, resolv_conf));
    if !inputs.degraded {
        steps.extend(static_pods(inputs));
    }
    // Also on a volatile /var: the agent does not start without the files that its configuration names.
    steps.extend(files::steps(config, VAR, inputs.files, inputs.refused));
    if !inputs.refused {
        let made = inputs.hosts.iter().flat_map(|host| derive::hosts_file_paths(host));
        let stale = made.filter(|path| !wanted.contains(path));
        steps.extend(stale.map(|path| BootStep::RemoveFile(format!("{SYSROOT}{path}"))));
        steps.push(file(HOSTS_MARKED.into(), 0o644, String::new()));
    }
    if inputs.swap_file && !inputs.refused && !derive::swaps(config) {
        steps.push(BootStep::RemoveFile(format!("{VAR}/{}", swap::FILE)));
    }
    if derive::joins(config) && !derive::bridges(config) {
        // It is there if the configuration was another one; it would stand before an add-on's.
        steps.push(BootStep::RemoveFile(format!("{CNI}/{CONTAINERDS}")));
    }
    let range = &inputs.effective.kubelet.pod_cidr;
    let conflist = format!("{CNI}/10-orlop.conflist");
    if derive::joins(config) && range.is_empty() {
        // The pod network is the cluster's to bring; the standalone one would hide that it is missing.
        steps.push(BootStep::RemoveFile(conflist));
    } else if inputs.cni_empty {
        let range = if range.is_empty() { POD_CIDR } else { range };
        steps.push(file(conflist, 0o644, self::conflist(range)));
    }
    steps
}

fn file(path: String, mode: u32, text: String) -> BootStep {
    BootStep::WriteFile { path, mode, content: text.into_bytes() }
}

fn static_pods(inputs: &Inputs<'_>) -> Vec<BootStep> {
    let wanted = derive::static_pod_files(&inputs.effective.config);
    let names: BTreeSet<&str> = wanted.iter().map(|(name, _)| name.as_str()).collect();
    let ours = |name: &&String| name.starts_with("orlop-") && name.ends_with(".yaml");
    let stale =
        inputs.manifests.iter().filter(ours).filter(|n| !inputs.refused && !names.contains(n.as_str()));
    let mut steps: Vec<BootStep> = stale.map(|n| BootStep::RemoveFile(format!("{MANIFESTS}/{n}"))).collect();
    // Environment variables of a pod may be secret.
    steps.extend(wanted.into_iter().map(|(name, text)| file(format!("{MANIFESTS}/{name}"), 0o600, text)));
    steps
}

/// Every source as found, for the one who wonders; mode 0600, because it may hold a token.
#[must_use]
pub fn source_files(documents: &[Document], sets: &[String]) -> Vec<BootStep> {
    let mut used = BTreeSet::new();
    let mut steps: Vec<BootStep> = documents
        .iter()
        .map(|d| {
            let mut rank = d.kind.rank();
            while !used.insert(rank) {
                rank += 1;
            }
            file(format!("/run/orlop/config/{rank:02}-{}.yaml", d.kind.name()), 0o600, d.text.clone())
        })
        .collect();
    if !sets.is_empty() {
        let text: String = sets.iter().map(|s| format!("# orlop.set={s}\n")).collect();
        steps.push(file("/run/orlop/config/70-set.yaml".into(), 0o600, text));
    }
    steps
}

/// The network of a standalone node; what leaves it is masqueraded by bringup (`plan::masquerade`). Addresses are kept in /run: no
/// pod lives through a reboot, and an address that was never given back would be lost for good. One plugin does host ports, too:
/// an entry `portmap` of its own would be one more program for each pod (docs/decisions/cni-plugin.md).
fn conflist(range: &str) -> String {
    let plugins = serde_json::json!([
        {
            "type": "bridge",
            "bridge": "orlop0",
            "isDefaultGateway": true,
            "hairpinMode": true,
            "ipam": { "type": "host-local", "dataDir": "/run/cni/networks", "ranges": [[{ "subnet": range }]] },
            "capabilities": { "portMappings": true },
            "portmap": { "backend": "nftables" },
        },
    ]);
    let list = serde_json::json!({ "cniVersion": "1.0.0", "name": "orlop", "plugins": plugins });
    format!("{list:#}\n")
}

#[cfg(test)]
mod tests {
    use super::super::source::Kind;
    use super::*;
    use orlop_config::node::{Source, load};

    fn effective(body: &str) -> Effective {
        let text = format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}");
        let effective = load(&[Source { name: "esp".into(), origin: "ESP".into(), text }], &[]);
        assert_eq!(effective.problems, []);
        effective
    }

    fn inputs<'a>(effective: &'a Effective, manifests: &'a [String], hosts: &'a [String]) -> Inputs<'a> {
        let machine_id = "0123456789abcdef0123456789abcdef";
        Inputs {
            effective,
            machine_id,
            degraded: false,
            refused: false,
            manifests,
            hosts,
            files: &[],
            cni_empty: false,
            swap_file: false,
        }
    }

    #[test]
    fn files_of_the_configuration_are_placed_also_on_a_volatile_var() {
        let e = effective("files: [{path: /etc/kubernetes/ca.crt, content: x}]\n");
        let old = ["/etc/kubernetes/old".to_owned()];
        for degraded in [false, true] {
            let steps = plan(&Inputs { degraded, files: &old, ..inputs(&e, &[], &[]) });
            let at = |wanted: fn(&BootStep) -> bool| steps.iter().position(wanted);
            let placed =
                at(|step| matches!(step, BootStep::PlaceFile(file) if file.path == "/etc/kubernetes/ca.crt"));
            let removed = at(
                |step| matches!(step, BootStep::RemovePlacedFile { path, .. } if path == "/etc/kubernetes/old"),
            );
            assert!(placed.is_some() && removed.is_some(), "{steps:?}");
            assert!(written(&steps, &format!("{VAR}/{}", files::LIST)).is_some());
        }
    }

    fn written<'a>(steps: &'a [BootStep], path: &str) -> Option<&'a BootStep> {
        steps.iter().find(|s| matches!(s, BootStep::WriteFile { path: p, .. } if p == path))
    }

    fn removed(steps: &[BootStep]) -> Vec<&str> {
        steps
            .iter()
            .filter_map(|s| match s {
                BootStep::RemoveFile(p) => p.rsplit_once("/lib/orlop/").map(|(_, rest)| rest),
                _ => None,
            })
            .collect()
    }

    const POD: &str = "staticPods: [{apiVersion: v1, kind: Pod, metadata: {name: web}}]\n";

    #[test]
    fn files_go_to_run_and_to_the_new_root_s_var() {
        let e = effective("node: {name: n1}\nregistries: {mirrors: {r.io: {endpoints: ['http://m']}}}\n");
        let steps = plan(&inputs(&e, &[], &[]));
        for path in [
            "/run/orlop/hostname",
            "/run/orlop/hosts",
            "/run/orlop/kubelet.yaml",
            "/run/orlop/node-config.json",
            "/run/orlop/resolv.conf",
            "/run/systemd/network/10-orlop.network",
            "/sysroot/var/lib/orlop/containerd/certs.d/r.io/hosts.toml",
        ] {
            assert!(written(&steps, path).is_some(), "{path}");
        }
        let paths = steps.iter().map(|s| match s {
            BootStep::WriteFile { path, .. } | BootStep::RemoveFile(path) => path.as_str(),
            other => panic!("{other:?}"),
        });
        let own = ["/run/", "/sysroot/var/lib/orlop/", "/sysroot/var/log/orlop/"];
        assert!(paths.into_iter().all(|p| own.iter().any(|dir| p.starts_with(dir))));
        let texts: Vec<&Vec<u8>> = ["/run/orlop/node-config.json", CONFIG_COPY]
            .iter()
            .map(|path| match written(&steps, path) {
                Some(BootStep::WriteFile { mode: 0o644, content, .. }) => content,
                other => panic!("{path}: {other:?}"),
            })
            .collect();
        assert_eq!(texts[0], texts[1]);
    }

    #[test]
    fn manifests_follow_the_configuration() {
        let there = ["orlop-web.yaml", "orlop-old.yaml", "mine.yaml", "orlop-note.txt"].map(String::from);
        let e = effective(POD);
        let steps = plan(&inputs(&e, &there, &[]));
        assert_eq!(removed(&steps), ["kubernetes/manifests/orlop-old.yaml"]);
        let web = format!("{MANIFESTS}/orlop-web.yaml");
        assert!(matches!(written(&steps, &web), Some(BootStep::WriteFile { mode: 0o600, .. })));
        // What was refused may have been the pod's own document: nothing is taken away.
        let steps = plan(&Inputs { refused: true, ..inputs(&e, &there, &[]) });
        assert_eq!(removed(&steps), Vec::<&str>::new());
        let steps = plan(&Inputs { degraded: true, ..inputs(&e, &there, &[]) });
        assert_eq!((removed(&steps), written(&steps, &web)), (vec![], None));
    }

    #[test]
    fn hosts_of_forgotten_registries_go() {
        let e = effective("registries: {mirrors: {r.io: {endpoints: ['http://m']}}}\n");
        let hosts = ["r.io", "old.io"].map(String::from);
        let steps = plan(&inputs(&e, &[], &hosts));
        // Also a key that the configuration has no more. `hosts.toml` is last: its mark shows that the others are init's.
        assert_eq!(
            removed(&steps),
            [
                "containerd/certs.d/r.io/orlop-ca.pem",
                "containerd/certs.d/r.io/orlop-client.pem",
                "containerd/certs.d/r.io/orlop-client-key.pem",
                "containerd/certs.d/old.io/orlop-ca.pem",
                "containerd/certs.d/old.io/orlop-client.pem",
                "containerd/certs.d/old.io/orlop-client-key.pem",
                "containerd/certs.d/old.io/hosts.toml",
            ]
        );
        assert!(written(&steps, HOSTS_MARKED).is_some());
        let steps = plan(&Inputs { refused: true, ..inputs(&e, &[], &hosts) });
        assert!(removed(&steps).is_empty() && written(&steps, HOSTS_MARKED).is_none());
    }

    #[test]
    fn certificates_of_a_registry_stay_beside_what_names_them() {
        let certificate = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=";
        let e = effective(&format!("registries: {{mirrors: {{r.io: {{caData: {certificate}}}}}}}\n"));
        let steps = plan(&inputs(&e, &[], &["r.io".to_owned()]));
        let position = |name: &str| {
            let path = format!("{CERTS}/r.io/{name}");
            steps.iter().position(|s| matches!(s, BootStep::WriteFile { path: p, .. } if *p == path))
        };
        let (ca, hosts) =
            (position("orlop-ca.pem").expect("written"), position("hosts.toml").expect("written"));
        assert!(ca < hosts, "a power cut leaves no file that names what is not there");
        assert_eq!(
            removed(&steps),
            ["containerd/certs.d/r.io/orlop-client.pem", "containerd/certs.d/r.io/orlop-client-key.pem"]
        );
    }

    #[test]
    fn a_swap_file_goes_with_its_key() {
        let (none, some) = (effective(""), effective("swap: {size: 64Mi}\n"));
        let with = |e, refused| plan(&Inputs { swap_file: true, refused, ..inputs(e, &[], &[]) });
        assert_eq!(removed(&with(&none, false)), ["swapfile"]);
        assert!(removed(&with(&none, true)).is_empty(), "what was refused may have been its own document");
        assert!(removed(&with(&some, false)).is_empty());
        let steps = with(&some, false);
        let Some(BootStep::WriteFile { content, .. }) = written(&steps, derive::SWAP_FILE) else {
            panic!("written")
        };
        assert_eq!(content, b"67108864\n");
    }

    #[test]
    fn network_only_where_there_is_none() {
        let path = format!("{CNI}/10-orlop.conflist");
        let (own, given) = (effective(""), effective("kubelet: {podCIDR: 172.20.0.0/24}\n"));
        assert!(written(&plan(&inputs(&own, &[], &[])), &path).is_none());
        for (e, range) in [(&own, POD_CIDR), (&given, "172.20.0.0/24")] {
            let steps = plan(&Inputs { cni_empty: true, ..inputs(e, &[], &[]) });
            let Some(BootStep::WriteFile { content, .. }) = written(&steps, &path) else { panic!("written") };
            let list: serde_json::Value = serde_json::from_slice(content).expect("JSON");
            assert_eq!(list["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], range);
            assert_eq!(list["plugins"].as_array().expect("a list").len(), 1);
            // Without the capability the runtime keeps the pod's ports to itself.
            assert_eq!(list["plugins"][0]["capabilities"]["portMappings"], true);
            assert!(list["plugins"][0]["portmap"].is_object());
        }
    }

    #[test]
    fn a_joining_node_waits_for_the_clusters_network() {
        let path = format!("{CNI}/10-orlop.conflist");
        let join = "join: {server: 'https://api:6443', caData: YWJj}\n";
        let e = effective(join);
        let (own, containerds) = ("cni/net.d/10-orlop.conflist", "cni/net.d/10-containerd-net.conflist");
        for cni_empty in [true, false] {
            let steps = plan(&Inputs { cni_empty, ..inputs(&e, &[], &[]) });
            assert_eq!(removed(&steps), [containerds, own]);
            assert!(written(&steps, &path).is_none());
            assert!(written(&steps, derive::POD_NETWORK_FILE).is_none());
        }
        let bridge = effective(&format!("{join}network: {{podNetwork: bridge}}\n"));
        let steps = plan(&inputs(&bridge, &[], &[]));
        // What containerd wrote stays: static pods run after a boot without the API server.
        assert_eq!(removed(&steps), [own]);
        assert!(written(&steps, derive::POD_NETWORK_FILE).is_some() && written(&steps, &path).is_none());
        let ranged = effective(&format!("{join}kubelet: {{podCIDR: 172.20.0.0/24}}\n"));
        let steps = plan(&Inputs { cni_empty: true, ..inputs(&ranged, &[], &[]) });
        assert_eq!(removed(&steps), [containerds]);
        assert!(written(&steps, &path).is_some());
        let alone = effective("network: {podNetwork: bridge}\n");
        let steps = plan(&Inputs { cni_empty: true, ..inputs(&alone, &[], &[]) });
        assert!(written(&steps, derive::POD_NETWORK_FILE).is_none() && written(&steps, &path).is_some());
    }

    #[test]
    fn sources_keep_their_rank() {
        let d = |kind| Document { kind, origin: String::new(), text: "x".into(), kept: false };
        let steps = source_files(
            &[d(Kind::Image), d(Kind::Drive), d(Kind::Drive), d(Kind::Cmdline)],
            &["a=b".into()],
        );
        let paths: Vec<&str> = steps
            .iter()
            .map(|s| match s {
                BootStep::WriteFile { path, mode: 0o600, .. } => path.rsplit('/').next().unwrap_or(path),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            paths,
            ["10-image.yaml", "30-drive.yaml", "31-drive.yaml", "60-cmdline.yaml", "70-set.yaml"]
        );
    }
}
