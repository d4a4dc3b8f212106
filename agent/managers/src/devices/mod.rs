//! Devices of containers: the device manager (device plugin API v1beta1, KEP-3573).
//!
//! In: registrations, device lists and answers of device plugins, pods to admit, the time. Out: questions to the plugins, the devices
//! of each container, amounts for the node status, hints, the checkpoint. Invariants: no device belongs to two pods; a container
//! keeps its devices until its pod is not active; the manager waits for nothing itself: each question is a value, and the caller
//! brings the answer. Upstream: pkg/kubelet/cm/devicemanager.
//!
//! Departures from upstream, each to a state that upstream does not intend:
//! * Connections have numbers. The manager ignores lists and the end of a connection that a newer registration has replaced; upstream
//!   takes the old list, and takes the old end for the end of the new connection. A registration that fails leaves the former connection
//!   as it was; upstream does not notice its end any more.
//! * Devices, resources and nodes are taken in sorted order; upstream takes them in the random order of Go's maps.
//! * A device that was chosen stays reserved while its plugin is asked, and is free again after any refusal; upstream forgets the
//!   reservation when it collects garbage meanwhile, and keeps it after some refusals.
//! * A device that is in use and missing from its plugin's list counts as one without topology; upstream crashes.
//! * A topology without nodes is none, and of two devices with one id the last one counts.
//! * A change of health concerns the pods that have the device of this resource; upstream looks for the id among all resources.

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
