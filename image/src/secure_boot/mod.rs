//! Secure Boot: keys, their enrolment, and signatures of the boot loader and of UKIs.
//!
//! ```text
//! secure-boot-keys ─► PK, KEK, db: private key, certificate, enrolment ─┐
//! build: disk, UKI ───────────────────────── systemd-sbsign ────────────┴─► both signed, loader/keys/auto on the ESP
//! ```
//! In: a directory of keys, a built disk. Out: the same disk with signed programs on its ESP. Invariants: a private key is never
//! overwritten and never copied; a program is signed by the key of db or not at all; root, verity tree and partition table are as
//! they were. Nothing that is signed for updates is touched: `update/` has other keys. For operators: docs/howto/secure-boot.md.

mod auth;
mod disk;
mod keys;
mod sign;
mod volume;

#[cfg(test)]
mod tests;

pub use disk::{SignProgram, sign_build, sign_disk};
pub use keys::{EnrolmentFile, SecureBootEnroll, SecureBootKeys, SecureBootKeysArgs, secure_boot_keys};
pub use sign::{BootSigner, file_signatures, program_signatures};
