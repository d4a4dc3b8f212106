//! Every decision of init, pure: text, bytes and facts in, steps and verdicts as values out.
//!
//! This module opens no file, reads no clock and logs nothing; the executor (`exec`) reads facts, passes them
//! in and carries out the steps. Input from disk, firmware or the command line is hostile: no parser here
//! panics, or allocates by a length that it has not checked. docs/reference/boot.md specifies the behaviour.

pub mod agent_memory;
pub mod arbiter;
pub mod carried_files;
pub mod change;
pub mod clock;
pub mod cmdline;
pub mod cri_version;
pub mod disk;
pub mod disk_content;
pub mod disk_ids;
pub mod esp;
pub mod esp_names;
pub mod ext4;
pub mod failure;
pub mod fat;
pub mod files;
pub mod go_memory;
pub mod gpt;
pub mod gpt_change;
pub mod gpt_copy;
pub mod gpt_header;
pub mod gpt_relocate;
pub mod guard;
pub mod guid;
pub mod install;
pub mod kept;
pub mod late_media;
pub mod loader_order;
pub mod masquerade;
pub mod modules;
pub mod mounts;
pub mod node_files;
pub mod phase;
pub mod platform;
pub mod program;
pub mod promises;
pub mod reconfigure;
pub mod reserve;
pub mod reset;
pub mod resolv;
pub mod settings;
pub mod smbios;
pub mod source;
pub mod state;
pub mod step;
pub mod swap;
pub mod tpm;
pub mod uevent;
pub mod verity;
pub mod volume;
pub mod watchdog;

/// Little-endian field at `at`, or `None` past the end: how every on-disk structure here is read.
pub(crate) fn le_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// Little-endian 32-bit field at `at`.
pub(crate) fn le_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Little-endian 64-bit field at `at`.
pub(crate) fn le_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}
