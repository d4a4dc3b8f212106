//! Sources, names, links and records: tables.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fc::{FcPath, device};
use super::iscsi::{Chap, is_gone, parameters, transport};
use super::*;

const IQN: &str = "iqn.2026-01.com.example:disk";
const SHOWN: &str = "# BEGIN RECORD 2.1\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\n\
                     iface.transport_name = tcp\niface.vlan_id = 0\niface.initiatorname = <empty>\n# END RECORD\n";

fn source(more: Value) -> Source {
    let mut all = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 3});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Source::of_iscsi(serde_json::from_value(all).unwrap())
}

fn iscsi(more: Value) -> Iscsi {
    match source(more).target {
        Target::Iscsi(iscsi) => iscsi,
        Target::Fc(_) => panic!("no iSCSI"),
    }
}

fn fc(source: Value) -> Result<Fc, String> {
    match Source::of_fc(serde_json::from_value(source).unwrap())?.target {
        Target::Fc(fc) => Ok(fc),
        Target::Iscsi(_) => panic!("no FC"),
    }
}

#[test]
fn names_and_paths_are_upstreams() {
    let plain = source(json!({"portals": ["10.0.0.2:4000", "10.0.0.1:3260"], "secretRef": {"name": "s"}}));
    let of = |target: &Target, block| global("/k", "pv", target, block);
    assert_eq!(key(&plain.target).unique_name(), format!("kubernetes.io/iscsi/10.0.0.1:{IQN}:3"));
    let below = format!("iface-default/10.0.0.1:3260-{IQN}-lun-3");
    assert_eq!(of(&plain.target, false), Ok(format!("/k/plugins/kubernetes.io/iscsi/{below}")));
    assert_eq!(of(&plain.target, true), Ok(format!("/k/plugins/kubernetes.io/iscsi/volumeDevices/{below}")));
    assert_eq!(
        iscsi(json!({"portals": ["10.0.0.2:4000", "10.0.0.1:3260"]})).portals,
        ["10.0.0.1:3260", "10.0.0.2:4000"]
    );
    assert_eq!(iscsi(json!({"targetPortal": "[fd00::1]"})).portals, ["[fd00::1]:3260"]);
    assert_eq!(iscsi(json!({"targetPortal": "[fd00::1]:7"})).portals, ["[fd00::1]:7"]);
    let own = source(json!({"initiatorName": "iqn.x:me"}));
    assert!(of(&own.target, false).unwrap().contains("/iface-10.0.0.1:3260:pv/"));
    for bad in
        [json!({"iqn": "iqn.x:a/b"}), json!({"iscsiInterface": "../.."}), json!({"targetPortal": "a\nb"})]
    {
        assert!(of(&source(bad).target, false).unwrap_err().contains("is no name of a directory"));
    }

    let ports = fc(json!({"targetWWNs": ["50060e801049cfd1", "50060e801049cfd2"], "lun": 0})).unwrap();
    assert_eq!(ports.handle(), "[50060e801049cfd1 50060e801049cfd2]:0");
    assert_eq!(
        of(&Target::Fc(ports), true),
        Ok("/k/plugins/kubernetes.io/fc/volumeDevices/50060e801049cfd1-50060e801049cfd2-lun-0".to_owned())
    );
    let ids = fc(json!({"wwids": ["VENDOR 17"]})).unwrap();
    assert_eq!((ids.handle().as_str(), ids.directory().as_str()), ("[VENDOR 17]", "VENDOR_17"));
    for none in [json!({}), json!({"targetWWNs": ["a"]}), json!({"lun": 0})] {
        assert!(fc(none).unwrap_err().contains("no fc disk information found"));
    }
    assert!(of(&Target::Fc(fc(json!({"wwids": ["../x"]})).unwrap()), false).is_err());
}

#[test]
fn secrets_are_the_pods_or_those_that_a_persistent_volume_names() {
    let secret = source(
        json!({"chapAuthSession": true, "secretRef": {"name": "s"}, "fsType": "xfs", "readOnly": true}),
    );
    assert_eq!(secret.secret, Some(SecretRef { namespace: String::new(), name: "s".to_owned() }));
    assert!(secret.read_only && secret.fs_type == "xfs");
    let of = json!({"targetPortal": "p", "iqn": IQN, "lun": 0, "chapAuthDiscovery": true,
        "secretRef": {"name": "s", "namespace": "storage"}});
    let persistent = Source::of_persistent_iscsi(serde_json::from_value(of).unwrap());
    assert_eq!(persistent.secret, Some(SecretRef { namespace: "storage".to_owned(), name: "s".to_owned() }));
    assert!(
        matches!(&persistent.target, Target::Iscsi(i) if i.wants_secret() && i.chap_discovery && !i.chap_session)
    );
}

fn disk(more: Value, volume: &str) -> NetworkDisk {
    let source = source(more);
    NetworkDisk {
        volume: volume.to_owned(),
        global: global("/k", volume, &source.target, false).unwrap(),
        target: source.target,
        fs_type: String::new(),
        secret: source.secret,
        read_only: true,
        options: vec!["noatime".to_owned()],
        one_pod: false,
        by_root: false,
        block: false,
        label: None,
    }
}

#[test]
fn a_record_is_enough_to_let_go_and_holds_no_secret() {
    let of = disk(json!({"secretRef": {"name": "hush"}, "chapAuthSession": true}), "pv");
    let record = of.record();
    assert_eq!(record.path(), format!("{}.json", of.global));
    let text = record.to_json().unwrap();
    assert!(!String::from_utf8_lossy(&text).contains("hush"));
    let read = Record::from_json(&text).unwrap();
    assert_eq!((read.key(), &read), (of.key(), &record));
    assert!(Record::from_json(b"{}").is_err() && Record::from_json(&text[..20]).is_err());
    let upstream: Value = serde_json::from_slice(&record.for_upstream().unwrap()).unwrap();
    let expected = json!({"VolName": "pv", "Portals": ["10.0.0.1:3260"], "Iqn": IQN, "Lun": "3", "InitIface": "default",
        "Iface": "default", "InitiatorName": ""});
    assert_eq!(upstream, expected);
    let bind = of.bind("/dev/sdb");
    assert_eq!(
        (bind.source.as_str(), bind.options.as_slice()),
        ("/dev/sdb", &["noatime".to_owned(), "ro".to_owned()][..])
    );
    let labelled = NetworkDisk { label: Some("u:r:t:s0:c1,c2".to_owned()), read_only: false, ..of };
    assert_eq!(labelled.bind("/dev/sdb").options, ["noatime", r#"context="u:r:t:s0:c1,c2""#]);
}

#[test]
fn a_session_ends_with_its_last_disk() {
    let record = |more: Value, volume: &str| disk(more, volume).record();
    let one = record(json!({}), "a");
    for (other, shares) in [
        (record(json!({}), "a"), false),
        (record(json!({"lun": 4}), "b"), true),
        (record(json!({"lun": 4, "targetPortal": "10.0.0.9", "portals": ["10.0.0.1"]}), "b"), true),
        (record(json!({"lun": 4, "targetPortal": "10.0.0.9"}), "b"), false),
        (record(json!({"lun": 4, "iqn": format!("{IQN}2")}), "b"), false),
        (record(json!({"lun": 4, "iscsiInterface": "eth7"}), "b"), false),
        (record(json!({"lun": 4, "initiatorName": "iqn.x:me"}), "b"), false),
    ] {
        assert_eq!(shares_session(&one, std::slice::from_ref(&other)), shares, "{other:?}");
    }
}

#[test]
fn devices_go_with_the_last_name_of_a_disk() {
    let of = |source: Value, block: bool| {
        let target = Source::of_fc(serde_json::from_value(source).unwrap()).unwrap().target;
        Record { volume: "pv".to_owned(), global: global("/k", "pv", &target, block).unwrap(), target, block }
    };
    let ports = |wwns: &[&str], lun: i32| json!({"targetWWNs": wwns, "lun": lun});
    let ids = |wwids: &[&str]| json!({ "wwids": wwids });
    for (one, other, shares) in [
        (of(ports(&["a", "b"], 0), false), of(ports(&["a", "b"], 0), false), false),
        (of(ports(&["a", "b"], 0), false), of(ports(&["a", "b"], 0), true), true),
        (of(ports(&["a", "b"], 0), false), of(ports(&["b"], 0), false), true),
        (of(ports(&["a", "b"], 0), false), of(ports(&["a", "b"], 1), false), false),
        (of(ids(&["a"]), false), of(ids(&["b", "a"]), false), true),
        (of(ids(&["a"]), false), of(ports(&["a"], 0), false), false),
        (disk(json!({}), "a").record(), disk(json!({"iscsiInterface": "eth7"}), "a").record(), true),
        (disk(json!({}), "a").record(), disk(json!({"lun": 4}), "a").record(), false),
    ] {
        assert_eq!(shares_unit(&one, std::slice::from_ref(&other)), shares, "{one:?} {other:?}");
    }
}

#[test]
fn a_fabrics_disk_is_found_by_its_links() {
    let names: Vec<String> =
        ["pci-0000:04:00.0-fc-0xaa-lun-1", "fc-0xbb-lun-1", "fc-0xaa-lun-10", "xfc-0xcc-lun-1"]
            .map(str::to_owned)
            .into();
    let of =
        |wwns: &[&str]| Fc::new(wwns.iter().map(|w| (*w).to_owned()).collect(), Some(1), vec![]).unwrap();
    assert_eq!(of(&["bb", "aa"]).choose(&names), ["fc-0xbb-lun-1", "pci-0000:04:00.0-fc-0xaa-lun-1"]);
    assert!(of(&["cc"]).choose(&names).is_empty() && of(&["a"]).choose(&names).is_empty());
    let ids = Fc::new(vec![], None, vec!["VENDOR 17".to_owned()]).unwrap();
    assert_eq!(
        ids.choose(&["scsi-VENDOR_17".to_owned(), "scsi-VENDOR_17-part1".to_owned()]),
        ["scsi-VENDOR_17"]
    );
    let found = |path: &str, joined: Option<&str>| FcPath {
        path: path.to_owned(),
        joined: joined.map(str::to_owned),
    };
    assert_eq!(
        device(&[found("/dev/sda", None), found("/dev/sdb", Some("/dev/dm-0"))]),
        Some("/dev/dm-0".to_owned())
    );
    assert_eq!(device(&[found("/dev/sda", None), found("/dev/sdb", None)]), Some("/dev/sda".to_owned()));
    assert_eq!(device(&[]), None);
}

#[test]
fn what_iscsiadm_shows_of_an_interface() {
    assert_eq!(transport(SHOWN), Some("tcp"));
    assert_eq!(transport("iface.transport_name = <empty>\n"), Some("tcp"));
    assert_eq!(transport("iface.transport_name = bnx2i\n"), Some("bnx2i"));
    assert_eq!(transport("nonsense"), None);
    let expected: BTreeMap<String, String> = [("iface.transport_name", "tcp"), ("iface.vlan_id", "0")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    assert_eq!(parameters(SHOWN), Ok(expected));
    assert!(parameters("iface.x y = z\n").is_err());
    assert!(is_gone(Some(21)) && is_gone(Some(2)) && !is_gone(Some(8)) && !is_gone(None));
}

#[test]
fn links_are_by_the_way_of_the_session() {
    let names: Vec<String> = [
        format!("ip-10.0.0.1:3260-iscsi-{IQN}-lun-3"),
        format!("pci-0000:05:00.0-ip-10.0.0.1:3260-iscsi-{IQN}-lun-3"),
        format!("ip-10.0.0.1:3260-iscsi-{IQN}-lun-30"),
    ]
    .into();
    let of = iscsi(json!({}));
    assert_eq!(of.link("10.0.0.1:3260", "tcp").choose(&names), Some(names[0].as_str()));
    assert_eq!(of.link("10.0.0.1:3260", "bnx2i").choose(&names), Some(names[1].as_str()));
    assert_eq!(of.link("10.0.0.2:3260", "tcp").choose(&names), None);
    assert!(of.link("p", "bnx2i").to_string().starts_with("/dev/disk/by-path/pci-*-ip-p-iscsi-"));
}

#[test]
fn secrets_are_shown_to_nobody() {
    let of = iscsi(json!({"chapAuthSession": true}));
    let chap: Chap = [("node.session.auth.password".to_owned(), "hush".to_owned())].into();
    let all = of.chap_of_session("pv", "10.0.0.1:3260", &chap);
    assert_eq!(all.len(), 2);
    assert!(all[1].arguments.contains(&"hush".to_owned()) && all[1].is_secret());
    assert!(!format!("{:?} {}", all[1], all[1]).contains("hush"));
    assert!(all[1].to_string().ends_with("-n node.session.auth.password -v ***"));
    assert!(of.chap_of_discovery("pv", "p", &chap).is_empty());
}

#[test]
fn a_program_that_is_not_there_is_named_with_what_to_do() {
    let words = missing_program("iscsiadm");
    assert!(words.contains("\"iscsiadm\"") && words.contains("open-iscsi"), "{words}");
    assert!(missing_program("multipath").contains("multipath-tools"));
}
