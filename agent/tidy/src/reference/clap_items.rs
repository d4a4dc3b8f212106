//! Command lines as clap's derive macros get them: structs and enums with their attributes and documentation.
//!
//! In: tokens of files. Out: [`ClapItem`]s, and options, values and subcommands of each. Only what the workspace's command lines use is
//! understood: `long`, `short`, `value_name`, `value_enum`, `default_value`, `default_value_t`, `required`, `flatten`, `subcommand`,
//! `name`, `hide`, `skip`.

use crate::tokens::{Token, closing, parts};

/// Derive macros of clap.
const DERIVES: [&str; 4] = ["Args", "Parser", "Subcommand", "ValueEnum"];

/// A struct or an enum.
#[derive(Debug)]
pub(super) struct ClapItem {
    pub(super) name: String,
    pub(super) fields: Vec<ClapField>,
}

/// A field of a struct, or a variant of an enum.
#[derive(Debug)]
pub(super) struct ClapField {
    pub(super) name: String,
    /// First paragraph of its documentation, without the last full stop.
    pub(super) help: String,
    /// Contents of its attributes: `arg(long)`.
    attributes: Vec<Vec<Token>>,
    /// Type of a field, or what a variant holds.
    kind: Vec<Token>,
    /// Fields of a variant that has named ones.
    pub(super) inner: Vec<ClapField>,
}

impl ClapField {
    /// What follows `name =` in an attribute of clap; empty for a lone `name`.
    pub(super) fn setting(&self, name: &str) -> Option<&[Token]> {
        let of_clap = |attribute: &&Vec<Token>| {
            let word = attribute.first().and_then(Token::word);
            matches!(word, Some("arg" | "command" | "value"))
                && attribute.get(1).is_some_and(|t| t.is_mark('('))
        };
        for attribute in self.attributes.iter().filter(of_clap) {
            for part in parts(&attribute[2..closing(attribute, 1).max(2)]) {
                if part.first().is_some_and(|token| token.is_word(name)) {
                    return Some(part.get(2..).unwrap_or_default());
                }
            }
        }
        None
    }

    /// The text of a setting.
    pub(super) fn setting_text(&self, name: &str) -> Option<&str> {
        self.setting(name)?.first()?.text()
    }

    /// The type without `Option` and `Vec`: its last word.
    pub(super) fn type_name(&self) -> &str {
        self.kind.iter().rev().find_map(Token::word).unwrap_or("")
    }

    /// True if the type begins with this word.
    pub(super) fn is_of(&self, word: &str) -> bool {
        self.kind.first().is_some_and(|token| token.is_word(word))
    }
}

/// The items of a file that clap derives something from.
pub(super) fn items(all: &[Token]) -> Vec<ClapItem> {
    let mut found = Vec::new();
    let (mut at, mut derives) = (0, false);
    while at < all.len() {
        match &all[at..] {
            [Token::Mark('#'), Token::Mark('['), ..] => {
                let end = closing(all, at + 1);
                let attribute = &all[at + 2..end.max(at + 2)];
                let is_derive = attribute.first().is_some_and(|token| token.is_word("derive"));
                derives |=
                    is_derive && DERIVES.iter().any(|d| attribute.iter().any(|token| token.is_word(d)));
                at = end + 1;
            }
            [Token::Word(keyword), Token::Word(name), Token::Mark('{'), ..]
                if matches!(keyword.as_str(), "struct" | "enum") =>
            {
                let end = closing(all, at + 2);
                if derives {
                    let fields = fields(&all[at + 3..end.max(at + 3)]);
                    found.push(ClapItem { name: name.clone(), fields });
                }
                (at, derives) = (end + 1, false);
            }
            [Token::Word(visibility), Token::Mark('('), ..] if visibility == "pub" => {
                at = closing(all, at + 1) + 1
            }
            [Token::Word(visibility), ..] if visibility == "pub" => at += 1,
            [Token::Doc(_), ..] => at += 1,
            _ => (at, derives) = (at + 1, false),
        }
    }
    found
}

/// Fields or variants of a body.
fn fields(body: &[Token]) -> Vec<ClapField> {
    let mut found = Vec::new();
    let (mut at, mut docs, mut attributes) = (0, Vec::new(), Vec::new());
    while at < body.len() {
        match &body[at..] {
            [Token::Doc(line), ..] => {
                docs.push(line.as_str());
                at += 1;
            }
            [Token::Mark('#'), Token::Mark('['), ..] => {
                let end = closing(body, at + 1);
                attributes.push(body[at + 2..end.max(at + 2)].to_vec());
                at = end + 1;
            }
            [Token::Word(visibility), Token::Mark('('), ..] if visibility == "pub" => {
                at = closing(body, at + 1) + 1
            }
            [Token::Word(visibility), ..] if visibility == "pub" => at += 1,
            [Token::Word(name), ..] => {
                let end = field_end(body, at + 1);
                let (kind, inner) = match &body[at + 1..end] {
                    [Token::Mark(':'), kind @ ..] => (kind.to_vec(), Vec::new()),
                    [Token::Mark('('), kind @ .., Token::Mark(')')] => (kind.to_vec(), Vec::new()),
                    [Token::Mark('{'), inner @ .., Token::Mark('}')] => (Vec::new(), fields(inner)),
                    _ => (Vec::new(), Vec::new()),
                };
                let (help, attributes) = (help(&std::mem::take(&mut docs)), std::mem::take(&mut attributes));
                found.push(ClapField { name: name.clone(), help, attributes, kind, inner });
                at = end + 1;
            }
            _ => at += 1,
        }
    }
    found
}

/// The place of the comma behind a field: commas of a type's parameters are inside of it.
fn field_end(body: &[Token], from: usize) -> usize {
    let (mut at, mut angles) = (from, 0_usize);
    while at < body.len() {
        match body[at] {
            Token::Mark('(' | '[' | '{') => at = closing(body, at),
            Token::Mark('<') => angles += 1,
            Token::Mark('>') => angles = angles.saturating_sub(1),
            Token::Mark(',') if angles == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    body.len()
}

fn help(docs: &[&str]) -> String {
    let paragraph: Vec<&str> = docs.iter().copied().take_while(|line| !line.is_empty()).collect();
    paragraph.join(" ").trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::tokens;

    #[test]
    fn fields_have_type_help_and_settings() {
        let text = "#[derive(Debug, clap::Args)]\npub struct A {\n /// Which one.\n /// Of two.\n ///\n /// More.\n #[arg(long, value_name = \"X\")]\n \
                    pub(crate) one: Option<PathBuf>,\n #[command(flatten)] how: B,\n map: BTreeMap<K, V>,\n}\n#[derive(Debug)] struct C { d: E }";
        let found = items(&tokens(text));
        assert_eq!(found.len(), 1);
        let names: Vec<&str> = found[0].fields.iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["one", "how", "map"]);
        let one = &found[0].fields[0];
        assert_eq!((one.help.as_str(), one.type_name()), ("Which one. Of two", "PathBuf"));
        assert!(one.is_of("Option") && !one.is_of("Vec"));
        assert_eq!(
            (one.setting_text("value_name"), one.setting("long").map(<[Token]>::len)),
            (Some("X"), Some(0))
        );
        assert!(one.setting("short").is_none() && found[0].fields[1].setting("flatten").is_some());
    }

    #[test]
    fn variants_have_what_they_hold() {
        let text = "#[derive(Subcommand)]\nenum V {\n /// Plan.\n Plan(x::Args),\n #[command(name = \"y\")] Y,\n Run { #[arg(long)] a: u8, b: bool },\n}";
        let found = items(&tokens(text));
        let variants = &found[0].fields;
        assert_eq!((variants[0].type_name(), variants[0].help.as_str()), ("Args", "Plan"));
        assert_eq!((variants[1].type_name(), variants[1].setting_text("name")), ("", Some("y")));
        assert_eq!(variants[2].inner.iter().map(|field| field.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
