//! Features that only tests turn on stand in agent/features: otherwise cargo compiles a package once for programs and once for tests.

use std::collections::BTreeMap;

use crate::Finding;

/// The manifest that names such features.
const MANIFEST: &str = "agent/features/Cargo.toml";

/// Compares the packages of programs with those of tests: two lists of lines `NAME VERSION|FEATURE,FEATURE`, as
/// `cargo tree --prefix none --format '{p}|{f}'` prints them.
#[must_use]
pub fn of_tests_alone(programs: &str, tests: &str) -> Vec<Finding> {
    let of_tests = packages(tests);
    let mut findings = Vec::new();
    for (package, features) in packages(programs) {
        let Some(with_tests) = of_tests.get(package) else { continue };
        let added: Vec<&str> =
            with_tests.split(',').filter(|f| !features.split(',').any(|own| own == *f)).collect();
        if !added.is_empty() {
            let message =
                format!("{package}: only tests turn on {}; name the features here", added.join(", "));
            findings.push(Finding::new(MANIFEST, 0, message));
        }
    }
    findings
}

/// Package -> features. A package that cargo lists a second time has ` (*)` behind its line.
fn packages(tree: &str) -> BTreeMap<&str, &str> {
    tree.lines().filter_map(|line| line.trim_end_matches(" (*)").split_once('|')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_of_tests_alone_is_found_with_its_package() {
        let programs = "tokio v1|net\nnix v1|fs\n\nserde v1|\n";
        let tests = "tokio v1|net,test-util\nnix v1|fs (*)\nserde v1|\nproptest v1|std\n";
        let findings = of_tests_alone(programs, tests);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings[0].to_string().contains("tokio v1: only tests turn on test-util"),
            "{}",
            findings[0]
        );
        assert!(of_tests_alone(tests, tests).is_empty());
    }
}
