//! Rule: each key of KubeletConfiguration has a reader, or stands in the table of keys that have none.
//!
//! In: the tracked files. Out: a finding for each field of the type, and of the objects inside it, that no product code reads and that
//! `config/src/kubelet/unread.rs` does not name. A setting that is accepted and ignored surprises an operator later.

use crate::Finding;
use crate::tree::SourceFile;

/// The file with the type.
const TYPES: &str = "config/src/kubelet/types.rs";
/// The file with the objects inside of the type.
const NESTED: &str = "config/src/kubelet/nested.rs";
/// The files, and how many fields each has at least.
const SOURCES: [(&str, usize); 2] = [(TYPES, 100), (NESTED, 30)];
/// Keys of objects that need no reader, and the reason.
const BELOW: [(&str, &str); 6] = [
    ("endpoint", "the agent refuses tracing"),
    ("samplingRatePerMillion", "the agent refuses tracing"),
    ("filePattern", "the agent reports vmodule"),
    ("splitStream", "the agent reports the options of logging"),
    ("infoBufferSize", "the agent reports the options of logging"),
    ("timeAdded", "validation refuses it"),
];
/// The file with the table of keys without a reader.
const UNREAD: &str = "config/src/kubelet/unread.rs";
/// Folders whose code counts as a reader.
const PRODUCT: [&str; 2] = ["agent/", "config/src/kubelet/"];
/// The functions of the type itself read some fields for everybody else.
const OWN: &str = "self";
/// Files and folders below them whose code checks or describes a key and does not act on it.
const NO_READERS: [&str; 7] = [
    TYPES,
    NESTED,
    UNREAD,
    "config/src/kubelet/validate/",
    "config/src/kubelet/flags/",
    "agent/tidy/",
    "agent/sim/",
];

/// Every field has a reader or an entry in the table.
#[must_use]
pub fn keys(files: &[SourceFile]) -> Vec<Finding> {
    SOURCES.iter().flat_map(|(path, least)| keys_of(files, path, *least)).collect()
}

/// The findings of one file with fields.
fn keys_of(files: &[SourceFile], path: &str, least: usize) -> Vec<Finding> {
    let text_of =
        |path: &str| files.iter().find(|file| file.path == path).and_then(|file| file.text.as_deref());
    let Some(types) = text_of(path) else {
        return vec![Finding::new(
            path,
            0,
            "keys of KubeletConfiguration are not there: mend the rule `readers`",
        )];
    };
    let table = text_of(UNREAD).unwrap_or_default();
    let fields = fields(types);
    if fields.len() < least {
        let message = format!("only {} fields were understood: mend the rule `readers`", fields.len());
        return vec![Finding::new(path, 0, message)];
    }
    let readers: Vec<&SourceFile> = files.iter().filter(|file| may_read(&file.path)).collect();
    let mut findings = Vec::new();
    for Field { line, name, key } in fields {
        let quoted = format!("\"{key}\"");
        let read = reads(types, &format!("{OWN}.{name}"))
            || readers.iter().any(|file| {
                file.text.as_deref().is_some_and(|text| reads(text, &name)) || in_config(file, &quoted)
            });
        let named = table.contains(&quoted) || table.contains(&format!(".{key}\""));
        if !read && !named && !BELOW.iter().any(|(below, _)| *below == key) {
            let message = format!(
                "no component reads `{key}`: let one act on it, or name it in {UNREAD} with the reason"
            );
            findings.push(Finding::new(path, line, message));
        }
    }
    findings
}

/// A field of the type.
struct Field {
    line: usize,
    name: String,
    key: String,
}

/// The fields of `config_struct!`: `name: Type = default, "key", …;`, over one or more lines.
fn fields(text: &str) -> Vec<Field> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String, String)> = None;
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        let trimmed = line.trim();
        if open.is_none()
            && let Some((name, _)) = trimmed.split_once(": ")
            && trimmed.contains(" = ")
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        {
            open = Some((number + 1, name.to_owned(), String::new()));
        }
        if let Some((_, _, statement)) = &mut open {
            statement.push_str(trimmed);
            if trimmed.ends_with(';')
                && let Some((line, name, statement)) = open.take()
                && let Some(key) = last_key(&statement)
            {
                found.push(Field { line, name, key });
            }
        }
    }
    found
}

/// The last quoted word of letters and digits that begins with a small letter.
fn last_key(statement: &str) -> Option<String> {
    let quoted = statement.split('"').skip(1).step_by(2);
    let is_key = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(|c| c.is_ascii_alphanumeric())
    };
    quoted.filter(is_key).last().map(str::to_owned)
}

fn may_read(path: &str) -> bool {
    let rust = std::path::Path::new(path).extension().is_some_and(|extension| extension == "rs");
    let test = path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("/testing.rs");
    rust && !test
        && PRODUCT.iter().any(|folder| path.starts_with(folder))
        && !NO_READERS.iter().any(|folder| path.starts_with(folder))
}

/// The text has `.name` as a whole word.
fn reads(text: &str, name: &str) -> bool {
    let word = if name.contains('.') { name.to_owned() } else { format!(".{name}") };
    text.match_indices(&word).any(|(at, _)| {
        let after = text[at + word.len()..].chars().next();
        !after.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The loader reads keys by name, before there is a typed configuration.
fn in_config(file: &SourceFile, quoted: &str) -> bool {
    file.path.starts_with("config/src/kubelet/")
        && file.text.as_deref().is_some_and(|text| text.contains(quoted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile::of(path, text)
    }

    fn types() -> String {
        let mut text = "config_struct! {\n    pub struct K {\n".to_owned();
        for n in 0..100 {
            text.push_str(&format!(
                "        /// A field.\n        field_{n}: i32 = {n}, \"field{n}\", at_least(0);\n"
            ));
        }
        text.push_str("        max_size: String = \"10Mi\".to_owned(),\n            \"maxSize\", zero_unset;\n    }\n}\n");
        text
    }

    fn nested() -> String {
        let field = |n: usize| format!("        part_{n}: i32 = {n}, \"part{n}\";\n");
        let mut text: String = (0..30).map(field).collect();
        text.push_str(
            "        deep_size: i32 = 0, \"deepSize\";\n        time_added: i32 = 0, \"timeAdded\";\n",
        );
        text
    }

    fn findings(reader: &str, table: &str) -> Vec<String> {
        let mut all: String = (0..100).map(|n| format!("kubelet.field_{n};\n")).collect();
        all.extend((0..30).map(|n| format!("kubelet.part_{n};\n")));
        let files = [
            file(TYPES, &types()),
            file(NESTED, &nested()),
            file(UNREAD, table),
            file("agent/daemon/src/all.rs", &all),
            file("agent/daemon/src/one.rs", reader),
        ];
        keys(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_key_without_a_reader_is_found_with_its_line() {
        let found = findings("kubelet.max_size_other; kubelet.deep_size", "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("config/src/kubelet/types.rs:203: no component reads `maxSize`"),
            "{found:?}"
        );
    }

    #[test]
    fn a_reader_or_an_entry_of_the_table_is_enough() {
        assert_eq!(findings("kubelet.max_size.parse(); nested.deep_size", ""), Vec::<String>::new());
        let table = "(\"maxSize\", Treatment::Noted, \"\"), (\"whole.deepSize\", Treatment::Noted, \"\")";
        assert_eq!(findings("", table), Vec::<String>::new());
    }

    #[test]
    fn a_key_inside_of_an_object_needs_a_reader_too() {
        let found = findings("kubelet.max_size", "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("config/src/kubelet/nested.rs:31: no component reads `deepSize`"),
            "{found:?}"
        );
    }

    #[test]
    fn checks_and_tests_are_no_readers() {
        for path in
            ["config/src/kubelet/validate/mod.rs", "agent/daemon/src/x/tests.rs", "agent/sim/src/a.rs"]
        {
            assert!(!may_read(path), "{path}");
        }
    }

    #[test]
    fn a_type_that_is_not_understood_is_a_finding() {
        assert_eq!(keys(&[file(TYPES, "struct K;"), file(NESTED, "struct L;")]).len(), 2);
        assert_eq!(keys(&[]).len(), 2);
    }
}
