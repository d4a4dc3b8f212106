//! The problems that a node shows on its consoles and by its management API, each with its remedy and its section of `docs/runbooks/`.
//!
//! In: nothing. Out: a table; docs/reference/problems.md is made from it. Invariants: an id is a heading of its page, and each heading of
//! these pages is an id (a test compares); a remedy names a step that is possible on a node without a shell.

/// One kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProblemRunbook {
    /// Heading of its section.
    pub id: &'static str,
    /// Name of the page below `docs/runbooks/`, without its suffix.
    pub page: &'static str,
    /// The object as it is shown.
    pub subject: &'static str,
    /// What is said about it.
    pub sentence: &'static str,
    /// What a person can do; empty if the sentence says it.
    pub remedy: &'static str,
}

/// A source of the configuration was refused.
pub const CONFIGURATION: ProblemRunbook = ProblemRunbook {
    id: "refused-values",
    page: "configuration",
    subject: "configuration, N of M",
    sentence: "SOURCE:LINE: KEY: VALUE and what is allowed",
    remedy: "correct it: `orlopctl config apply FILE`, or in its source and reboot; orlop/node-config.json in the node's logs has all",
};
/// A change of the node's own document that has not ended; the management API alone shows it.
pub const CONFIGURATION_CHANGE: ProblemRunbook = ProblemRunbook {
    id: "open-change",
    page: "configuration",
    subject: "configuration",
    sentence: "change N of NAME (KEYS) and how far it is",
    remedy: "confirm it, take it back, or wait for its deadline: `orlopctl config history`",
};
/// No certificate, or no way to one.
pub const CLUSTER_IDENTITY: ProblemRunbook = ProblemRunbook {
    id: "cluster-identity",
    page: "cluster",
    subject: "cluster, identity",
    sentence: "why the node has no valid client certificate, with the remedy",
    remedy: "",
};
/// The node's kubeconfig.
pub const CLUSTER_KUBECONFIG: ProblemRunbook = ProblemRunbook {
    id: "cluster-kubeconfig",
    page: "cluster",
    subject: "cluster, kubeconfig",
    sentence: "why the node's kubeconfig or certificate cannot be used",
    remedy: "",
};
/// The Node object.
pub const CLUSTER_NODE: ProblemRunbook = ProblemRunbook {
    id: "cluster-node",
    page: "cluster",
    subject: "cluster, node",
    sentence: "node status not reported yet: REASON",
    remedy: "",
};
/// The lease.
pub const CLUSTER_LEASE: ProblemRunbook = ProblemRunbook {
    id: "cluster-lease",
    page: "cluster",
    subject: "cluster, lease",
    sentence: "node lease not renewed: REASON",
    remedy: "",
};
/// The certificate of port 10250.
pub const CLUSTER_SERVING: ProblemRunbook = ProblemRunbook {
    id: "cluster-serving-certificate",
    page: "cluster",
    subject: "cluster, serving certificate",
    sentence: "why the HTTPS API has no certificate of the cluster, with the remedy",
    remedy: "",
};
/// The clock.
pub const CLUSTER_CLOCK: ProblemRunbook = ProblemRunbook {
    id: "cluster-clock",
    page: "cluster",
    subject: "cluster, clock",
    sentence: "ClockUnverified: no NTP server answers, and what the clock follows instead",
    remedy: "",
};
/// A file of a static pod.
pub const MANIFEST: ProblemRunbook = ProblemRunbook {
    id: "manifest",
    page: "static-pods",
    subject: "manifest PATH",
    sentence: "what is wrong in it, or its unknown fields",
    remedy: "correct the pod in staticPods of the NodeConfig: `orlopctl config apply FILE`, or in its source and reboot",
};
/// The server of `staticPodURL`.
pub const MANIFEST_URL: ProblemRunbook = ProblemRunbook {
    id: "manifest-url",
    page: "static-pods",
    subject: "static pods of SERVER",
    sentence: "why the server gave no pods",
    remedy: "check `staticPodURL` of the NodeConfig, and its server",
};
/// Admission refused the pod.
pub const POD_FAILED: ProblemRunbook = ProblemRunbook {
    id: "pod-failed",
    page: "static-pods",
    subject: "static pod NAMESPACE/NAME",
    sentence: "REASON: message, for example OutOfcpu, NodePorts, NodeAffinity",
    remedy: "correct the pod in staticPods of the NodeConfig: `orlopctl config apply FILE`, or in its source and reboot",
};
/// The pod has not been created within two minutes.
pub const POD_SLOW: ProblemRunbook = ProblemRunbook {
    id: "pod-slow",
    page: "static-pods",
    subject: "static pod NAMESPACE/NAME",
    sentence: "does not run 120 s after its manifest was accepted: container NAME waits: REASON",
    remedy: "`orlopctl logs kubelet.service --grep POD --lines 20` has the step that does not end: image, volume, network or sandbox",
};
/// `InvalidImageName`.
pub const IMAGE_NAME: ProblemRunbook = ProblemRunbook {
    id: "image-name",
    page: "static-pods",
    subject: "static pod NAMESPACE/NAME, container NAME",
    sentence: "InvalidImageName: message",
    remedy: "correct `image` in staticPods of the NodeConfig: `orlopctl config apply FILE`, or in its source and reboot",
};
/// `ErrImageNeverPull`.
pub const IMAGE_NEVER_PULL: ProblemRunbook = ProblemRunbook {
    id: "image-never-pull",
    page: "static-pods",
    subject: "static pod NAMESPACE/NAME, container NAME",
    sentence: "ErrImageNeverPull: message",
    remedy: "the image is not here, its pull policy is Never: correct one, `orlopctl config apply FILE` or its source and reboot",
};
/// `ErrImagePull`, `ImagePullBackOff`, `RegistryUnavailable`.
pub const IMAGE_PULL: ProblemRunbook = ProblemRunbook {
    id: "image-pull",
    page: "static-pods",
    subject: "static pod NAMESPACE/NAME, container NAME",
    sentence: "ErrImagePull, ImagePullBackOff or RegistryUnavailable: message",
    remedy: "check the name of the image, the network, and `registries` of the NodeConfig",
};
/// `CrashLoopBackOff`.
pub const CRASH_LOOP: ProblemRunbook = ProblemRunbook {
    id: "crash-loop",
    page: "static-pods",
    subject: "static pod NAMESPACE/NAME, container NAME",
    sentence: "CrashLoopBackOff: message",
    remedy: "the program ends again and again: `console.podOutput: true` in the NodeConfig shows what it prints",
};
/// Any other reason of a container that waits.
pub const CONTAINER_WAITS: ProblemRunbook = ProblemRunbook {
    id: "container-waits",
    page: "static-pods",
    subject: "static pod NAMESPACE/NAME, container NAME",
    sentence: "another reason, for example CreateContainerConfigError: message",
    remedy: "correct the pod in staticPods of the NodeConfig: `orlopctl config apply FILE`, or in its source and reboot",
};
/// The state partition is not used.
pub const STATE_PARTITION: ProblemRunbook = ProblemRunbook {
    id: "state-partition",
    page: "node",
    subject: "state partition",
    sentence: "why it is not used in this boot",
    remedy: "nothing is kept over a reboot; the runbook says what to do about the state partition",
};
/// No address.
pub const NO_ADDRESS: ProblemRunbook = ProblemRunbook {
    id: "no-address",
    page: "node",
    subject: "network",
    sentence: "this machine has no address",
    remedy: "check cables, DHCP, and `network` of the NodeConfig; `orlopctl get links,addresses`",
};
/// A service without which a node is no node.
pub const SERVICE_DOWN: ProblemRunbook = ProblemRunbook {
    id: "service-down",
    page: "node",
    subject: "kubelet.service, containerd.service, and other essential units",
    sentence: "PART does not run: state and result",
    remedy: "`orlopctl logs UNIT` has its last words; correct its cause (`orlopctl config apply`), then `orlopctl restart UNIT`",
};
/// A service that ends again and again.
pub const SERVICE_ENDS: ProblemRunbook = ProblemRunbook {
    id: "service-ends",
    page: "node",
    subject: "the unit",
    sentence: "ends again and again: systemd has started it again N times, and the last reason",
    remedy: "`orlopctl logs UNIT` has its last words; correct its cause (`orlopctl config apply`), or go back with `orlopctl rollback`",
};
/// Another service.
pub const SERVICE_FAILED: ProblemRunbook = ProblemRunbook {
    id: "service-failed",
    page: "node",
    subject: "the unit",
    sentence: "failed, with exit status or signal",
    remedy: "`orlopctl logs UNIT` has its last words",
};
/// A version that the node went back from, or does not take.
pub const UPDATE_FAILED: ProblemRunbook = ProblemRunbook {
    id: "update-failed",
    page: "node",
    subject: "update",
    sentence: "the update failed: VERSION CHECK: REASON",
    remedy: "correct the cause of the failed check, then `orlopctl upgrade --now --version VERSION`; or wait for a newer release",
};
/// Less than a twentieth of a file system is free.
pub const FILE_SYSTEM_FULL: ProblemRunbook = ProblemRunbook {
    id: "file-system-full",
    page: "node",
    subject: "file system PATH",
    sentence: "N MiB of M MiB are free",
    remedy: "the agent removes unused images by itself (docs/reference/eviction.md); look at what pods write",
};

/// All of them.
pub const RUNBOOKS: [&ProblemRunbook; 24] = [
    &CONFIGURATION,
    &CONFIGURATION_CHANGE,
    &CLUSTER_IDENTITY,
    &CLUSTER_KUBECONFIG,
    &CLUSTER_NODE,
    &CLUSTER_LEASE,
    &CLUSTER_SERVING,
    &CLUSTER_CLOCK,
    &MANIFEST,
    &MANIFEST_URL,
    &POD_FAILED,
    &POD_SLOW,
    &IMAGE_NAME,
    &IMAGE_NEVER_PULL,
    &IMAGE_PULL,
    &CRASH_LOOP,
    &CONTAINER_WAITS,
    &STATE_PARTITION,
    &NO_ADDRESS,
    &SERVICE_DOWN,
    &SERVICE_ENDS,
    &SERVICE_FAILED,
    &UPDATE_FAILED,
    &FILE_SYSTEM_FULL,
];

/// The list of all runbooks, for problems without one.
const LIST: &str = "docs/runbooks/README.md";
/// The page of the reasons why a node is not in its cluster.
pub const CLUSTER: &str = "docs/runbooks/cluster.md";

impl ProblemRunbook {
    /// Page and section: `docs/runbooks/node.md#no-address`.
    #[must_use]
    pub fn reference(&self) -> String {
        format!("docs/runbooks/{}.md#{}", self.page, self.id)
    }
}

/// Page and section of an id; the list of all for another text, as an agent of another version may write it.
#[must_use]
pub fn reference(id: &str) -> String {
    let known = RUNBOOKS.iter().find(|runbook| runbook.id == id);
    known.map_or_else(|| LIST.to_owned(), |runbook| runbook.reference())
}

/// Page and section of a phase of the boot ledger: `init.state` is `docs/runbooks/boot.md#initstate`.
#[must_use]
pub fn phase_reference(phase: &str) -> String {
    let anchor: String =
        phase.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
    format!("docs/runbooks/boot.md#{anchor}")
}

/// What a person can do about a container that waits for this reason. Reasons: pkg/kubelet/kuberuntime, pkg/kubelet/images.
#[must_use]
pub fn of_waiting(reason: &str) -> &'static ProblemRunbook {
    match reason {
        "InvalidImageName" => &IMAGE_NAME,
        "ErrImageNeverPull" => &IMAGE_NEVER_PULL,
        "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" => &IMAGE_PULL,
        "CrashLoopBackOff" => &CRASH_LOOP,
        _ => &CONTAINER_WAITS,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGES: [(&str, &str); 4] = [
        ("cluster", include_str!("../../../../docs/runbooks/cluster.md")),
        ("configuration", include_str!("../../../../docs/runbooks/configuration.md")),
        ("node", include_str!("../../../../docs/runbooks/node.md")),
        ("static-pods", include_str!("../../../../docs/runbooks/static-pods.md")),
    ];

    #[test]
    fn each_problem_has_its_section_and_each_section_its_problem() {
        let sections: BTreeSet<(&str, &str)> = PAGES
            .iter()
            .flat_map(|(page, text)| {
                text.lines().filter_map(move |line| Some((*page, line.strip_prefix("## ")?)))
            })
            .collect();
        let table: BTreeSet<(&str, &str)> =
            RUNBOOKS.iter().map(|runbook| (runbook.page, runbook.id)).collect();
        assert_eq!(table, sections);
        assert_eq!(table.len(), RUNBOOKS.len(), "an id is there twice");
    }

    #[test]
    fn each_section_says_what_it_means_what_to_check_and_what_to_do() {
        for (page, text) in PAGES {
            for section in text.split("\n## ").skip(1) {
                for part in ["**Means:**", "**Check:**", "**Fix:**"] {
                    assert!(
                        section.contains(part),
                        "docs/runbooks/{page}.md: {part} is missing in {section}"
                    );
                }
            }
        }
    }

    #[test]
    fn references_name_page_and_section() {
        assert_eq!(reference("image-pull"), "docs/runbooks/static-pods.md#image-pull");
        assert_eq!(reference(""), LIST);
        assert_eq!(phase_reference("init.machine-id"), "docs/runbooks/boot.md#initmachine-id");
        assert_eq!(of_waiting("ImagePullBackOff"), &IMAGE_PULL);
        assert_eq!(of_waiting("Odd"), &CONTAINER_WAITS);
    }
}
