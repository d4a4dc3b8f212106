//! The checks of the gate, and what is seen of them.
//!
//! In: facts of the shell. Out: words for people and for the boot record. Pure values; `gate` compares two of them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A check. The order is the order in which a failure is named: causes before consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckName {
    /// `/var` is on the state partition, and whole.
    StatePartition,
    /// No verity error, no oops of the kernel, no crash of the agent since the boot.
    Integrity,
    /// The agent gives verdicts at all. Seen by `orlop-init guard` only.
    Agent,
    /// containerd answers.
    Runtime,
    /// The link has a carrier.
    Link,
    /// The node has its address.
    Address,
    /// The gateway answers.
    Gateway,
    /// A name server answers.
    Dns,
    /// The clock is verified.
    Clock,
    /// The API server accepts a TCP connection.
    Api,
    /// The API server's certificate is trusted.
    ApiTrust,
    /// The node's client certificate is there and valid.
    Certificate,
    /// The API server accepts the node's identity.
    ApiIdentity,
    /// A pod of the baked-in image ran, with sandbox and network.
    ProbePod,
    /// Each static pod that was ready is ready.
    StaticPods,
    /// The lease was renewed three times in this boot.
    Lease,
    /// `Ready` of the Node, read back from the API server.
    NodeReady,
    /// The node's own API answers.
    NodeApi,
    /// Each pod of the API that was ready and is still bound to this node is ready.
    ApiPods,
}

impl CheckName {
    /// All of them, causes first.
    pub const ALL: [CheckName; 19] = [
        CheckName::StatePartition,
        CheckName::Integrity,
        CheckName::Agent,
        CheckName::Runtime,
        CheckName::Link,
        CheckName::Address,
        CheckName::Gateway,
        CheckName::Dns,
        CheckName::Clock,
        CheckName::Api,
        CheckName::ApiTrust,
        CheckName::Certificate,
        CheckName::ApiIdentity,
        CheckName::ProbePod,
        CheckName::StaticPods,
        CheckName::Lease,
        CheckName::NodeReady,
        CheckName::NodeApi,
        CheckName::ApiPods,
    ];

    /// As in the boot record and in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CheckName::StatePartition => "state-partition",
            CheckName::Integrity => "integrity",
            CheckName::Agent => "agent",
            CheckName::Runtime => "runtime",
            CheckName::Link => "link",
            CheckName::Address => "address",
            CheckName::Gateway => "gateway",
            CheckName::Dns => "dns",
            CheckName::Clock => "clock",
            CheckName::Api => "api",
            CheckName::ApiTrust => "api-trust",
            CheckName::Certificate => "certificate",
            CheckName::ApiIdentity => "api-identity",
            CheckName::ProbePod => "probe-pod",
            CheckName::StaticPods => "static-pods",
            CheckName::Lease => "lease",
            CheckName::NodeReady => "node-ready",
            CheckName::NodeApi => "node-api",
            CheckName::ApiPods => "api-pods",
        }
    }
}

impl fmt::Display for CheckName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whose fault a failed check seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialFault {
    /// The version's.
    Slot,
    /// The cluster's: the node holds, and neither commits nor returns.
    Cluster,
    /// The old slot has to look.
    Unclear,
}

/// The check for which a trial ended, as the boot record keeps it: `gateway`, `api/cluster`, `dns/unclear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedCheck {
    /// Its name.
    pub check: CheckName,
    /// Whose fault it seemed to be.
    pub fault: TrialFault,
}

impl FailedCheck {
    /// Reads the boot record's text; none if it is empty. A text that this version does not know is taken for the agent's: that
    /// check is the one that the old slot surely passes.
    #[must_use]
    pub fn parse(text: &str) -> Option<FailedCheck> {
        if text.is_empty() {
            return None;
        }
        let (name, fault) = text.split_once('/').unwrap_or((text, ""));
        let fault = match fault {
            "" => TrialFault::Slot,
            "cluster" => TrialFault::Cluster,
            _ => TrialFault::Unclear,
        };
        let check = CheckName::ALL.into_iter().find(|check| check.name() == name);
        Some(FailedCheck { check: check.unwrap_or(CheckName::Agent), fault })
    }
}

impl fmt::Display for FailedCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            TrialFault::Slot => write!(f, "{}", self.check),
            TrialFault::Cluster => write!(f, "{}/cluster", self.check),
            TrialFault::Unclear => write!(f, "{}/unclear", self.check),
        }
    }
}

/// What is seen of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CheckSeen {
    /// It passes.
    Green,
    /// It fails: why, for people.
    Red(String),
}

/// A pod, as far as the gate is concerned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatePod {
    /// Namespace and name.
    pub name: String,
    /// It is ready; else why not, for people.
    pub seen: CheckSeen,
}

/// What the node sees of itself at one time. Those of the old slot before its reboot are the baseline
/// (`/var/lib/orlop/update/baseline.json`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GateFacts {
    /// Checks without pods. A check that is not in it was not made.
    pub checks: BTreeMap<CheckName, CheckSeen>,
    /// Static pods by namespace and name: another version may make another UID of the same manifest.
    pub static_pods: BTreeMap<String, GatePod>,
    /// Pods of the API that are bound to this node, by UID; none while the API server has not listed them.
    pub api_pods: Option<BTreeMap<String, GatePod>>,
    /// SHA-256 of the certificate that the API server showed, hex; none if it showed none.
    pub api_certificate: Option<String>,
}

impl GateFacts {
    /// Did this check pass? None if it was not made.
    #[must_use]
    pub fn is_green(&self, check: CheckName) -> Option<bool> {
        self.checks.get(&check).map(|seen| *seen == CheckSeen::Green)
    }
}
