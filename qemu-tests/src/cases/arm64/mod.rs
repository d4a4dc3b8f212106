//! The image for 64-bit ARM, on an emulated machine: on demand only (`cargo e2e arm64`), since it is a second image to build.

pub mod boot;
