//! KubeletConfiguration v1beta1: types, defaults, loading, drop-ins, flags, feature gates, validation.
//!
//! In: text of files, flags. Out: one validated [`KubeletConfiguration`], or everything that is wrong.
//! See docs/reference/configuration.md.

pub mod defaults;
pub mod enums;
pub mod eviction;
pub mod flags;
mod gate_table;
pub mod gates;
mod load;
pub mod manager_options;
pub mod nested;
mod types;
pub mod unread;
pub mod validate;

#[cfg(test)]
mod tests;

pub use gates::FeatureGates;
pub use load::{
    DROP_IN_EXTENSION, DropIn, from_value, load_kubelet_config, load_kubelet_config_with, merge_drop_ins,
    to_value,
};
pub use types::{API_VERSION, KIND, KubeletConfiguration};
