//! orlop-image: builds the appliance image and boots it.
//!
//! ```text
//! plan (pure): inputs -> steps with cache keys
//!   debs ─► tools ─► base ─┬─► seed ─┐
//!   compile ─► containers ─┘         ├─► root ─► disk ─► publish + manifest
//!   compile ─────────────► initrd ───┘
//! ```
//! `build/` runs the steps, `inspect` explains the result, `boot/` and `qemu/` run it, `export/` writes it for clouds and
//! machines, `secure_boot/` signs it for firmware, `update/` publishes it for nodes. See docs/internals/image.md, docs/howto/install.md,
//! docs/howto/secure-boot.md and docs/reference/update.md.
#![forbid(unsafe_code)]
// The tool speaks to a person on standard output.
#![allow(clippy::print_stdout)]

pub mod arch;
pub mod bolt;
pub mod boot;
pub mod build;
pub mod cli;
pub mod export;
pub mod format;
pub mod host;
pub mod inspect;
pub mod lock;
pub mod plan;
pub mod profile;
pub mod qemu;
pub mod secure_boot;
pub mod select;
pub mod update;
