//! Which of the programs of this binary a process is: links to it have the names of the others.

use std::ffi::OsStr;
use std::path::Path;

/// Whether a process with this argument 0 is the program of this name.
#[must_use]
pub fn is_named(argument: Option<&OsStr>, name: &str) -> bool {
    argument.and_then(|path| Path::new(path).file_name()) == Some(OsStr::new(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{node_api, provision, serial_port, update};

    #[test]
    fn the_last_part_of_the_name_decides() {
        for name in [node_api::NAME, provision::NAME, serial_port::NAME, update::NAME] {
            let (path, below) = (format!("/usr/lib/orlop/{name}"), format!("/{name}/agent"));
            for (argument, wanted) in [
                (Some(path.as_str()), true),
                (Some(name), true),
                (Some("/usr/bin/orlop-agent"), false),
                (Some(below.as_str()), false),
                (Some(""), false),
                (None, false),
            ] {
                assert_eq!(is_named(argument.map(OsStr::new), name), wanted, "{name}: {argument:?}");
            }
        }
        assert!(!is_named(Some(OsStr::new("/usr/lib/orlop/orlop-provision")), update::NAME));
    }
}
