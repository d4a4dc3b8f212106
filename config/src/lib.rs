//! orlop-config: KubeletConfiguration v1beta1 and NodeConfig v1alpha1 (types, defaults, validation, merge,
//! provenance), and the formats of the boot ledger and the host channel. Pure: text in, values out.
#![forbid(unsafe_code)]

pub mod ledger;
