//! The words KubeletConfiguration knows: policies, modes, drivers. The first of each is the default.

use crate::field::config_enum;

config_enum! {
    /// How requests to the HTTPS server are authorised.
    pub enum AuthorizationMode {
        /// Ask the API server (SubjectAccessReview).
        Webhook = "Webhook",
        /// Every authenticated request.
        AlwaysAllow = "AlwaysAllow",
    }
}

config_enum! {
    /// Who writes cgroups; what the runtime reports over CRI wins.
    pub enum CgroupDriver {
        /// The agent itself, through the cgroup file system.
        Cgroupfs = "cgroupfs",
        /// systemd, asked over D-Bus.
        Systemd = "systemd",
    }
}

config_enum! {
    /// How CPUs are given to containers.
    pub enum CpuManagerPolicy {
        /// Shared by all.
        None = "none",
        /// Whole CPUs for Guaranteed containers with integer requests.
        Static = "static",
    }
}

config_enum! {
    /// How memory of NUMA nodes is given to containers.
    pub enum MemoryManagerPolicy {
        /// Shared by all.
        None = "None",
        /// Pinned for Guaranteed pods.
        Static = "Static",
    }
}

config_enum! {
    /// How strictly resources of one NUMA node are kept together.
    pub enum TopologyManagerPolicy {
        /// Not at all.
        None = "none",
        /// Preferred.
        BestEffort = "best-effort",
        /// Preferred placement or refusal.
        Restricted = "restricted",
        /// One NUMA node or refusal.
        SingleNumaNode = "single-numa-node",
    }
}

config_enum! {
    /// What one topology decision covers.
    pub enum TopologyManagerScope {
        /// Each container for itself.
        Container = "container",
        /// The pod as a whole.
        Pod = "pod",
    }
}

config_enum! {
    /// How a pod reaches itself through its own service.
    pub enum HairpinMode {
        /// The bridge is put into promiscuous mode.
        PromiscuousBridge = "promiscuous-bridge",
        /// The hairpin flag of the pod's veth is set.
        HairpinVeth = "hairpin-veth",
        /// Not handled.
        None = "none",
    }
}

config_enum! {
    /// How changes of ConfigMaps and Secrets are noticed.
    pub enum ChangeDetectionStrategy {
        /// Watches on the API server.
        Watch = "Watch",
        /// A cache whose entries expire.
        Cache = "Cache",
        /// A request each time.
        Get = "Get",
    }
}

config_enum! {
    /// When credentials are checked again for an image that is already present.
    pub enum ImagePullCredentialsVerificationPolicy {
        /// Not for images that were there before the agent pulled anything.
        NeverVerifyPreloadedImages = "NeverVerifyPreloadedImages",
        /// Not for images on the allow-list.
        NeverVerifyAllowlistedImages = "NeverVerifyAllowlistedImages",
        /// Never.
        NeverVerify = "NeverVerify",
        /// For every image.
        AlwaysVerify = "AlwaysVerify",
    }
}

config_enum! {
    /// How requests become memory protection.
    pub enum MemoryReservationPolicy {
        /// They do not.
        None = "None",
        /// `memory.min` and `memory.low` by QoS class; needs the gate MemoryQoS.
        TieredReservation = "TieredReservation",
    }
}

config_enum! {
    /// Whether pods may use swap.
    pub enum SwapBehavior {
        /// They may not.
        NoSwap = "NoSwap",
        /// Burstable pods in proportion to their memory request.
        LimitedSwap = "LimitedSwap",
    }
}

config_enum! {
    /// For what Node Allocatable is enforced through cgroups.
    pub enum NodeAllocatableEnforcement {
        /// The sum of all pods.
        Pods = "pods",
        /// The cgroup of `systemReservedCgroup`.
        SystemReserved = "system-reserved",
        /// The cgroup of `systemReservedCgroup`, CPU only.
        SystemReservedCompressible = "system-reserved-compressible",
        /// The cgroup of `kubeReservedCgroup`.
        KubeReserved = "kube-reserved",
        /// The cgroup of `kubeReservedCgroup`, CPU only.
        KubeReservedCompressible = "kube-reserved-compressible",
        /// For nothing.
        None = "none",
    }
}

config_enum! {
    /// What a taint does to pods that do not tolerate it.
    pub enum TaintEffect {
        /// They are not scheduled here.
        NoSchedule = "NoSchedule",
        /// They are scheduled elsewhere if possible.
        PreferNoSchedule = "PreferNoSchedule",
        /// They are not scheduled here, and evicted.
        NoExecute = "NoExecute",
    }
}

config_enum! {
    /// Form of log lines.
    pub enum LogFormat {
        /// For people.
        Text = "text",
        /// For machines.
        Json = "json",
    }
}
