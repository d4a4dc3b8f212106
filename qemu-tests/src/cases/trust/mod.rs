//! What the machine's firmware and its TPM know about the image.

pub mod phases;
pub mod secure_boot;
pub mod update_signed;
