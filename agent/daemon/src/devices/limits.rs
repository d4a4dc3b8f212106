//! Limits of the agent's memory and time for device plugins. A plugin is a pod, and the agent keeps data that it sends.
//!
//! In: numbers and sizes of lists. Out: yes or no. Invariant: all lists together stay below [`DEVICES_MAX`] devices and
//! [`LIST_BYTES_MAX`] bytes. Upstream limits the size of a message only (4 MiB, the limit of Go's gRPC); agent-plugins limits that size,
//! and the memory that a message takes.

use std::time::Duration;

use agent_types::token_bucket::TokenBucket;

/// Plugins of resources that registered before, and plugins of other resources, that dial or state their options at one time; others
/// wait. A plugin that names a new resource each time holds up none of the first.
pub(super) const REGISTERING_MAX: (usize, usize) = (8, 8);
/// Most registered resources. A node has a handful; each plugin of a large GPU server with partitions has some ten.
pub(super) const RESOURCES_MAX: usize = 128;
/// Most names of resources in metrics: a plugin can invent names without end.
pub(super) const NAMES_MAX: usize = 256;
/// Most devices of all plugins. KubeVirt's plugins list a thousand each; one device takes about 200 bytes here.
pub(super) const DEVICES_MAX: usize = 32 * 1024;
/// Most bytes of the ids and health texts in all lists.
pub(super) const LIST_BYTES_MAX: usize = 8 << 20;
/// Most bytes of an answer to `Allocate`: the agent keeps it as long as the pod, and sends its content to the runtime in one message.
pub(super) const ALLOCATE_BYTES_MAX: usize = 256 << 10;
/// Lists of one connection that are passed on at once, and the time for one more: a plugin that sends lists without end takes little of
/// the disk. A plugin sends a list when a device changes.
const LISTS: (u32, Duration) = (10, Duration::from_secs(1));
/// Registrations of one resource that come at once, and the time for one more. An attempt ends after 30 s, so a plugin that does not answer
/// has fewer than [`REGISTERING_MAX`] of them in progress.
const REGISTRATIONS: (u32, Duration) = (4, Duration::from_secs(15));
/// First attempts of all other resources together, which no agent before registered either: a plugin may name another one each time.
/// After the start of an agent without a checkpoint that is every resource, at the same moment; so the burst is [`RESOURCES_MAX`].
const NEW_REGISTRATIONS: (u32, Duration) = (128, Duration::from_secs(5));
/// A first attempt waits for its turn at most as long; plugins give a call of `Register` more time.
pub(super) const NEW_REGISTRATION_WAIT_MAX: Duration = Duration::from_secs(10);
/// Names that were tried and did not register; the attempts of each are counted.
pub(super) const TRIED_MAX: usize = 256;
/// Log lines about registrations that fail, of all plugins.
const FAILURE_LINES: (u32, Duration) = (32, Duration::from_secs(10));
/// Most bytes of a `Register` call, which has a version, two names and two flags.
pub(super) const REGISTER_BYTES_MAX: usize = 16 << 10;
/// Most connections to `kubelet.sock`; a plugin needs one for a moment.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// Most `Register` calls at one time on one connection.
pub(super) const CALLS_MAX: usize = 4;
/// Largest checkpoint that is read: devices of all containers with the answers to `Allocate`.
pub(super) const CHECKPOINT_BYTES_MAX: u64 = 64 << 20;

/// Lists of a connection that are passed on.
pub(super) fn lists() -> TokenBucket {
    bucket(LISTS)
}

/// Registrations of a resource.
pub(super) fn registrations() -> TokenBucket {
    bucket(REGISTRATIONS)
}

/// First attempts of resources that did not register before.
pub(super) fn new_registrations() -> TokenBucket {
    bucket(NEW_REGISTRATIONS)
}

/// Log lines about registrations that fail.
pub(super) fn failure_lines() -> TokenBucket {
    bucket(FAILURE_LINES)
}

fn bucket((burst, interval): (u32, Duration)) -> TokenBucket {
    TokenBucket::new(interval, burst)
}

/// Number of devices and bytes of one list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListSize {
    pub(super) devices: usize,
    pub(super) bytes: usize,
}

impl ListSize {
    /// The larger numbers of two lists.
    pub(super) fn max(self, other: ListSize) -> ListSize {
        ListSize { devices: self.devices.max(other.devices), bytes: self.bytes.max(other.bytes) }
    }

    /// Whether a list fits next to `others`.
    pub(super) fn check(self, others: impl Iterator<Item = ListSize>) -> Result<(), String> {
        let sum = others.fold(self, |sum, other| ListSize {
            devices: sum.devices.saturating_add(other.devices),
            bytes: sum.bytes.saturating_add(other.bytes),
        });
        if sum.devices > DEVICES_MAX {
            return Err(format!(
                "all plugins have {} devices, and at most {DEVICES_MAX} are accepted",
                sum.devices
            ));
        }
        if sum.bytes > LIST_BYTES_MAX {
            return Err(format!(
                "all lists have {} bytes, and at most {LIST_BYTES_MAX} are accepted",
                sum.bytes
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lists_together_are_limited() {
        let size = |devices, bytes| ListSize { devices, bytes };
        assert_eq!(size(1, 1).check([size(DEVICES_MAX - 1, LIST_BYTES_MAX - 1)].into_iter()), Ok(()));
        assert!(size(1, 1).check([size(DEVICES_MAX, 0)].into_iter()).is_err());
        assert!(size(1, 1).check([size(0, LIST_BYTES_MAX)].into_iter()).is_err());
    }

    #[test]
    fn every_resource_of_a_node_may_be_new_at_once() {
        assert_eq!(usize::try_from(NEW_REGISTRATIONS.0), Ok(RESOURCES_MAX));
    }
}
