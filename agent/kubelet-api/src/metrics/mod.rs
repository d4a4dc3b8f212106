//! metrics: counters and times of the node, and their text for Prometheus.
//!
//! ```text
//! shells of the owners, drivers ─► observations ─► Registry ─► text (version 0.0.4)
//! views of the node, when asked ─► gauges ──────────┘
//! ```
//! In: numbers under the families of [`families`], whose names, labels and buckets are upstream's. Out: the
//! text of one endpoint. Invariants: pure, no globals: a registry is a value that its holder locks; a family
//! appears once, with its type before its samples; a family without labels appears from the start, a family
//! with labels once it has a sample; a family that no component feeds does not appear. Upstream:
//! pkg/kubelet/metrics, pkg/kubelet/prober/prober_manager.go, component-base/metrics.

pub mod containers;
pub mod families;
mod kind;
mod registry;
pub mod startup;
mod text;
pub mod words;

#[cfg(test)]
mod tests;

pub use registry::{Counter, Gauge, Histogram, Registry};
