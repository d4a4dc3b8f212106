//! Types that the ways of a CSI driver's volume have in common: the answers of a step.
//!
//! In: nothing. Out: values between a way ([`super::publishing`], [`super::unpublishing`], [`super::unstaging`]) and
//! the code that takes its steps. Invariant: a failure says by its class what the pod's worker does next, and by its
//! text what people read.

use agent_types::failure::Class;

/// A step of the node failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the worker decides by.
    pub class: Class,
    /// What people read.
    pub message: String,
}

impl Failure {
    /// The volume cannot be had now: the worker tries again after its own back-off.
    #[must_use]
    pub fn retry(message: String) -> Failure {
        Failure { class: Class::Retryable { after_ms: 0 }, message }
    }

    /// A step got the answer of another step.
    pub(crate) fn mixed_up() -> Failure {
        Failure::retry("an answer to another question".to_owned())
    }
}

/// A call of the driver did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailed {
    /// The driver's words.
    pub words: String,
    /// The driver has done with the call and holds nothing of it. Otherwise it may have done what it was asked for.
    pub is_final: bool,
}

/// Where a volume is staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StagedAs {
    /// As files, for all pods.
    Files,
    /// As the block device of this PersistentVolume.
    Device(String),
}
