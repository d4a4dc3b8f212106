//! A booted VM (level L4v): QEMU with the image's disk, driven over sockets.
//!
//! ```text
//! QEMU ── serial 0 (console) ─────► lines, serial.log
//!      ── host channel ───────────► ledger entries, pod output, problems (readiness)
//!      ◄─ serial 1 (debug shell) ─► commands, test profile only
//!      ◄─ QMP ────────────────────► reset, power down, quit, picture of the screen
//! ```
//! Invariants: the harness listens on every socket before QEMU starts, so nothing is lost; every wait has an
//! event and a deadline; the disk under test is a copy, the built image is never written.
//! Command line, choice of accelerator and QMP are those of `orlop_image::qemu`.
//! See docs/internals/testing.md, level L4v.

mod boot_files;
pub mod disk;
pub mod fat;
pub mod feed;
mod image;
pub mod iso;
pub mod lab;
pub mod machine;
pub mod screen;
pub mod shell;
pub mod tpm;
pub mod write_log;
