//! All reasons of the Kubernetes events that the agent emits.
//!
//! In: nothing. Out: a table; docs/reference/events.md is made from it, and agent-tidy compares it with the places that emit events.
//! Upstream's reasons are in pkg/kubelet/events/event.go; rows of the object `Node, own` are this agent's own.

use crate::event::EventKind;

/// A reason with a severity, and when such an event is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventReason {
    /// `reason` of the Event.
    pub reason: &'static str,
    /// `type` of the Event.
    pub kind: EventKind,
    /// What the event is about: `Pod`, `Container`, `Claim and pod`, `Node`, or `Node, own` for a reason that upstream does not have.
    pub object: &'static str,
    /// When it is emitted.
    pub when: &'static str,
}

/// All of them, in the order of their names.
#[rustfmt::skip]
pub const EVENT_REASONS: &[EventReason] = &[
    EventReason { reason: "AlreadyMountedVolume", kind: EventKind::Warning, object: "Pod", when: "the place of a volume is a mount that the agent did not make" },
    EventReason { reason: "AppArmor", kind: EventKind::Warning, object: "Pod", when: "admission refuses the pod: the node cannot enforce its AppArmor profile" },
    EventReason { reason: "BackOff", kind: EventKind::Normal, object: "Container", when: "the image is not pulled again before its back-off ends" },
    EventReason { reason: "BackOff", kind: EventKind::Warning, object: "Container", when: "a container that ended is not started again before its back-off ends" },
    EventReason { reason: "CertificateExpired", kind: EventKind::Warning, object: "Pod", when: "a certificate of a projected volume ended before it was renewed" },
    EventReason { reason: "CertificateOverdueForRefresh", kind: EventKind::Warning, object: "Pod", when: "a certificate of a projected volume should have been renewed" },
    EventReason { reason: "CgroupV1", kind: EventKind::Warning, object: "Node", when: "the machine has cgroup v1" },
    EventReason { reason: "CheckLimitsForResolvConf", kind: EventKind::Warning, object: "Node", when: "the node's resolv.conf has more name servers or search domains than a pod may have" },
    EventReason { reason: "ContainerGCFailed", kind: EventKind::Warning, object: "Node", when: "containers that ended are still there 30 s after the agent began to remove them" },
    EventReason { reason: "Created", kind: EventKind::Normal, object: "Container", when: "the runtime has made the container" },
    EventReason { reason: "DNSConfigForming", kind: EventKind::Warning, object: "Pod", when: "name servers or search domains of the pod are left out: they are more than a pod may have" },
    EventReason { reason: "DeadlineExceeded", kind: EventKind::Normal, object: "Pod", when: "the pod has run for longer than `activeDeadlineSeconds`" },
    EventReason { reason: "Denied", kind: EventKind::Warning, object: "Pod", when: "the signer denied the request for a certificate of a projected volume" },
    EventReason { reason: "ErrImageNeverPull", kind: EventKind::Warning, object: "Container", when: "the image is not on the node and its pull policy is Never" },
    EventReason { reason: "Evicted", kind: EventKind::Warning, object: "Pod", when: "the node is short of memory, disk or process ids, or the pod used more storage than its limit" },
    EventReason { reason: "EvictionThresholdMet", kind: EventKind::Warning, object: "Node", when: "a resource has fallen below its eviction threshold" },
    EventReason { reason: "Failed", kind: EventKind::Warning, object: "Container", when: "the container could not be made or started, or its image could not be pulled; a signer failed a certificate request" },
    EventReason { reason: "FailedCreatePodContainer", kind: EventKind::Warning, object: "Pod", when: "the pod's cgroup could not be made" },
    EventReason { reason: "FailedCreatePodSandBox", kind: EventKind::Warning, object: "Pod", when: "the runtime could not make the pod's sandbox, for example because the pod network has no address" },
    EventReason { reason: "FailedKillPod", kind: EventKind::Warning, object: "Pod", when: "the runtime could not end the pod" },
    EventReason { reason: "FailedMapVolume", kind: EventKind::Warning, object: "Pod", when: "a block volume could not be set up" },
    EventReason { reason: "FailedMount", kind: EventKind::Warning, object: "Pod", when: "a volume could not be set up, or its claim cannot be used" },
    EventReason { reason: "FailedNodeAllocatableEnforcement", kind: EventKind::Warning, object: "Node", when: "the limits of the group of all pods could not be set" },
    EventReason { reason: "FailedNodeDeclaredFeaturesCheck", kind: EventKind::Warning, object: "Pod", when: "a change of the pod needs a feature that the node does not declare" },
    EventReason { reason: "FailedPodSandBoxStatus", kind: EventKind::Warning, object: "Pod", when: "the runtime does not tell the state of the pod's sandbox" },
    EventReason { reason: "FailedPostStartHook", kind: EventKind::Warning, object: "Container", when: "the hook after the start failed; the container is ended" },
    EventReason { reason: "FailedPreStopHook", kind: EventKind::Warning, object: "Container", when: "the hook before the end failed; the container ends all the same" },
    EventReason { reason: "FailedPrepareDynamicResources", kind: EventKind::Warning, object: "Pod", when: "a driver could not prepare the pod's resource claims" },
    EventReason { reason: "FailedSync", kind: EventKind::Warning, object: "Pod", when: "the runtime does not tell the state of the pod" },
    EventReason { reason: "FailedToRetrieveImagePullSecret", kind: EventKind::Warning, object: "Pod", when: "a Secret of `imagePullSecrets` is not there" },
    EventReason { reason: "FailedValidation", kind: EventKind::Warning, object: "Pod", when: "the pod is not valid on any node, or a static pod has the name of another one" },
    EventReason { reason: "FileSystemResizeFailed", kind: EventKind::Warning, object: "Claim and pod", when: "a volume with a grown claim is mounted read-only" },
    EventReason { reason: "FileSystemResizeSuccessful", kind: EventKind::Normal, object: "Claim and pod", when: "the file system of a grown claim has been grown" },
    EventReason { reason: "FreeDiskSpaceFailed", kind: EventKind::Warning, object: "Node", when: "removing unused images did not free as much as needed" },
    EventReason { reason: "ImageGCFailed", kind: EventKind::Warning, object: "Node", when: "unused images could not be removed, several times in a row" },
    EventReason { reason: "InspectFailed", kind: EventKind::Warning, object: "Container", when: "the name of the image is not valid, or the runtime does not tell whether it has the image" },
    EventReason { reason: "InvalidDiskCapacity", kind: EventKind::Warning, object: "Node", when: "the runtime says that the file system of images has a size of 0" },
    EventReason { reason: "Killing", kind: EventKind::Normal, object: "Container", when: "the agent ends the container" },
    EventReason { reason: "LifecycleHTTPFallback", kind: EventKind::Warning, object: "Pod", when: "an HTTPS hook was answered by a server without TLS and was sent again by HTTP" },
    EventReason { reason: "MissingClusterDNS", kind: EventKind::Warning, object: "Node", when: "the pod wants the cluster's DNS, and `clusterDNS` is not set; the pod has the same event" },
    EventReason { reason: "NetworkNotReady", kind: EventKind::Warning, object: "Pod", when: "the pod waits for the pod network" },
    EventReason { reason: "NodeAffinity", kind: EventKind::Warning, object: "Pod", when: "admission refuses the pod: the node does not fit `nodeSelector` or the node affinity" },
    EventReason { reason: "NodeAllocatableEnforced", kind: EventKind::Normal, object: "Node", when: "the limits of the group of all pods are set" },
    EventReason { reason: "NodeHasDiskPressure", kind: EventKind::Normal, object: "Node", when: "the condition DiskPressure became true" },
    EventReason { reason: "NodeHasInsufficientMemory", kind: EventKind::Normal, object: "Node", when: "the condition MemoryPressure became true" },
    EventReason { reason: "NodeHasInsufficientPID", kind: EventKind::Normal, object: "Node", when: "the condition PIDPressure became true" },
    EventReason { reason: "NodeHasNoDiskPressure", kind: EventKind::Normal, object: "Node", when: "the condition DiskPressure became false" },
    EventReason { reason: "NodeHasSufficientMemory", kind: EventKind::Normal, object: "Node", when: "the condition MemoryPressure became false" },
    EventReason { reason: "NodeHasSufficientPID", kind: EventKind::Normal, object: "Node", when: "the condition PIDPressure became false" },
    EventReason { reason: "NodeName", kind: EventKind::Warning, object: "Pod", when: "admission refuses the pod: `nodeName` is another node" },
    EventReason { reason: "NodeNotReady", kind: EventKind::Normal, object: "Node", when: "the condition Ready became false" },
    EventReason { reason: "NodeNotSchedulable", kind: EventKind::Normal, object: "Node", when: "the Node was cordoned" },
    EventReason { reason: "NodeOperation", kind: EventKind::Normal, object: "Node, own", when: "an operation of the management API was scheduled, has begun, or ended well; with who began it" },
    EventReason { reason: "NodeOperation", kind: EventKind::Warning, object: "Node, own", when: "an operation of the management API failed; with who began it" },
    EventReason { reason: "NodePorts", kind: EventKind::Warning, object: "Pod", when: "admission refuses the pod: another pod has one of its host ports" },
    EventReason { reason: "NodeReady", kind: EventKind::Normal, object: "Node", when: "the condition Ready became true" },
    EventReason { reason: "NodeSchedulable", kind: EventKind::Normal, object: "Node", when: "the Node was uncordoned" },
    EventReason { reason: "NodeShutdown", kind: EventKind::Warning, object: "Pod", when: "the pod came while the node was shutting down" },
    EventReason { reason: "OutOfResource", kind: EventKind::Warning, object: "Pod", when: "admission refuses the pod: the node has not enough of the resource; the reason has its name, as in OutOfcpu" },
    EventReason { reason: "PodFeatureUnsupported", kind: EventKind::Warning, object: "Pod", when: "the pod needs a feature that this agent does not have" },
    EventReason { reason: "PodOSNotSupported", kind: EventKind::Warning, object: "Pod", when: "the pod is for another operating system" },
    EventReason { reason: "PodOSSelectorNodeLabelDoesNotMatch", kind: EventKind::Warning, object: "Pod", when: "the pod's label of the operating system is another one than the node's" },
    EventReason { reason: "PossibleMemoryBackedVolumesOnDisk", kind: EventKind::Warning, object: "Node", when: "the node swaps, and its kernel cannot keep memory-backed volumes out of the swap" },
    EventReason { reason: "Preempting", kind: EventKind::Warning, object: "Pod", when: "the pod is ended to make room for a critical pod" },
    EventReason { reason: "ProbeWarning", kind: EventKind::Warning, object: "Container", when: "a probe was answered with a redirection to another host" },
    EventReason { reason: "Pulled", kind: EventKind::Normal, object: "Container", when: "the image is there, pulled now or before" },
    EventReason { reason: "Pulling", kind: EventKind::Normal, object: "Container", when: "the pull of the image begins" },
    EventReason { reason: "Rebooted", kind: EventKind::Warning, object: "Node", when: "the Node has the boot id of an earlier boot" },
    EventReason { reason: "ResizeCompleted", kind: EventKind::Normal, object: "Pod", when: "the pod has the resources of its last change" },
    EventReason { reason: "ResizeDeferred", kind: EventKind::Warning, object: "Pod", when: "a change of resources waits for room on the node" },
    EventReason { reason: "ResizeError", kind: EventKind::Warning, object: "Pod", when: "a change of resources failed at the runtime or in the cgroup, and is tried again" },
    EventReason { reason: "ResizeInfeasible", kind: EventKind::Warning, object: "Pod", when: "a change of resources can never be made on this node" },
    EventReason { reason: "ResizeStarted", kind: EventKind::Normal, object: "Pod", when: "a change of resources begins" },
    EventReason { reason: "SMTAlignmentError", kind: EventKind::Warning, object: "Pod", when: "the static CPU policy gives whole cores only, and the pod asks for a part of one" },
    EventReason { reason: "SandboxChanged", kind: EventKind::Normal, object: "Pod", when: "the pod gets a new sandbox: the old one ended, or the network is another one" },
    EventReason { reason: "Shutdown", kind: EventKind::Normal, object: "Node", when: "the node is shutting down, and its pods end" },
    EventReason { reason: "ShutdownNotDelayed", kind: EventKind::Normal, object: "Node, own", when: "a stop of the machine waits for the pods again" },
    EventReason { reason: "ShutdownNotDelayed", kind: EventKind::Warning, object: "Node, own", when: "a stop of the machine would not wait for the pods" },
    EventReason { reason: "Started", kind: EventKind::Normal, object: "Container", when: "the container runs" },
    EventReason { reason: "Starting", kind: EventKind::Normal, object: "Node", when: "the agent has started" },
    EventReason { reason: "SuccessfulMountVolume", kind: EventKind::Normal, object: "Pod", when: "a block volume is in its place" },
    EventReason { reason: "SupplementalGroupsPolicyNotSupported", kind: EventKind::Warning, object: "Pod", when: "the pod has a policy of supplemental groups that the runtime does not know" },
    EventReason { reason: "SysctlForbidden", kind: EventKind::Warning, object: "Pod", when: "the pod sets a kernel setting that is not allowed" },
    EventReason { reason: "SystemOOM", kind: EventKind::Warning, object: "Node", when: "the kernel ended a process outside of pods because memory ran out" },
    EventReason { reason: "TaintToleration", kind: EventKind::Warning, object: "Pod", when: "the pod does not tolerate a NoExecute taint of the node" },
    EventReason { reason: "TopologyAffinityError", kind: EventKind::Warning, object: "Pod", when: "the topology manager's policy cannot place the pod's resources together" },
    EventReason { reason: "UncleanShutdown", kind: EventKind::Warning, object: "Node, own", when: "the last boot did not end in order; the message has the cause if it is known" },
    EventReason { reason: "UnexpectedAdmissionError", kind: EventKind::Warning, object: "Pod", when: "devices, processors or memory of the pod could not be assigned" },
    EventReason { reason: "Unhealthy", kind: EventKind::Warning, object: "Container", when: "a probe failed, or had no result" },
    EventReason { reason: "UpdateCommitted", kind: EventKind::Normal, object: "Node, own", when: "a new version has passed its trial" },
    EventReason { reason: "UpdateDrainBlocked", kind: EventKind::Warning, object: "Node, own", when: "a pod's disruption budget holds an update back for too long" },
    EventReason { reason: "UpdateNotStaged", kind: EventKind::Warning, object: "Node, own", when: "a version that an annotation names could not be written into the slot that does not run" },
    EventReason { reason: "UpdateOrderRefused", kind: EventKind::Warning, object: "Node, own", when: "an annotation about updates has a value that orders nothing" },
    EventReason { reason: "UpdateRefused", kind: EventKind::Warning, object: "Node, own", when: "a version that was given up has failed a check that the old version passes" },
    EventReason { reason: "UpdateRolledBack", kind: EventKind::Warning, object: "Node, own", when: "a new version failed its trial, and the old one runs" },
    EventReason { reason: "UpdateStaged", kind: EventKind::Normal, object: "Node, own", when: "a new version is in the slot that does not run" },
    EventReason { reason: "UpdateWaits", kind: EventKind::Normal, object: "Node, own", when: "an update waits for its window or its turn" },
    EventReason { reason: "VolumeAttachmentLimitExceeded", kind: EventKind::Warning, object: "Pod", when: "a CSI driver has no room on the node for a volume of the pod; the pod fails" },
    EventReason { reason: "VolumeConditionAbnormal", kind: EventKind::Warning, object: "Pod", when: "a CSI driver says that a volume is abnormal (gate CSIVolumeHealth)" },
    EventReason { reason: "VolumePermissionChangeInProgress", kind: EventKind::Warning, object: "Pod", when: "the ownership of a volume with many files is being set" },
    EventReason { reason: "VolumeResizeFailed", kind: EventKind::Warning, object: "Pod", when: "a grown claim could not be grown on the node" },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_order_and_there_once() {
        let keys: Vec<(&str, bool, &str)> = EVENT_REASONS
            .iter()
            .map(|row| (row.reason, row.kind == EventKind::Warning, row.object))
            .collect();
        assert!(keys.is_sorted(), "{keys:?}");
        for pair in keys.windows(2) {
            assert_ne!(pair[0], pair[1]);
        }
    }

    #[test]
    fn reasons_are_words_of_the_api_and_each_says_when() {
        for row in EVENT_REASONS {
            assert!(
                row.reason.starts_with(char::is_uppercase) && row.reason.chars().all(char::is_alphanumeric),
                "{row:?}"
            );
            assert!(
                !row.when.is_empty() && !row.when.ends_with('.') && row.when.chars().count() <= 200,
                "{row:?}"
            );
            assert!(
                ["Pod", "Container", "Claim and pod", "Node", "Node, own"].contains(&row.object),
                "{row:?}"
            );
        }
    }
}
