//! Rules about commands on pages: each `cargo test` and `cargo sim` of a page runs at least one test.
//!
//! In: the tracked files. Out: a finding for each command that names a package or a file of tests that does not exist, has a
//! filter that no module and no function of the package has in its path, or has a form that cargo refuses. A filter that
//! matches nothing passes without a word, so only this rule notices a test that was renamed.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::tree::SourceFile;

/// Options of `cargo test` that take a value.
const WITH_VALUE: &[&str] = &["--features", "--config", "--profile", "--target-dir", "-j", "--jobs"];

/// Every `cargo test` and `cargo sim` of a page names packages, files and tests that exist.
#[must_use]
pub fn tests(files: &[SourceFile]) -> Vec<Finding> {
    let packages = packages(files);
    let mut findings = Vec::new();
    for page in files.iter().filter(|f| f.path.ends_with(".md")) {
        for (number, text) in commands(page) {
            let problem = Command::parse(text).and_then(|command| command.check(&packages));
            if let Err(problem) = problem {
                findings.push(Finding::new(&page.path, number, format!("`{text}`: {problem}")));
            }
        }
    }
    findings
}

/// A package of the workspace: files of tests, and the paths of its modules and functions.
#[derive(Default)]
struct Package {
    /// Of the library and the binaries.
    library: BTreeSet<String>,
    /// Of each file below `tests/`, by its name.
    integration: BTreeMap<String, BTreeSet<String>>,
}

/// The command's arguments.
#[derive(Default)]
struct Command<'a> {
    packages: Vec<&'a str>,
    library: bool,
    file: Option<&'a str>,
    filters: Vec<&'a str>,
}

impl<'a> Command<'a> {
    fn parse(text: &'a str) -> Result<Command<'a>, String> {
        let mut words = text.split_whitespace().skip_while(|word| *word != "cargo").skip(1);
        let mut command = Command::default();
        if words.next() == Some("sim") {
            command.packages.push("agent-sim");
        }
        let mut before_dashes = true;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("`{word}` has no value"));
            match word {
                "--" => before_dashes = false,
                "-p" | "--package" if before_dashes => command.packages.push(value()?),
                "--test" if before_dashes => command.file = Some(value()?),
                "--lib" if before_dashes => command.library = true,
                _ if before_dashes && WITH_VALUE.contains(&word) => _ = value()?,
                _ if word.starts_with('-') => {}
                _ if before_dashes && !command.filters.is_empty() => {
                    return Err(format!(
                        "cargo takes one filter; write `--` before `{}`",
                        command.filters[0]
                    ));
                }
                _ => command.filters.push(word),
            }
        }
        Ok(command)
    }

    fn check(&self, packages: &BTreeMap<String, Package>) -> Result<(), String> {
        let mut named = Vec::new();
        for name in &self.packages {
            named.push(packages.get(*name).ok_or(format!("the workspace has no package `{name}`"))?);
        }
        let mut paths: Vec<&BTreeSet<String>> = Vec::new();
        for package in named {
            match self.file {
                Some(file) => paths.extend(package.integration.get(file)),
                None if self.library => paths.push(&package.library),
                None => paths.extend(package.integration.values().chain([&package.library])),
            }
        }
        if let (Some(file), true) = (self.file, paths.is_empty()) {
            return Err(format!("no package of the command has `tests/{file}.rs`"));
        }
        let matches = |filter: &str| paths.iter().any(|set| set.iter().any(|path| path.contains(filter)));
        // Without a package the command runs the tests of all packages.
        let missing = self.filters.iter().find(|filter| !self.packages.is_empty() && !matches(filter));
        missing.map_or(Ok(()), |filter| Err(format!("no module and no function has `{filter}` in its path")))
    }
}

/// Commands of a page with their lines: code spans, and lines of code fences up to two spaces.
fn commands(page: &SourceFile) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (number, line) in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            found.extend(line.trim().split("  ").next().map(|command| (number, command)));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(|span| (number, span)));
        }
    }
    found.retain(|(_, text)| {
        let mut words = text.split_whitespace().skip_while(|word| word.contains('='));
        words.next() == Some("cargo") && matches!(words.next(), Some("test" | "sim"))
    });
    found
}

/// The packages of the workspace by name.
fn packages(files: &[SourceFile]) -> BTreeMap<String, Package> {
    let mut packages = BTreeMap::new();
    for manifest in files.iter().filter(|f| f.path.ends_with("/Cargo.toml")) {
        let name = manifest.lines().find_map(|(_, line)| line.strip_prefix("name = "));
        let Some(name) = name.map(|name| name.trim_matches('"')) else { continue };
        let root = manifest.path.trim_end_matches("Cargo.toml");
        let mut package = Package::default();
        for file in files.iter().filter(|f| f.is_rust()) {
            let Some(path) = file.path.strip_prefix(root) else { continue };
            if let Some(path) = path.strip_prefix("src/") {
                package.library.extend(paths(path, file));
            } else if let Some(path) = path.strip_prefix("tests/") {
                let (test, inside) = path.split_once('/').unwrap_or((path, ""));
                let set = package.integration.entry(test.trim_end_matches(".rs").to_owned()).or_default();
                set.extend(paths(inside, file));
            }
        }
        packages.insert(name.to_owned(), package);
    }
    packages
}

/// The path of a file's module, and those of the modules and functions in it, alone and in a module of tests.
fn paths(path: &str, file: &SourceFile) -> Vec<String> {
    let module = path.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
    let mut paths = vec![module.clone()];
    for (_, line) in file.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(at) = words.iter().position(|word| matches!(*word, "fn" | "mod")) else { continue };
        let name: String = words.get(at + 1).map_or(String::new(), |word| {
            word.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
        });
        if !name.is_empty() {
            paths.push(format!("{module}::{name}"));
            paths.push(format!("{module}::tests::{name}"));
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(page: &str) -> Vec<SourceFile> {
        vec![
            SourceFile::of("agent/a/Cargo.toml", "[package]\nname = \"agent-a\"\n"),
            SourceFile::of("agent/a/src/lib.rs", "pub mod logs;\n"),
            SourceFile::of(
                "agent/a/src/logs/tail.rs",
                "mod tests {\n    #[test]\n    async fn lines_come_whole() {}\n}\n",
            ),
            SourceFile::of("agent/a/tests/commands.rs", "#[test]\nfn added() {}\n"),
            SourceFile::of("agent/sim/Cargo.toml", "[package]\nname = \"agent-sim\"\n"),
            SourceFile::of("agent/sim/tests/stopping.rs", "fn stops() {}\n"),
            SourceFile::of("docs/a.md", page),
        ]
    }

    #[test]
    fn commands_that_run_no_test_are_found() {
        for bad in [
            "cargo test -p agent-b",
            "cargo test -p agent-a gone",
            "cargo test -p agent-a -- logs gone",
            "cargo test -p agent-a --lib added",
            "cargo test -p agent-a --test gone",
            "cargo test -p agent-a --test commands lines_come_whole",
            "cargo test -p agent-a logs tail",
            "cargo test -p agent-a logs::gone",
            "cargo test -p",
            "N=1 cargo sim --test gone",
        ] {
            for page in [format!("# A\n| a | `{bad}` |\n"), format!("```\n{bad}  explained\n```\n")] {
                let findings = tests(&tree(&page));
                assert_eq!(findings.len(), 1, "{page}");
                assert_eq!((findings[0].file.as_str(), findings[0].line), ("docs/a.md", 2), "{page}");
            }
        }
    }

    #[test]
    fn commands_that_run_tests_are_not_found() {
        for good in [
            "cargo test",
            "cargo test -p agent-a",
            "cargo test -p agent-a logs",
            "cargo test -p agent-a --lib -- logs lines_come",
            "cargo test -p agent-a logs::tail::tests::lines_come_whole",
            "cargo test -p agent-a --test commands added",
            "cargo test -p agent-a -p agent-sim stops",
            "N=1 cargo test --package agent-a --features x tail -- --ignored",
            "cargo sim",
            "ORLOP_SIM_SEEDS=5 cargo sim --test stopping",
            "cargo e2e run 'gone/*'",
            "the text cargo test -p gone",
        ] {
            assert_eq!(tests(&tree(&format!("`{good}` and `code`\n"))), [], "{good}");
        }
        assert_eq!(tests(&tree("cargo test -p gone\n")), [], "prose is no command");
    }
}
