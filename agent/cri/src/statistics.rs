//! [`Statistics`] over CRI `ListContainerStats` and `ImageFsInfo`.
//!
//! Invariants: a figure that the runtime does not give is `None`; its rate of processor time is not taken, because it is
//! measured between any two calls of anybody (`agent_kubelet_api::stats::rates` measures); a layer that the runtime has not
//! measured yet (its time is 0) is none.

use agent_kubelet_api::drivers::{Statistics, StoragePlaces};
use agent_kubelet_api::stats::RuntimeUsage;
use agent_kubelet_api::stats::disk::Layer;
use agent_kubelet_api::stats::usage::{Cpu, Memory, Swap, Usage};
use agent_types::failure::DriverError;
use agent_types::time::Wall;
use orlop_proto::cri::v1;

use crate::CriClient;

impl Statistics for CriClient {
    async fn container_stats(&self) -> Result<Vec<RuntimeUsage>, DriverError> {
        let call = self.ordinary("ListContainerStats", "all");
        let request = v1::ListContainerStatsRequest { filter: None };
        let answer =
            self.runtime(call, request, |mut c, r| async move { c.list_container_stats(r).await }).await?;
        Ok(answer.stats.into_iter().filter_map(usage).collect())
    }

    async fn image_filesystem(&self) -> Result<Option<Layer>, DriverError> {
        let call = self.ordinary("ImageFsInfo", "images");
        let request = v1::ImageFsInfoRequest {};
        let answer = self.image(call, request, |mut c, r| async move { c.image_fs_info(r).await }).await?;
        Ok(answer.image_filesystems.into_iter().next().and_then(layer))
    }

    async fn storage_places(&self) -> Result<StoragePlaces, DriverError> {
        let call = self.ordinary("ImageFsInfo", "places");
        let request = v1::ImageFsInfoRequest {};
        let answer = self.image(call, request, |mut c, r| async move { c.image_fs_info(r).await }).await?;
        Ok(StoragePlaces {
            images: place(answer.image_filesystems),
            containers: place(answer.container_filesystems),
        })
    }
}

fn usage(stats: v1::ContainerStats) -> Option<RuntimeUsage> {
    let id = stats.attributes?.id;
    let mut usage = Usage::default();
    if let Some(cpu) = stats.cpu {
        usage.at = Wall(cpu.timestamp);
        usage.cpu = Cpu { total_ns: value(cpu.usage_core_nano_seconds), ..Cpu::default() };
    }
    if let Some(memory) = stats.memory {
        usage.at = usage.at.max(Wall(memory.timestamp));
        usage.memory = Memory {
            usage: value(memory.usage_bytes),
            working_set: value(memory.working_set_bytes),
            // The runtime's 0 stands for no limit as well as for none left.
            available: value(memory.available_bytes).filter(|bytes| *bytes > 0),
            rss: value(memory.rss_bytes),
            page_faults: value(memory.page_faults),
            major_page_faults: value(memory.major_page_faults),
            ..Memory::default()
        };
    }
    if let Some(swap) = stats.swap {
        let (used, available) = (value(swap.swap_usage_bytes), value(swap.swap_available_bytes));
        let limit = used.zip(available).map(|(used, available)| used.saturating_add(available));
        usage.swap = Swap { usage: used, limit };
    }
    Some(RuntimeUsage { id, usage, layer: stats.writable_layer.and_then(layer) })
}

fn layer(used: v1::FilesystemUsage) -> Option<Layer> {
    (used.timestamp > 0).then(|| Layer {
        at: Wall(used.timestamp),
        mountpoint: used.fs_id.unwrap_or_default().mountpoint,
        used_bytes: value(used.used_bytes),
        inodes_used: value(used.inodes_used),
    })
}

/// The first that has a name; measured or not.
fn place(of: Vec<v1::FilesystemUsage>) -> Option<String> {
    of.into_iter().filter_map(|used| used.fs_id).map(|id| id.mountpoint).find(|place| !place.is_empty())
}

fn value(value: Option<v1::UInt64Value>) -> Option<u64> {
    Some(value?.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: u64) -> Option<v1::UInt64Value> {
        Some(v1::UInt64Value { value })
    }

    #[test]
    fn what_the_runtime_does_not_say_is_not_said() {
        let attributes = Some(v1::ContainerAttributes { id: "c1".to_owned(), ..Default::default() });
        let bare = v1::ContainerStats { attributes: attributes.clone(), ..Default::default() };
        assert_eq!(usage(bare.clone()), Some(RuntimeUsage { id: "c1".to_owned(), ..Default::default() }));
        assert_eq!(usage(v1::ContainerStats::default()), None, "of nobody");
        let unmeasured = Some(v1::FilesystemUsage { used_bytes: number(0), ..Default::default() });
        assert_eq!(usage(v1::ContainerStats { writable_layer: unmeasured, ..bare }).unwrap().layer, None);
    }

    #[test]
    fn places_are_known_before_anything_is_measured() {
        let of = |mountpoint: &str| v1::FilesystemUsage {
            fs_id: Some(v1::FilesystemIdentifier { mountpoint: mountpoint.to_owned() }),
            ..Default::default()
        };
        assert_eq!(
            place(vec![v1::FilesystemUsage::default(), of(""), of("/a"), of("/b")]),
            Some("/a".to_owned())
        );
        assert_eq!(place(Vec::new()), None);
    }

    #[test]
    fn amounts() {
        let stats = v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes { id: "c1".to_owned(), ..Default::default() }),
            cpu: Some(v1::CpuUsage {
                timestamp: 5,
                usage_core_nano_seconds: number(9),
                usage_nano_cores: number(77),
                psi: None,
            }),
            memory: Some(v1::MemoryUsage {
                timestamp: 6,
                working_set_bytes: number(3),
                available_bytes: number(0),
                ..Default::default()
            }),
            writable_layer: Some(v1::FilesystemUsage {
                timestamp: 4,
                fs_id: Some(v1::FilesystemIdentifier { mountpoint: "/layers".to_owned() }),
                used_bytes: number(1),
                inodes_used: None,
            }),
            ..Default::default()
        };
        let found = usage(stats).unwrap();
        assert_eq!((found.usage.at, found.usage.cpu.total_ns), (Wall(6), Some(9)));
        assert_eq!(found.usage.cpu.nano_cores, None, "not the runtime's");
        assert_eq!((found.usage.memory.working_set, found.usage.memory.available), (Some(3), None));
        let layer = found.layer.unwrap();
        assert_eq!((layer.at, layer.mountpoint.as_str(), layer.used_bytes), (Wall(4), "/layers", Some(1)));
        assert_eq!(layer.inodes_used, None);
    }
}
