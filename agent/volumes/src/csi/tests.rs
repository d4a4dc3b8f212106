//! Volumes of drivers, inline and persistent: tables of what is asked for.

use agent_types::time::Wall;
use serde_json::Value;

use super::*;

const ALL: Capabilities = Capabilities {
    stages: true,
    gives_groups: true,
    tells_writers: false,
    expands: true,
    measures: true,
    tells_condition: false,
};

fn inline(source: Value) -> CsiVolume {
    let p: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"serviceAccountName": "sa", "containers": [], "volumes": [{"name": "v", "csi": source}]}}))
    .unwrap();
    let volume = p.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0].clone();
    of_volume(&p, &volume, "n").unwrap()
}

fn driver(spec: Value) -> CSIDriver {
    serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
}

#[test]
fn only_a_driver_that_says_so_does_inline_volumes() {
    let of = inline(json!({"driver": "d"}));
    let before = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode \"Ephemeral\" \
                  not supported by driver d ";
    assert_eq!(of.terms(None), Err(format!("{before}(no CSIDriver object)")));
    let persistent = driver(json!({"volumeLifecycleModes": ["Persistent"]}));
    assert_eq!(of.terms(Some(&persistent)), Err(format!("{before}(only supports [\"Persistent\"])")));
    let both = driver(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
    assert_eq!(of.terms(Some(&both)), Ok(Terms { attach: true, ..Terms::default() }));
}

#[test]
fn the_driver_is_told_what_it_asked_for() {
    let of = inline(json!({"driver": "d", "fsType": "ext4", "volumeAttributes": {"a": "1"},
        "nodePublishSecretRef": {"name": "s"}}));
    assert_eq!(of.secret.as_ref().map(|s| (s.namespace.as_str(), s.name.as_str())), Some(("ns", "s")));
    let terms = |more: Value| {
        let mut spec = json!({"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true,
            "tokenRequests": [{"audience": "aud", "expirationSeconds": 700}], "requiresRepublish": true});
        for (k, v) in more.as_object().unwrap() {
            spec[k] = v.clone();
        }
        of.terms(Some(&driver(spec))).unwrap()
    };
    let open = terms(json!({}));
    assert_eq!((open.tokens[0].audience.as_str(), open.tokens[0].life_s, open.again), ("aud", 700, true));
    assert_eq!((open.tokens[0].uid.as_str(), open.tokens[0].account.as_str()), ("u", "sa"));
    let given = [DriverToken { audience: "aud".to_owned(), text: "t".to_owned(), ends: Wall(1_500_000_000) }];
    let secrets = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let asked = of.publish("/t", &open, &given, secrets.clone(), (ALL, Some(7)));
    let token = "{\"aud\":{\"expirationTimestamp\":\"1970-01-01T00:00:01Z\",\"token\":\"t\"}}";
    let context = json!({"a": "1", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.namespace": "ns",
        "csi.storage.k8s.io/pod.uid": "u", "csi.storage.k8s.io/serviceAccount.name": "sa",
        "csi.storage.k8s.io/ephemeral": "true", TOKENS: token});
    assert_eq!((serde_json::to_value(&asked.context).unwrap(), asked.capability.group), (context, Some(7)));
    assert_eq!(asked.secrets, secrets);
    let closed =
        of.publish("/t", &terms(json!({"serviceAccountTokenInSecrets": true})), &given, secrets, (ALL, None));
    assert!(!closed.context.contains_key(TOKENS) && closed.secrets.contains_key(TOKENS));
    assert_eq!(format!("{closed:?}"), format!("Publish({} at /t)", of.handle), "nothing of it is shown");
}

#[test]
fn who_gives_the_group() {
    let gives = |source: Value, policy: &str| {
        let mut source = source;
        source["driver"] = json!("d");
        inline(source).node_gives_group(&Terms { group_policy: policy.to_owned(), ..Terms::default() })
    };
    assert!(gives(json!({}), "File") && gives(json!({"fsType": "ext4"}), "ReadWriteOnceWithFSType"));
    assert!(!gives(json!({}), "ReadWriteOnceWithFSType") && !gives(json!({"fsType": "ext4"}), "None"));
    assert!(!gives(json!({"readOnly": true}), "File"));
}

#[test]
fn the_file_beside_the_target_is_upstreams() {
    let of = inline(json!({"driver": "d"}));
    // printf uv | sha256sum
    assert_eq!(of.handle, format!("csi-{}", hex::encode(Sha256::digest(b"uv"))));
    let data = serde_json::to_value(of.data(&Terms::default())).unwrap();
    let attachment = format!("csi-{}", hex::encode(Sha256::digest(format!("{}dn", of.handle).as_bytes())));
    let expected = json!({"driverName": "d", "volumeHandle": of.handle, "specVolID": "v", "nodeName": "n",
        "volumeLifecycleMode": "Ephemeral", "attachmentID": attachment});
    assert_eq!(data, expected);
    assert_eq!(VolumeData::from_json(data.to_string().as_bytes()), Ok(of.data(&Terms::default())));
    assert_eq!(
        VolumeData::from_json(&of.data(&Terms::default()).to_json().unwrap()),
        Ok(of.data(&Terms::default()))
    );
    assert!(VolumeData::from_json(b"{}").is_err(), "it does not say whose it is");
}

fn persistent(source: Value, bound: Value) -> CsiVolume {
    let p: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"serviceAccountName": "sa", "containers": []}}))
    .unwrap();
    let mut all = json!({"driver": "d", "handle": "h", "fs_type": "", "attributes": {"a": "1"}, "stage_secret": null,
        "publish_secret": null, "access_modes": ["ReadWriteOnce"]});
    all.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    let mut of = json!({"volume": "pv", "source": {"Csi": all}, "read_only": false, "options": ["noatime"],
        "one_pod": false});
    of.as_object_mut().unwrap().extend(bound.as_object().unwrap().clone());
    let bound: Bound = serde_json::from_value(of).unwrap();
    let crate::bound::Source::Csi(source) = &bound.source else { panic!("{bound:?}") };
    of_bound(&p, &bound, source, "n")
}

#[test]
fn a_persistent_volume_needs_no_object_and_is_attached_unless_that_says_otherwise() {
    let of = persistent(json!({}), json!({}));
    assert_eq!(of.terms(None), Ok(Terms { attach: true, ..Terms::default() }));
    let says = |spec: Value| of.terms(Some(&driver(spec)));
    assert!(says(json!({"volumeLifecycleModes": ["Persistent"]})).unwrap().attach);
    assert!(!says(json!({"volumeLifecycleModes": ["Persistent"], "attachRequired": false})).unwrap().attach);
    let counts = json!({"volumeLifecycleModes": ["Persistent"], "nodeAllocatableUpdatePeriodSeconds": 10});
    assert!(says(counts).unwrap().recounts);
    let why = says(json!({"volumeLifecycleModes": ["Ephemeral"]})).unwrap_err();
    assert!(why.contains("volume mode \"Persistent\" not supported by driver d"), "{why}");
}

#[test]
fn what_an_attachment_says() {
    let of = persistent(json!({}), json!({}));
    let says = |meta: Value, status: Value| {
        let mut all = json!({"metadata": meta, "spec": {"attacher": "d", "nodeName": "n", "source": {}}});
        if !status.is_null() {
            all["status"] = status;
        }
        of.attached(&serde_json::from_value(all).unwrap())
    };
    let metadata = BTreeMap::from([("lun".to_owned(), "7".to_owned())]);
    let yes = json!({"attached": true, "attachmentMetadata": {"lun": "7"}});
    assert_eq!(says(json!({}), yes.clone()), Ok(Some(metadata)));
    assert_eq!(says(json!({}), Value::Null), Ok(None));
    assert_eq!(says(json!({}), json!({"attached": false})), Ok(None));
    let full = json!({"attached": false, "attachError": {"message": "the node is full"}});
    assert_eq!(says(json!({}), full), Err("the node is full".to_owned()));
    let code = |code: Value| {
        let error = json!({"message": "no", "errorCode": code});
        let all = json!({"metadata": {}, "spec": {"attacher": "d", "nodeName": "n", "source": {}},
            "status": {"attached": false, "attachError": error}});
        CsiVolume::finds_no_room(&serde_json::from_value(all).unwrap())
    };
    assert!(code(json!(8)) && !code(json!(13)) && !code(Value::Null));
    let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert_eq!(says(going, yes), Err("volume attachment is being deleted".to_owned()));
}

#[test]
fn a_persistent_volume_is_staged_and_published_as_it_says() {
    let of = persistent(json!({"fs_type": "ext4"}), json!({"read_only": true}));
    let attached = BTreeMap::from([("lun".to_owned(), "7".to_owned())]);
    let secrets = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let staged = of.stage("/g", (ALL, Some(7)), attached.clone(), secrets.clone());
    let capability = Capability {
        block: false,
        fs_type: "ext4".to_owned(),
        flags: vec!["noatime".to_owned()],
        group: Some(7),
        access: Access::SingleNodeWriter,
    };
    let expected = Stage {
        handle: "h".to_owned(),
        path: "/g".to_owned(),
        capability: capability.clone(),
        attached,
        context: [("a".to_owned(), "1".to_owned())].into(),
        secrets: secrets.clone(),
    };
    assert!(staged == expected && format!("{staged:?}") == "Stage(h at /g)");
    let terms = Terms { pod_info: true, ..Terms::default() };
    let none = Capabilities::default();
    let asked = of.publish("/t", &terms, &[], secrets, (none, Some(7)));
    assert!(asked.read_only && asked.capability == Capability { group: None, ..capability });
    assert_eq!(asked.context.get("csi.storage.k8s.io/ephemeral").map(String::as_str), Some("false"));
}

#[test]
fn a_volume_is_mounted_with_its_label_by_a_driver_that_can() {
    let mut of = persistent(json!({}), json!({}));
    of.persistent.as_mut().unwrap().label = Some("u:r:t:s0:c1,c2".to_owned());
    let terms = |of: &CsiVolume, labels: Value| {
        let spec = json!({"volumeLifecycleModes": ["Persistent"], "seLinuxMount": labels});
        of.terms(Some(&driver(spec))).unwrap()
    };
    let none = BTreeMap::new;
    for (labels, flags, label) in [
        (json!(true), vec!["noatime", r#"context="u:r:t:s0:c1,c2""#], "u:r:t:s0:c1,c2"),
        (json!(false), vec!["noatime"], ""),
        (json!(null), vec!["noatime"], ""),
    ] {
        let terms = terms(&of, labels);
        let agreed = of.on(&terms);
        assert_eq!(agreed.stage("/g", (ALL, None), none(), none()).capability.flags, flags);
        assert_eq!(agreed.publish("/t", &terms, &[], none(), (ALL, None)).capability.flags, flags);
        let expanded = agreed.expand(("/t", None), 1, ALL, none());
        assert_eq!(expanded.capability.flags, ["noatime"], "as upstream");
        assert_eq!((agreed.data(&terms).label(), agreed.staged_data(&terms).label()), (label, label));
    }
    of.block = Some("/b".to_owned());
    assert!(!terms(&of, json!(true)).labels, "a device has no files");
    of.block = None;
    for (label, there) in [(Some(String::new()), true), (None, false)] {
        of.persistent.as_mut().unwrap().label = label.clone();
        assert_eq!(terms(&of, json!(true)).labels, there, "of a node with {label:?}");
    }
}

#[test]
fn access_modes_as_the_driver_knows_them() {
    let modes = [
        (Some("ReadWriteOnce"), Access::SingleNodeWriter, Access::SingleNodeMultiWriter),
        (None, Access::SingleNodeWriter, Access::SingleNodeMultiWriter),
        (Some("ReadWriteOncePod"), Access::SingleNodeWriter, Access::SingleNodeSingleWriter),
        (Some("ReadOnlyMany"), Access::MultiNodeReaderOnly, Access::MultiNodeReaderOnly),
        (Some("ReadWriteMany"), Access::MultiNodeMultiWriter, Access::MultiNodeMultiWriter),
        (Some("x"), Access::Unknown, Access::Unknown),
    ];
    for (mode, plain, telling) in modes {
        assert_eq!((Access::of(mode, false), Access::of(mode, true)), (plain, telling), "{mode:?}");
    }
}

#[test]
fn the_group_of_a_persistent_volume_is_given_where_one_node_writes() {
    let gives = |source: Value, policy: &str| {
        persistent(source, json!({}))
            .node_gives_group(&Terms { group_policy: policy.to_owned(), ..Terms::default() })
    };
    let ext4 = |mode: &str| json!({"fs_type": "ext4", "access_modes": [mode]});
    assert!(gives(ext4("ReadWriteOnce"), "") && gives(ext4("ReadWriteOncePod"), "ReadWriteOnceWithFSType"));
    assert!(!gives(ext4("ReadWriteMany"), "") && gives(ext4("ReadWriteMany"), "File"));
    assert!(!gives(json!({}), "") && !gives(ext4("ReadWriteOnce"), "None"));
}

#[test]
fn whose_directory_it_is_and_whether_it_is_attached_is_written_down() {
    let of = persistent(json!({}), json!({}));
    let attached = Terms { attach: true, ..Terms::default() };
    let data = of.data(&attached);
    assert_eq!(
        (data.rest["specVolID"].as_str(), data.rest["volumeLifecycleMode"].as_str()),
        ("pv", "Persistent")
    );
    assert!(data.is_persistent() && data.is_attached() && data.key() == of.key());
    assert!(of.staged_data(&attached).rest.is_empty(), "as upstream has it");
    let here = of.staged_data(&Terms::default());
    assert!(!here.is_attached() && !of.data(&Terms::default()).is_attached());
    assert_eq!(VolumeData::from_json(&here.to_json().unwrap()), Ok(here));
    let inline = inline(json!({"driver": "d"}));
    assert!(!inline.data(&Terms::default()).is_persistent());
}
