//! Chooses images to remove: when the disk fills, or when images were unused for long.
//!
//! ```text
//! ListImages, images of containers ─► detect() ─► records ─► by_age(), for_space() ─► candidates, the first to go first
//! ```
//! In: the runtime's list of images, the file system of images, the monotonic clock. Out: candidates in the
//! order of their removal, the number of bytes to free. Invariants: an image of a container, running or not,
//! and a pinned image (the runtime pins the images of sandboxes) are never candidates, nor is an image first
//! seen less than `imageMinimumGCAge` ago; the order is total: last used, first seen, id. Upstream:
//! pkg/kubelet/images/image_gc_manager.go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_kubelet_api::stats::disk::Filesystem;
use agent_types::ids::ImageId;
use agent_types::runtime::image::ImageInfo;
use agent_types::time::Mono;

/// Reason of the warning that the file system of images has no size.
pub const INVALID_DISK_CAPACITY: &str = "InvalidDiskCapacity";
/// Reason of the warning that too little could be freed.
pub const FREE_DISK_SPACE_FAILED: &str = "FreeDiskSpaceFailed";
/// Reason of the warning that images cannot be collected.
pub const IMAGE_GC_FAILED: &str = "ImageGCFailed";

/// The configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `imageGCHighThresholdPercent`: space is freed if this much or more is used.
    pub high_percent: u8,
    /// `imageGCLowThresholdPercent`: down to this.
    pub low_percent: u8,
    /// `imageMinimumGCAge`.
    pub minimum_age: Duration,
    /// `imageMaximumGCAge`; `None` if images may stay for ever.
    pub maximum_age: Option<Duration>,
}

impl Policy {
    /// True if nothing is collected on a timer.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.high_percent == 100 && self.maximum_age.is_none()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    first_seen: Mono,
    last_used: Option<Mono>,
    names: Vec<String>,
    size_bytes: u64,
    pinned: bool,
    used: bool,
}

/// An image that may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Argument of `RemoveImage`.
    pub id: ImageId,
    /// Its tags and digests.
    pub names: Vec<String>,
    /// Size from the runtime.
    pub size_bytes: u64,
}

/// The file system of images has a size of zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid capacity 0 on image filesystem")]
pub struct InvalidCapacity;

/// Usage of the file system of images, and the number of bytes to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageFsUsage {
    /// Percent, rounded up.
    pub used_percent: u64,
    /// Bytes.
    pub capacity_bytes: u64,
    /// Bytes to be freed.
    pub wanted_bytes: u64,
}

impl ImageFsUsage {
    /// Message if only `freed_bytes` could be freed.
    #[must_use]
    pub fn unmet(&self, freed_bytes: u64) -> String {
        format!(
            "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to free sufficient \
             space by deleting unused images (freed {freed_bytes} bytes). Investigate disk usage, as it could be used \
             by active images, logs, volumes, or other data.",
            self.used_percent,
            size(self.capacity_bytes),
        )
    }
}

/// What is known of the node's images.
#[derive(Clone, Debug)]
pub struct ImageGc {
    policy: Policy,
    began: Mono,
    records: BTreeMap<ImageId, Record>,
}

impl ImageGc {
    /// Ages count from `began`: the time before is unknown.
    #[must_use]
    pub fn new(policy: Policy, began: Mono) -> ImageGc {
        ImageGc { policy, began, records: BTreeMap::new() }
    }

    /// Takes the runtime's list. `used` contains the images of containers: ids, tags, digests. It must be
    /// read after `images`, so that a container created meanwhile counts. `asked` contains the times at which
    /// pods first requested images: a newly listed image has that age.
    pub fn detect(
        &mut self,
        now: Mono,
        images: &[ImageInfo],
        used: &BTreeSet<String>,
        asked: &BTreeMap<String, Mono>,
    ) {
        let mut records = BTreeMap::new();
        for image in images {
            let names: Vec<String> = image.repo_tags.iter().chain(&image.repo_digests).cloned().collect();
            let is_used = used.contains(image.id.as_str()) || names.iter().any(|name| used.contains(name));
            let known = self.records.remove(&image.id);
            let came = || {
                let all = names.iter().map(String::as_str).chain([image.id.as_str()]);
                all.filter_map(|name| asked.get(name)).min().copied().unwrap_or(now).max(self.began)
            };
            records.insert(
                image.id.clone(),
                Record {
                    first_seen: known.as_ref().map_or_else(came, |k| k.first_seen),
                    last_used: if is_used { Some(now) } else { known.and_then(|k| k.last_used) },
                    names,
                    size_bytes: image.size_bytes,
                    pinned: image.pinned,
                    used: is_used,
                },
            );
        }
        self.records = records;
    }

    /// An image was removed.
    pub fn removed(&mut self, id: &ImageId) {
        self.records.remove(id);
    }

    /// Images unused for longer than `imageMaximumGCAge`. None before the agent has run that long.
    #[must_use]
    pub fn by_age(&self, now: Mono) -> Vec<Candidate> {
        let Some(maximum) = self.policy.maximum_age else { return Vec::new() };
        if now.since(self.began) <= maximum {
            return Vec::new();
        }
        self.ranked(|record| {
            // One that was never used counts from when it came.
            now.since(record.last_used.unwrap_or(record.first_seen).max(record.first_seen)) > maximum
                && self.is_old_enough(record, now)
        })
    }

    /// Images that may be removed to free space.
    #[must_use]
    pub fn for_space(&self, now: Mono) -> Vec<Candidate> {
        self.ranked(|record| self.is_old_enough(record, now))
    }

    fn is_old_enough(&self, record: &Record, now: Mono) -> bool {
        now.since(record.first_seen) >= self.policy.minimum_age
    }

    fn ranked(&self, may_go: impl Fn(&Record) -> bool) -> Vec<Candidate> {
        let mut found: Vec<(&ImageId, &Record)> =
            self.records.iter().filter(|(_, r)| !r.used && !r.pinned && may_go(r)).collect();
        // An image that was never used is removed before all others.
        found.sort_by_key(|(id, r)| (r.last_used, r.first_seen, (*id).clone()));
        let candidate = |(id, r): (&ImageId, &Record)| Candidate {
            id: id.clone(),
            names: r.names.clone(),
            size_bytes: r.size_bytes,
        };
        found.into_iter().map(candidate).collect()
    }

    /// Bytes to free; `None` if the usage is below the high threshold.
    ///
    /// # Errors
    /// [`InvalidCapacity`].
    pub fn need(&self, disk: &Filesystem) -> Result<Option<ImageFsUsage>, InvalidCapacity> {
        let capacity = u128::from(disk.capacity_bytes);
        let available = u128::from(disk.available_bytes).min(capacity);
        if capacity == 0 {
            return Err(InvalidCapacity);
        }
        let used_percent = 100 - available * 100 / capacity;
        if used_percent < u128::from(self.policy.high_percent) {
            return Ok(None);
        }
        let left_free = capacity * u128::from(100_u8.saturating_sub(self.policy.low_percent)) / 100;
        let narrow = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        Ok(Some(ImageFsUsage {
            used_percent: narrow(used_percent),
            capacity_bytes: disk.capacity_bytes,
            wanted_bytes: narrow(left_free.saturating_sub(available)),
        }))
    }
}

/// As upstream writes sizes: one decimal, binary units.
fn size(bytes: u64) -> String {
    let mut unit = (1_u64, "B");
    for (power, name) in [(10, "KiB"), (20, "MiB"), (30, "GiB"), (40, "TiB")] {
        if bytes >= 1 << power {
            unit = (1 << power, name);
        }
    }
    if unit.0 == 1 {
        return format!("{bytes} B");
    }
    let tenths = (u128::from(bytes) * 10 + u128::from(unit.0) / 2) / u128::from(unit.0);
    format!("{}.{} {}", tenths / 10, tenths % 10, unit.1)
}

#[cfg(test)]
mod tests;
