//! What volumes become, and when they are set up.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::node_context::NodeContext;
use agent_types::objects::{Fetched, ObjectData, ObjectKind, Objects};
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::payload::{Payload, SourceValues, Tokens, payload};
use super::plan::set_up;
use super::token::TokenRef;
use super::*;
use crate::bound::Claims;

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}))
        .unwrap()
}

fn node() -> NodeContext {
    let mut node = NodeContext::new("n");
    node.machine.allocatable_memory_bytes = 1 << 30;
    node
}

fn planned(spec: Value) -> Result<SetUp, String> {
    let p = pod(spec);
    let name = &p.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0].name;
    set_up(&p, name, &Claims::new(), &node()).map_err(|e| e.to_string())
}

fn found(data: Value) -> Fetched {
    let data: BTreeMap<String, String> = serde_json::from_value(data).unwrap();
    let data = data.into_iter().map(|(k, v)| (k, v.into_bytes())).collect();
    Fetched::Found(ObjectData {
        data,
        binary: BTreeMap::from([("bin".to_owned(), vec![0, 255])]),
        ..ObjectData::default()
    })
}

fn object(kind: ObjectKind, name: &str) -> ObjectRef {
    ObjectRef { kind, namespace: "ns".to_owned(), name: name.to_owned() }
}

fn sources(set_up: &SetUp) -> (&[FileSource], bool) {
    match &set_up.work {
        Work::Files { sources, projected, .. } => (sources, *projected),
        other => panic!("{other:?}"),
    }
}

fn text(files: &Payload, path: &str) -> String {
    String::from_utf8(files[path].data.clone()).unwrap()
}

#[test]
fn huge_pages_are_those_that_the_pod_asks_for() {
    let of = |medium: &str, sizes: &[&str]| {
        let container = |size: &&str| json!({"name": "c", "resources": {"requests": {format!("hugepages-{size}"): "1Gi", "cpu": "1"}}});
        let containers: Vec<Value> = sizes.iter().map(container).collect();
        let volume = json!({"name": "v", "emptyDir": {"medium": medium}});
        planned(json!({"volumes": [volume], "containers": containers})).map(|set_up| match set_up.work {
            Work::EmptyDir { medium: Medium::HugePages(bytes), .. } => bytes,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(of("HugePages", &["2Mi", "2048Ki"]), Ok(2 << 20));
    assert_eq!(of("HugePages-1Gi", &["2Mi", "1Gi"]), Ok(1 << 30));
    for (medium, sizes, words) in [
        ("HugePages", &["2Mi", "1Gi"][..], "can't be used if container requests multiple huge page sizes"),
        ("HugePages", &[], "there is no resource request for huge pages"),
        ("HugePages-1Gi", &["2Mi"], "medium HugePages-1Gi: hugePages storage requested, but there is no"),
        ("HugePages-x", &["2Mi"], "has no size of a page"),
    ] {
        let error = of(medium, sizes).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn directories_of_servers() {
    let of = |read_only: bool| {
        planned(
            json!({"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/e", "readOnly": read_only}}],
            "securityContext": {"fsGroup": 1}, "containers": []}),
        )
        .unwrap()
    };
    assert_eq!(of(false).path, "/var/lib/kubelet/pods/u/volumes/kubernetes.io~nfs/v");
    for read_only in [false, true] {
        let expected =
            nfs::Nfs { server: "s".to_owned(), path: "/e".to_owned(), read_only, options: Vec::new() };
        assert_eq!(of(read_only).work, Work::Nfs(expected));
    }
}

#[test]
fn disks_of_other_machines() {
    let disk = |work: Work| match work {
        Work::NetworkDisk(disk) => *disk,
        other => panic!("{other:?}"),
    };
    let of = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        planned(
            json!({"volumes": [volume], "securityContext": {"fsGroupChangePolicy": "OnRootMismatch"}, "containers": []}),
        )
    };
    let target = json!({"targetPortal": "10.0.0.1", "iqn": "iqn.x:y", "lun": 0, "readOnly": true, "fsType": "xfs",
        "secretRef": {"name": "s"}});
    let inline = of(json!({ "iscsi": target })).unwrap();
    assert_eq!(
        (inline.plugin, inline.path.as_str()),
        (Plugin::Iscsi, "/var/lib/kubelet/pods/u/volumes/kubernetes.io~iscsi/v")
    );
    let inline = disk(inline.work);
    assert!(
        inline.read_only && inline.by_root && !inline.block && !inline.one_pod && inline.fs_type == "xfs"
    );
    assert_eq!(inline.secret.map(|s| (s.namespace, s.name)), Some(("ns".to_owned(), "s".to_owned())));
    let global = "/var/lib/kubelet/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.x:y-lun-0";
    assert_eq!(inline.global, global);
    assert_eq!(of(json!({"fc": {"wwids": ["x"]}})).unwrap().plugin, Plugin::Fc);
    assert!(of(json!({"fc": {}})).unwrap_err().contains("no fc disk information"));
    assert!(of(json!({"fc": {"wwids": ["a/b"]}})).unwrap_err().contains("no name of a directory"));

    // Of a claim the device is there for pods by the name of its PersistentVolume.
    let source = json!({"wwids": ["x"], "readOnly": true});
    let source = network_disk::source::Source::of_fc(serde_json::from_value(source).unwrap()).unwrap();
    let bound = bound::Bound {
        volume: "pv".to_owned(),
        source: bound::Source::NetworkDisk(Box::new(source)),
        read_only: false,
        options: vec!["noatime".to_owned()],
        one_pod: true,
        block: true,
        group: None,
        labelled: false,
    };
    let claims = Claims::from([("v".to_owned(), bound)]);
    let p = pod(
        json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}], "containers": []}),
    );
    let claimed = set_up(&p, "v", &claims, &node()).unwrap();
    assert_eq!(claimed.path, "/var/lib/kubelet/pods/u/volumeDevices/kubernetes.io~fc/pv");
    assert_eq!(claimed.work.global(), Some("/var/lib/kubelet/plugins/kubernetes.io/fc/volumeDevices/x"));
    let claimed = disk(claimed.work);
    assert!(claimed.block && claimed.one_pod && !claimed.read_only && claimed.options == ["noatime"]);
}

#[test]
fn volumes_of_drivers() {
    let of = |source: Value| {
        planned(json!({"volumes": [{"name": "v", "flexVolume": source}], "containers": [],
            "securityContext": {"fsGroup": 7}}))
    };
    let flex = |work: Work| match work {
        Work::Flex(flex) => *flex,
        other => panic!("{other:?}"),
    };
    let inline = of(json!({"driver": "vendor/driver", "readOnly": true})).unwrap();
    assert_eq!((inline.plugin, inline.fs_group), (Plugin::Flex, Some(7)));
    assert_eq!(inline.path, "/var/lib/kubelet/pods/u/volumes/vendor~driver/v");
    let inline = flex(inline.work);
    assert!(inline.read_only && !inline.one_pod && inline.node == "n");
    for driver in ["../../x", "kubernetes.io/secret", ""] {
        let told = of(json!({ "driver": driver })).unwrap_err();
        let words = "failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched";
        assert_eq!(told, words, "{driver}");
    }

    // As upstream, what a PersistentVolume says of it is for the driver's others: the claim's pod says it.
    let source = json!({"driver": "vendor/driver", "readOnly": true});
    let source = flex::source::Source::of_persistent(serde_json::from_value(source).unwrap());
    let bound = bound::Bound {
        volume: "pv".to_owned(),
        source: bound::Source::Flex(Box::new(source)),
        read_only: false,
        options: Vec::new(),
        one_pod: true,
        block: false,
        group: None,
        labelled: false,
    };
    let claims = Claims::from([("v".to_owned(), bound)]);
    let p = pod(
        json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}], "containers": []}),
    );
    let claimed = set_up(&p, "v", &claims, &node()).unwrap();
    assert_eq!(claimed.path, "/var/lib/kubelet/pods/u/volumes/vendor~driver/pv");
    let claimed = flex(claimed.work);
    assert!(!claimed.read_only && claimed.one_pod && claimed.volume == "pv");
}

#[test]
fn empty_dirs() {
    let of =
        |volume: Value, containers: Value| planned(json!({"volumes": [volume], "containers": containers}));
    let disk = of(json!({"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}), json!([])).unwrap();
    assert_eq!(disk.path, "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/v");
    let marker = "/var/lib/kubelet/pods/u/plugins/kubernetes.io~empty-dir/v".to_owned();
    assert_eq!(disk.work, Work::EmptyDir { medium: Medium::Disk, marker, counted: false });
    let mut node = node();
    for (gate, host_users, expected) in [(true, false, true), (true, true, false), (false, false, false)] {
        node.features.project_quotas = gate;
        let p =
            json!({"hostUsers": host_users, "containers": [], "volumes": [{"name": "v", "emptyDir": {}}]});
        let set_up = set_up(&pod(p), "v", &Claims::new(), &node).unwrap();
        assert!(matches!(set_up.work, Work::EmptyDir { counted, .. } if counted == expected), "{set_up:?}");
    }
    let limited = |limit: &str| json!({"name": "c", "resources": {"limits": {"memory": limit}}});
    let table = [
        (json!({}), json!([{"name": "c"}]), 1 << 30),
        (json!({}), json!([limited("64Mi"), limited("64Mi")]), 128 << 20),
        (json!({}), json!([limited("64Mi"), {"name": "d"}]), 1 << 30),
        (json!({"sizeLimit": "1Mi"}), json!([limited("64Mi")]), 1 << 20),
        (json!({"sizeLimit": "1Ti"}), json!([limited("64Mi")]), 64 << 20),
        (json!({"sizeLimit": "0"}), json!([]), 1 << 30),
    ];
    for (mut source, containers, bytes) in table {
        source["medium"] = json!("Memory");
        let set_up = of(json!({"name": "v", "emptyDir": source}), containers).unwrap();
        let Work::EmptyDir { medium, .. } = set_up.work else { panic!("{set_up:?}") };
        assert_eq!(medium, Medium::Memory(bytes), "{source}");
    }
    // The pod's own limit bounds it, also if its containers have other limits (KEP-2837).
    for (containers, bytes) in [(json!([{"name": "c"}]), 32 << 20), (json!([limited("16Mi")]), 32 << 20)] {
        let p = json!({"containers": containers, "resources": {"limits": {"memory": "32Mi"}},
            "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]});
        let set_up = set_up(&pod(p), "v", &Claims::new(), &node).unwrap();
        assert!(
            matches!(set_up.work, Work::EmptyDir { medium: Medium::Memory(size), .. } if size == bytes),
            "{set_up:?}"
        );
    }
    let huge = of(json!({"name": "v", "emptyDir": {"medium": "HugePages"}}), json!([]));
    let none =
        "medium HugePages: hugePages storage requested, but there is no resource request for huge pages";
    assert_eq!(huge.unwrap_err(), none);
    let odd = of(json!({"name": "v", "emptyDir": {"medium": "Tape"}}), json!([]));
    assert_eq!(odd.unwrap_err(), "unknown storage medium \"Tape\"");
}

#[test]
fn host_paths_and_unknown_types() {
    let of = |volume: Value| planned(json!({"volumes": [volume], "containers": []}));
    let set_up = of(json!({"name": "v", "hostPath": {"path": "/srv", "type": "Socket"}})).unwrap();
    assert_eq!((set_up.path.as_str(), &set_up.work), ("/srv", &Work::HostPath(HostPathType::Socket)));
    let bad = of(json!({"name": "v", "hostPath": {"path": "/srv", "type": "x"}}));
    assert_eq!(bad.unwrap_err(), "x is an invalid volume type");
    let none = of(json!({"name": "v", "rbd": {"monitors": ["m"], "image": "i"}}));
    let words = "failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched";
    assert_eq!(none.unwrap_err(), words);
}

#[test]
fn keys_of_objects_become_files() {
    let secret = |more: Value| {
        let mut source = json!({"secretName": "s", "defaultMode": 0o400});
        source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        planned(json!({"volumes": [{"name": "v", "secret": source}], "containers": []})).unwrap()
    };
    let objects = Objects::from([(object(ObjectKind::Secret, "s"), found(json!({"a": "1", "b": "2"})))]);
    let write = |set_up: &SetUp, objects: &Objects| {
        let (sources, projected) = sources(set_up);
        payload(sources, projected, &SourceValues { objects: objects.clone(), ..SourceValues::default() })
    };
    let all = write(&secret(json!({})), &objects).unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["a", "b", "bin"]);
    assert_eq!((text(&all, "a"), all["a"].mode), ("1".to_owned(), 0o400));
    let items = json!({"items": [{"key": "b", "path": "x/./y", "mode": 0o444}, {"key": "bin", "path": "z"}]});
    let some = write(&secret(items), &objects).unwrap();
    assert_eq!(some.keys().collect::<Vec<_>>(), ["x/y", "z"]);
    assert_eq!((some["x/y"].mode, some["z"].mode), (0o444, 0o400));
    let missing = json!({"items": [{"key": "c", "path": "c"}]});
    assert_eq!(write(&secret(missing), &objects).unwrap_err(), "references non-existent secret key: c");
    let optional = json!({"optional": true, "items": [{"key": "c", "path": "c"}]});
    assert!(write(&secret(optional.clone()), &objects).unwrap().is_empty());
    let escape = json!({"items": [{"key": "a", "path": "../a"}]});
    assert!(write(&secret(escape), &objects).unwrap_err().contains("must not contain '..'"));

    let gone = Objects::from([(object(ObjectKind::Secret, "s"), Fetched::Missing)]);
    assert_eq!(write(&secret(json!({})), &gone).unwrap_err(), "secret \"s\" not found");
    assert!(write(&secret(optional), &gone).unwrap().is_empty());
    let down = Objects::from([(object(ObjectKind::Secret, "s"), Fetched::Unknown("down".to_owned()))]);
    assert_eq!(write(&secret(json!({"optional": true})), &down).unwrap_err(), "down");
    assert_eq!(write(&secret(json!({})), &Objects::new()).unwrap_err(), "object \"ns\"/\"s\" not registered");
    assert!(!format!("{objects:?}").contains("[49]"), "values are not shown");
}

/// What the API server adds to every pod.
fn token_volume(security: Value, container: Value) -> SetUp {
    planned(json!({"serviceAccountName": "sa", "securityContext": security,
    "containers": [{"name": "c", "securityContext": container}],
    "volumes": [{"name": "kube-api-access-x", "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace",
            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}}]}))
    .unwrap()
}

#[test]
fn the_volume_of_every_pod() {
    let set_up = token_volume(json!({}), json!({}));
    assert!(
        matches!(set_up.work, Work::Files { medium: Medium::Memory(_), .. }),
        "tokens never reach the disk"
    );
    let (sources_of, projected) = sources(&set_up);
    let token = TokenRef {
        namespace: "ns".to_owned(),
        account: "sa".to_owned(),
        account_uid: String::new(),
        audience: String::new(),
        life_s: 3607,
        pod: "p".to_owned(),
        uid: "u".to_owned(),
    };
    let objects =
        Objects::from([(object(ObjectKind::ConfigMap, "kube-root-ca.crt"), found(json!({"ca.crt": "CA"})))]);
    let tokens = Tokens::from([(token.clone(), Ok("secret".to_owned()))]);
    let known = |objects, tokens| SourceValues { objects, tokens, ..SourceValues::default() };
    let files = payload(sources_of, projected, &known(objects, tokens)).unwrap();
    assert_eq!(
        (text(&files, "token"), text(&files, "ca.crt"), text(&files, "namespace")),
        ("secret".to_owned(), "CA".to_owned(), "ns".to_owned())
    );
    assert_eq!(files["token"].mode, 0o644);
    let failed = Tokens::from([(token, Err("failed to fetch token: no".to_owned()))]);
    let gone = Objects::from([(object(ObjectKind::ConfigMap, "kube-root-ca.crt"), Fetched::Missing)]);
    let both = payload(sources_of, projected, &known(gone, failed)).unwrap_err();
    assert_eq!(both, "[failed to fetch token: no, configmap \"kube-root-ca.crt\" not found]");
}

#[test]
fn a_token_belongs_to_the_user_or_group_of_its_pod() {
    let of = |security: Value, container: Value| {
        let set_up = token_volume(security, container);
        match &sources(&set_up).0[0] {
            FileSource::Token { mode, user, .. } => (*mode, *user, set_up.fs_group),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(of(json!({}), json!({})), (0o644, None, None));
    assert_eq!(of(json!({"fsGroup": 7}), json!({})), (0o600, None, Some(7)));
    assert_eq!(of(json!({"runAsUser": 5}), json!({})), (0o600, Some(5), None));
    assert_eq!(of(json!({"runAsUser": 5}), json!({"runAsUser": 6})), (0o600, Some(6), None));
}

/// A volume with trust anchors and a certificate for the pod, on a node where both gates are on.
fn certified(security: Value) -> SetUp {
    let mut node = node();
    (node.features.trust_bundles, node.features.pod_certificates) = (true, true);
    let p =
        pod(json!({"containers": [], "securityContext": security, "volumes": [{"name": "v", "projected": {
        "defaultMode": 0o444, "sources": [
            {"clusterTrustBundle": {"name": "all", "path": "ca.pem"}},
            {"podCertificate": {"signerName": "s", "keyType": "ED25519", "credentialBundlePath": "both.pem",
                "keyPath": "key.pem", "certificateChainPath": "chain.pem"}}]}}]}));
    set_up(&p, "v", &Claims::new(), &node).unwrap()
}

#[test]
fn anchors_and_certificates_become_files() {
    let bundle = agent_types::objects::Bundle {
        anchors: agent_types::pem::certificate(b"root"),
        ..Default::default()
    };
    let bundles = ObjectData { bundles: [("all".to_owned(), bundle)].into(), ..ObjectData::default() };
    let place = pod_certificate::CertificateSource::new(&pod(json!({"containers": []})), "v", 1);
    let held = pod_certificate::Certified { key: b"KEY"[..].into(), chain: b"CHAIN"[..].into() };
    let known = SourceValues {
        objects: Objects::from([(ObjectRef::trust_bundles(), Fetched::Found(bundles))]),
        certificates: [(place.clone(), Ok(held))].into(),
        ..SourceValues::default()
    };
    for (security, mode) in [(json!({}), 0o444), (json!({"fsGroup": 7}), 0o600)] {
        let set_up = certified(security);
        let (sources_of, projected) = sources(&set_up);
        let files = payload(sources_of, projected, &known).unwrap();
        let texts: Vec<_> = files.keys().map(|path| text(&files, path)).collect();
        assert_eq!(texts, ["KEYCHAIN", &agent_types::pem::certificate(b"root"), "CHAIN", "KEY"]);
        assert!(files.values().all(|file| file.mode == mode));
        let waits = "ClusterTrustBundle informer has not yet synced";
        let none = "no credentials yet for source 1 of volume \"v\" of pod p_ns(u)";
        let nothing = payload(sources_of, projected, &SourceValues::default()).unwrap_err();
        assert_eq!(nothing, format!("[{waits}, {none}]"));
        let (objects, certificates) = (known.objects.clone(), [(place.clone(), Err("no".to_owned()))].into());
        let refused = payload(
            sources_of,
            projected,
            &SourceValues { objects, certificates, ..SourceValues::default() },
        );
        assert_eq!(refused.unwrap_err(), "no");
    }
    assert!(!format!("{known:?}").contains("KEY"), "a key is never shown");
}

#[test]
fn without_their_gates_they_are_refused() {
    for (source, words) in [
        (
            json!({"clusterTrustBundle": {"name": "all", "path": "x"}}),
            "ClusterTrustBundle projection is not supported: the node's feature gate ClusterTrustBundleProjection is off",
        ),
        (
            json!({"podCertificate": {"signerName": "s", "keyType": "ED25519", "keyPath": "x"}}),
            "podCertificate projection is not supported: the node's feature gate PodCertificateRequest is off",
        ),
    ] {
        let of = planned(
            json!({"containers": [], "volumes": [{"name": "v", "projected": {"sources": [source]}}]}),
        );
        assert_eq!(of.unwrap_err(), words);
    }
}

#[test]
fn mounts_inside_a_volume_find_their_directories() {
    let set_up = planned(json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}], "containers": [
        {"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/etc/x"}, {"name": "w", "mountPath": "/etc/x/y/z"},
            {"name": "u", "mountPath": "/etc/x/y/z/deeper"}, {"name": "w", "mountPath": "/etc/xy"}]}]}));
    assert_eq!(set_up.unwrap().nested, ["y/z"]);
}

#[test]
fn objects_of_a_pod() {
    let p = pod(json!({"volumes": [
        {"name": "a", "configMap": {"name": "m"}}, {"name": "b", "secret": {"secretName": "s"}},
        {"name": "c", "projected": {"sources": [{"configMap": {"name": "pm"}}, {"secret": {"name": "ps"}}]}}],
        "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "em"}}, {"secretRef": {"name": "es"}}]}],
        "containers": [{"name": "c", "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "km", "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "ks", "key": "k"}}}]}]}));
    let found = references::of_pod(&p);
    let names = |kind| found.iter().filter(|o| o.kind == kind).map(|o| o.name.as_str()).collect::<Vec<_>>();
    assert_eq!(names(ObjectKind::ConfigMap), ["em", "km", "m", "pm"]);
    assert_eq!(names(ObjectKind::Secret), ["es", "ks", "ps", "s"]);
    assert!(found.iter().all(|o| o.namespace == "ns"));
    let anchors = json!({"containers": [], "volumes": [{"name": "v", "projected": {"sources": [
        {"clusterTrustBundle": {"name": "a", "path": "x"}}, {"clusterTrustBundle": {"name": "b", "path": "y"}}]}}]});
    assert_eq!(references::of_pod(&pod(anchors)), [ObjectRef::trust_bundles()].into(), "one watch of all");
}

fn at(ms: u64) -> Mono {
    Mono(ms * 1_000_000)
}

fn desired<'n>(names: &'n [&'n str]) -> impl Iterator<Item = DesiredVolume<'n>> {
    names.iter().map(|name| DesiredVolume { name, ..DesiredVolume::default() })
}

#[test]
fn the_sandbox_waits_for_no_account_unless_it_failed() {
    let mut volumes = PodVolumes::default();
    let account = DesiredVolume { name: "a", account: true, not_before: at(50), ..DesiredVolume::default() };
    volumes.desire([account].into_iter().chain(desired(&["b"])));
    assert_eq!((volumes.due(at(0)), volumes.deadline(at(0))), (vec!["b".to_owned()], Some(at(50))));
    assert!(!volumes.let_sandbox(), "not without the other one");
    volumes.began("b");
    volumes.succeeded("b", None, false);
    assert!(volumes.let_sandbox() && !volumes.all_mounted());
    volumes.desire([DesiredVolume { not_before: at(90), ..account }].into_iter());
    assert_eq!(volumes.due(at(50)), ["a"], "the pod was new once");
    volumes.began("a");
    volumes.failed("a", at(60));
    assert!(!volumes.let_sandbox());
    volumes.began("a");
    volumes.succeeded("a", None, false);
    assert!(volumes.let_sandbox() && volumes.all_mounted());
}

#[test]
fn failures_wait_longer_each_time_unless_a_source_changes() {
    let mut volumes = PodVolumes::default();
    volumes.desire(desired(&["a", "b"]));
    assert_eq!(volumes.due(at(0)), ["a", "b"]);
    volumes.began("a");
    volumes.succeeded("a", None, false);
    let mut now = 0;
    for wait_ms in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000] {
        assert_eq!(volumes.due(at(now)), ["b"]);
        volumes.began("b");
        assert!(volumes.due(at(now)).is_empty());
        volumes.failed("b", at(now));
        assert_eq!(volumes.deadline(at(now)), Some(at(now + wait_ms)));
        assert_eq!(volumes.deadline(at(now + wait_ms)), None, "what is due waits for no clock");
        assert!(volumes.due(at(now + wait_ms - 1)).is_empty() && !volumes.all_mounted());
        now += wait_ms;
    }
    volumes.began("b");
    volumes.failed("b", at(now));
    volumes.sources_changed();
    assert_eq!(volumes.due(at(now)), ["a", "b"]);
    for name in ["a", "b"] {
        volumes.began(name);
        volumes.succeeded(name, None, false);
    }
    assert!(volumes.all_mounted() && volumes.deadline(at(now)).is_none());
}

#[test]
fn a_change_during_a_set_up_is_not_lost() {
    let mut volumes = PodVolumes::default();
    volumes.desire(desired(&["a"]));
    volumes.began("a");
    volumes.sources_changed();
    assert!(volumes.due(at(0)).is_empty());
    volumes.succeeded("a", None, false);
    assert!(volumes.all_mounted());
    assert_eq!(volumes.due(at(0)), ["a"]);
    volumes.began("a");
    volumes.failed("a", at(1));
    assert!(volumes.all_mounted(), "containers keep what they have");
    volumes.began("a");
    volumes.succeeded("a", Some(at(60_000)), false);
    assert_eq!(volumes.deadline(at(1)), Some(at(60_000)));
    assert!(volumes.due(at(59_999)).is_empty());
    assert_eq!(volumes.due(at(60_000)), ["a"]);
}

#[test]
fn waiting_is_told_after_two_minutes() {
    let mut volumes = PodVolumes::default();
    volumes.desire(desired(&["a", "b", "c"]));
    volumes.began("a");
    volumes.succeeded("a", None, false);
    assert_eq!(volumes.wait(at(0)), None);
    assert_eq!(volumes.wait(at(122_999)), None);
    let text = volumes.wait(at(123_000)).unwrap();
    assert!(text.starts_with("Unable to attach or mount volumes: unmounted volumes=[b c], "), "{text}");
    assert_eq!(volumes.wait(at(124_000)), None);
    assert!(volumes.wait(at(123_000).after(Duration::from_secs(123))).is_some());
}
