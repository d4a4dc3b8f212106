//! Golden corpus: a static pod manifest becomes exactly this sandbox and these containers.
//!
//! In: `fixtures/<name>.{yaml,json}`. Expected: `fixtures/<name>.golden.json`. A failure prints the whole new text;
//! if the change is meant, put it into the file and say why in the commit.

use agent_core::container_spec;
use agent_core::container_spec::inputs::{ContainerInputs, ImageVolumes};
use agent_core::pod_source::{Source, decode::decode, file::static_pod};
use agent_core::pod_worker::effect::Effect;
use agent_types::node_context::{NodeContext, ResolvConf};
use agent_types::objects::Objects;
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::placement::Placement;
use agent_types::{ContainerRef, pod};
use agent_volumes::bound::Claims;
use agent_volumes::env_file::EnvFiles;
use serde_json::{Value, json};

fn node() -> NodeContext {
    let mut node = NodeContext::new("node-1");
    node.node_ips = vec!["192.0.2.1".into()];
    node.dns.cluster_dns = vec!["10.96.0.10".into()];
    node.dns.cluster_domain = "cluster.local".into();
    node.dns.host = Some(ResolvConf::parse("nameserver 192.0.2.53\nsearch example.org\n"));
    node.host_etc_hosts = "127.0.0.1 localhost node-1\n".into();
    node.machine.memory_capacity_bytes = 4 << 30;
    node.machine.allocatable_cpu_milli = 2000;
    node.machine.allocatable_memory_bytes = 3 << 30;
    node.machine.hugepage_sizes = vec!["2MB".into()];
    node
}

fn built(manifest: &str, place: &str) -> Value {
    let node = node();
    let decoded = decode(manifest.as_bytes()).expect("a good manifest");
    assert_eq!(decoded.unknown_fields, Vec::<String>::new());
    let pod =
        static_pod(decoded.pod, &decoded.raw, Source::File, &node.node_name, place).expect("a valid pod");
    assert_eq!(container_spec::unsupported(&pod), []);
    let image = ImageInfo {
        id: "sha256:0123".into(),
        uid: Some(7),
        username: String::new(),
        size_bytes: 1,
        repo_tags: Vec::new(),
        repo_digests: Vec::new(),
        pinned: false,
    };
    let ips = ["10.0.0.2".to_owned()];
    let ips = if pod::host_network(&pod) { &[] } else { &ips[..] };
    let given = ContainerInputs {
        image: &image,
        pod_ips: ips,
        objects: &Objects::new(),
        files: &EnvFiles::new(),
        claims: &Claims::new(),
        images: &ImageVolumes::new(),
        placement: &Placement::default(),
        resource_claims: None,
        recursive_read_only: true,
    };
    let init = pod::init_containers(&pod).iter().map(|c| ContainerRef::Init(&c.name));
    let regular = pod::containers(&pod).iter().map(|c| ContainerRef::Regular(&c.name));
    let containers: Vec<Value> = init
        .chain(regular)
        .map(|c| {
            let config = container_spec::container_config(&pod, c, 3, given, &node).expect("a configuration");
            json!({"config": config, "files": Effect::from(container_spec::container_files(&pod, c, 3, ips, &node))})
        })
        .collect();
    json!({
        "pod": pod,
        "directories": Effect::from(container_spec::pod_dirs(&pod, &node)),
        "sandbox": container_spec::sandbox_config(&pod, 1, &Claims::new(), &node).expect("a sandbox"),
        "containers": containers,
    })
}

fn check(name: &str, manifest: &str, golden: &str) {
    let built = built(manifest, &format!("/etc/kubernetes/manifests/{name}"));
    let expected: Value = serde_json::from_str(golden).unwrap_or_default();
    let text = serde_json::to_string_pretty(&built).expect("JSON");
    assert!(built == expected, "{name} is now\n{text}");
}

macro_rules! golden {
    ($($test:ident: $file:literal, $golden:literal;)*) => {$(
        #[test]
        fn $test() {
            check($file, include_str!(concat!("fixtures/", $file)), include_str!(concat!("fixtures/", $golden)));
        }
    )*};
}

golden! {
    hello: "hello.yaml", "hello.golden.json";
    full: "full.yaml", "full.golden.json";
    control_plane: "control-plane.yaml", "control-plane.golden.json";
    sidecar: "sidecar.json", "sidecar.golden.json";
}
