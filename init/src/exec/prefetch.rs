//! Reads what services will need into the page cache, and loads modules that the first pod calls for, in a process
//! next to the boot, in the order of a list in the verified root. It only saves time: the service that needs a
//! file or module tries again what fails here.

use super::drivers::is_live;
use super::steps::load_module_file;
use crate::sys::child;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// One path a line, `#` comments; a name that ends with `/` is every file of that directory, one that ends with
/// `.ko` is a module.
const LIST: &str = "usr/share/orlop/prefetch";

/// Starts. The list's files are opened first: their paths change with the hand-over.
pub fn start(sysroot: &str) {
    let root = Path::new(sysroot);
    let Ok(list) = fs::read_to_string(root.join(LIST)) else { return };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < 2 {
        return;
    }
    let open = |path: PathBuf| File::open(&path).ok().map(|file| (is_module(&path), file));
    // The kernel would check the signature of one that is loaded before it says so.
    let wanted = paths(root, &list).into_iter().filter(|path| !(is_module(path) && is_live(path)));
    let files: Vec<(bool, File)> = wanted.filter_map(open).collect();
    // Without a child the boot is slower, nothing else.
    let _ = child::beside(move || {
        let mut buffer = vec![0; 1 << 16];
        for (module, mut file) in files {
            if module {
                let _ = load_module_file(&file, false);
                continue;
            }
            while file.read(&mut buffer).is_ok_and(|n| n > 0) {}
        }
    });
}

fn is_module(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "ko")
}

fn paths(root: &Path, list: &str) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for line in list.lines() {
        let line = line.split('#').next().unwrap_or("").trim().trim_start_matches('/');
        if line.ends_with('/') {
            let mut names: Vec<PathBuf> = fs::read_dir(root.join(line))
                .map(|d| d.flatten().map(|e| e.path()).collect())
                .unwrap_or_default();
            names.sort();
            paths.append(&mut names);
        } else if !line.is_empty() {
            paths.push(root.join(line));
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_in_order() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::create_dir_all(dir.path().join("usr/lib")).expect("fixture");
        for name in ["usr/lib/b", "usr/lib/a"] {
            fs::write(dir.path().join(name), "").expect("fixture");
        }
        let found = paths(dir.path(), "# first\n/usr/bin/x # why\n\nusr/lib/\nusr/none/\n");
        let want = ["usr/bin/x", "usr/lib/a", "usr/lib/b"].map(|p| dir.path().join(p));
        assert_eq!(found, want);
        assert!(is_module(Path::new("/m/kernel/veth.ko")) && !is_module(Path::new("/usr/lib/libko.so")));
    }
}
