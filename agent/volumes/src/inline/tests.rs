//! Volumes that pods name by old types: tables.

use agent_types::node_context::NodeContext;
use serde_json::{Value, json};

use super::*;
use crate::bound::Claims;
use crate::plugin::Plugin;
use crate::{Work, plan};

fn pod(volume: Value, used: bool) -> Pod {
    let mounts = if used { json!([{"name": "v", "mountPath": "/d"}]) } else { json!([]) };
    let mut volume = volume;
    volume["name"] = json!("v");
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {
        "volumes": [volume], "containers": [{"name": "c", "volumeMounts": mounts}]}}))
    .unwrap()
}

fn only(p: &Pod) -> &Volume {
    &pod::spec(p).volumes.as_ref().unwrap()[0]
}

#[test]
fn a_volume_of_a_driver_by_another_name_is_as_a_claims() {
    let p = pod(
        json!({"azureDisk": {"diskName": "d", "diskURI": "/s/d", "fsType": "ext4", "readOnly": true}}),
        true,
    );
    let bound = bound(&p, only(&p)).unwrap().unwrap();
    assert_eq!((bound.volume.as_str(), bound.plugin(), bound.read_only), ("/s/d", Plugin::Csi, false));
    let claims = Claims::from([("v".to_owned(), bound)]);
    let node = NodeContext::new("n");
    let set_up = plan::set_up(&p, "v", &claims, &node).unwrap();
    assert_eq!(set_up.path, "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/~s~d/mount");
    let Work::Csi(csi) = set_up.work else { panic!("{:?}", set_up.work) };
    assert_eq!(
        (csi.driver.as_str(), csi.handle.as_str(), csi.volume.as_str()),
        ("disk.csi.azure.com", "/s/d", "/s/d")
    );
    assert!(csi.is_migrated() && !csi.read_only);
    let persistent = csi.persistent.unwrap();
    assert_eq!((persistent.claim.as_str(), persistent.access_modes), ("", vec!["ReadWriteOnce".to_owned()]));
    assert_eq!(
        plan::location(&p, only(&p), &Claims::new(), &node),
        None,
        "not before it is known what it is called"
    );
    let broken = pod(json!({"azureDisk": {"diskName": "d", "diskURI": "u", "kind": "Shared"}}), true);
    let words = "failed to translate in-tree pv to CSI: kind(Shared) is not supported in csi migration";
    assert_eq!(super::bound(&broken, only(&broken)).unwrap().unwrap_err().to_string(), words);
}

#[test]
fn what_nobody_mounts_is_told_in_upstreams_words() {
    for of in [
        json!({"rbd": {"monitors": ["m"], "image": "i"}}),
        json!({"cephfs": {"monitors": ["m"]}}),
        json!({"glusterfs": {"endpoints": "e", "path": "p"}}),
        json!({"storageos": {}}),
        json!({"scaleIO": {"gateway": "g", "system": "s", "secretRef": {}}}),
        json!({"quobyte": {"registry": "r", "volume": "v"}}),
        json!({"flocker": {}}),
        json!({"photonPersistentDisk": {"pdID": "p"}}),
        json!({"ofTomorrow": {}}),
    ] {
        let p = pod(of, true);
        let words = "failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched";
        assert_eq!(bound(&p, only(&p)).unwrap().unwrap_err().to_string(), words);
        assert!(is_inline(only(&p)) && plan::is_known(only(&p)));
    }
    for of in [
        json!({"emptyDir": {}}),
        json!({"flexVolume": {"driver": "d"}}),
        json!({"gitRepo": {"repository": "r"}}),
    ] {
        let p = pod(of, true);
        assert!(bound(&p, only(&p)).is_none() && !is_inline(only(&p)));
    }
}

#[test]
fn nothing_is_fetched_from_a_repository() {
    let told = |of: Value| {
        let p = pod(json!({ "gitRepo": of }), true);
        assert_eq!(plan::plugin_of(only(&p)), Some(Plugin::GitRepo));
        plan::set_up(&p, "v", &Claims::new(), &NodeContext::new("n")).unwrap_err().to_string()
    };
    assert_eq!(told(json!({"repository": "r", "revision": "", "directory": "d"})), NO_GIT);
    for (of, word, name) in [
        (json!({"repository": "-r", "revision": "-x"}), "-r", "repository"),
        (json!({"repository": "r", "revision": "-x"}), "-x", "revision"),
        (json!({"repository": "r", "directory": "--y"}), "--y", "directory"),
    ] {
        let words = format!(
            "MountVolume.NewMounter initialization failed for volume \"v\" : {word:?} is an invalid value for {name}"
        );
        assert_eq!(told(of), words);
    }
}

#[test]
fn what_no_container_has_keeps_no_pod_waiting() {
    for of in [
        json!({"rbd": {"monitors": ["m"], "image": "i"}}),
        json!({"gitRepo": {"repository": "r"}}),
        json!({"flexVolume": {"driver": "d"}}),
        json!({"cinder": {"volumeID": "c"}}),
    ] {
        let mut p = pod(of.clone(), false);
        assert!(is_idle(&p, only(&p)) && !is_idle(&pod(of.clone(), true), only(&p)));
        let late = json!([{"name": "e", "volumeMounts": [{"name": "v", "mountPath": "/d"}]}]);
        p.spec.as_mut().unwrap().ephemeral_containers = Some(serde_json::from_value(late).unwrap());
        assert!(!is_idle(&p, only(&p)));
    }
    let p = pod(json!({"emptyDir": {}}), false);
    assert!(!is_idle(&p, only(&p)));
}
