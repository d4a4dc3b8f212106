//! The documents of docs/reference/network.md are taken as they stand there.

use orlop_config::node::{Source, load};

#[test]
fn every_document_of_the_page_is_taken() {
    // As it is now, not as it was compiled: checkouts that share a target directory share this binary.
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let page = std::fs::read_to_string(format!("{package}/../docs/reference/network.md")).expect("the page");
    let documents = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut taken = 0;
    for body in documents {
        let text = format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}");
        let source = Source { name: "esp".to_owned(), origin: "page".to_owned(), text };
        let effective = load(&[source], &[]);
        assert_eq!(effective.problems, [], "{body}");
        assert_eq!(effective.accepted, ["page"], "{body}");
        taken += 1;
    }
    assert_eq!(taken, 4);
}
