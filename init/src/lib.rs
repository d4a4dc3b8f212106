//! orlop-init: PID 1 of the initrd and its second stage. docs/boot.md is the contract.
//!
//! `plan` decides (pure), `exec` carries out and stamps the ledger, `sys` wraps the few kernel calls that need
//! `unsafe`. Data flows one way: facts are fetched by `exec`, handed to `plan`, and steps come back.

pub mod exec;
pub mod plan;
pub mod sys;
