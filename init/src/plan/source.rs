//! The sources of first-boot configuration: their precedence, their names, which files of a drive are ours.
//!
//! Seam: docs/internals/architecture.md, "First-boot configuration".

use orlop_config::node::{NODE_SOURCE, RUNNING_DIR};

/// Largest document that is read from any source, bytes.
pub const BYTES_MAX: u64 = 1 << 20;
/// As many documents are read from drives; of more than that each is a problem.
pub const DRIVES_MAX: usize = 4;

/// Where a document came from, in rising precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `/usr/share/orlop/node-config.yaml` of the verified root.
    Image,
    /// `/orlop/node-config.yaml` on the ESP, at the first boot.
    Esp,
    /// A drive labelled `cidata` or `config-2`, at the first boot.
    Drive,
    /// The platform's metadata service, as the first boot kept it.
    Metadata,
    /// QEMU's fw_cfg.
    FwCfg,
    /// SMBIOS type 11.
    Smbios,
    /// The node's own document, which the management API has applied.
    Node,
    /// `orlop.config=` and `orlop.set=`.
    Cmdline,
}

impl Kind {
    /// Name in file names, provenance and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Image => "image",
            Kind::Esp => "esp",
            Kind::Drive => "drive",
            Kind::Metadata => "metadata",
            Kind::FwCfg => "fw-cfg",
            Kind::Smbios => "smbios",
            Kind::Node => NODE_SOURCE,
            Kind::Cmdline => "cmdline",
        }
    }

    /// Two digits that sort like the precedence.
    #[must_use]
    pub fn rank(self) -> u8 {
        match self {
            Kind::Image => 10,
            Kind::Esp => 20,
            Kind::Drive => 30,
            Kind::Metadata => 35,
            Kind::FwCfg => 40,
            Kind::Smbios => 50,
            Kind::Node => 55,
            Kind::Cmdline => 60,
        }
    }
}

/// The file below /run in which init leaves a document of this kind, where a node has one of them at most.
#[must_use]
pub fn running_file(kind: Kind) -> String {
    format!("{RUNNING_DIR}/{:02}-{}.yaml", kind.rank(), kind.name())
}

/// A document as found.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    /// Its source.
    pub kind: Kind,
    /// Where exactly, for messages: `ESP:/orlop/node-config.yaml`.
    pub origin: String,
    /// The text. It may hold a token: never printed.
    pub text: String,
    /// An earlier boot read it, and the state partition has kept it (`plan::kept`).
    pub kept: bool,
}

impl Document {
    /// Where it came from, for messages and provenance.
    #[must_use]
    pub fn shown(&self) -> String {
        if self.kept { format!("{}, kept since the first boot", self.origin) } else { self.origin.clone() }
    }
}

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.origin, self.text.len())
    }
}

/// File of a labelled drive that holds the document, or `None` if the label is not ours.
#[must_use]
pub fn drive_file(label: &str) -> Option<&'static str> {
    match label.to_ascii_lowercase().as_str() {
        "cidata" => Some("user-data"),
        "config-2" => Some("openstack/latest/user_data"),
        _ => None,
    }
}

/// Is this text meant for us? Such drives carry other systems' user data too, which is left alone silently.
#[must_use]
pub fn is_node_config(text: &str) -> bool {
    let mut lines = text.trim_start_matches('\u{feff}').lines();
    if lines.next().is_some_and(|first| first.trim_end() == "#orlop") {
        return true;
    }
    text.lines().any(|line| {
        let compact: String =
            line.chars().filter(|c| !c.is_whitespace() && !matches!(c, '"' | '\'')).collect();
        compact.trim_end_matches(',') == "kind:NodeConfig"
            || compact.contains("{kind:NodeConfig")
            || compact.contains(",kind:NodeConfig")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_the_precedence() {
        let all = [
            Kind::Image,
            Kind::Esp,
            Kind::Drive,
            Kind::Metadata,
            Kind::FwCfg,
            Kind::Smbios,
            Kind::Node,
            Kind::Cmdline,
        ];
        assert!(all.is_sorted() && all.is_sorted_by_key(|k| k.rank()));
    }

    #[test]
    fn drives_and_their_files() {
        assert_eq!(drive_file("CIDATA"), Some("user-data"));
        assert_eq!(drive_file("config-2"), Some("openstack/latest/user_data"));
        assert_eq!(drive_file("cidata2"), None);
    }

    #[test]
    fn ours_and_others() {
        for ours in [
            "#orlop\nnodeName: a",
            "apiVersion: orlop/v1alpha1\nkind: NodeConfig\n",
            "kind: 'NodeConfig'",
            "{\"apiVersion\": \"orlop/v1alpha1\", \"kind\": \"NodeConfig\"}",
            "{\n  \"kind\": \"NodeConfig\",\n}",
        ] {
            assert!(is_node_config(ours), "{ours}");
        }
        for other in ["", "#cloud-config\nusers: []", "# orlop", "kind: NodeConfiguration", "x: kind"] {
            assert!(!is_node_config(other), "{other}");
        }
    }

    #[test]
    fn debug_keeps_secrets() {
        let d = Document { kind: Kind::Esp, origin: "ESP".into(), text: "token: abc".into(), kept: false };
        assert_eq!(format!("{d:?}"), "ESP (10 bytes)");
    }
}
