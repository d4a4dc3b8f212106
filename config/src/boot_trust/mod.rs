//! What a firmware with Secure Boot starts: its variables, and the signatures of boot files. Pure.
//!
//! ```text
//! SecureBoot, SetupMode, db ─► FirmwareTrust ─┐
//! head and signatures of a UKI ─► BootSignature ┴─► judge ─► it starts, or BootRefusal
//! ```
//! In: bytes of the firmware and of strangers. Out: names of certificates and a forecast. Nothing here checks a signature: the
//! firmware does, and it decides. Formats: UEFI 2.10 (Secure Boot and Driver Signing); Microsoft's PE format; RFC 2315. For people:
//! docs/howto/secure-boot.md.

/// Phase of the boot ledger whose detail is the firmware's trust ([`FirmwareTrust`] as text). A boot without it was not started by a
/// firmware, or by one that knows no Secure Boot.
pub const TRUST_PHASE: &str = "init.trust";

mod boot_file;
mod certificate;
mod der;
mod firmware;

#[cfg(test)]
mod tests;

pub use boot_file::{
    BOOT_FILE_HEAD, BootSignature, NoBootFile, SIGNATURES_BYTES_MAX, SignaturePlace, signature_place,
    signatures,
};
pub use certificate::BootCertificate;
pub use der::signed_data;
pub use firmware::{
    BootRefusal, EFI_VARIABLE_BYTES_MAX, FirmwareTrust, SecureBootMode, VARIABLE_DB, VARIABLE_SECURE_BOOT,
    VARIABLE_SETUP_MODE, X509_SIGNATURE_TYPE,
};
