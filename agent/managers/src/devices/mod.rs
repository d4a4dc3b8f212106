//! Devices of containers: the device manager (device plugin API v1beta1, KEP-3573).
//!
//! In: registrations, device lists and answers of device plugins, pods to admit, the time. Out: questions to the plugins, the devices
//! of each container, amounts for the node status, hints, the checkpoint. Invariants: no device belongs to two pods; a container
//! keeps its devices until its pod is not active; the manager itself never waits: each question is a value, and the caller
//! passes the answer back. Upstream: pkg/kubelet/cm/devicemanager.
//!
//! Differences from upstream, each where upstream's behaviour is not intended:
//! * Connections have numbers. The manager ignores lists and the end of a connection that a newer registration has replaced; upstream
//!   uses the old list, and treats the old end as the end of the new connection. A registration that fails does not change the former
//!   connection; upstream does not notice the end of that connection any more.
//! * Devices, resources and nodes are taken in sorted order; upstream takes them in the random order of Go's maps.
//! * A chosen device stays reserved until its plugin answers, and is free again after any refusal; upstream forgets the
//!   reservation if it collects garbage in between, and keeps it after some refusals.
//! * A device that is in use and missing from its plugin's list counts as one without topology; upstream crashes.
//! * A topology without nodes counts as no topology, and if two devices have one id the last one counts.
//! * A change of health affects the pods that have the device of this resource; upstream looks for the id among all resources.

pub mod allocation;
pub mod choice;
pub mod hints;
pub mod inventory;
pub mod manager;
pub mod plugin;
pub mod records;
pub mod registration;
pub mod run_options;
pub mod start;
pub mod status;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
