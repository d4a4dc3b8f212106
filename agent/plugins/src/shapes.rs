//! Answers of device plugins and DRA drivers, with their bounds.
//!
//! In: the generated types. Out: where their memory is. Invariant: each list, map and nested message of the contract has an entry; a test
//! compares the measure with what a decoded message holds.

use orlop_proto::device_plugin::v1beta1 as device_plugin;
use orlop_proto::dra::{v1, v1beta1};
use orlop_proto::dra_health::v1alpha1 as health;

use crate::bounded::Bounded;
use crate::memory::{Field, PLAIN, Shape};
use crate::{devices, dra};

/// Memory of a message of a device plugin. A list of 32,768 devices with short ids, which is the most that all plugins may have, takes
/// about 14 MiB by this measure.
const DEVICE_PLUGIN_MEMORY_MAX: usize = 16 << 20;
/// Memory of a message of a DRA driver: some 5,000 devices.
const DRA_MEMORY_MAX: usize = 4 << 20;
/// An entry of a map from text to text: an ordered map has room for eleven of them when it gets the first one.
const TEXT_ENTRY: Field = Field::Elements(3 * size_of::<(String, String)>(), PLAIN);

const TOPOLOGY: Shape = Shape(&[(1, Field::Elements(size_of::<device_plugin::NumaNode>(), PLAIN))]);
const LISTED_DEVICE: Shape = Shape(&[(3, Field::Message(TOPOLOGY))]);

impl Bounded for device_plugin::ListAndWatchResponse {
    const BYTES_MAX: usize = devices::MESSAGE_BYTES_MAX;
    const MEMORY_MAX: usize = DEVICE_PLUGIN_MEMORY_MAX;
    const SHAPE: Shape = Shape(&[(1, Field::Elements(size_of::<device_plugin::Device>(), LISTED_DEVICE))]);
}

const PREFERRED: Shape = Shape(&[(1, Field::Texts)]);

impl Bounded for device_plugin::PreferredAllocationResponse {
    const BYTES_MAX: usize = devices::MESSAGE_BYTES_MAX;
    const MEMORY_MAX: usize = DEVICE_PLUGIN_MEMORY_MAX;
    const SHAPE: Shape = Shape(&[(
        1,
        Field::Elements(size_of::<device_plugin::ContainerPreferredAllocationResponse>(), PREFERRED),
    )]);
}

const ALLOCATED: Shape = Shape(&[
    (1, TEXT_ENTRY),
    (2, Field::Elements(size_of::<device_plugin::Mount>(), PLAIN)),
    (3, Field::Elements(size_of::<device_plugin::DeviceSpec>(), PLAIN)),
    (4, TEXT_ENTRY),
    (5, Field::Elements(size_of::<device_plugin::CdiDevice>(), PLAIN)),
]);

impl Bounded for device_plugin::AllocateResponse {
    const BYTES_MAX: usize = devices::MESSAGE_BYTES_MAX;
    const MEMORY_MAX: usize = DEVICE_PLUGIN_MEMORY_MAX;
    const SHAPE: Shape =
        Shape(&[(1, Field::Elements(size_of::<device_plugin::ContainerAllocateResponse>(), ALLOCATED))]);
}

/// Both versions number the lists of a device in the same way.
const CLAIMED_DEVICE: Shape = Shape(&[(1, Field::Texts), (4, Field::Texts)]);

const PREPARED: Shape = Shape(&[(1, Field::Elements(size_of::<v1::Device>(), CLAIMED_DEVICE))]);
const PREPARED_ENTRY: Shape = Shape(&[(2, Field::Message(PREPARED))]);

impl Bounded for v1::NodePrepareResourcesResponse {
    const BYTES_MAX: usize = dra::MESSAGE_BYTES_MAX;
    const MEMORY_MAX: usize = DRA_MEMORY_MAX;
    const SHAPE: Shape = Shape(&[(
        1,
        Field::Elements(size_of::<(String, v1::NodePrepareResourceResponse)>(), PREPARED_ENTRY),
    )]);
}

/// Devices of v1beta1 become devices of v1, which are larger.
impl Bounded for v1beta1::NodePrepareResourcesResponse {
    const BYTES_MAX: usize = dra::MESSAGE_BYTES_MAX;
    const MEMORY_MAX: usize = DRA_MEMORY_MAX;
    const SHAPE: Shape = v1::NodePrepareResourcesResponse::SHAPE;
}

const UNPREPARED_ENTRY: Shape = Shape(&[(2, Field::Message(PLAIN))]);

impl Bounded for v1::NodeUnprepareResourcesResponse {
    const BYTES_MAX: usize = dra::MESSAGE_BYTES_MAX;
    const MEMORY_MAX: usize = DRA_MEMORY_MAX;
    const SHAPE: Shape = Shape(&[(
        1,
        Field::Elements(size_of::<(String, v1::NodeUnprepareResourceResponse)>(), UNPREPARED_ENTRY),
    )]);
}

impl Bounded for v1beta1::NodeUnprepareResourcesResponse {
    const BYTES_MAX: usize = dra::MESSAGE_BYTES_MAX;
    const MEMORY_MAX: usize = DRA_MEMORY_MAX;
    const SHAPE: Shape = v1::NodeUnprepareResourcesResponse::SHAPE;
}

const REPORTED_DEVICE: Shape = Shape(&[(1, Field::Message(PLAIN))]);

impl Bounded for health::NodeWatchResourcesResponse {
    const BYTES_MAX: usize = dra::MESSAGE_BYTES_MAX;
    const MEMORY_MAX: usize = DRA_MEMORY_MAX;
    const SHAPE: Shape = Shape(&[(1, Field::Elements(size_of::<health::DeviceHealth>(), REPORTED_DEVICE))]);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message as _;

    use super::*;
    use crate::memory::memory;

    fn measured<A: Bounded>(message: &A) -> usize {
        memory(&message.encode_to_vec(), A::SHAPE)
    }

    fn room<T>(list: &Vec<T>) -> usize {
        list.capacity() * size_of::<T>()
    }

    fn texts(list: &Vec<String>) -> usize {
        room(list) + list.iter().map(String::capacity).sum::<usize>()
    }

    #[test]
    fn a_list_of_devices_is_measured_with_its_room() {
        for count in [1, 2, 5, 1000] {
            let node = device_plugin::NumaNode { id: 1 };
            let device = |number: usize| device_plugin::Device {
                id: format!("device-{number}"),
                health: "Healthy".to_owned(),
                topology: Some(device_plugin::TopologyInfo { nodes: vec![node; number % 3] }),
            };
            let message = device_plugin::ListAndWatchResponse { devices: (0..count).map(device).collect() };
            let decoded = device_plugin::ListAndWatchResponse::decode(&message.encode_to_vec()[..]).unwrap();
            let nodes = |of: &device_plugin::Device| room(&of.topology.as_ref().unwrap().nodes);
            let held = |of: &device_plugin::Device| of.id.capacity() + of.health.capacity() + nodes(of);
            let holds = room(&decoded.devices) + decoded.devices.iter().map(held).sum::<usize>();
            let measured = measured(&message);
            assert!(holds <= measured && measured < 6 * holds, "{count}: {measured} for {holds}");
        }
    }

    #[test]
    fn an_answer_of_a_driver_is_measured_with_its_room() {
        let device = v1::Device {
            request_names: vec!["r".to_owned()],
            pool_name: "pool".to_owned(),
            device_name: "device".to_owned(),
            cdi_device_ids: vec!["example.com/gpu=device".to_owned(); 3],
            share_id: Some("share".to_owned()),
        };
        let result = v1::NodePrepareResourceResponse { devices: vec![device; 7], error: "error".to_owned() };
        let claims = (0..20).map(|number| (format!("uid-{number}"), result.clone()));
        let message = v1::NodePrepareResourcesResponse { claims: claims.collect() };
        let decoded = v1::NodePrepareResourcesResponse::decode(&message.encode_to_vec()[..]).unwrap();
        let of_device = |of: &v1::Device| {
            let names = of.pool_name.capacity() + of.device_name.capacity();
            names + texts(&of.request_names) + texts(&of.cdi_device_ids)
        };
        let of_claim = |(uid, of): (&String, &v1::NodePrepareResourceResponse)| {
            uid.capacity() + room(&of.devices) + of.devices.iter().map(of_device).sum::<usize>()
        };
        let entries = decoded.claims.capacity() * size_of::<(String, v1::NodePrepareResourceResponse)>();
        let holds = entries + decoded.claims.iter().map(of_claim).sum::<usize>();
        let measured = measured(&message);
        assert!(holds <= measured && measured < 6 * holds, "{measured} for {holds}");
    }

    #[test]
    fn the_most_that_all_plugins_may_list_is_accepted() {
        let device = |number: usize| device_plugin::Device {
            id: format!("0000:00:00.0-partition-{number:05}"),
            health: "Healthy".to_owned(),
            topology: Some(device_plugin::TopologyInfo { nodes: vec![device_plugin::NumaNode { id: 1 }] }),
        };
        let message = device_plugin::ListAndWatchResponse { devices: (0..32 * 1024).map(device).collect() };
        assert!(message.encoded_len() <= devices::MESSAGE_BYTES_MAX);
        assert!(measured(&message) <= DEVICE_PLUGIN_MEMORY_MAX);
    }

    #[test]
    fn many_small_elements_are_too_many() {
        let list = device_plugin::ListAndWatchResponse { devices: vec![Default::default(); 100_000] };
        assert!(list.encoded_len() <= 200_000 && measured(&list) > DEVICE_PLUGIN_MEMORY_MAX);
        let containers =
            device_plugin::AllocateResponse { container_responses: vec![Default::default(); 50_000] };
        assert!(measured(&containers) > DEVICE_PLUGIN_MEMORY_MAX);
        let envs: BTreeMap<_, _> = (0..40_000).map(|number| (number.to_string(), String::new())).collect();
        let container = device_plugin::ContainerAllocateResponse { envs, ..Default::default() };
        let envs = device_plugin::AllocateResponse { container_responses: vec![container] };
        assert!(measured(&envs) > DEVICE_PLUGIN_MEMORY_MAX);
        let ids =
            device_plugin::ContainerPreferredAllocationResponse { device_i_ds: vec![String::new(); 200_000] };
        let preferred = device_plugin::PreferredAllocationResponse { container_responses: vec![ids] };
        assert!(measured(&preferred) > DEVICE_PLUGIN_MEMORY_MAX);
        let report = health::NodeWatchResourcesResponse { devices: vec![Default::default(); 20_000] };
        assert!(report.encoded_len() <= 40_000 && measured(&report) > DRA_MEMORY_MAX);
        let claims =
            (0..30_000).map(|number| (number.to_string(), v1::NodeUnprepareResourceResponse::default()));
        let unprepared = v1::NodeUnprepareResourcesResponse { claims: claims.collect() };
        assert!(measured(&unprepared) > DRA_MEMORY_MAX);
    }
}
