//! The checkout that a run works on, and cargo in it.

use std::path::PathBuf;
use std::process::Command;

use orlop_image::profile::find_checkout;

/// The workspace this harness is run in, which need not be the one it was compiled in.
#[must_use]
pub fn workspace() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    find_checkout(manifest.as_deref(), std::env::current_dir().ok().as_deref())
}

/// A cargo command in the workspace.
#[must_use]
pub fn cargo() -> Command {
    let mut command = orlop_image::host::cargo();
    // A backtrace of an expected error would only hide its text.
    command.current_dir(workspace()).env("CARGO_TERM_COLOR", "never").env("RUST_BACKTRACE", "0");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_where_the_lock_file_is() {
        assert!(workspace().join("Cargo.lock").exists());
    }
}
