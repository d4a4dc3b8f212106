//! Names and files of cgroups. Linux, Documentation/admin-guide/cgroup-v2.rst.

/// The UID that a pod's cgroup is named after, with `_` for `-` as systemd's names have it; `None` if it is no pod's.
/// `kubepods-burstable-pod12_ab.slice`, `pod12-ab`.
#[must_use]
pub fn pod_of(directory: &str) -> Option<String> {
    let name = directory.strip_suffix(".slice").unwrap_or(directory);
    // A dash inside a component would be a level of its own, so the last one begins the pod's.
    let last = if name == directory { name } else { name.rsplit('-').next()? };
    let uid = last.strip_prefix("pod").filter(|uid| !uid.is_empty())?;
    Some(key(uid))
}

/// What [`pod_of`] answers for a pod of this UID.
#[must_use]
pub fn key(uid: &str) -> String {
    uid.replace('-', "_")
}

/// The CRI id that a container's cgroup is named after: `cri-containerd-<id>.scope`, or the id alone.
#[must_use]
pub fn container_of(directory: &str) -> Option<&str> {
    let id = match directory.strip_suffix(".scope") {
        Some(scope) => scope.rsplit('-').next()?,
        None => directory,
    };
    (id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())).then_some(id)
}

/// The number of a line `<name> <number>`, as in cpu.stat and memory.stat.
#[must_use]
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A file of one number; `max` is no number.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}
