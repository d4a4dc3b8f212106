//! Labels from a policy's files and a pod: tables of who agrees, who opts out, and which volumes can have one.

use serde_json::{Value, json};

use super::*;

const CONTEXTS: &str = "# of a policy\n; too\nprocess = \"system_u:system_r:container_t:s0\"\n\
                        file = \"system_u:object_r:container_file_t:s0\"\nro_file=\"x\"\n";

#[test]
fn a_policys_files_are_read() {
    let label = container_files(CONTEXTS).unwrap();
    assert_eq!(label.to_string(), "system_u:object_r:container_file_t:s0");
    assert_eq!(container_files("file = \"a:b:c\"\nprocess = \"a:b:d\"").unwrap().to_string(), "a:b:c");
    for none in
        ["", "file = \"a:b:c\"", "process = \"a:b:c\"\nfile = \"a:b\"", "process=a\nfile=\"\"\n=", "file"]
    {
        assert_eq!(container_files(none), None, "{none:?}");
    }
    let config = "# SELINUXTYPE=no\nSELINUX=permissive\nSELINUXTYPE=default\n";
    assert_eq!(value(config, "SELINUXTYPE"), Some("default"));
    assert_eq!(value(config, "SELINUXTYPES"), None);
    assert_eq!(option("u:r:t:s0:c1,c2"), r#"context="u:r:t:s0:c1,c2""#);
}

fn node(gate: bool) -> NodeContext {
    let mut node = NodeContext::new("n");
    node.security.selinux = container_files(CONTEXTS);
    node.features.selinux_mount = gate;
    node
}

fn bound(source: Source, one_pod: bool) -> Bound {
    let volume = "pv".to_owned();
    Bound {
        volume,
        source,
        read_only: false,
        options: Vec::new(),
        one_pod,
        block: false,
        group: None,
        labelled: false,
    }
}

fn csi() -> Source {
    Source::Csi(Box::default())
}

/// A pod with options of its own and of each container; every container but the last one mounts the volume `v`.
fn p(security: Value, containers: &[Value]) -> Pod {
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let mut all: Vec<Value> = containers
        .iter()
        .map(|options| json!({"name": "c", "volumeMounts": mounts, "securityContext": {"seLinuxOptions": options}}))
        .collect();
    all.push(json!({"name": "other", "securityContext": {"seLinuxOptions": {"level": "s0:c900"}}}));
    serde_json::from_value(json!({"spec": {"securityContext": security, "containers": all}})).unwrap()
}

fn of(p: &Pod, bound: &Bound, node: &NodeContext) -> Result<Option<String>, String> {
    label(p, "v", bound, node)
}

fn file(level: &str) -> Option<String> {
    Some(format!("system_u:object_r:container_file_t:{level}"))
}

#[test]
fn a_label_is_what_all_containers_of_the_volume_agree_on() {
    let none = json!(null);
    let level = |level: &str| json!({"level": level, "type": "spc_t", "role": "system_r"});
    let of_pod = json!({"seLinuxOptions": level("s0:c1,c2")});
    let here = bound(csi(), true);
    for (security, containers, expected) in [
        (json!({}), vec![none.clone()], None),
        (of_pod.clone(), vec![none.clone()], file("s0:c1,c2")),
        (of_pod.clone(), vec![none.clone(), level("s0:c1,c2")], file("s0:c1,c2")),
        (json!({}), vec![none.clone(), level("s0:c3")], file("s0:c3")),
        (
            of_pod.clone(),
            vec![json!({"level": "s1", "user": "u"})],
            Some("u:object_r:container_file_t:s1".to_owned()),
        ),
        // The runtime picks the level.
        (json!({}), vec![json!({"type": "t"})], None),
        (of_pod.clone(), vec![none.clone(), json!({"type": "t", "level": ""})], None),
        (
            json!({"seLinuxOptions": level("s0"), "seLinuxChangePolicy": "Recursive"}),
            vec![none.clone()],
            None,
        ),
        (
            json!({"seLinuxOptions": level("s0"), "seLinuxChangePolicy": "MountOption"}),
            vec![none.clone()],
            file("s0"),
        ),
    ] {
        assert_eq!(
            of(&p(security.clone(), &containers), &here, &node(false)),
            Ok(expected),
            "{security} {containers:?}"
        );
    }
    let two = p(of_pod.clone(), &[none.clone(), level("s0:c0")]);
    let words = "multiple SELinux labels found: system_u:object_r:container_file_t:s0:c0,\
                 system_u:object_r:container_file_t:s0:c1,c2";
    assert_eq!(of(&two, &here, &node(false)), Err(words.to_owned()));
    // As upstream: also of a volume that would not be mounted with a label.
    let local = Source::Local { path: "/x".to_owned(), fs_type: String::new() };
    assert_eq!(of(&two, &bound(local, true), &node(false)), Err(words.to_owned()));
    let mut debugged = p(of_pod, &[none]);
    let ephemeral = json!([{"name": "e", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "securityContext": {"seLinuxOptions": level("s0:c0")}}]);
    debugged.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(ephemeral).unwrap();
    assert_eq!(of(&debugged, &here, &node(false)), Err(words.to_owned()));
}

#[test]
fn only_volumes_that_can_have_one_get_a_label() {
    let one = p(json!({"seLinuxOptions": {"level": "s0:c1"}}), &[json!(null)]);
    let two = p(json!({}), &[json!({"level": "s0"}), json!({"level": "s1"})]);
    let nfs = Source::Nfs { server: "s".to_owned(), path: "/".to_owned() };
    for (volume, gate, labelled) in [
        (bound(csi(), true), false, true),
        (bound(csi(), false), false, false),
        (bound(csi(), false), true, true),
        (bound(nfs, true), true, false),
        (Bound { block: true, ..bound(csi(), true) }, true, false),
    ] {
        let expected = labelled.then(|| file("s0:c1")).flatten();
        assert_eq!(of(&one, &volume, &node(gate)), Ok(expected), "{volume:?}");
    }
    let (off, mut without) = (bound(csi(), false), node(true));
    assert_eq!(of(&two, &off, &node(false)), Ok(None), "nobody is refused where labels are not mounted");
    without.security.selinux = None;
    assert_eq!(of(&two, &bound(csi(), true), &without), Ok(None), "a node without SELinux");
}
