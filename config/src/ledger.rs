//! The boot ledger `/run/orlop/boot.json` and the lines of the host channel.
//!
//! Written by init, bringup and agent in turn; read by people, tests and `orlop-image boot`.
//! Seam: docs/internals/architecture.md, "Host channel" and "Ledger phase names".

use serde::{Deserialize, Serialize};

/// One stamped step of the boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Phase name, for example `init.verity` (docs/internals/architecture.md lists them).
    pub phase: String,
    /// End of the phase, milliseconds of CLOCK_BOOTTIME (0 is kernel start).
    pub at_ms: u64,
    /// How long it took, milliseconds, where the phase has a start of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// What a person wants to know, one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// False if the phase failed and the boot went on without it.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub ok: bool,
}

/// The whole ledger of one boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Kernel's random boot id (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// In order of stamping.
    pub entries: Vec<LedgerEntry>,
}

/// One line of the host channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum HostMessage {
    /// A ledger entry was stamped.
    Ledger(LedgerEntry),
    /// A line of a pod's output (`console.podOutput: true`).
    PodOutput {
        /// `namespace/name`.
        pod: String,
        /// Container name.
        container: String,
        /// Without its newline.
        line: String,
    },
    /// Something a person must know: refused configuration, degraded state.
    Problem {
        /// Who says it: `init`, `bringup`, `agent`.
        source: String,
        /// What failed, on which object, what to do.
        message: String,
    },
}

impl Ledger {
    /// Reads a ledger; an empty text is an empty ledger.
    ///
    /// # Errors
    /// The JSON error, with line and column.
    pub fn parse(text: &str) -> Result<Ledger, serde_json::Error> {
        if text.trim().is_empty() { Ok(Ledger::default()) } else { serde_json::from_str(text) }
    }

    /// One JSON document, ending in a newline.
    #[must_use]
    pub fn render(&self) -> String {
        let mut s = serde_json::to_string_pretty(self).unwrap_or_default();
        s.push('\n');
        s
    }
}

impl HostMessage {
    /// One line of JSON with its newline.
    #[must_use]
    pub fn render_line(&self) -> String {
        let mut s = serde_json::to_string(self).unwrap_or_default();
        s.push('\n');
        s
    }
}

fn yes() -> bool {
    true
}

// serde's skip_serializing_if wants a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_true(b: &bool) -> bool {
    *b
}

#[cfg(test)]
mod tests;
