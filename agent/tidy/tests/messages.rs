//! The list of warnings and errors is that of the code. `ORLOP_UPDATE_MESSAGES=1 cargo test -p agent-tidy --test messages` writes it
//! again.

use std::path::Path;
use std::{env, fs};

use agent_tidy::{messages, tree};

#[test]
fn wording_of_warnings_and_errors() {
    // As it is now, not as it was compiled: checkouts that share a target directory share this binary.
    let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let root = Path::new(&package).join("../..");
    let list = messages::list(&tree::read(&root).expect("the tree can be read"));
    assert!(list.lines().count() > 300, "the list has {} lines: mend its rule", list.lines().count());
    let path = root.join(messages::LIST);
    if env::var_os("ORLOP_UPDATE_MESSAGES").is_some() {
        fs::write(&path, &list).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let only = |one: &str, other: &str| -> Vec<String> {
        one.lines().filter(|line| !other.lines().any(|o| o == *line)).map(str::to_owned).collect()
    };
    assert!(
        committed == list,
        "{} is not what the code says.\nnew:\n{}\ngone:\n{}\nLook at the wording, then run \
         ORLOP_UPDATE_MESSAGES=1 cargo test -p agent-tidy --test messages",
        messages::LIST,
        only(&list, &committed).join("\n"),
        only(&committed, &list).join("\n")
    );
}
