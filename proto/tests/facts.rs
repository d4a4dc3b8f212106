//! Our CRI v1 against the table of facts read from the public contract of Kubernetes v1.36.

use orlop_proto::contract::{Contract, Gap};

const FACTS: &str = include_str!("../facts/cri-v1.36.tsv");

#[test]
fn every_fact_of_the_public_cri_holds() {
    let theirs = Contract::from_table(FACTS).unwrap();
    let ours = Contract::ours().unwrap();
    let differences: Vec<String> = ours.compare(&theirs).iter().map(ToString::to_string).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    // The comparison is only worth something over the whole contract.
    let fields: usize = theirs.messages.values().map(std::collections::BTreeMap::len).sum();
    let methods: Vec<usize> = theirs.services.values().map(std::collections::BTreeMap::len).collect();
    assert_eq!((theirs.messages.len(), fields, theirs.enums.len()), (MESSAGES, FIELDS, ENUMS));
    assert_eq!(methods, METHODS);
}

const MESSAGES: usize = 170;
const FIELDS: usize = 463;
const ENUMS: usize = 11;
/// ImageService, RuntimeService.
const METHODS: [usize; 2] = [6, 35];

#[test]
fn text_form_is_lossless() {
    let ours = Contract::ours().unwrap();
    assert_eq!(Contract::from_table(&ours.to_table()).unwrap(), ours);
}

#[test]
fn a_bad_line_is_named() {
    let message = Contract::from_table("# fine\nmessage\tA\tone\tb\tstring").unwrap_err().to_string();
    assert!(message.contains("line 2") && message.contains("one"), "{message}");
}

/// The comparison must see each kind of difference, or the test above proves nothing.
#[test]
fn differences_are_seen() {
    let ours = Contract::ours().unwrap();
    let cases = [
        (
            "message\tMount\t1\tcontainer_path\tstring",
            "message\tMount\t1\tcontainer_path\tint64",
            Gap::Conflict,
        ),
        (
            "message\tMount\t1\tcontainer_path\tstring",
            "message\tMount\t1\tcontainer_path\tbytes",
            Gap::Spelling,
        ),
        ("message\tMount\t1\tcontainer_path\tstring", "message\tMount\t1\tpath\tstring", Gap::Spelling),
        ("message\tMount\t2\thost_path\tstring", "message\tMount\t99\thost_path\tstring", Gap::OnlyTheirs),
        ("enum\tProtocol\t1\tUDP", "enum\tProtocol\t1\tSCTP", Gap::Conflict),
        ("message\tRemoveImageResponse\n", "message\tRemoveImageReply\n", Gap::OnlyTheirs),
        ("stream ContainerEventResponse", "ContainerEventResponse", Gap::Conflict),
    ];
    for (line, changed, gap) in cases {
        let table = ours.to_table();
        assert!(table.contains(line), "{line}");
        let theirs = Contract::from_table(&table.replacen(line, changed, 1)).unwrap();
        let gaps: Vec<Gap> = ours.compare(&theirs).iter().map(|d| d.gap).collect();
        assert!(gaps.contains(&gap), "{changed}: {gaps:?}");
    }
}
