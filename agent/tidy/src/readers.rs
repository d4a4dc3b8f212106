//! Rule: each key of KubeletConfiguration has a reader, or stands in the table of keys that have none.
//!
//! In: the tracked files. Out: a finding for each field of the type that no product code reads and that
//! `config/src/kubelet/unread.rs` does not name. A setting that is accepted and ignored surprises an operator later.

use crate::Finding;
use crate::tree::SourceFile;

/// The file with the type.
const TYPES: &str = "config/src/kubelet/types.rs";
/// The file with the table of keys without a reader.
const UNREAD: &str = "config/src/kubelet/unread.rs";
/// Folders whose code counts as a reader.
const PRODUCT: [&str; 2] = ["agent/", "config/src/kubelet/"];
/// The functions of the type itself read some fields for everybody else.
const OWN: &str = "self";
/// Files and folders below them whose code checks or describes a key and does not act on it.
const NO_READERS: [&str; 6] =
    [TYPES, UNREAD, "config/src/kubelet/validate/", "config/src/kubelet/flags/", "agent/tidy/", "agent/sim/"];

/// Every field has a reader or an entry in the table.
#[must_use]
pub fn keys(files: &[SourceFile]) -> Vec<Finding> {
    let Some(types) = files.iter().find(|file| file.path == TYPES) else {
        return vec![Finding::new(
            TYPES,
            0,
            "the type KubeletConfiguration is not there: mend the rule `readers`",
        )];
    };
    let table = files
        .iter()
        .find(|file| file.path == UNREAD)
        .and_then(|file| file.text.as_deref())
        .unwrap_or_default();
    let fields = fields(types.text.as_deref().unwrap_or_default());
    if fields.len() < 100 {
        let message = format!("only {} fields were understood: mend the rule `readers`", fields.len());
        return vec![Finding::new(TYPES, 0, message)];
    }
    let readers: Vec<&SourceFile> = files.iter().filter(|file| may_read(&file.path)).collect();
    let mut findings = Vec::new();
    for Field { line, name, key } in fields {
        let quoted = format!("\"{key}\"");
        let own = types.text.as_deref().is_some_and(|text| reads(text, &format!("{OWN}.{name}")));
        let read = own
            || readers.iter().any(|file| {
                file.text.as_deref().is_some_and(|text| reads(text, &name)) || in_config(file, &quoted)
            });
        if !read && !table.contains(&quoted) {
            let message = format!(
                "no component reads `{key}`: let one act on it, or name it in {UNREAD} with the reason"
            );
            findings.push(Finding::new(TYPES, line, message));
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

    fn findings(reader: &str, table: &str) -> Vec<String> {
        let all: String = (0..100).map(|n| format!("kubelet.field_{n};\n")).collect();
        let files = [
            file(TYPES, &types()),
            file(UNREAD, table),
            file("agent/daemon/src/all.rs", &all),
            file("agent/daemon/src/one.rs", reader),
        ];
        keys(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_key_without_a_reader_is_found_with_its_line() {
        let found = findings("kubelet.max_size_other;", "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("config/src/kubelet/types.rs:203: no component reads `maxSize`"),
            "{found:?}"
        );
    }

    #[test]
    fn a_reader_or_an_entry_of_the_table_is_enough() {
        assert_eq!(findings("kubelet.max_size.parse()", ""), Vec::<String>::new());
        assert_eq!(findings("", "(\"maxSize\", Treatment::Noted, \"\")"), Vec::<String>::new());
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
        assert_eq!(keys(&[file(TYPES, "struct K;")]).len(), 1);
        assert_eq!(keys(&[]).len(), 1);
    }
}
