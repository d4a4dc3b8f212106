//! Clusters with the add-ons that every cluster has.

pub mod services;
