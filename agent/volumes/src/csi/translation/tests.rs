//! Tables: what each type becomes, of a PersistentVolume and in a pod, and what is refused.

use serde_json::{Value, json};

use super::*;

fn volume(spec: Value, metadata: Value) -> PersistentVolume {
    let mut all = json!({"metadata": metadata, "spec": spec});
    all["metadata"]["name"] = json!("pv");
    serde_json::from_value(all).unwrap()
}

/// What becomes of a PersistentVolume: driver, handle and what else is in its source.
fn of_volume(spec: Value, metadata: Value) -> Result<Value, String> {
    let of = volume(spec, metadata);
    let (before, translated) = (of.clone(), persistent(&of)?.into_owned());
    assert!(is_persistent(&before) && !is_persistent(&translated), "nothing is left of the old type");
    assert_eq!((&of, &translated.metadata), (&before, &before.metadata));
    Ok(serde_json::to_value(&translated.spec).unwrap())
}

/// What becomes of a pod's volume: its name, access modes and source.
fn of_pod(source: Value) -> Result<(String, Vec<String>, Value), String> {
    let mut of = source;
    of["name"] = json!("v");
    let of: Volume = serde_json::from_value(of).unwrap();
    assert!(is_inline(&of));
    let made = inline(&of, "ns").unwrap()?;
    let spec = made.spec.unwrap();
    assert_eq!(spec.volume_mode.as_deref(), Some("Filesystem"));
    Ok((made.metadata.name.unwrap(), spec.access_modes.unwrap(), serde_json::to_value(spec.csi).unwrap()))
}

const BEFORE: &str = "failed to translate in-tree pv to CSI: ";

#[test]
fn each_type_is_its_drivers() {
    let none = json!({});
    let rw = json!(["ReadWriteOnce"]);
    let secret = |namespace: &str, name: &str| json!({"namespace": namespace, "name": name});
    let table = [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1", "fsType": "ext4", "partition": 2, "readOnly": true}}),
            none.clone(),
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "fsType": "ext4", "readOnly": true,
                "volumeAttributes": {"partition": "2"}}),
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "anything"}}),
            none.clone(),
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "anything", "volumeAttributes": {"partition": "0"}}),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d", "fsType": "xfs", "partition": 1, "readOnly": false}}),
            none.clone(),
            json!({"driver": "pd.csi.storage.gke.io", "fsType": "xfs", "readOnly": false,
                "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", "volumeAttributes": {"partition": "1"}}),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d", "partition": 0}}),
            json!({"labels": {"topology.kubernetes.io/zone": "us-east1-b"}}),
            json!({"driver": "pd.csi.storage.gke.io", "volumeHandle": "projects/UNSPECIFIED/zones/us-east1-b/disks/d",
                "volumeAttributes": {"partition": ""}}),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d"}}),
            json!({"labels": {"failure-domain.beta.kubernetes.io/zone": "us-east1-b__us-east1-c",
                "topology.kubernetes.io/zone": "other"}}),
            json!({"driver": "pd.csi.storage.gke.io", "volumeHandle": "projects/UNSPECIFIED/regions/us-east1/disks/d",
                "volumeAttributes": {"partition": ""}}),
        ),
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "/subscriptions/s/d", "kind": "managed", "cachingMode": "None",
                "fsType": "ext4", "readOnly": true}}),
            none.clone(),
            json!({"driver": "disk.csi.azure.com", "volumeHandle": "/subscriptions/s/d", "fsType": "ext4", "readOnly": true,
                "volumeAttributes": {"kind": "Managed", "cachingmode": "None", "fstype": "ext4"}}),
        ),
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "u", "cachingMode": ""}}),
            none.clone(),
            json!({"driver": "disk.csi.azure.com", "volumeHandle": "u",
                "volumeAttributes": {"kind": "Managed", "cachingmode": ""}}),
        ),
        (
            json!({"azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "s", "readOnly": true,
                "secretNamespace": "secrets"}, "claimRef": {"namespace": "ns"}}),
            json!({"annotations": {"kubernetes.io/azure-file-resource-group": "rg"}}),
            json!({"driver": "file.csi.azure.com", "volumeHandle": "rg#acc#s#pv#secrets", "readOnly": true,
                "volumeAttributes": {"sharename": "s"},
                "nodeStageSecretRef": secret("secrets", "azure-storage-account-acc-secret")}),
        ),
        (
            json!({"azureFile": {"secretName": "own", "shareName": "s"}, "claimRef": {"namespace": "ns"}}),
            none.clone(),
            json!({"driver": "file.csi.azure.com", "volumeHandle": "#own#s#pv#ns", "volumeAttributes": {"sharename": "s"},
                "nodeStageSecretRef": secret("ns", "own")}),
        ),
        (
            json!({"cinder": {"volumeID": "c", "fsType": "ext4", "readOnly": true, "secretRef": secret("x", "y")}}),
            none.clone(),
            json!({"driver": "cinder.csi.openstack.org", "volumeHandle": "c", "fsType": "ext4", "readOnly": true,
                "volumeAttributes": {}}),
        ),
        (
            json!({"vsphereVolume": {"volumePath": "[ds] a/b.vmdk", "fsType": "ext4", "storagePolicyName": "gold",
                "storagePolicyID": "7"}}),
            none.clone(),
            json!({"driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] a/b.vmdk", "fsType": "ext4",
                "volumeAttributes": {"storagepolicyname": "gold"}}),
        ),
        (
            json!({"portworxVolume": {"volumeID": "p", "fsType": "xfs", "readOnly": true}}),
            json!({"annotations": {"openstorage.io/auth-secret-name": "alone"}}),
            json!({"driver": "pxd.portworx.com", "volumeHandle": "p", "fsType": "xfs", "volumeAttributes": {}}),
        ),
    ];
    for (mut spec, metadata, expected) in table {
        spec["accessModes"] = rw.clone();
        let made = of_volume(spec, metadata).unwrap();
        assert_eq!((&made["csi"], &made["accessModes"]), (&expected, &rw));
    }
    let annotations =
        json!({"openstorage.io/auth-secret-name": "s", "openstorage.io/auth-secret-namespace": "n"});
    let made = of_volume(json!({"portworxVolume": {"volumeID": "p"}}), json!({"annotations": annotations}));
    for of in ["controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand"] {
        assert_eq!(made.as_ref().unwrap()["csi"][format!("{of}SecretRef")], secret("n", "s"));
    }
}

#[test]
fn a_pods_volume_is_called_by_its_disk() {
    let table = [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws:///vol-1", "partition": 1, "readOnly": true}}),
            ("ebs.csi.aws.com-vol-1", "ReadWriteOnce"),
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "readOnly": true,
                "volumeAttributes": {"partition": "1"}}),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true}}),
            ("pd.csi.storage.gke.io-d", "ReadOnlyMany"),
            json!({"driver": "pd.csi.storage.gke.io", "readOnly": true, "volumeAttributes": {"partition": ""},
                "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"}),
        ),
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "/s/d", "cachingMode": "", "kind": "Managed"}}),
            ("/s/d", "ReadWriteOnce"),
            json!({"driver": "disk.csi.azure.com", "volumeHandle": "/s/d", "volumeAttributes": {"kind": "Managed"}}),
        ),
        (
            json!({"azureFile": {"secretName": "x", "shareName": "s"}}),
            ("#x#s#v#ns", "ReadWriteMany"),
            json!({"driver": "file.csi.azure.com", "volumeHandle": "#x#s#v#ns", "volumeAttributes": {"sharename": "s"},
                "nodeStageSecretRef": {"namespace": "ns", "name": "x"}}),
        ),
        (
            json!({"cinder": {"volumeID": "c", "readOnly": true}}),
            ("cinder.csi.openstack.org-c", "ReadWriteOnce"),
            json!({"driver": "cinder.csi.openstack.org", "volumeHandle": "c", "readOnly": true, "volumeAttributes": {}}),
        ),
        (
            json!({"vsphereVolume": {"volumePath": "[ds] a", "storagePolicyName": "gold"}}),
            ("csi.vsphere.vmware.com-[ds] a", "ReadWriteOnce"),
            json!({"driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] a",
                "volumeAttributes": {"storagepolicyname": "gold"}}),
        ),
        (
            json!({"portworxVolume": {"volumeID": "p", "readOnly": true}}),
            ("pxd.portworx.com-p", "ReadOnlyMany"),
            json!({"driver": "pxd.portworx.com", "volumeHandle": "p", "volumeAttributes": {}}),
        ),
        (
            json!({"portworxVolume": {"volumeID": "p"}}),
            ("pxd.portworx.com-p", "ReadWriteOnce"),
            json!({"driver": "pxd.portworx.com", "volumeHandle": "p", "volumeAttributes": {}}),
        ),
    ];
    for (source, (name, mode), expected) in table {
        assert_eq!(of_pod(source), Ok((name.to_owned(), vec![mode.to_owned()], expected)));
    }
}

#[test]
fn what_cannot_be_translated_is_told_in_upstreams_words() {
    let aws = |id: &str| json!({"awsElasticBlockStore": {"volumeID": id}});
    let aws_words = |why: &str| format!("failed to translate Kubernetes ID to EBS Volume ID {why}");
    for (id, why) in [
        ("aws://us-east-1a", "Invalid format for AWS volume (aws://us-east-1a)"),
        ("aws:///a/vol-1", "Invalid format for AWS volume (aws:///a/vol-1)"),
        ("aws:///vol-1/x", "Invalid format for AWS volume (aws:///vol-1/x)"),
        ("aws:///%zz", "Invalid disk name (aws:///%zz): parse \"aws:///%zz\": invalid URL escape \"%zz\""),
        ("aws:///%2", "Invalid disk name (aws:///%2): parse \"aws:///%2\": invalid URL escape \"%2\""),
        (
            "aws://a b/vol-1",
            "Invalid disk name (aws://a b/vol-1): parse \"aws://a b/vol-1\": invalid character \" \" in host name",
        ),
        (
            "aws:///vol-\t",
            "Invalid disk name (aws:///vol-\t): parse \"aws:///vol-\\t\": net/url: invalid control character in URL",
        ),
    ] {
        let expected = format!("{BEFORE}{}", aws_words(why));
        assert_eq!(of_volume(aws(id), json!({})), Err(expected.clone()), "{id}");
        assert_eq!(of_pod(aws(id)), Err(expected), "{id}");
    }
    for (id, handle) in [("aws://z/vol-1/?a#b", "vol-1"), ("aws:///vol-%31", "vol-1"), ("vol-/", "vol-/")] {
        assert_eq!(of_volume(aws(id), json!({})).unwrap()["csi"]["volumeHandle"], handle, "{id}");
    }
    let disk = json!({"azureDisk": {"diskName": "d", "diskURI": "u", "kind": "Shared"}});
    let words = format!("{BEFORE}kind(Shared) is not supported in csi migration");
    assert_eq!((of_volume(disk.clone(), json!({})), of_pod(disk)), (Err(words.clone()), Err(words)));
    let words = format!("{BEFORE}could not find a secret namespace in PersistentVolumeSource or ClaimRef");
    let file = json!({"secretName": "s", "shareName": "s"});
    let mut empty = file.clone();
    empty["secretNamespace"] = json!("");
    for spec in [json!({"azureFile": file}), json!({"azureFile": empty, "claimRef": {"namespace": "ns"}})] {
        assert_eq!(of_volume(spec, json!({})), Err(words.clone()));
    }
    for (zones, why) in [
        (
            "us-east1-b__eu-west1-c",
            "multiple or no regions gotten from zones, got: map[eu-west1:{} us-east1:{}]",
        ),
        ("a__b", "zone in unexpected format, expected: {locale}-{region}-{zone}, got: a"),
    ] {
        let labels = json!({"labels": {"topology.kubernetes.io/zone": zones}});
        let words = format!("{BEFORE}failed to get region from zones: {why}");
        assert_eq!(of_volume(json!({"gcePersistentDisk": {"pdName": "d"}}), labels), Err(words));
    }
}

#[test]
fn an_accounts_name_is_in_that_of_its_secret() {
    for (secret, account) in [
        ("azure-storage-account-a-secret", "a"),
        ("x-azure-storage-account-a-secret-b-secret-c", "a-secret-b"),
        ("azure-storage-account--secret", "azure-storage-account--secret"),
        ("other", "other"),
    ] {
        let spec = json!({"azureFile": {"secretName": secret, "shareName": "s", "secretNamespace": "n"}});
        let handle = format!("#{account}#s#pv#n");
        assert_eq!(of_volume(spec, json!({})).unwrap()["csi"]["volumeHandle"], handle);
    }
}

#[test]
fn googles_disks_have_one_writer_or_many_readers() {
    let modes = |modes: Value| {
        let spec = json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": modes});
        of_volume(spec, json!({})).unwrap()["accessModes"].clone()
    };
    for (before, after) in [
        (json!(["ReadWriteMany"]), json!(["ReadWriteOnce"])),
        (json!(["ReadOnlyMany", "ReadWriteOnce"]), json!(["ReadWriteOnce"])),
        (json!(["ReadOnlyMany", "ReadWriteMany"]), json!(["ReadWriteOnce"])),
        (json!(["ReadOnlyMany"]), json!(["ReadOnlyMany"])),
        (json!(["ReadWriteOncePod"]), json!(["ReadWriteOnce"])),
        (json!(null), json!(null)),
    ] {
        assert_eq!(modes(before), after);
    }
}

#[test]
fn a_node_is_looked_for_by_the_drivers_labels() {
    const ZONE: &str = "topology.kubernetes.io/zone";
    const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
    const REGION: &str = "topology.kubernetes.io/region";
    const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
    let needs = |key: &str, values: &[&str]| json!({"key": key, "operator": "In", "values": values});
    let terms = |of: Value, labels: Value, before: Value| {
        let mut spec = of;
        if !before.is_null() {
            spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": before}});
        }
        let made = of_volume(spec, json!({"labels": labels})).unwrap();
        made["nodeAffinity"]["required"]["nodeSelectorTerms"].clone()
    };
    let aws = || json!({"awsElasticBlockStore": {"volumeID": "vol-1"}});
    let cinder = || json!({"cinder": {"volumeID": "c"}});
    let vsphere = || json!({"vsphereVolume": {"volumePath": "p"}});
    let one = |all: &[Value]| json!([{"matchExpressions": all}]);
    let ebs = "topology.ebs.csi.aws.com/zone";
    let (vs_zone, vs_region) = ("topology.csi.vmware.com/zone", "topology.csi.vmware.com/region");
    for (of, labels, before, after) in [
        (aws(), json!({}), json!(null), json!(null)),
        (aws(), json!({ZONE: "a"}), json!(null), one(&[needs(ebs, &["a"])])),
        (aws(), json!({ZONE: "b__ a__"}), json!(null), one(&[needs(ebs, &["a", "b"])])),
        (aws(), json!({ZONE: ""}), json!(null), json!(null)),
        (aws(), json!({ZONE: "other"}), one(&[needs(ZONE, &["a"])]), one(&[needs(ebs, &["a"])])),
        (
            aws(),
            json!({BETA_ZONE: "a"}),
            json!([{"matchExpressions": [needs("x", &["y"])]}, {}]),
            json!([{"matchExpressions": [needs("x", &["y"]), needs(ebs, &["a"])]},
                {"matchExpressions": [needs(ebs, &["a"])]}]),
        ),
        (
            aws(),
            json!({}),
            one(&[needs(BETA_ZONE, &["a"]), needs(BETA_REGION, &["r"])]),
            one(&[needs(ebs, &["a"]), needs(REGION, &["r"])]),
        ),
        // The old label of a region is another matter where the zone has the new one.
        (
            aws(),
            json!({}),
            one(&[needs(ZONE, &["a"]), needs(BETA_REGION, &["r"])]),
            one(&[needs(ebs, &["a"]), needs(BETA_REGION, &["r"])]),
        ),
        (
            cinder(),
            json!({ZONE: "a"}),
            json!(null),
            one(&[needs("topology.cinder.csi.openstack.org/zone", &["a"])]),
        ),
        (
            vsphere(),
            json!({ZONE: "a__b", REGION: "r"}),
            json!(null),
            one(&[needs(vs_zone, &["a__b"]), needs(vs_region, &["r"])]),
        ),
        (
            vsphere(),
            json!({}),
            one(&[needs(BETA_REGION, &["r"]), needs(BETA_ZONE, &["a"])]),
            one(&[needs(vs_region, &["r"]), needs(vs_zone, &["a"])]),
        ),
        // These drivers have no zones.
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "u"}}),
            json!({ZONE: "a"}),
            one(&[needs(ZONE, &["a"])]),
            one(&[needs(ZONE, &["a"])]),
        ),
    ] {
        assert_eq!(terms(of, labels, before), after);
    }
}

#[test]
fn others_are_left_alone() {
    let of = volume(json!({"local": {"path": "/x"}, "accessModes": ["ReadWriteMany"]}), json!({}));
    assert!(!is_persistent(&of));
    assert!(matches!(persistent(&of), Ok(Cow::Borrowed(same)) if *same == of));
    let of: Volume =
        serde_json::from_value(json!({"name": "v", "csi": {"driver": "ebs.csi.aws.com"}})).unwrap();
    assert!(!is_inline(&of) && inline(&of, "ns").is_none());
}
