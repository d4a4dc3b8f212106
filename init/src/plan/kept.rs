//! First-boot sources: when drives and the ESP are read, and the record of their accepted text that later boots read instead.
//!
//! Otherwise everybody who can write to an attached device could configure the node. Invariants: they are read only
//! while the state partition has no record, or because the command line says so; the record is one file, so a power cut
//! leaves a whole record or a boot that is still a first boot; a record that cannot be read ends the first boot, too.

use super::source::{Document, Kind};
use serde_json::{Value, json};

/// The record, below /var. It may hold a token: mode 0600.
pub const FILE: &str = "lib/orlop/config/first-boot.json";
/// Largest record that is read, bytes: room for all documents, however JSON escapes them.
pub const BYTES_MAX: u64 = 32 << 20;

/// The state partition's word about the first boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstBootRecord {
    /// There is no record: this boot is the first, or the first with a version that keeps one.
    Absent,
    /// The first boot is over; it accepted these documents.
    Accepted(Vec<Document>),
    /// The state partition or its record cannot be used, for this reason: the first boot may be over.
    Unknown(String),
}

impl FirstBootRecord {
    /// Are drives and the ESP's file read in this boot?
    #[must_use]
    pub fn reads_media(&self, always: bool) -> bool {
        always || *self == FirstBootRecord::Absent
    }
}

/// Is this a source on a medium that others may have attached or written?
#[must_use]
pub fn is_medium(kind: Kind) -> bool {
    matches!(kind, Kind::Esp | Kind::Drive)
}

/// Reads a record.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<Vec<Document>, String> {
    let record: Value = serde_json::from_str(text).map_err(|e| format!("it is damaged: {e}"))?;
    if record["version"] != 1 {
        return Err("its version is not 1: another image has written it".into());
    }
    let document = |entry: &Value| {
        let kind = match entry["source"].as_str()? {
            "esp" => Kind::Esp,
            "drive" => Kind::Drive,
            _ => return None,
        };
        let (origin, text) = (entry["origin"].as_str()?.into(), entry["text"].as_str()?.into());
        Some(Document { kind, origin, text, kept: true })
    };
    let documents = record["documents"].as_array().and_then(|all| all.iter().map(document).collect());
    documents.ok_or_else(|| "a document of it has no source, origin or text".into())
}

/// The record's text.
#[must_use]
pub fn render(documents: &[Document]) -> String {
    let document = |d: &Document| json!({ "source": d.kind.name(), "origin": d.origin.as_str(), "text": d.text.as_str() });
    let documents: Vec<Value> = documents.iter().map(document).collect();
    format!("{}\n", json!({ "version": 1, "documents": documents }))
}

/// Adds the kept documents of each kind that this boot found no document of; in rising precedence.
pub fn complete(documents: &mut Vec<Document>, kept: &FirstBootRecord) {
    if let FirstBootRecord::Accepted(kept) = kept {
        let missing = |d: &&Document| !documents.iter().any(|found| found.kind == d.kind);
        let missing: Vec<Document> = kept.iter().filter(missing).cloned().collect();
        documents.extend(missing);
        documents.sort_by_key(|d| d.kind);
    }
}

/// The result of a boot's merge, as far as the record depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// The record as this boot found it.
    pub before: &'a FirstBootRecord,
    /// All documents that were offered.
    pub documents: &'a [Document],
    /// Those that count, by [`Document::shown`]; each `orlop.set=` is among them.
    pub accepted: &'a [String],
    /// A drive or the ESP's file was there and could not be read.
    pub unreadable: bool,
}

/// The documents of the record that is to be written; `None` if it stays as it is. A node that runs on
/// defaults because its drive's or ESP's text was refused has not had its first boot: a person can correct the text there.
#[must_use]
pub fn record(outcome: &Outcome<'_>) -> Option<Vec<Document>> {
    let counts = |d: &Document| outcome.accepted.contains(&d.shown());
    let taken = |d: &&Document| is_medium(d.kind) && !d.kept && counts(d);
    let mut keep: Vec<Document> = outcome.documents.iter().filter(taken).cloned().collect();
    keep.iter_mut().for_each(|d| d.kept = true);
    let before = match outcome.before {
        FirstBootRecord::Accepted(before) => before.as_slice(),
        FirstBootRecord::Absent => {
            let refused = outcome.documents.iter().any(|d| is_medium(d.kind) && !counts(d));
            let image = outcome.documents.iter().filter(|d| d.kind == Kind::Image && counts(d)).count();
            if (refused || outcome.unreadable) && outcome.accepted.len() == image {
                return None;
            }
            &[]
        }
        // An unreadable record gives way to a document that was taken on purpose, and to nothing else.
        FirstBootRecord::Unknown(_) if keep.is_empty() => return None,
        FirstBootRecord::Unknown(_) => &[],
    };
    let missing = |d: &&Document| !keep.iter().any(|new| new.kind == d.kind);
    let missing: Vec<Document> = before.iter().filter(missing).cloned().collect();
    keep.extend(missing);
    keep.sort_by_key(|d| d.kind);
    (!matches!(outcome.before, FirstBootRecord::Accepted(_)) || keep != before).then_some(keep)
}

/// The line about attached sources that were not read.
#[must_use]
pub fn ignored(names: &[String], kept: &FirstBootRecord) -> String {
    let why = match kept {
        FirstBootRecord::Unknown(why) => format!("this may not be the node's first boot ({why})"),
        _ => "this is not the node's first boot; the text that its first boot accepted counts".into(),
    };
    format!(
        "configuration is ignored: {}: {why}. To apply it on purpose, boot with orlop.drive=always on the kernel command line",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn document(kind: Kind, text: &str) -> Document {
        Document { kind, origin: format!("{}:{text}", kind.name()), text: text.into(), kept: false }
    }

    fn kept(kind: Kind, text: &str) -> Document {
        Document { kept: true, ..document(kind, text) }
    }

    fn after(before: &FirstBootRecord, documents: &[Document], refused: &[&str]) -> Option<Vec<Document>> {
        let counts = |d: &&Document| !refused.contains(&d.text.as_str());
        let accepted: Vec<String> = documents.iter().filter(counts).map(Document::shown).collect();
        record(&Outcome { before, documents, accepted: &accepted, unreadable: false })
    }

    #[test]
    fn media_are_read_at_the_first_boot_and_on_purpose() {
        let states = [
            (FirstBootRecord::Absent, true),
            (FirstBootRecord::Accepted(vec![]), false),
            (FirstBootRecord::Accepted(vec![kept(Kind::Drive, "a")]), false),
            (FirstBootRecord::Unknown("damaged".into()), false),
        ];
        for (state, first) in states {
            assert_eq!((state.reads_media(false), state.reads_media(true)), (first, true), "{state:?}");
        }
    }

    #[test]
    fn the_first_boot_keeps_what_counts() {
        let all = [
            document(Kind::Image, "i"),
            document(Kind::Esp, "e"),
            document(Kind::Drive, "d"),
            document(Kind::Smbios, "s"),
        ];
        assert_eq!(
            after(&FirstBootRecord::Absent, &all, &[]),
            Some(vec![kept(Kind::Esp, "e"), kept(Kind::Drive, "d")])
        );
        assert_eq!(after(&FirstBootRecord::Absent, &all, &["d"]), Some(vec![kept(Kind::Esp, "e")]));
        // Also when there was nothing, and when all of it was refused but the node is configured otherwise.
        assert_eq!(after(&FirstBootRecord::Absent, &[], &[]), Some(vec![]));
        assert_eq!(after(&FirstBootRecord::Absent, &all[2..], &["d"]), Some(vec![]));
    }

    #[test]
    fn a_refused_drive_alone_does_not_end_the_first_boot() {
        let only = [document(Kind::Image, "i"), document(Kind::Drive, "d")];
        assert_eq!(after(&FirstBootRecord::Absent, &only, &["d"]), None);
        assert_eq!(after(&FirstBootRecord::Absent, &only, &[]), Some(vec![kept(Kind::Drive, "d")]));
        let outcome =
            Outcome { before: &FirstBootRecord::Absent, documents: &[], accepted: &[], unreadable: true };
        assert_eq!(record(&outcome), None);
        let sets = ["orlop.set=node.name".to_string()];
        assert_eq!(record(&Outcome { accepted: &sets, ..outcome }), Some(vec![]));
    }

    #[test]
    fn later_boots_complete_and_leave_the_record() {
        let before = FirstBootRecord::Accepted(vec![kept(Kind::Esp, "e"), kept(Kind::Drive, "d")]);
        let mut documents = vec![document(Kind::Image, "i"), document(Kind::Cmdline, "c")];
        complete(&mut documents, &before);
        let texts: Vec<&str> = documents.iter().map(|d| d.text.as_str()).collect();
        assert_eq!(texts, ["i", "e", "d", "c"]);
        assert!(documents[1].shown().ends_with(", kept since the first boot"), "{}", documents[1].shown());
        assert_eq!(after(&before, &documents, &[]), None);
        // A kept document stays in the record when this boot refuses it.
        assert_eq!(after(&before, &documents, &["d"]), None);
        let damaged = FirstBootRecord::Unknown(String::new());
        assert_eq!(after(&damaged, &documents[..1], &[]), None);
        assert_eq!(after(&damaged, &[document(Kind::Drive, "x")], &[]), Some(vec![kept(Kind::Drive, "x")]));
    }

    #[test]
    fn what_is_taken_on_purpose_replaces_its_kind() {
        let before = FirstBootRecord::Accepted(vec![kept(Kind::Esp, "e"), kept(Kind::Drive, "d")]);
        let mut documents = vec![document(Kind::Drive, "n")];
        complete(&mut documents, &before);
        assert_eq!(documents, [kept(Kind::Esp, "e"), document(Kind::Drive, "n")]);
        assert_eq!(after(&before, &documents, &[]), Some(vec![kept(Kind::Esp, "e"), kept(Kind::Drive, "n")]));
        assert_eq!(after(&before, &documents, &["n"]), None, "a refused document takes nothing away");
    }

    #[test]
    fn the_record_comes_back_and_a_damaged_one_is_none() {
        let documents = [kept(Kind::Esp, "a: \"b\"\n\u{1}"), kept(Kind::Drive, "")];
        let text = render(&documents);
        assert_eq!(parse(&text), Ok(documents.to_vec()));
        assert_eq!(parse(&render(&[])), Ok(vec![]));
        for cut in [0, 1, text.len() / 2, text.len() - 3] {
            assert!(parse(&text[..cut]).is_err(), "{cut}");
        }
        for bad in [
            "{}",
            "[]",
            r#"{"version": 2, "documents": []}"#,
            r#"{"version": 1}"#,
            r#"{"version": 1, "documents": [{"source": "smbios", "origin": "", "text": ""}]}"#,
            r#"{"version": 1, "documents": [{"source": "esp", "text": ""}]}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_line_names_the_drive_and_the_way() {
        let names = ["drive /dev/vdb (CIDATA)".to_string()];
        for (kept, why) in [
            (FirstBootRecord::Accepted(vec![]), "not the node's first boot"),
            (FirstBootRecord::Unknown("x".into()), "(x)"),
        ] {
            let line = ignored(&names, &kept);
            assert!(
                line.contains(&names[0]) && line.contains("orlop.drive=always") && line.contains(why),
                "{line}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_record(text in ".{0,200}") {
            let _ = parse(&text);
        }

        #[test]
        fn any_text_is_kept_as_it_is(texts in proptest::collection::vec(any::<String>(), 0..4)) {
            let documents: Vec<Document> = texts.iter().map(|t| kept(Kind::Drive, t)).collect();
            prop_assert_eq!(parse(&render(&documents)), Ok(documents));
        }
    }
}
