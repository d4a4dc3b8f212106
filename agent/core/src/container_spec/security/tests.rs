//! Tables of security contexts.

use serde_json::{Value, json};

use super::*;

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u",
            "annotations": {"container.apparmor.security.beta.kubernetes.io/c": "localhost/old"}}, "spec": spec}))
    .unwrap()
}

fn with(pod_context: Value, own: Value) -> Pod {
    pod(json!({"securityContext": pod_context, "containers": [{"name": "c", "securityContext": own}]}))
}

fn image(uid: Option<i64>, username: &str) -> ImageInfo {
    ImageInfo {
        id: "sha256:1".into(),
        uid,
        username: username.into(),
        size_bytes: 1,
        repo_tags: Vec::new(),
        repo_digests: Vec::new(),
        pinned: false,
    }
}

fn security(pod: &Pod, image: &ImageInfo, node: &NodeContext) -> Result<ContainerSecurity, SpecError> {
    container_security(pod, &pod::containers(pod)[0], image, node)
}

#[test]
fn namespaces_follow_the_host_flags() {
    use NamespaceMode::{Container, Node, Pod as Shared};
    let table = [
        (json!({}), (Shared, Container, Shared)),
        (json!({"hostNetwork": true}), (Node, Container, Shared)),
        (json!({"hostPID": true, "shareProcessNamespace": true}), (Shared, Node, Shared)),
        (json!({"hostIPC": true}), (Shared, Container, Node)),
        (json!({"shareProcessNamespace": true}), (Shared, Shared, Shared)),
    ];
    for (spec, (network, pid, ipc)) in table {
        assert_eq!(namespaces(&pod(spec.clone())), Namespaces { network, pid, ipc }, "{spec}");
    }
}

#[test]
fn users() {
    let node = NodeContext::new("n");
    let table = [
        (json!({}), json!({}), image(None, ""), (Some(0), "")),
        (json!({}), json!({}), image(Some(7), ""), (Some(7), "")),
        (json!({}), json!({}), image(None, "www"), (None, "www")),
        (json!({"runAsUser": 5}), json!({}), image(None, "www"), (Some(5), "")),
        (json!({"runAsUser": 5}), json!({"runAsUser": 6}), image(Some(7), ""), (Some(6), "")),
    ];
    for (for_pod, own, image, (user, username)) in table {
        let security = security(&with(for_pod, own), &image, &node).unwrap();
        assert_eq!((security.run_as_user, security.run_as_username.as_str()), (user, username));
    }
}

#[test]
fn non_root_is_proven_or_refused() {
    let node = NodeContext::new("n");
    let root = "container has runAsNonRoot and image will run as root (pod: \"p_ns(u)\", container: c)";
    let table = [
        (json!({"runAsNonRoot": true}), json!({}), image(Some(7), ""), None),
        (json!({"runAsNonRoot": true}), json!({}), image(Some(0), ""), Some(root)),
        (json!({"runAsNonRoot": true}), json!({}), image(None, ""), Some(root)),
        (json!({"runAsNonRoot": true}), json!({}), image(Some(2_147_483_647), ""), None),
        (
            json!({"runAsNonRoot": true}),
            json!({}),
            image(Some(4_294_967_296), ""),
            Some(
                "container has runAsNonRoot and image has an invalid user id (4294967296). (Must be 1-(2147483647)): must \
                 be between 0 and 2147483647, inclusive (pod: \"p_ns(u)\", container: c)",
            ),
        ),
        (
            json!({}),
            json!({"runAsNonRoot": true}),
            image(None, "www"),
            Some(
                "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root \
                 (pod: \"p_ns(u)\", container: c)",
            ),
        ),
        (
            json!({"runAsUser": 0}),
            json!({"runAsNonRoot": true}),
            image(Some(7), ""),
            Some("container's runAsUser breaks non-root policy (pod: \"p_ns(u)\", container: c)"),
        ),
        (json!({"runAsNonRoot": true}), json!({"runAsNonRoot": false}), image(Some(0), ""), None),
        (json!({"runAsNonRoot": true, "runAsUser": 3}), json!({}), image(Some(0), ""), None),
    ];
    for (for_pod, own, image, expected) in table {
        let result = security(&with(for_pod, own), &image, &node);
        assert_eq!(result.err().map(|e| e.message).as_deref(), expected);
    }
}

#[test]
fn seccomp_and_apparmor() {
    let mut node = NodeContext::new("n");
    let local = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}});
    let default = json!({"seccompProfile": {"type": "RuntimeDefault"}});
    let image = image(None, "");
    let seccomp = |for_pod: Value, own: Value, node: &NodeContext| {
        security(&with(for_pod, own), &image, node).unwrap().seccomp.unwrap()
    };
    assert_eq!(seccomp(json!({}), json!({}), &node), SecurityProfile::Unconfined);
    assert_eq!(seccomp(default.clone(), json!({}), &node), SecurityProfile::RuntimeDefault);
    let path = SecurityProfile::Localhost("/var/lib/kubelet/seccomp/a/b.json".into());
    assert_eq!(seccomp(default, local, &node), path);
    node.security.seccomp_default = true;
    assert_eq!(seccomp(json!({}), json!({}), &node), SecurityProfile::RuntimeDefault);

    let armor = |own: Value| security(&with(json!({}), own), &image, &node).unwrap().apparmor;
    assert_eq!(armor(json!({})), Some(SecurityProfile::Localhost("old".into())));
    let own = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    assert_eq!(armor(own), Some(SecurityProfile::RuntimeDefault));
}

#[test]
fn the_rest_of_a_full_context() {
    let for_pod = json!({"fsGroup": 20, "supplementalGroups": [30, 40], "supplementalGroupsPolicy": "Strict",
        "runAsGroup": 10, "seLinuxOptions": {"level": "s0:c1"}});
    let own = json!({"privileged": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
        "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "runAsGroup": 11});
    let mut node = NodeContext::new("n");
    node.machine.thermal_throttle_paths = vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".into()];
    let pod = with(for_pod, own);
    let got = security(&pod, &image(None, ""), &node).unwrap();
    assert_eq!(got.supplemental_groups, [20, 30, 40]);
    assert_eq!(got.supplemental_groups_policy, SupplementalGroupsPolicy::Strict);
    assert_eq!(got.run_as_group, Some(11));
    assert!(got.privileged && got.readonly_rootfs && got.no_new_privs);
    assert_eq!(
        (got.add_capabilities.as_slice(), got.drop_capabilities.as_slice()),
        (&["NET_ADMIN".to_owned()][..], &["ALL".to_owned()][..])
    );
    assert_eq!(got.selinux.as_ref().unwrap().level, "s0:c1");
    assert_eq!(got.masked_paths.len(), 13);
    let sandbox = sandbox_security(&pod, &Claims::new());
    assert!(sandbox.privileged);
    assert_eq!(sandbox.run_as_group, Some(10));
    assert_eq!(sandbox.seccomp, Some(SecurityProfile::RuntimeDefault));
    assert_eq!(sandbox.supplemental_groups, [20, 30, 40]);
}
