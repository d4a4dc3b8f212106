//! What is in a directory: names, kinds, modes, contents.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One thing in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TreeEntry {
    /// Kind and permissions, as stat(2) has them.
    mode: u32,
    /// Of a file its bytes, of a link where it leads.
    content: Vec<u8>,
}

/// All that is below a directory.
pub(crate) fn read(root: &Path) -> BTreeMap<PathBuf, TreeEntry> {
    let mut all = BTreeMap::new();
    let mut rest = vec![root.to_owned()];
    while let Some(directory) = rest.pop() {
        for entry in fs::read_dir(&directory).expect("a directory can be read") {
            let path = entry.expect("a directory can be read").path();
            let about = fs::symlink_metadata(&path).expect("what is there can be looked at");
            let content = if about.is_symlink() {
                let target = fs::read_link(&path).expect("a link");
                // Each try has a directory of its own.
                target.strip_prefix(root).unwrap_or(&target).as_os_str().as_encoded_bytes().to_owned()
            } else if about.is_file() {
                fs::read(&path).expect("a file can be read")
            } else {
                Vec::new()
            };
            if about.is_dir() {
                rest.push(path.clone());
            }
            let name = path.strip_prefix(root).expect("it is below").to_owned();
            all.insert(name, TreeEntry { mode: about.mode(), content });
        }
    }
    all
}
