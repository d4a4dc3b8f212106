//! What the API server gets to know about the node's CSI drivers: an annotation and labels of the Node, and the
//! CSINode.
//!
//! In: the objects as they are, a driver. Out: the objects as they should be, if that is something else. Invariants: nothing
//! of other drivers is changed; a label that says something else is never overwritten; a CSINode of an earlier Node of the
//! same name is not used. Upstream: pkg/volume/csi/nodeinfomanager.

use std::collections::BTreeMap;

use agent_volumes::csi::plugin::NodeInfo;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

/// What drivers call the node, as JSON.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// Which volumes of the API are the business of CSI drivers.
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// All that upstream v1.36 has moved.
const MIGRATED_PLUGINS: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,\
                                kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,\
                                kubernetes.io/vsphere-volume";

/// The patch of the Node's metadata for a driver; `None`: it is as it should be.
///
/// # Errors
/// The driver's node has no id, a label says something else, or the annotation cannot be read.
pub fn node_with(node: &Node, driver: &str, info: &NodeInfo) -> Result<Option<Value>, String> {
    if info.node_id.is_empty() {
        return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
    }
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let mut wanted = BTreeMap::new();
    for (key, value) in &info.topology {
        match labels.get(key) {
            Some(there) if there == value => {}
            Some(there) => {
                return Err(format!(
                    "detected topology value collision: driver reported {key:?}:{value:?} but existing label is \
                     {key:?}:{there:?}"
                ));
            }
            None => {
                wanted.insert(key, value);
            }
        }
    }
    let mut ids = node_ids(node)?;
    let known = ids.insert(driver.to_owned(), info.node_id.clone()) == Some(info.node_id.clone());
    if known && wanted.is_empty() {
        return Ok(None);
    }
    let mut metadata = json!({ "annotations": { NODE_IDS: json!(ids).to_string() } });
    if !wanted.is_empty() {
        metadata["labels"] = json!(wanted);
    }
    Ok(Some(json!({ "metadata": metadata })))
}

/// The patch of the Node's metadata when a driver is gone. Its labels stay.
///
/// # Errors
/// The annotation cannot be read.
pub fn node_without(node: &Node, driver: &str) -> Result<Option<Value>, String> {
    let mut ids = node_ids(node)?;
    if ids.remove(driver).is_none() {
        return Ok(None);
    }
    let text = if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) };
    Ok(Some(json!({ "metadata": { "annotations": { NODE_IDS: text } } })))
}

fn node_ids(node: &Node) -> Result<BTreeMap<String, String>, String> {
    let text = node.metadata.annotations.as_ref().and_then(|a| a.get(NODE_IDS)).filter(|t| !t.is_empty());
    let Some(text) = text else { return Ok(BTreeMap::new()) };
    serde_json::from_str(text)
        .map_err(|e| format!("failed to parse node's {NODE_IDS:?} annotation value ({text:?}) err={e}"))
}

/// A CSINode without drivers.
#[must_use]
pub fn empty(node: &Node) -> CSINode {
    let name = node.metadata.name.clone().unwrap_or_default();
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.clone(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    CSINode {
        metadata: ObjectMeta {
            name: Some(name),
            owner_references: Some(vec![owner]),
            annotations: Some([(MIGRATED.to_owned(), MIGRATED_PLUGINS.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec { drivers: Vec::new() },
    }
}

/// The CSINode is this Node's, and not that of an earlier one of its name.
#[must_use]
pub fn is_of(csi_node: &CSINode, node: &Node) -> bool {
    let mut owners = csi_node.metadata.owner_references.iter().flatten();
    owners.any(|o| {
        o.kind == "Node"
            && Some(&o.name) == node.metadata.name.as_ref()
            && Some(&o.uid) == node.metadata.uid.as_ref()
    })
}

/// The CSINode with what it should say of moved volumes; `None`: it says so.
#[must_use]
pub fn begun(csi_node: &CSINode) -> Option<CSINode> {
    let said = csi_node.metadata.annotations.as_ref().and_then(|a| a.get(MIGRATED));
    if said.is_some_and(|text| text == MIGRATED_PLUGINS) {
        return None;
    }
    let mut new = csi_node.clone();
    new.metadata.annotations.get_or_insert_default().insert(MIGRATED.to_owned(), MIGRATED_PLUGINS.to_owned());
    Some(new)
}

/// The CSINode with a driver; `None`: it is there.
#[must_use]
pub fn with(csi_node: &CSINode, driver: &str, info: &NodeInfo) -> Option<CSINode> {
    // Sorted, as a map's keys are.
    let keys: Vec<String> = info.topology.keys().cloned().collect();
    let count = (info.volumes_max > 0).then(|| i32::try_from(info.volumes_max).unwrap_or(i32::MAX));
    let new = CSINodeDriver {
        name: driver.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: count.map(|count| VolumeNodeResources { count: Some(count) }),
    };
    if csi_node.spec.drivers.contains(&new) {
        return None;
    }
    let mut changed = csi_node.clone();
    changed.spec.drivers.retain(|d| d.name != driver);
    changed.spec.drivers.push(new);
    Some(changed)
}

/// The CSINode without a driver; `None`: it is not there.
#[must_use]
pub fn without(csi_node: &CSINode, driver: &str) -> Option<CSINode> {
    let mut changed = csi_node.clone();
    changed.spec.drivers.retain(|d| d.name != driver);
    (changed != *csi_node).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(annotation: Option<&str>, labels: Value) -> Node {
        let annotations = annotation.map(|text| json!({ NODE_IDS: text }));
        let metadata = json!({"name": "n", "uid": "nu", "annotations": annotations, "labels": labels});
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn info(topology: &[(&str, &str)], volumes_max: i64) -> NodeInfo {
        let topology = topology.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        NodeInfo { node_id: "id".to_owned(), volumes_max, topology }
    }

    #[test]
    fn the_node_says_what_drivers_call_it_and_where_it_is() {
        let fresh = node(None, json!({"zone": "a"}));
        let patch = node_with(&fresh, "x", &info(&[("zone", "a"), ("rack", "7")], 0)).unwrap().unwrap();
        let expected =
            json!({"metadata": {"annotations": {NODE_IDS: "{\"x\":\"id\"}"}, "labels": {"rack": "7"}}});
        assert_eq!(patch, expected);
        let known = node(Some("{\"a\":\"1\",\"x\":\"id\"}"), json!({}));
        assert_eq!(node_with(&known, "x", &info(&[], 0)), Ok(None));
        let patch = node_with(&known, "b", &info(&[], 0)).unwrap().unwrap();
        assert_eq!(patch["metadata"]["annotations"][NODE_IDS], "{\"a\":\"1\",\"b\":\"id\",\"x\":\"id\"}");
        let error = node_with(&fresh, "x", &info(&[("zone", "b")], 0)).unwrap_err();
        assert_eq!(
            error,
            "detected topology value collision: driver reported \"zone\":\"b\" but existing label is \"zone\":\"a\""
        );
        assert!(node_with(&fresh, "x", &NodeInfo::default()).unwrap_err().contains("must not be empty"));
        assert!(
            node_with(&node(Some("{"), json!({})), "x", &info(&[], 0))
                .unwrap_err()
                .contains("failed to parse")
        );
        let last = node(Some("{\"x\":\"id\"}"), json!({}));
        assert_eq!(
            node_without(&last, "x").unwrap().unwrap()["metadata"]["annotations"][NODE_IDS],
            Value::Null
        );
        let patch = node_without(&known, "x").unwrap().unwrap();
        assert_eq!(patch["metadata"]["annotations"][NODE_IDS], "{\"a\":\"1\"}");
        assert_eq!(node_without(&fresh, "x"), Ok(None));
    }

    #[test]
    fn the_csinode_lists_each_driver_once() {
        let of = empty(&node(None, json!({})));
        assert!(is_of(&of, &node(None, json!({}))) && begun(&of).is_none());
        let mut later = node(None, json!({}));
        later.metadata.uid = Some("other".to_owned());
        assert!(!is_of(&of, &later));
        let mut bare = of.clone();
        bare.metadata.annotations = None;
        assert_eq!(begun(&bare), Some(of.clone()));
        let one = with(&of, "x", &info(&[("b", "1"), ("a", "2")], i64::MAX)).unwrap();
        let drivers = serde_json::to_value(&one).unwrap()["spec"]["drivers"].clone();
        let expected = json!([{"name": "x", "nodeID": "id", "topologyKeys": ["a", "b"], "allocatable": {"count": i32::MAX}}]);
        assert_eq!(drivers, expected);
        assert_eq!(with(&one, "x", &info(&[("b", "1"), ("a", "2")], i64::MAX)), None);
        let two = with(&one, "y", &info(&[], -1)).unwrap();
        let changed = with(&two, "x", &info(&[], 0)).unwrap();
        let names: Vec<_> =
            changed.spec.drivers.iter().map(|d| (d.name.as_str(), d.allocatable.is_some())).collect();
        assert_eq!(names, [("y", false), ("x", false)]);
        assert_eq!(without(&one, "x"), Some(of.clone()));
        assert_eq!(without(&of, "x"), None);
    }
}
