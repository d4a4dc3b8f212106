//! File formats, pure: bytes in, values or bytes out.

pub mod bind;
pub mod cpio;
pub mod digest;
pub mod elf;
pub mod oci;
pub mod tar;
pub mod verity;
