//! metrics: what the node counts and times, and how it is told to Prometheus.
//!
//! ```text
//! shells of the owners, drivers ─► observations ─► Registry ─► text (version 0.0.4)
//! views of the node, when asked ─► gauges ──────────┘
//! ```
//! In: numbers under the families of [`families`], whose names, labels and buckets are upstream's. Out: the text of one
//! endpoint. Invariants: pure, no globals: a registry is a value that its holder locks; a family is told once, with its
//! kind before its samples; a family without labels is told from its beginning, one with labels once there is a sample;
//! what nothing feeds is not told.
//! Upstream: pkg/kubelet/metrics, pkg/kubelet/prober, component-base/metrics (contract chapter 17).

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
