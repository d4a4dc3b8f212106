//! init, in two programs: orlop-initrd is PID 1 of the initrd, orlop-init is called on the running system. docs/reference/boot.md specifies
//! their behaviour.
//!
//! `plan` decides (pure), `exec` carries out and writes the ledger, `sys` wraps the few kernel calls that
//! need `unsafe`. Data flows one way: `exec` reads facts and passes them to `plan`, and `plan` returns steps.

pub mod exec;
pub mod plan;
pub mod sys;
