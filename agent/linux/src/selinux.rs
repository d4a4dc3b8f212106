//! SELinux as the kernel and the policy's files have it.
//!
//! In: selinuxfs, /proc, the policy's files. Out: whether there is a policy, what it labels files of containers, labels of
//! directories. Invariant: a node without a policy is asked nothing and changes nothing.
//! Upstream: opencontainers/selinux (GetEnabled, ContainerLabels, SetFileLabel).

use std::fs;
use std::path::Path;

use agent_types::node_context::Label;
use agent_volumes::selinux;
use rustix::fs::XattrFlags;

use crate::files::FilesError;

/// A file system that is there once it was mounted, with a policy or without.
const ENFORCE: &str = "/sys/fs/selinux/enforce";
/// The label of this process.
const OWN: &str = "/proc/self/attr/current";
/// What everything is labelled before a policy is loaded.
const NO_POLICY: &str = "kernel";
/// Where containers' labels are, the same for all policies.
const CONTEXTS: &str = "/usr/share/containers/selinux/contexts";
/// Says which policy the node has.
const CONFIG: &str = "/etc/selinux/config";
/// The attribute that holds a file's label.
const ATTRIBUTE: &str = "security.selinux";

/// The kernel has a policy.
#[must_use]
pub fn is_enabled() -> bool {
    let own = || fs::read_to_string(OWN).unwrap_or_default();
    Path::new(ENFORCE).exists() && own().trim_end_matches(['\0', '\n']) != NO_POLICY
}

/// What the policy labels files of containers; `None` if it does not say so.
#[must_use]
pub fn container_files() -> Option<Label> {
    let text = fs::read_to_string(CONTEXTS).ok().or_else(|| {
        let config = fs::read_to_string(CONFIG).ok()?;
        // It becomes a part of a path.
        let policy = selinux::value(&config, "SELINUXTYPE").filter(|name| !name.contains('/'))?;
        fs::read_to_string(format!("/etc/selinux/{policy}/contexts/lxc_contexts")).ok()
    })?;
    selinux::container_files(&text)
}

/// Labels a file or directory.
///
/// # Errors
/// `setxattr` with the path.
pub fn set_label(path: &Path, label: &str) -> Result<(), FilesError> {
    let set = rustix::fs::setxattr(path, ATTRIBUTE, label.as_bytes(), XattrFlags::empty());
    set.map_err(|e| FilesError::at("setxattr security.selinux", path)(e.into()))
}
