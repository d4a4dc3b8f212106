//! Small vocabulary over the upstream API types: naming a container inside a pod, reading a pod's identity,
//! exact quantities. No decisions live here.
//!
//! In: `k8s_openapi` objects, never modified. Out: borrowed views. Invariant: every accessor is total; a pod
//! without a spec reads as an empty one.

pub mod pem;
pub mod pod;
pub mod quantity;
pub mod quantity_text;
pub mod signal;
pub mod time;

pub use pod::ContainerRef;
pub use quantity::Quantity;
