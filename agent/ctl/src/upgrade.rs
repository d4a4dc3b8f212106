//! `upgrade`, `rollback`: another version of the system, as operations.
//!
//! In: words of the command line. Out: requests. Invariant: an upgrade names what follows the staging, because a reboot is nothing that a
//! person should be surprised by.

use clap::Args;
use orlop_proto::node_api::v1alpha1::{RollbackRequest, UpgradeRequest};

use crate::failure::CtlError;
use crate::operations::WishArgs;

/// Another version.
#[derive(Clone, Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// Version X.Y.Z; without it: the choice of the node's channel
    #[arg(long = "version", value_name = "VERSION", default_value = "")]
    release: String,
    /// Writes the version and tries it at once, by a reboot that waits neither for a window nor for a drain
    #[arg(long, conflicts_with = "stage")]
    now: bool,
    /// Writes the version into the slot that does not run; nothing boots it
    #[arg(long)]
    stage: bool,
    #[command(flatten)]
    pub(crate) wish: WishArgs,
}

/// The version before.
#[derive(Clone, Debug, Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    pub(crate) wish: WishArgs,
}

impl UpgradeArgs {
    /// The request.
    ///
    /// # Errors
    /// Neither `--now` nor `--stage`.
    pub(crate) fn request(&self, id: String, unrecorded: bool) -> Result<UpgradeRequest, CtlError> {
        if self.now == self.stage {
            let message = "upgrade needs --now (write it, then reboot into it on trial) or --stage (write it only); \
                           windows and drains are the agent's: docs/howto/upgrade.md";
            return Err(CtlError::Usage(message.to_owned()));
        }
        Ok(UpgradeRequest { id, version: self.release.clone(), stage_only: self.stage, unrecorded })
    }
}

/// The request.
pub(crate) fn rollback(id: String, unrecorded: bool) -> RollbackRequest {
    RollbackRequest { id, unrecorded }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn request(words: &[&str]) -> Result<UpgradeRequest, CtlError> {
        let cli = Cli::try_parse_from(["orlopctl", "upgrade"].iter().chain(words)).unwrap();
        let Verb::Upgrade(args) = cli.verb else { panic!("{words:?}") };
        args.request("op".to_owned(), false)
    }

    #[test]
    fn an_upgrade_says_whether_it_reboots() {
        let staged = request(&["--stage"]).unwrap();
        assert!(staged.stage_only && staged.version.is_empty());
        let tried = request(&["--now", "--version", "0.2.0"]).unwrap();
        assert_eq!((tried.stage_only, tried.version.as_str(), tried.id.as_str()), (false, "0.2.0", "op"));
        assert_eq!(request(&[]).unwrap_err().exit_code(), 2);
        assert_eq!(request(&["--version", "0.2.0"]).unwrap_err().exit_code(), 2);
        assert!(Cli::try_parse_from(["orlopctl", "upgrade", "--now", "--stage"]).is_err());
    }

    #[test]
    fn a_rollback_names_no_version() {
        let cli = Cli::try_parse_from(["orlopctl", "rollback", "--no-wait"]).unwrap();
        assert!(matches!(cli.verb, Verb::Rollback(_)));
        assert!(Cli::try_parse_from(["orlopctl", "rollback", "0.1.0"]).is_err());
        assert!(rollback("op".to_owned(), true).unrecorded);
    }
}
