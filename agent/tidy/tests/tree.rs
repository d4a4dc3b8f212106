//! The rules of agent-tidy over this tree. A breach fails with file, line and what to do.

use std::path::{Path, PathBuf};
use std::process::Command;

use agent_tidy::tree::SourceFile;
use agent_tidy::{
    Finding, cases, crates, features, layout, manifest, names, pages, ranks, readers, references, remedies,
    text, tree,
};

fn root() -> PathBuf {
    // As it is now, not as it was compiled: checkouts that share a target directory share this binary.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    Path::new(&package).join("../..")
}

fn files() -> Vec<SourceFile> {
    let files = tree::read(&root()).expect("the tree can be read");
    assert!(files.iter().any(|f| f.path == "agent/tidy/tests/tree.rs"), "this is not the repository");
    files
}

fn check(findings: Vec<Finding>) {
    let (fail, warn): (Vec<_>, Vec<_>) = findings.into_iter().partition(|f| f.fails);
    for finding in &warn {
        eprintln!("warning: {finding}");
    }
    let list: Vec<String> = fail.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} breaches:\n{}", list.len(), list.join("\n"));
}

#[test]
fn file_sizes() {
    check(layout::sizes(&files()));
}

#[test]
fn keys_of_the_kubelet_configuration() {
    check(readers::keys(&files()));
}

#[test]
fn headers() {
    check(layout::headers(&files()));
}

#[test]
fn top_level_entries() {
    check(layout::top_level(&files()));
}

#[test]
fn forbidden_words_and_paths() {
    check(text::forbidden(&files()));
}

#[test]
fn ignored_tests_say_why() {
    check(text::ignored_tests(&files()));
}

#[test]
fn nothing_sleeps() {
    check(text::sleeps(&files()));
}

#[test]
fn tasks_have_owners() {
    check(text::spawns(&files()));
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    check(text::forbids_unsafe(&files()));
}

#[test]
fn names_of_types_say_their_meaning() {
    check(names::bare(&files()));
}

#[test]
fn cases_are_where_their_names_say() {
    check(cases::places(&files()));
}

#[test]
fn table_cells_are_short() {
    check(pages::cells(&files()));
}

#[test]
fn links_of_pages_resolve() {
    check(pages::links(&files()));
}

#[test]
fn named_pages_exist() {
    check(pages::mentions(&files()));
}

#[test]
fn messages_ask_for_no_shell() {
    check(remedies::commands_for_a_shell(&files()));
}

#[test]
fn references_are_to_public_sources() {
    check(references::outside_texts(&files()));
}

#[test]
fn named_paths_exist() {
    check(references::paths(&files()));
}

#[test]
fn dependencies_have_reasons_and_one_version() {
    let files = files();
    let root = files.iter().find(|f| f.path == "Cargo.toml").expect("the workspace has a manifest");
    check(manifest::reasons(root));
    check(manifest::inherited(&files));
}

#[test]
fn dependency_directions() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    check(crates::directions(&String::from_utf8_lossy(&output.stdout)).expect("metadata is JSON"));
}

#[test]
fn features_of_tests_are_named() {
    let tree = |edges: &str| {
        let output = Command::new(env!("CARGO"))
            .args([
                "tree",
                "--offline",
                "--workspace",
                "--edges",
                edges,
                "--prefix",
                "none",
                "--format",
                "{p}|{f}",
            ])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    check(features::of_tests_alone(&tree("normal,build"), &tree("normal,build,dev")));
}

#[test]
fn folders_keep_their_ranks() {
    check(ranks::ranks(&files()));
}

#[test]
fn crates_are_documented() {
    let files = files();
    let page = files.iter().find(|f| f.path == "docs/internals/architecture.md").expect("the page exists");
    check(crates::documented(page.text.as_deref().unwrap_or_default()));
}

#[test]
fn commands_of_pages_run_tests() {
    check(agent_tidy::commands::tests(&files()));
}
