//! The parts of a bundle: what came, what is missing and why, and the manifest of both. Pure.
//!
//! In: answers of a node, as they come. Out: files in the order of asking, and `manifest.json`. Invariants: no text comes in but through
//! [`Redactor`], and none keeps control characters, because people look at parts in a terminal; a part has at most [`PART_MAX`] bytes
//! and all together [`BUNDLE_MAX`]; what was left out is said.

use std::collections::{BTreeSet, VecDeque};

use orlop_proto::node_api::API_VERSION;
use orlop_proto::node_api::v1alpha1::LogLine;
use serde_json::{Value, json};

use super::archive::{ArchiveFile, sha256};
use super::redact::Redactor;
use crate::logs;
use crate::render::{escaped, plain};

/// A part, bytes.
pub(crate) const PART_MAX: usize = 8 << 20;
/// All parts, bytes.
pub(crate) const BUNDLE_MAX: usize = 64 << 20;
/// Units and programs of a log that are remembered.
const SOURCES_MAX: usize = 4096;
/// The list of the parts, in the archive.
pub(crate) const MANIFEST: &str = "manifest.json";

/// A part that came.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BundlePart {
    file: ArchiveFile,
    masked: usize,
    /// What is left out of it; empty: nothing.
    note: String,
}

/// A part that did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MissingPart {
    /// Its path, had it come.
    pub(crate) path: String,
    /// The node's reason, or the client's.
    pub(crate) reason: String,
    /// For people.
    pub(crate) message: String,
    /// A healthy node may not have it.
    pub(crate) is_optional: bool,
}

/// What was gathered of a node.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    parts: Vec<BundlePart>,
    missing: Vec<MissingPart>,
    bytes: usize,
}

impl Bundle {
    /// A document came.
    pub(crate) fn add_document(&mut self, path: &str, mut document: Value) {
        let mut redactor = Redactor::default();
        redactor.document(&mut document);
        let text = escaped(&format!("{document:#}\n"));
        self.add(path, text, redactor.masked(), String::new());
    }

    /// Lines came. `note` says why there are no more.
    pub(crate) fn add_lines(&mut self, path: &str, lines: KeptLines, note: &str) {
        let mut notes = Vec::new();
        if lines.dropped > 0 {
            notes.push(format!("{} earlier lines are left out", lines.dropped));
        }
        if !note.is_empty() {
            notes.push(note.to_owned());
        }
        let masked = lines.redactor.masked();
        let text: String = lines.lines.into_iter().collect();
        self.add(path, text, masked, notes.join("; "));
    }

    /// A file came. One that is a document is redacted as one.
    pub(crate) fn add_file(&mut self, path: &str, text: &str, note: &str) {
        if let Ok(document @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
            return self.add_document(path, document);
        }
        let mut redactor = Redactor::default();
        let lines: Vec<String> = redactor.text(text).split('\n').map(plain).collect();
        self.add(path, lines.join("\n"), redactor.masked(), note.to_owned());
    }

    fn add(&mut self, path: &str, text: String, masked: usize, note: String) {
        if text.len() > PART_MAX || self.bytes + text.len() > BUNDLE_MAX {
            let message = format!("it has {} bytes: too many for this bundle", text.len());
            return self.miss(path, "TOO_LONG", message, false);
        }
        self.bytes += text.len();
        let file = ArchiveFile { path: path.to_owned(), bytes: text.into_bytes() };
        self.parts.push(BundlePart { file, masked, note });
    }

    /// A part did not come.
    pub(crate) fn miss(&mut self, path: &str, reason: &str, message: String, is_optional: bool) {
        let message = Redactor::default().text(&message);
        let (path, reason) = (path.to_owned(), reason.to_owned());
        self.missing.push(MissingPart { path, reason, message, is_optional });
    }

    /// Bytes that the next part may have.
    pub(crate) fn room(&self) -> usize {
        PART_MAX.min(BUNDLE_MAX.saturating_sub(self.bytes))
    }

    /// What did not come.
    pub(crate) fn missing(&self) -> &[MissingPart] {
        &self.missing
    }

    /// How many parts came.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The list of the parts: those that came, and those that did not.
    pub(crate) fn manifest(&self, node: &str, boot_id: &str, client: &str, made_at: &str) -> Value {
        let part = |part: &BundlePart| {
            json!({
                "path": part.file.path, "bytes": part.file.bytes.len(), "sha256": sha256(&part.file.bytes),
                "masked": part.masked, "note": part.note,
            })
        };
        let missing = |part: &MissingPart| {
            json!({
                "path": part.path, "reason": part.reason, "message": part.message, "optional": part.is_optional,
            })
        };
        json!({
            "apiVersion": API_VERSION, "kind": "Bundle", "node": node, "bootId": boot_id, "client": client,
            "madeAt": made_at,
            "parts": self.parts.iter().map(part).collect::<Vec<Value>>(),
            "missing": self.missing.iter().map(missing).collect::<Vec<Value>>(),
        })
    }

    /// The files of the archive, the manifest first.
    pub(crate) fn into_files(self, manifest: &Value) -> Vec<ArchiveFile> {
        let first = ArchiveFile {
            path: MANIFEST.to_owned(),
            bytes: escaped(&format!("{manifest:#}\n")).into_bytes(),
        };
        std::iter::once(first).chain(self.parts.into_iter().map(|part| part.file)).collect()
    }
}

/// The first lines of a file, within a number of bytes.
#[derive(Debug)]
pub(crate) struct FileLines {
    text: Option<String>,
    bytes_max: usize,
    is_cut: bool,
}

impl FileLines {
    /// None yet; at most `bytes_max` bytes are kept.
    pub(crate) fn new(bytes_max: usize) -> FileLines {
        FileLines { text: None, bytes_max, is_cut: false }
    }

    /// The next line.
    pub(crate) fn push(&mut self, line: &LogLine) {
        let length = self.text.as_ref().map_or(0, |text| text.len() + 1) + line.message.len();
        if self.is_cut || length > self.bytes_max {
            self.is_cut = true;
            return;
        }
        match &mut self.text {
            Some(text) => {
                text.push('\n');
                text.push_str(&line.message);
            }
            None => self.text = Some(line.message.clone()),
        }
    }

    /// The lines, and what is left out, if `note` does not say it yet.
    pub(crate) fn into_text(self, note: String) -> (String, String) {
        let note = if self.is_cut && note.is_empty() { "later lines are left out".to_owned() } else { note };
        (self.text.unwrap_or_default(), note)
    }
}

/// The newest lines of a log, within a number of bytes.
#[derive(Debug)]
pub(crate) struct KeptLines {
    lines: VecDeque<String>,
    bytes: usize,
    bytes_max: usize,
    dropped: usize,
    came: usize,
    redactor: Redactor,
    sources: BTreeSet<String>,
}

impl KeptLines {
    /// None yet; at most `bytes_max` bytes are kept.
    pub(crate) fn new(bytes_max: usize) -> KeptLines {
        KeptLines {
            lines: VecDeque::new(),
            bytes: 0,
            bytes_max,
            dropped: 0,
            came: 0,
            redactor: Redactor::default(),
            sources: BTreeSet::new(),
        }
    }

    /// The next line.
    pub(crate) fn push(&mut self, line: LogLine) {
        let message = self.redactor.text(&line.message);
        let text = logs::text(&LogLine { message, ..line.clone() });
        if !line.source.is_empty() && self.sources.len() < SOURCES_MAX {
            self.sources.insert(line.source);
        }
        self.came += 1;
        self.bytes += text.len();
        self.lines.push_back(text);
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= oldest.len();
            self.dropped += 1;
        }
    }

    /// How many came.
    pub(crate) fn came(&self) -> usize {
        self.came
    }

    /// Whether a line was left out for want of room.
    pub(crate) fn is_cut(&self) -> bool {
        self.dropped > 0
    }

    /// Units and programs that have said something.
    pub(crate) fn sources(&self) -> &BTreeSet<String> {
        &self.sources
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(message: &str) -> LogLine {
        LogLine {
            message: message.to_owned(),
            source: "a.service".to_owned(),
            time_us: 1,
            ..LogLine::default()
        }
    }

    fn of(bundle: &Bundle) -> Value {
        bundle.manifest("edge-7", "b", "1", "2026-11-30T12:00:00Z")
    }

    #[test]
    fn the_newest_lines_are_kept_and_the_others_counted() {
        let mut lines = KeptLines::new(110);
        for number in 0..10 {
            lines.push(line(&format!("number {number}")));
        }
        assert!(lines.is_cut() && lines.came() == 10);
        assert_eq!(lines.sources().iter().collect::<Vec<_>>(), ["a.service"]);
        let mut bundle = Bundle::default();
        bundle.add_lines("journal/boot-0.log", lines, "");
        let manifest = of(&bundle);
        assert_eq!(manifest["parts"][0]["note"], "8 earlier lines are left out");
        let files = bundle.into_files(&manifest);
        let text = String::from_utf8(files[1].bytes.clone()).unwrap();
        assert!(text.lines().count() == 2 && text.ends_with("a.service: number 9\n"), "{text}");
    }

    #[test]
    fn the_first_lines_of_a_file_are_kept() {
        let mut lines = FileLines::new(9);
        for message in ["", "one", "two", "three", "x"] {
            lines.push(&line(message));
        }
        assert_eq!(
            lines.into_text(String::new()),
            ("\none\ntwo".to_owned(), "later lines are left out".to_owned())
        );
        let mut whole = FileLines::new(9);
        whole.push(&line("one"));
        assert_eq!(whole.into_text("why".to_owned()), ("one".to_owned(), "why".to_owned()));
        assert_eq!(FileLines::new(9).into_text(String::new()), (String::new(), String::new()));
    }

    #[test]
    fn the_manifest_has_digests_masks_and_what_is_missing() {
        let mut bundle = Bundle::default();
        bundle.add_document("objects/node.json", json!({"token": "hunter2"}));
        bundle.add_file("files/a", "password=hunter2\nx", "cut");
        bundle.add_file("files/b.json", "{\"password\":\"hunter2\"}", "");
        bundle.miss("objects/boot.json", "PART_DOWN", "boot ledger: no, password=hunter2".to_owned(), false);
        let manifest = of(&bundle);
        assert_eq!((bundle.parts(), bundle.missing().len()), (3, 1));
        assert_eq!(
            (&manifest["parts"][0]["masked"], &manifest["parts"][1]["note"]),
            (&json!(1), &json!("cut"))
        );
        assert_eq!(manifest["missing"][0]["message"], "boot ledger: no, password=<secret>");
        let files = bundle.into_files(&manifest);
        assert_eq!(files[0].path, MANIFEST);
        assert_eq!(manifest["parts"][1]["sha256"], sha256(&files[2].bytes));
        for file in &files {
            assert!(!String::from_utf8_lossy(&file.bytes).contains("hunter2"), "{file:?}");
        }
    }

    #[test]
    fn no_part_has_control_characters() {
        let mut bundle = Bundle::default();
        bundle.add_file("files/a", "a\u{1b}[2J\nb\tc\u{9b}", "note\u{9b}");
        bundle.add_document("objects/processes.json", json!({"command": "x\u{9b}2J\u{202e}"}));
        bundle.miss("x", "y", "z\u{9b}".to_owned(), false);
        let manifest = of(&bundle);
        let files = bundle.into_files(&manifest);
        assert_eq!(files[1].bytes, "a?[2J\nb\tc?".as_bytes());
        for file in &files {
            let text = std::str::from_utf8(&file.bytes).unwrap();
            assert!(text.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()), "{text:?}");
        }
        let document: Value = serde_json::from_slice(&files[2].bytes).unwrap();
        assert_eq!(document["command"], "x\u{9b}2J\u{202e}");
    }

    #[test]
    fn more_than_a_bundle_has_is_missing_and_said() {
        let mut bundle = Bundle::default();
        let part = "x".repeat(PART_MAX);
        for number in 0..9 {
            bundle.add_file(&format!("files/{number}"), &part, "");
        }
        assert_eq!((bundle.parts(), bundle.room()), (BUNDLE_MAX / PART_MAX, 0));
        assert_eq!(bundle.missing()[0].reason, "TOO_LONG");
        let mut other = Bundle::default();
        other.add_file("files/long", &"x".repeat(PART_MAX + 1), "");
        assert_eq!((other.parts(), other.missing()[0].path.as_str()), (0, "files/long"));
    }
}
