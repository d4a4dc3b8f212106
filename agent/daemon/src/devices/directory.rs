//! The directory of device plugins, with the device manager's checkpoint.
//!
//! In: the directory. Out: a directory without sockets, the checkpoint. Invariant: old sockets are removed before the registration socket
//! is created, because their removal shows a plugin that the agent has restarted; other files stay. Upstream: plugin/v1beta1/server.go,
//! pkg/kubelet/checkpointmanager.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use agent_linux::files::{self, Durability};
use agent_linux::selinux;
use agent_managers::checkpoint::devices;
use agent_managers::devices::manager::DeviceState;
use agent_types::failure::Class;
use agent_volumes::selinux::PLUGINS_LABEL;
use anyhow::Context;

use super::limits::CHECKPOINT_BYTES_MAX;
use super::messages;
use crate::pods::pod_dirs::chain;

/// Mode of the directory, as upstream's.
const DIR_MODE: u32 = 0o750;
/// Mode of the checkpoint, as upstream's.
const FILE_MODE: u32 = 0o600;

/// Creates the directory and removes the sockets in it.
pub(super) fn prepare(directory: &Path) -> anyhow::Result<()> {
    files::make_dir(directory, DIR_MODE)?;
    if selinux::is_enabled()
        && let Err(error) = selinux::set_label(directory, PLUGINS_LABEL)
    {
        tracing::warn!(error = %chain(&error), "device plugins in containers without privileges may not come here");
    }
    let at = || directory.display().to_string();
    for entry in std::fs::read_dir(directory).with_context(at)? {
        let entry = entry.with_context(at)?;
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            match std::fs::remove_file(entry.path()) {
                // A plugin that ends removes its own socket.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                removed => removed.with_context(|| entry.path().display().to_string())?,
            }
        }
    }
    Ok(())
}

/// The state in the checkpoint; `None` if there is no checkpoint that can be used.
pub(super) fn read_checkpoint(path: &Path) -> Option<DeviceState> {
    let bytes = match files::read_capped(path, CHECKPOINT_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) => {
            if error.class() != Class::NotFound {
                tracing::error!(error = %chain(&error), "devices of running pods are not known");
            }
            return None;
        }
    };
    match devices::read(&String::from_utf8_lossy(&bytes), messages::decode) {
        Ok(content) => {
            for (uid, container, resource) in &content.left_out {
                tracing::error!(
                    uid,
                    container,
                    resource,
                    "the checkpoint's answer to Allocate cannot be read"
                );
            }
            Some(content.state)
        }
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "devices of running pods are not known");
            None
        }
    }
}

/// Replaces the checkpoint.
pub(super) fn write_checkpoint(path: &Path, text: &str) -> Result<(), String> {
    files::write_atomic(path, text.as_bytes(), FILE_MODE, Durability::Synced).map_err(|error| {
        let error = chain(&error);
        tracing::error!(%error, "the checkpoint of device plugins is not written");
        error
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_of_an_earlier_time_vanish_and_all_else_stays() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path().join("device-plugins");
        std::fs::create_dir_all(at.join("sub")).unwrap();
        let listener = UnixListener::bind(at.join("gpu.sock")).unwrap();
        std::fs::write(at.join("kubelet_internal_checkpoint"), "x").unwrap();
        prepare(&at).unwrap();
        drop(listener);
        let mut left: Vec<String> = std::fs::read_dir(&at)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["kubelet_internal_checkpoint", "sub"]);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_used_is_none() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("kubelet_internal_checkpoint");
        assert_eq!(read_checkpoint(&path), None);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(read_checkpoint(&path), None);
        write_checkpoint(&path, &devices::write(&DeviceState::default())).unwrap();
        assert_eq!(read_checkpoint(&path), Some(DeviceState::default()));
        assert!(write_checkpoint(&root.path().join("no/file"), "").is_err());
    }
}
