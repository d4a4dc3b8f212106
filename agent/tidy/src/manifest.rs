//! Rules about Cargo.toml files: versions stand once, in the workspace, each with its reason.

use crate::Finding;
use crate::tree::SourceFile;

/// A comment shorter than this is no reason, characters.
const REASON_CHARS_MIN: usize = 5;

/// In `[workspace.dependencies]` each paragraph of dependencies opens with the reason for it.
#[must_use]
pub fn reasons(root_manifest: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut inside = false;
    let mut reason = false;
    for (number, line) in root_manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
            reason = false;
        } else if !inside {
        } else if line.trim().is_empty() {
            reason = false;
        } else if let Some(comment) = line.strip_prefix('#') {
            reason = comment.trim().len() >= REASON_CHARS_MIN;
        } else if !reason && !line.starts_with([' ', ']']) {
            let name = line.split('=').next().unwrap_or(line).trim();
            findings.push(Finding::new(
                &root_manifest.path,
                number,
                format!("{name} has no reason above it"),
            ));
        }
    }
    findings
}

/// Members take every dependency from the workspace.
#[must_use]
pub fn inherited(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| f.path.ends_with("/Cargo.toml")) {
        let mut inside = false;
        for (number, line) in file.lines() {
            if line.starts_with('[') {
                inside = line.contains("dependencies");
            } else if inside && line.contains('=') && !line.starts_with(['#', ' ']) && !says_workspace(line) {
                let name = line.split(['=', '.']).next().unwrap_or(line).trim();
                let message = format!("{name}: take it from the workspace (`{name}.workspace = true`)");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

fn says_workspace(line: &str) -> bool {
    // A crate's tests may turn on its own features: a path to itself.
    line.contains("workspace = true") || line.contains("path = \".\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let manifest = "[workspace]\nresolver = \"3\"\n\n[workspace.dependencies]\n# Serialisation.\nserde = \"1\"\n\
            serde_json = \"1\"\n\nlonely = \"1\"\n\n#\nmute = \"1\"\n[profile.dev]\ndebug = 1\n";
        let findings = reasons(&SourceFile::of("Cargo.toml", manifest));
        assert_eq!(findings.iter().map(|f| f.line).collect::<Vec<_>>(), [9, 12], "{findings:?}");
    }

    #[test]
    fn a_version_in_a_member_is_found() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\nserde.workspace = true\n\
            tokio = { workspace = true, features = [\"fs\"] }\nrand = \"0.9\"\n[dev-dependencies]\nx = { path = \".\" }\nfoo = { version = \"1\" }\n\
            [features]\ntesting = []\n";
        let findings = inherited(&[SourceFile::of("agent/x/Cargo.toml", manifest)]);
        assert_eq!(findings.iter().map(|f| f.line).collect::<Vec<_>>(), [6, 9], "{findings:?}");
    }
}
