//! Reads the tree: what git would commit, as text.
//!
//! In: the repository's directory. Out: paths and texts. Files that are not UTF-8 are listed without text.

use std::path::Path;
use std::process::Command;

/// One file of the tree.
#[derive(Clone, Debug, Default)]
pub struct SourceFile {
    /// Path in the repository, with slashes.
    pub path: String,
    /// Contents; `None` if it is not text.
    pub text: Option<String>,
}

impl SourceFile {
    /// A file for a rule's own test.
    #[must_use]
    pub fn of(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: Some(text.to_owned()) }
    }

    /// True for Rust source.
    #[must_use]
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Numbered lines, from 1; none if it is not text.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.iter().flat_map(|t| t.lines()).enumerate().map(|(i, l)| (i + 1, l))
    }
}

/// The tracked files under `root`, as they are in the working copy; without git, every file that is not
/// hidden build output.
///
/// # Errors
/// The listing's. A tracked file that was just removed is left out.
pub fn read(root: &Path) -> std::io::Result<Vec<SourceFile>> {
    let mut paths = match tracked(root) {
        Some(paths) => paths,
        None => {
            let mut found = Vec::new();
            walk(root, "", &mut found)?;
            found
        }
    };
    paths.sort();
    Ok(paths
        .into_iter()
        .filter_map(|path| {
            let bytes = std::fs::read(root.join(&path)).ok()?;
            Some(SourceFile { path, text: String::from_utf8(bytes).ok() })
        })
        .collect())
}

fn tracked(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let names = String::from_utf8(output.stdout).ok()?;
    Some(names.split('\0').filter(|n| !n.is_empty()).map(str::to_owned).collect())
}

fn walk(root: &Path, below: &str, found: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && name != ".git" && name != "target" {
            walk(root, &path, found)?;
        } else if kind.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_the_directory_is_walked() {
        let mut found = Vec::new();
        let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
        walk(Path::new(&package), "", &mut found).unwrap();
        assert!(found.contains(&"src/tree.rs".to_owned()), "{found:?}");
        assert!(found.contains(&"Cargo.toml".to_owned()), "{found:?}");
    }

    #[test]
    fn lines_are_numbered_from_one() {
        let file = SourceFile::of("a.rs", "x\ny\n");
        assert_eq!(file.lines().collect::<Vec<_>>(), [(1, "x"), (2, "y")]);
        assert_eq!(SourceFile { path: "a.bin".to_owned(), text: None }.lines().count(), 0);
    }
}
