//! The pages below `docs/reference/` are what the code says. `ORLOP_UPDATE_REFERENCE=1 cargo test -p agent-tidy --test reference` writes
//! them again.

use std::path::{Path, PathBuf};
use std::{env, fs};

use agent_tidy::tree::SourceFile;
use agent_tidy::{reference, tree};

fn root() -> PathBuf {
    // As it is now, not as it was compiled: checkouts that share a target directory share this binary.
    let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    Path::new(&package).join("../..")
}

fn files() -> Vec<SourceFile> {
    tree::read(&root()).expect("the tree can be read")
}

#[test]
fn pages_are_what_the_code_says() {
    let pages = reference::pages(&files()).unwrap_or_else(|finding| panic!("{finding}"));
    let mut old = Vec::new();
    for page in pages {
        let path = root().join(page.path);
        if env::var_os("ORLOP_UPDATE_REFERENCE").is_some() {
            fs::write(&path, &page.text).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        if committed != page.text {
            let differs = committed.lines().zip(page.text.lines()).position(|(old, new)| old != new);
            old.push(format!("{}:{}", page.path, differs.map_or(0, |at| at + 1)));
        }
    }
    assert!(
        old.is_empty(),
        "not what the code says, first in line: {}; run {}",
        old.join(", "),
        reference::COMMAND
    );
}

#[test]
fn sentences_of_a_node_are_in_the_runbooks() {
    let findings: Vec<String> =
        reference::sentences::unanswered(&files()).iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn events_have_their_reasons_in_the_table() {
    let findings: Vec<String> =
        reference::events::event_reasons(&files()).iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
