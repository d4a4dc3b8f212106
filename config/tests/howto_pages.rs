//! The NodeConfigs of `docs/howto/` and `docs/start/` are taken as they stand there.

use orlop_config::node::{Source, load};

#[test]
fn every_document_of_the_pages_is_taken() {
    // As it is now, not as it was compiled: checkouts that share a target directory share this binary.
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let mut taken = 0;
    for folder in ["howto", "start"] {
        let pages = std::fs::read_dir(format!("{package}/../docs/{folder}")).expect("the folder");
        for page in pages {
            let path = page.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("a page");
            for body in text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
                assert!(
                    body.contains("kind: NodeConfig"),
                    "{}: is no whole document:\n{body}",
                    path.display()
                );
                let source =
                    Source { name: "esp".to_owned(), origin: "page".to_owned(), text: body.to_owned() };
                let effective = load(&[source], &[]);
                assert_eq!(effective.problems, [], "{}:\n{body}", path.display());
                assert_eq!(effective.accepted, ["page"], "{}:\n{body}", path.display());
                taken += 1;
            }
        }
    }
    assert!(taken >= 12, "only {taken} documents");
}
