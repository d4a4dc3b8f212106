//! Areas of the API: what a user of the cluster may do is asked for one of them. Pure.
//!
//! An area is the virtual resource `nodes/<area>` of the group `node.orlop.dev`, and a call is a verb on it. Keys of administrators, root on
//! the node and a trusted host have all of them (docs/reference/node-api.md, "Identities of the cluster").

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiArea {
    /// Reads what the node knows about itself.
    Status,
    /// Reads logs.
    Logs,
    /// Reads the configuration, and has a document checked.
    Config,
    /// Begins or calls off an operation.
    Operations,
}

impl ApiArea {
    /// All of them.
    pub const ALL: &[ApiArea] = &[ApiArea::Status, ApiArea::Logs, ApiArea::Config, ApiArea::Operations];

    /// The subresource of `nodes`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ApiArea::Status => "status",
            ApiArea::Logs => "logs",
            ApiArea::Config => "config",
            ApiArea::Operations => "operations",
        }
    }

    /// The verb of RBAC.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            ApiArea::Status | ApiArea::Logs | ApiArea::Config => "get",
            ApiArea::Operations => "create",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_area_with_its_verb() {
        let page = include_str!("../../../docs/reference/node-api.md");
        for area in ApiArea::ALL {
            let row = format!("| `nodes/{}` | `{}` |", area.name(), area.verb());
            assert!(page.lines().any(|line| line.starts_with(&row)), "the page lacks `{row}`");
        }
    }
}
