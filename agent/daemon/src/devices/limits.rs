//! How much of the agent's memory and time device plugins can take. A plugin is a pod, and what it sends is kept.
//!
//! In: the numbers of what plugins send. Out: yes or no. Invariant: all lists together stay below [`DEVICES_MAX`] devices and
//! [`LIST_BYTES_MAX`] bytes. Upstream limits the size of a message only (4 MiB, the limit of Go's gRPC), and so does agent-plugins.

use std::time::Duration;

/// Plugins that dial or state their options at one time; others wait.
pub(super) const REGISTRATIONS_MAX: usize = 8;
/// Registered resources. A node has a handful; each plugin of a large GPU server with partitions has some ten.
pub(super) const RESOURCES_MAX: usize = 128;
/// Names of resources that metrics show: a plugin can invent names without end.
pub(super) const NAMES_MAX: usize = 256;
/// Devices of all plugins. KubeVirt's plugins list a thousand each; one device takes about 200 bytes here.
pub(super) const DEVICES_MAX: usize = 32 * 1024;
/// Bytes of the ids and words in all lists.
pub(super) const LIST_BYTES_MAX: usize = 8 << 20;
/// Bytes of the answer to `Allocate`: it is kept while the pod lives, and its content goes to the runtime in one message.
pub(super) const ALLOCATE_BYTES_MAX: usize = 256 << 10;
/// The next list of a plugin is read after this time, so that a plugin that sends lists without end takes little of the processors.
pub(super) const LIST_GAP: Duration = Duration::from_millis(100);
/// A call of `Register` has a version, two names and two flags.
pub(super) const REGISTER_BYTES_MAX: usize = 16 << 10;
/// Connections to `kubelet.sock`; a plugin needs one for a moment.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// Calls of `Register` at one time on one connection.
pub(super) const CALLS_MAX: usize = 4;
/// The checkpoint that is read: devices of all containers with the answers to `Allocate`.
pub(super) const CHECKPOINT_BYTES_MAX: u64 = 64 << 20;

/// Devices and bytes of one list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListSize {
    pub(super) devices: usize,
    pub(super) bytes: usize,
}

impl ListSize {
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
}
