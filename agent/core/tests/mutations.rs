//! Hostile manifests: fixtures with values replaced at random. Each pod that passes validation becomes
//! configurations without a panic, and no path of it leaves the pod's own directories.

use std::sync::LazyLock;

use agent_core::admission::{AdmissionContext, admit};
use agent_core::container_spec;
use agent_core::container_spec::inputs::{ContainerInputs, ImageVolumes};
use agent_core::pod_source::{Source, decode::decode, file::static_pod};
use agent_core::pod_worker::effect::Effect;
use agent_types::node_context::NodeContext;
use agent_types::objects::Objects;
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::placement::Placement;
use agent_types::{ContainerRef, pod};
use agent_volumes::bound::Claims;
use agent_volumes::env_file::EnvFiles;
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};

static FIXTURES: LazyLock<Vec<Value>> = LazyLock::new(fixtures);

fn fixtures() -> Vec<Value> {
    let full = include_str!("fixtures/full.yaml");
    let control_plane = include_str!("fixtures/control-plane.yaml");
    let sidecar = include_str!("fixtures/sidecar.json");
    [full, control_plane, sidecar].map(|text| decode(text.as_bytes()).expect("a good fixture").raw).into()
}

/// JSON pointers of everything in `value`.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(map) => map.iter().for_each(|(key, item)| {
            let key = key.replace('~', "~0").replace('/', "~1");
            pointers(item, &format!("{at}/{key}"), all);
        }),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(index, item)| pointers(item, &format!("{at}/{index}"), all));
        }
        _ => {}
    }
}

fn nasty() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!("")),
        Just(json!("../../etc")),
        Just(json!("/a/../../b")),
        Just(json!("a\u{0}b")),
        Just(json!("$(A $$( $(POD)")),
        Just(json!("x".repeat(300))),
        Just(json!("1e1000000000")),
        Just(json!("8Ei")),
        Just(json!(-1)),
        Just(json!(i64::MAX)),
        Just(json!(i64::MIN)),
        Just(json!(65536)),
        Just(json!(0.000_000_000_1)),
        Just(json!(true)),
        "[a-z./:@-]{0,12}".prop_map(|text| json!(text)),
    ]
}

fn inside(path: &str, roots: &[String]) -> bool {
    let below = |root: &String| path == root || path.starts_with(&format!("{root}/"));
    roots.iter().any(below)
        && !path.split('/').any(|part| part == ".." || part == ".")
        && !path.contains('\0')
}

fn check_effect(effect: &Effect, roots: &[String]) -> Result<(), TestCaseError> {
    let Effect::CreatePodDirs { log_directory, dirs, files, .. } = effect else {
        return Err(TestCaseError::fail("not CreatePodDirs"));
    };
    let files = files.iter().map(|f| &f.path);
    for path in dirs.iter().map(|(path, _)| path).chain(files).chain([log_directory]) {
        prop_assert!(inside(path, roots), "{path} leaves {roots:?}");
    }
    Ok(())
}

fn check(pod: &Pod, node: &NodeContext) -> Result<(), TestCaseError> {
    let uid = pod::uid(pod);
    let logs = format!("{}/{}_{}_{uid}", node.pod_logs_dir, pod::namespace(pod), pod::name(pod));
    let roots = [format!("{}/pods/{uid}", node.root_dir), logs];
    check_effect(&container_spec::pod_dirs(pod, node).into(), &roots)?;
    let _ = container_spec::sandbox_config(pod, 0, &Claims::new(), node);
    let _ = admit(pod, [pod], &AdmissionContext::default());
    let image = ImageInfo {
        id: "i".into(),
        uid: None,
        username: String::new(),
        size_bytes: 1,
        repo_tags: Vec::new(),
        repo_digests: Vec::new(),
        pinned: false,
    };
    let ips = ["10.0.0.2".to_owned()];
    let init = pod::init_containers(pod).iter().map(|c| ContainerRef::Init(&c.name));
    let given = ContainerInputs {
        image: &image,
        pod_ips: &ips,
        objects: &Objects::new(),
        files: &EnvFiles::new(),
        claims: &Claims::new(),
        images: &ImageVolumes::new(),
        placement: &Placement::default(),
        resource_claims: None,
        recursive_read_only: true,
    };
    for container in init.chain(pod::containers(pod).iter().map(|c| ContainerRef::Regular(&c.name))) {
        check_effect(&container_spec::container_files(pod, container, 0, &ips, node).into(), &roots)?;
        let first = container_spec::container_config(pod, container, 0, given, node);
        let second = container_spec::container_config(pod, container, 0, given, node);
        prop_assert_eq!(&first, &second);
        if let Ok(config) = first {
            prop_assert!(!config.log_path.split('/').any(|part| part == ".."), "{}", config.log_path);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn whatever_is_valid_stays_in_its_directories(
        which in 0usize..3,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), nasty()), 0..4),
    ) {
        let mut manifest = FIXTURES[which].clone();
        for (index, value) in changes {
            let mut all = Vec::new();
            pointers(&manifest, "", &mut all);
            let pointer: &String = index.get(&all);
            if let Some(slot) = manifest.pointer_mut(pointer) {
                *slot = value;
            }
        }
        let text = manifest.to_string();
        let node = NodeContext::new("Node-1");
        let Ok(decoded) = decode(text.as_bytes()) else { return Ok(()) };
        if let Ok(pod) = static_pod(decoded.pod, &decoded.raw, Source::File, &node.node_name, "/m/a") {
            check(&pod, &node)?;
        }
    }
}
