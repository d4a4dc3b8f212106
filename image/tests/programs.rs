//! Which of init's two programs the files of the root call, and with what: orlop-init alone, each time with a subcommand that it has.

use orlop_init::plan::program::Subcommand;
use std::fs;
use std::path::{Path, PathBuf};

const INIT: &str = "/usr/lib/orlop/orlop-init";

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("a type"));
        if kind.is_dir() {
            found.extend(files(&path));
        } else if kind.is_file() {
            found.push(path);
        }
    }
    found
}

#[test]
fn units_call_orlop_init_with_subcommands_that_it_has() {
    let mut called = Vec::new();
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("rootfs")) {
        let bytes = fs::read(&path).expect("a file of the tree");
        for line in String::from_utf8_lossy(&bytes).lines() {
            assert!(!line.contains("orlop-initrd"), "{}: {line}: it is not in the root", path.display());
            let Some(arguments) = line.split(INIT).nth(1).filter(|_| line.starts_with("Exec")) else {
                continue;
            };
            let words: Vec<&str> = arguments.split_whitespace().collect();
            let subcommand = words.first().and_then(|word| Subcommand::of(word));
            assert!(subcommand.is_some() && words.len() == 1, "{}: {line}", path.display());
            called.extend(subcommand);
        }
    }
    // A person calls it, and no unit does.
    let of_units = Subcommand::ALL.into_iter().filter(|subcommand| *subcommand != Subcommand::Ledger);
    for subcommand in of_units {
        assert!(called.contains(&subcommand), "no unit calls {}", subcommand.name());
    }
}
