//! Claims and volumes as an API server shows them, and what becomes of them: tables.

use serde_json::{Value, json};

use super::*;
use crate::{HostPathType, Plugin};

fn pod(volume: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {
        "volumes": [volume], "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}}))
    .unwrap()
}

fn claimed() -> ClaimRef {
    of_pod(
        &pod(json!({"name": "data", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}})),
        "data",
    )
    .unwrap()
}

/// `base` with the members of `patch` at the top of its parts.
fn patched<K: serde::de::DeserializeOwned>(mut base: Value, patch: Value) -> K {
    for (part, members) in patch.as_object().unwrap() {
        for (key, value) in members.as_object().unwrap() {
            base[part][key] = value.clone();
        }
    }
    serde_json::from_value(base).unwrap()
}

fn claim(patch: Value) -> PersistentVolumeClaim {
    let base = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "cu"}, "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound"}});
    patched(base, patch)
}

fn volume(patch: Value) -> PersistentVolume {
    let base = json!({"metadata": {"name": "pv"}, "spec": {"claimRef": {"uid": "cu"}}});
    patched(base, patch)
}

#[test]
fn a_pods_claims() {
    let expected = ClaimRef {
        namespace: "ns".to_owned(),
        name: "c".to_owned(),
        volume: "data".to_owned(),
        read_only: true,
        owner: None,
        mounted: true,
        mapped: false,
    };
    assert_eq!(claimed(), expected);
    let own =
        of_pod(&pod(json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}})), "data")
            .unwrap();
    let owner = Some(("u".to_owned(), "p".to_owned()));
    assert_eq!(own, ClaimRef { name: "p-data".to_owned(), read_only: false, owner, ..expected });
    assert_eq!(of_pod(&pod(json!({"name": "data", "emptyDir": {}})), "data"), None);
    assert_eq!(of_pod(&pod(json!({"name": "data", "emptyDir": {}})), "other"), None);
}

#[test]
fn a_claim_that_is_not_bound_is_waited_for_in_upstreams_words() {
    let of = claimed();
    assert_eq!(of.volume_name(&claim(json!({}))), Ok("pv".to_owned()));
    let going = "2026-01-01T00:00:00Z";
    let held = json!({"metadata": {"deletionTimestamp": going, "finalizers": ["x", PROTECTION]}});
    assert_eq!(of.volume_name(&claim(held)), Ok("pv".to_owned()));
    for (patch, words) in [
        (json!({"status": {"phase": "Pending"}}), "PVC is not bound"),
        (json!({"status": {"phase": "Lost"}}), "PVC is not bound"),
        (json!({"metadata": {"deletionTimestamp": going, "finalizers": ["x"]}}), "PVC is being deleted"),
        (json!({"spec": {"volumeName": ""}}), "PVC has empty pvc.Spec.VolumeName"),
    ] {
        let error = of.volume_name(&claim(patch)).unwrap_err();
        assert_eq!(error.to_string(), format!("error processing PVC ns/c: {words}"));
    }
}

#[test]
fn a_claim_of_an_ephemeral_volume_is_its_pods_own() {
    let of = ClaimRef { owner: Some(("u".to_owned(), "p".to_owned())), ..claimed() };
    let owned = |uid: &str, controller: bool| {
        let owner =
            json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": controller});
        of.volume_name(&claim(json!({"metadata": {"ownerReferences": [owner]}})))
    };
    assert!(owned("u", true).is_ok());
    for (uid, controller) in [("other", true), ("u", false)] {
        let words = "PVC ns/c was not created for pod ns/p (pod is not owner)";
        assert_eq!(owned(uid, controller).unwrap_err().to_string(), words);
    }
}

#[test]
fn a_volume_is_its_claims_and_of_a_kind_that_can_be_mounted() {
    let of = claimed();
    let bound = |patch: Value| of.bound(&claim(json!({})), &volume(patch));
    let local = bound(json!({"spec": {"local": {"path": "/mnt/x"}, "mountOptions": ["noatime"],
        "accessModes": ["ReadWriteOncePod"]}}))
    .unwrap();
    let source = Source::Local { path: "/mnt/x".to_owned(), fs_type: String::new() };
    let expected = Bound {
        volume: "pv".to_owned(),
        source,
        read_only: true,
        options: vec!["noatime".to_owned()],
        one_pod: true,
        block: false,
        group: None,
        labelled: false,
    };
    assert_eq!((local.plugin(), local), (Plugin::Local, expected));
    for (text, group) in [("4321", Some(4321)), ("a group", None)] {
        let annotated = json!({"metadata": {"annotations": {"pv.beta.kubernetes.io/gid": text}},
            "spec": {"local": {"path": "/mnt/x"}}});
        assert_eq!(bound(annotated).unwrap().group, group, "{text}");
    }
    let host = bound(json!({"spec": {"hostPath": {"path": "/h", "type": "Directory"},
        "accessModes": ["ReadWriteOncePod", "ReadOnlyMany"]}}))
    .unwrap();
    assert_eq!(host.source, Source::HostPath { path: "/h".to_owned(), kind: HostPathType::Directory });
    assert!(!host.one_pod && host.plugin() == Plugin::HostPath);
    let nfs = bound(json!({"spec": {"nfs": {"server": "s", "path": "/e", "readOnly": true}, "mountOptions": ["nfsvers=4.1"]}}))
        .unwrap();
    assert_eq!(nfs.source, Source::Nfs { server: "s".to_owned(), path: "/e".to_owned() });
    assert_eq!((nfs.plugin(), nfs.options), (Plugin::Nfs, vec!["nfsvers=4.1".to_owned()]));
    let iscsi =
        bound(json!({"spec": {"iscsi": {"targetPortal": "p", "iqn": "iqn.x", "lun": 1, "fsType": "xfs"}}}))
            .unwrap();
    assert!(matches!(&iscsi.source, Source::NetworkDisk(disk) if disk.fs_type == "xfs"));
    assert_eq!(iscsi.plugin(), Plugin::Iscsi);
    assert_eq!(bound(json!({"spec": {"fc": {"wwids": ["x"]}}})).unwrap().plugin(), Plugin::Fc);
    let flex = json!({"flexVolume": {"driver": "vendor/driver", "readOnly": true}});
    let flexed = bound(json!({ "spec": flex })).unwrap();
    assert!(matches!(&flexed.source, Source::Flex(of) if of.driver == "vendor/driver" && of.read_only));
    assert_eq!(flexed.plugin(), Plugin::Flex);
    let mut block = flex.clone();
    block["volumeMode"] = json!("Block");
    let mapped = ClaimRef { mounted: false, mapped: true, ..of.clone() };
    let told = mapped.bound(&claim(json!({})), &volume(json!({ "spec": block }))).unwrap_err();
    assert!(told.to_string().ends_with("err=a flexVolume is no block device"), "{told}");
    let mut with_options = flex;
    with_options["mountOptions"] = json!(["noatime"]);
    let told = bound(json!({ "spec": with_options })).unwrap_err().to_string();
    let words = "MountVolume.MountOptionSupport check failed for volume \"pv\" : mount options are not supported for this \
                 volume type";
    assert_eq!(told, words);
    for (patch, words) in [
        (json!({"spec": {"fc": {"lun": 0}}}), "err=fc: no fc disk information found"),
        (json!({"spec": {"claimRef": null, "local": {"path": "/x"}}}), "nil pv.Spec.ClaimRef"),
        (
            json!({"spec": {"claimRef": {"uid": "o"}}}),
            "its pv.Spec.ClaimRef.UID o does not point to claim.UID cu",
        ),
        (
            json!({"spec": {"volumeMode": "Block", "local": {"path": "/x"}}}),
            "volume data has volumeMode Block, but is specified in volumeMounts",
        ),
        (json!({"spec": {"rbd": {"monitors": ["m"], "image": "i"}}}), "no volume plugin matched"),
        (json!({"spec": {"hostPath": {"path": "/h", "type": "Odd"}}}), "invalid volume type"),
        (
            json!({"spec": {"hostPath": {"path": "/h"}, "mountOptions": ["ro"]}}),
            "MountVolume.MountOptionSupport check failed for volume \"pv\" : mount options are not supported",
        ),
    ] {
        let error = bound(patch).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let mapped = ClaimRef { mounted: false, mapped: true, ..of.clone() };
    let as_block = |source: Value| {
        let mut spec = json!({"volumeMode": "Block"});
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        mapped.bound(&claim(json!({})), &volume(json!({ "spec": spec })))
    };
    let device = as_block(json!({"local": {"path": "/dev/x"}})).unwrap();
    assert!(
        device.block && device.source == Source::Local { path: "/dev/x".to_owned(), fs_type: String::new() }
    );
    let words = as_block(json!({"hostPath": {"path": "/dev/x"}})).unwrap_err().to_string();
    assert!(words.contains("no block device"), "{words}");
    let directory = volume(json!({"spec": {"local": {"path": "/x"}}}));
    let words = mapped.bound(&claim(json!({})), &directory).unwrap_err().to_string();
    assert!(
        words.ends_with("volume data has volumeMode Filesystem, but is specified in volumeDevices"),
        "{words}"
    );
}

#[test]
fn a_volume_of_another_node_is_refused() {
    let labels = |zone: &str| BTreeMap::from([("zone".to_owned(), zone.to_owned())]);
    let expressions = json!([{"key": "zone", "operator": "In", "values": ["a"]}]);
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": expressions}]});
    let choosy = volume(json!({"spec": {"nodeAffinity": {"required": terms}}}));
    assert!(is_choosy(&choosy) && !is_choosy(&volume(json!({}))));
    assert_eq!(check_node(&choosy, &labels("a")), Ok(()));
    assert_eq!(check_node(&volume(json!({})), &labels("b")), Ok(()));
    let error = check_node(&choosy, &labels("b")).unwrap_err().to_string();
    assert_eq!(
        error,
        "MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms"
    );
}

#[test]
fn a_volume_of_a_driver_is_taken_as_it_says() {
    let spec = json!({"spec": {"accessModes": ["ReadWriteOncePod"], "mountOptions": ["noatime"], "csi": {"driver": "d",
        "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": {"a": "1"},
        "nodeStageSecretRef": {"namespace": "kube-system", "name": "s"}}}});
    let bound = claimed().bound(&claim(json!({})), &volume(spec)).unwrap();
    let secret = SecretRef { namespace: "kube-system".to_owned(), name: "s".to_owned() };
    let source = CsiSource {
        driver: "d".to_owned(),
        handle: "h".to_owned(),
        fs_type: "ext4".to_owned(),
        attributes: [("a".to_owned(), "1".to_owned())].into(),
        stage_secret: Some(secret),
        publish_secret: None,
        expand_secret: None,
        access_modes: vec!["ReadWriteOncePod".to_owned()],
        claim: claimed().name,
        migrated: false,
    };
    assert_eq!(bound.plugin(), Plugin::Csi);
    assert_eq!(bound.source, Source::Csi(Box::new(source)));
    assert!(bound.one_pod && bound.options == ["noatime"]);
}

#[test]
fn a_volume_of_an_old_type_is_its_drivers() {
    let affinity = |key: &str| {
        let terms = json!([{"matchExpressions": [{"key": key, "operator": "In", "values": ["a"]}]}]);
        json!({"required": {"nodeSelectorTerms": terms}})
    };
    let spec = json!({"spec": {"accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"],
        "nodeAffinity": affinity("topology.kubernetes.io/zone"),
        "awsElasticBlockStore": {"volumeID": "aws://a/vol-1", "fsType": "ext4", "readOnly": true}}});
    let of = volume(spec);
    let bound = claimed().bound(&claim(json!({})), &of).unwrap();
    assert_eq!((bound.volume.as_str(), bound.plugin(), bound.read_only), ("pv", Plugin::Csi, true));
    assert_eq!(bound.options, ["noatime"]);
    let Source::Csi(source) = bound.source else { panic!("{:?}", bound.source) };
    assert_eq!((source.driver.as_str(), source.handle.as_str()), ("ebs.csi.aws.com", "vol-1"));
    assert!(source.migrated && source.claim == claimed().name);
    // The node is looked at by the driver's label.
    let labels = |key: &str| BTreeMap::from([(key.to_owned(), "a".to_owned())]);
    assert!(is_choosy(&of));
    assert_eq!(check_node(&of, &labels("topology.ebs.csi.aws.com/zone")), Ok(()));
    check_node(&of, &labels("topology.kubernetes.io/zone")).unwrap_err();
    let broken = volume(json!({"spec": {"awsElasticBlockStore": {"volumeID": "aws://a/x"}}}));
    let words = "failed to translate in-tree pv to CSI: failed to translate Kubernetes ID to EBS Volume ID Invalid format \
                 for AWS volume (aws://a/x)";
    assert_eq!(claimed().bound(&claim(json!({})), &broken).unwrap_err().to_string(), words);
    assert!(!is_choosy(&broken));
    let mut other = broken;
    other.spec.as_mut().unwrap().claim_ref = None;
    let unbound = claimed().bound(&claim(json!({})), &other).unwrap_err().to_string();
    assert!(unbound.contains("nil pv.Spec.ClaimRef"), "whose it is comes first: {unbound}");
}
