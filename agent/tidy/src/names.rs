//! Rule about names of types: a name says its meaning also where no path stands before it.
//!
//! In: the Rust files. Out: a finding for each struct, enum, union, trait or type alias with a name of [`BANNED`]. Associated types
//! (`type State = …` in an `impl` or a trait) pass: the trait gives their meaning.

use syn::visit::{self, Visit};
use syn::{Ident, ItemEnum, ItemStruct, ItemTrait, ItemType, ItemUnion};

use crate::Finding;
use crate::tree::SourceFile;

/// Words that fit every module and therefore mean nothing alone: a reader who meets one in a signature, a search result or a
/// compiler message has to find the file first. Bare, none of them names a type.
pub const BANNED: &[&str] = &[
    "About", "Again", "Answer", "Answered", "Answers", "Anyone", "Asked", "Asking", "At", "Bad", "Below",
    "Beside", "Board", "Book", "Both", "Busy", "Chosen", "Comes", "Counted", "Course", "Deed", "Desired",
    "Ended", "Ends", "Entry", "Filed", "Found", "Give", "Given", "Going", "GoingOn", "Gone", "Heard", "Held",
    "Here", "How", "Is", "Kept", "Known", "Later", "Ledger", "Left", "Look", "Looked", "Lost", "Made",
    "Measured", "Met", "Named", "Need", "Needs", "New", "Next", "Odd", "Of", "Own", "Past", "Place",
    "Places", "Ran", "Said", "Says", "Seen", "Shared", "Shown", "Spent", "Standing", "State", "Stated",
    "Step", "Still", "Taken", "Told", "UnderWay", "Want", "Wanted", "Way", "What", "Which", "Who", "Whole",
    "Whose", "Why", "Wish", "Written",
];

/// Names that are terms of the project: path and name.
const TERMS: &[(&str, &str)] = &[("config/src/ledger.rs", "Ledger")];

/// Types with bare names.
#[must_use]
pub fn bare(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().filter(|f| f.is_rust()).flat_map(of_file).collect()
}

fn of_file(file: &SourceFile) -> Vec<Finding> {
    let text = file.text.as_deref().unwrap_or_default();
    // Parsing costs time; most files have no such line.
    if !text.lines().filter_map(defined).any(|(_, name)| BANNED.contains(&name)) {
        return Vec::new();
    }
    let parsed = match syn::parse_file(text) {
        Ok(parsed) => parsed,
        Err(error) => return vec![Finding::new(&file.path, 0, format!("is not Rust: {error}"))],
    };
    let mut types = Types::default();
    types.visit_file(&parsed);
    let mut findings = Vec::new();
    let mut from = 0;
    for (keyword, name) in types.found {
        // In the order of the file: the search for the next definition begins behind the last one.
        let line = file.lines().skip(from).find(|(_, line)| defined(line) == Some((keyword, name.as_str())));
        from = line.map_or(from, |(number, _)| number);
        if TERMS.contains(&(file.path.as_str(), name.as_str())) {
            continue;
        }
        let message = format!(
            "`{keyword} {name}` means nothing where its module is not in sight: name it in the terms of Kubernetes or Linux, or \
             put the module's noun before it (`Step` of a resize: `ResizeStep`)"
        );
        findings.push(Finding::new(&file.path, from, message));
    }
    findings
}

const KEYWORDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// Keyword and name of the type that the line defines.
fn defined(line: &str) -> Option<(&str, &str)> {
    if line.trim_start().starts_with("//") {
        return None;
    }
    let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty());
    let keyword = words.find(|word| KEYWORDS.contains(word))?;
    Some((keyword, words.next()?))
}

/// The definitions with banned names, in the order of the file.
#[derive(Default)]
struct Types {
    found: Vec<(&'static str, String)>,
}

impl Types {
    fn add(&mut self, keyword: &'static str, name: &Ident) {
        let name = name.to_string();
        if BANNED.contains(&name.as_str()) {
            self.found.push((keyword, name));
        }
    }
}

impl<'a> Visit<'a> for Types {
    fn visit_item_struct(&mut self, item: &'a ItemStruct) {
        self.add("struct", &item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'a ItemEnum) {
        self.add("enum", &item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'a ItemUnion) {
        self.add("union", &item.ident);
        visit::visit_item_union(self, item);
    }

    fn visit_item_trait(&mut self, item: &'a ItemTrait) {
        self.add("trait", &item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'a ItemType) {
        self.add("type", &item.ident);
        visit::visit_item_type(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        bare(&[SourceFile::of(path, text)]).iter().map(|f| f.line).collect()
    }

    #[test]
    fn a_bare_name_is_found_however_it_is_defined() {
        for text in [
            "\nstruct Place;\n",
            "\npub(super) struct Shared<T> { value: T }\n",
            "\npub enum Answer { Yes }\n",
            "\nunion Held { a: u8, b: i8 }\n",
            "\npub(crate) trait Stated { fn state(&self); }\n",
            "\ntype Told = (String, String);\n",
            "mod tests {\n    struct State;\n}\n",
            "fn f() {\n    enum Step { One }\n}\n",
        ] {
            assert_eq!(lines("a.rs", text), [2], "{text}");
        }
        let found = bare(&[SourceFile::of("a.rs", "enum Need { Patch }\n")]);
        assert!(found[0].fails && found[0].message.contains("`enum Need` means nothing"), "{found:?}");
    }

    #[test]
    fn each_definition_is_found_with_its_own_line() {
        let text = "struct Seen;\nmod a {\n    struct Seen;\n}\n// struct Kept\nstruct Kept;\n";
        assert_eq!(lines("a.rs", text), [1, 3, 6]);
    }

    #[test]
    fn associated_types_and_longer_names_pass() {
        for text in [
            "impl Machine for A {\n    type State = u8;\n}\n",
            "trait Machine {\n    type State: Copy;\n}\n",
            "struct PodState;\nenum ResizeStep { One }\ntype Statement = u8;\n",
            "enum Phase { Known, Told(u8) }\n",
            "// struct Place\nconst TEXT: &str = \"struct Place;\";\n",
        ] {
            assert!(lines("a.rs", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn terms_pass_in_their_file_only() {
        let text = "pub struct Ledger;\n";
        assert!(lines("config/src/ledger.rs", text).is_empty());
        assert_eq!(lines("agent/core/src/pod_worker/ledger.rs", text), [1]);
    }
}
