//! Paths inside a volume, and the name of the directory that holds one version of its files.
//!
//! In: paths from the pod. Out: clean relative paths, or the error. Invariant: a valid path stays inside the
//! volume and uses no name that begins with two dots: these belong to the atomic writer (upstream:
//! pkg/volume/util/atomic_writer.go).

use agent_types::time::Wall;
use jiff::Timestamp;

/// Longest path, bytes (PATH_MAX).
const PATH_MAX: usize = 4096;
/// Longest part of a path, bytes (NAME_MAX).
const NAME_MAX: usize = 255;

/// The path without empty parts and dots.
///
/// # Errors
/// Upstream's words about what is wrong with it.
pub fn clean(path: &str) -> Result<String, String> {
    if path.is_empty() {
        return Err(format!("invalid path: must not be empty: {path:?}"));
    }
    if path.starts_with('/') {
        return Err(format!("invalid path: must be relative path: {path}"));
    }
    if path.len() > PATH_MAX {
        return Err(format!("invalid path: must be less than or equal to {PATH_MAX} characters"));
    }
    if path.contains('\0') {
        return Err("invalid path: must not contain a NUL byte".to_owned());
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    for part in &parts {
        if *part == ".." {
            return Err(format!("invalid path: must not contain '..': {path}"));
        }
        if part.len() > NAME_MAX {
            return Err(format!(
                "invalid path: filenames must be less than or equal to {NAME_MAX} characters"
            ));
        }
    }
    match parts.first() {
        None => Err(format!("invalid path: must name a file: {path}")),
        Some(first) if first.starts_with("..") => {
            Err(format!("invalid path: must not start with '..': {path}"))
        }
        Some(_) => Ok(parts.join("/")),
    }
}

/// Name of a directory that holds one version of a volume's files, without the number that makes it unique.
#[must_use]
pub fn version_directory(now: Wall) -> String {
    let at = Timestamp::from_nanosecond(i128::from(now.0)).unwrap_or_default();
    at.strftime("..%Y_%m_%d_%H_%M_%S.").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for (path, expected) in
            [("a", "a"), ("a/b", "a/b"), ("./a//b/.", "a/b"), ("a..b", "a..b"), ("...", "")]
        {
            match clean(path) {
                Ok(clean) => assert_eq!(clean, expected, "{path}"),
                Err(why) => assert!(expected.is_empty(), "{path}: {why}"),
            }
        }
        let long = "x".repeat(256);
        for bad in
            ["", "/a", "..", "a/../b", "../a", "..data", "..a/b", ".", "a\0b", &long, &"a/".repeat(3000)]
        {
            assert!(clean(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn version_directories_sort_by_time() {
        assert_eq!(version_directory(Wall(0)), "..1970_01_01_00_00_00.");
        assert_eq!(version_directory(Wall(1_763_780_000_123_456_789)), "..2025_11_22_02_53_20.");
    }
}
