//! The formats as they stand on disk and on the wire: other parts and older boots depend on them.

use super::*;
use proptest::prelude::*;

fn entry(phase: &str) -> LedgerEntry {
    LedgerEntry { phase: phase.to_owned(), at_ms: 1200, took_ms: None, detail: String::new(), ok: true }
}

#[test]
fn the_ledger_as_text() {
    let ledger = Ledger {
        boot_id: "b".to_owned(),
        entries: vec![
            entry("kernel"),
            LedgerEntry { took_ms: Some(7), detail: "sda2".to_owned(), ok: false, ..entry("init.verity") },
        ],
    };
    let text = ledger.render();
    let want = "{\n  \"boot_id\": \"b\",\n  \"entries\": [\n    {\n      \"phase\": \"kernel\",\n      \"at_ms\": 1200\n    \
                },\n    {\n      \"phase\": \"init.verity\",\n      \"at_ms\": 1200,\n      \"took_ms\": 7,\n      \
                \"detail\": \"sda2\",\n      \"ok\": false\n    }\n  ]\n}\n";
    assert_eq!(text, want);
    assert_eq!(Ledger::parse(&text).expect("own text"), ledger);
}

#[test]
fn an_empty_file_is_an_empty_ledger_and_a_torn_one_is_an_error() {
    assert_eq!(Ledger::parse(" \n").expect("empty"), Ledger::default());
    assert!(Ledger::parse("{\"boot_id\": \"b\", \"entr").is_err());
    assert!(Ledger::parse("{\"entries\": []}").is_err(), "a ledger names its boot");
}

#[test]
fn lines_of_the_host_channel() {
    let table = [
        (HostMessage::Ledger(entry("a")), "{\"kind\":\"ledger\",\"phase\":\"a\",\"at_ms\":1200}\n"),
        (
            HostMessage::PodOutput { pod: "d/p".into(), container: "c".into(), line: "a\nb\"".into() },
            "{\"kind\":\"pod-output\",\"pod\":\"d/p\",\"container\":\"c\",\"line\":\"a\\nb\\\"\"}\n",
        ),
        (
            HostMessage::Problem { source: "init".into(), message: "m".into() },
            "{\"kind\":\"problem\",\"source\":\"init\",\"message\":\"m\"}\n",
        ),
    ];
    for (message, line) in table {
        assert_eq!(message.render_line(), line);
        assert_eq!(serde_json::from_str::<HostMessage>(line).expect("own line"), message);
    }
}

proptest! {
    #[test]
    fn any_ledger_reads_back(
        boot_id in "\\PC{0,8}",
        raw in proptest::collection::vec(("\\PC{0,8}", any::<u64>(), any::<Option<u64>>(), "\\PC{0,8}", any::<bool>()), 0..4),
    ) {
        let entries = raw
            .into_iter()
            .map(|(phase, at_ms, took_ms, detail, ok)| LedgerEntry { phase, at_ms, took_ms, detail, ok })
            .collect();
        let ledger = Ledger { boot_id, entries };
        prop_assert_eq!(Ledger::parse(&ledger.render()).expect("own text"), ledger);
    }

    #[test]
    fn one_message_is_one_line(line in "\\PC{0,20}\n?\\PC{0,20}") {
        let text = HostMessage::PodOutput { pod: String::new(), container: String::new(), line }.render_line();
        prop_assert_eq!(text.matches('\n').count(), 1);
    }
}
