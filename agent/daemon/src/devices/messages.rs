//! Messages of the device plugin API as the device manager's values.
//!
//! In: decoded messages. Out: values. Invariant: the checkpoint gets the bytes of an answer, and a later agent or an upstream kubelet
//! decodes them to the same answer.

use agent_managers::devices::plugin::{AllocateResponse, PluginDevice, PluginOptions};
use agent_managers::devices::run_options::{DeviceMount, DeviceNode, RunOptions};
use agent_managers::node_mask::NODES_MAX;
use orlop_proto::device_plugin;
use orlop_proto::device_plugin::v1beta1::{ContainerAllocateResponse, Device, DevicePluginOptions};

use super::limits::ListSize;

/// A device; a topology without nodes counts as none.
pub(super) fn device(message: Device) -> PluginDevice {
    let nodes = message.topology.into_iter().flat_map(|topology| topology.nodes);
    // Other numbers belong to no NUMA node, and a plugin may send any number of them.
    let nodes = nodes.map(|node| node.id).filter(|id| (0..i64::from(NODES_MAX)).contains(id));
    PluginDevice { id: message.id, health: message.health, nodes: nodes.collect() }
}

/// Devices and bytes of a list.
pub(super) fn list_size(devices: &[Device]) -> ListSize {
    ListSize { devices: devices.len(), bytes: devices.iter().map(device_plugin::size).sum() }
}

pub(super) fn options(message: DevicePluginOptions) -> PluginOptions {
    PluginOptions {
        pre_start_required: message.pre_start_required,
        preferred_allocation: message.get_preferred_allocation_available,
    }
}

/// An answer to `Allocate`.
pub(super) fn response(message: ContainerAllocateResponse) -> AllocateResponse {
    AllocateResponse { encoded: device_plugin::encode(&message), options: run_options(message) }
}

/// The content of an answer in a checkpoint; `None`: the bytes are not an answer.
pub(super) fn decode(bytes: &[u8]) -> Option<RunOptions> {
    device_plugin::decode(bytes).ok().map(run_options)
}

fn run_options(message: ContainerAllocateResponse) -> RunOptions {
    let mounts = message.mounts.into_iter().map(|mount| DeviceMount {
        container_path: mount.container_path,
        host_path: mount.host_path,
        read_only: mount.read_only,
    });
    let devices = message.devices.into_iter().map(|device| DeviceNode {
        container_path: device.container_path,
        host_path: device.host_path,
        permissions: device.permissions,
    });
    RunOptions {
        envs: message.envs,
        mounts: mounts.collect(),
        devices: devices.collect(),
        annotations: message.annotations,
        cdi_devices: message.cdi_devices.into_iter().map(|device| device.name).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use orlop_proto::device_plugin::v1beta1::{CdiDevice, DeviceSpec, Mount, NumaNode, TopologyInfo};

    use super::*;

    #[test]
    fn an_answer_comes_back_from_its_bytes() {
        let message = ContainerAllocateResponse {
            envs: BTreeMap::from([("B".to_owned(), "2".to_owned()), ("A".to_owned(), "1".to_owned())]),
            mounts: vec![Mount {
                container_path: "/c".to_owned(),
                host_path: "/h".to_owned(),
                read_only: true,
            }],
            devices: vec![DeviceSpec {
                container_path: "/dev/c".to_owned(),
                host_path: "/dev/h".to_owned(),
                permissions: "rw".to_owned(),
            }],
            annotations: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            cdi_devices: vec![CdiDevice { name: "x.io/y=z".to_owned() }],
        };
        let response = response(message);
        assert_eq!(decode(&response.encoded), Some(response.options.clone()));
        assert_eq!(response.options.cdi_devices, ["x.io/y=z"]);
        assert!(response.options.mounts[0].read_only && response.options.envs.len() == 2);
        assert_eq!(decode(b"\xff"), None);
    }

    #[test]
    fn a_device_has_the_nodes_of_its_topology() {
        let nodes =
            |ids: &[i64]| Some(TopologyInfo { nodes: ids.iter().map(|id| NumaNode { id: *id }).collect() });
        let of =
            |topology| device(Device { id: "d".to_owned(), health: "Healthy".to_owned(), topology }).nodes;
        assert_eq!(of(nodes(&[1, 0])).into_iter().collect::<Vec<i64>>(), [0, 1]);
        assert!(of(nodes(&[])).is_empty() && of(None).is_empty());
    }
}
