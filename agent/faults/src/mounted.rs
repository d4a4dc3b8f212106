//! What is mounted below a directory, by proc_pid_mountinfo(5).

use std::fs;
use std::path::{Path, PathBuf};

/// Mount points below `root`, the oldest first; a path is there as often as something is mounted on it. Paths with spaces,
/// which temporary directories do not have, are not understood.
///
/// # Panics
/// If the mount table cannot be read.
#[must_use]
pub fn below(root: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(root)).collect()
}
