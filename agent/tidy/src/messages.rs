//! The texts that the node's programs log as warnings and errors, as one committed list: a change of wording is then seen in review.
//!
//! In: the Rust files of the agent, of init and of the configuration. Out: one line for each text, by crate: the texts of `error!` and
//! `warn!`, and of `#[error("…")]`. `tests/messages.rs` compares them with `agent/tidy/messages.txt`.

use std::collections::{BTreeMap, BTreeSet};

use crate::text::is_test_file;
use crate::tokens::{Token, closing, parts, product, tokens};
use crate::tree::SourceFile;

/// The committed list.
pub const LIST: &str = "agent/tidy/messages.txt";
/// Folders of the programs.
const FOLDERS: [&str; 3] = ["agent/", "init/", "config/"];
/// Crates below them that are for development.
const DEVELOPMENT: [&str; 3] = ["agent/faults/", "agent/sim/", "agent/tidy/"];

/// The list as it has to be.
#[must_use]
pub fn list(files: &[SourceFile]) -> String {
    let mut all: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let text = file.text.as_deref().unwrap_or_default();
        if let Some(of_crate) = crate_of(&file.path) {
            all.entry(of_crate).or_default().extend(of_file(text));
        }
    }
    let mut list = String::from(
        "The texts of warnings and errors, by crate. `ORLOP_UPDATE_MESSAGES=1 cargo test -p agent-tidy --test messages` writes\n\
         this list again. A text says what failed, the object, the effect and the next step, in plain words.\n",
    );
    for (of_crate, lines) in all.iter().filter(|(_, lines)| !lines.is_empty()) {
        list.push_str(&format!("\n{of_crate}\n"));
        lines.iter().for_each(|line| list.push_str(&format!("  {line}\n")));
    }
    list
}

/// The folder of the crate that the file belongs to, if its texts count.
pub(crate) fn crate_of(path: &str) -> Option<&str> {
    let (of_crate, _) = path.split_once("/src/")?;
    let counts = FOLDERS.iter().any(|folder| path.starts_with(folder))
        && !DEVELOPMENT.iter().any(|folder| path.starts_with(folder))
        && !is_test_file(path);
    counts.then_some(of_crate)
}

fn of_file(text: &str) -> Vec<String> {
    let all = product(&tokens(text));
    let mut found = Vec::new();
    for at in 0..all.len() {
        match &all[at..] {
            [Token::Word(level), Token::Mark('!'), Token::Mark('('), ..]
                if level == "error" || level == "warn" =>
            {
                let arguments = &all[at + 3..closing(&all, at + 2).max(at + 3)];
                // Fields come before the text; one that is a text has a name.
                let said = parts(arguments).into_iter().find_map(|part| match part {
                    [Token::Text(text)] => Some(text),
                    _ => None,
                });
                found.extend(said.map(|text| line(&format!("logged {level}"), text)));
            }
            [
                Token::Mark('#'),
                Token::Mark('['),
                Token::Word(error),
                Token::Mark('('),
                Token::Text(text),
                ..,
            ] if error == "error" => {
                found.push(line("error", text));
            }
            _ => {}
        }
    }
    found
}

fn line(kind: &str, text: &str) -> String {
    format!("{kind}: {}", text.replace('\\', "\\\\").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_crate() {
        let text = concat!(
            "#[error(\"cannot \\\n    read {path}\")]\nstruct A;\n#[error(transparent)]\n",
            "fn a() { tracing::warn!(name = \"x\", error = chain(&e, 1), \"lost\"); error!(\"dead {x}\", x); info!(\"fine\");\n",
            "warn!(\"lost\"); tracing::warn!(\"{}\", chain(&[1, 2])); warn!(a, b = 2); }\n",
            "#[cfg(test)]\nmod tests { fn b() { warn!(\"not this\"); } }\n",
        );
        let files = [
            "agent/x/src/a.rs",
            "agent/sim/src/b.rs",
            "agent/x/src/a/tests.rs",
            "image/src/c.rs",
            "init/build.rs",
        ];
        let found = list(&files.map(|path| SourceFile::of(path, text)));
        let lines: Vec<&str> = found.lines().skip(3).collect();
        assert_eq!(
            lines,
            [
                "agent/x",
                "  error: cannot read {path}",
                "  logged error: dead {x}",
                "  logged warn: lost",
                "  logged warn: {}"
            ]
        );
    }

    #[test]
    fn a_text_stays_in_its_line() {
        assert_eq!(line("error", "a\nb\\"), "error: a\\nb\\\\");
        assert!(of_file("warn!(").is_empty() && of_file("error!").is_empty());
    }
}
