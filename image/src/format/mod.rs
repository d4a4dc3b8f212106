//! File formats, pure: bytes in, values or bytes out. `sectors` alone changes a file.

pub mod bind;
pub mod cpio;
pub mod digest;
pub mod elf;
pub mod fat;
pub mod mbr;
pub mod microcode;
pub mod oci;
pub mod sectors;
pub mod tar;
pub mod two_slots;
pub mod verity;
