//! Directories in which containerd keeps the state of what it runs, next to its socket.
//!
//! In: the runtime's socket. Out: paths. Upstream: containerd's `core/runtime/v2` (bundles) and `internal/cri` (FIFOs).

use std::path::{Path, PathBuf};

/// CRI's namespace in containerd.
pub(crate) const NAMESPACE: &str = "k8s.io";
/// Bundles: one directory for each container, with the numbers of its processes.
const BUNDLES: &str = "io.containerd.runtime.v2.task";
/// FIFOs of containers and of commands in them.
const CONTAINERS: &str = "io.containerd.grpc.v1.cri/containers";

/// The directory of all bundles of CRI's namespace.
pub(crate) fn bundles(socket: &Path) -> PathBuf {
    directory(socket).join(BUNDLES).join(NAMESPACE)
}

/// The directory of a container's FIFOs.
pub(crate) fn fifos(socket: &Path, container: &str) -> PathBuf {
    directory(socket).join(CONTAINERS).join(container).join("io")
}

fn directory(socket: &Path) -> &Path {
    socket.parent().unwrap_or(Path::new("/"))
}
