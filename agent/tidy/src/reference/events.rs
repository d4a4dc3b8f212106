//! The pages of events, conditions and problems, from the tables in the code; and the rule that the table of events is whole.

use std::collections::{BTreeMap, BTreeSet};

use super::{code, head, opening, row, table, value};
use crate::Finding;
use crate::text::is_test_file;
use crate::tokens::{Token, product, tokens};
use crate::tree::SourceFile;

const REASONS: &str = "agent/types/src/event_reasons.rs";
const CONDITIONS: &str = "agent/core/src/node_status/condition_list.rs";
const PROBLEMS: &str = "agent/core/src/console/runbook.rs";
/// A reason that is put together from these words and a name: no place of the code spells it.
const PUT_TOGETHER: [&str; 1] = ["OutOfResource"];
/// Crates without events of a node.
const OTHERS: [&str; 3] = ["agent/faults/", "agent/sim/", "agent/tidy/"];

pub(super) fn page(files: &[SourceFile]) -> Result<String, Finding> {
    let about = "The Kubernetes events of the agent. `kubectl describe pod` and `kubectl get events --field-selector \
                 involvedObject.kind=Node` show them. Reasons are upstream's; those of the object `Node, own` are this agent's own. A \
                 standalone node has no API server and emits none: its consoles have the problems ([problems.md](problems.md)).";
    let mut page = opening("Events", &code(REASONS), about);
    page.push_str(&format!("\n{}", head(["reason", "type", "object", "when"])));
    for event in table(files, REASONS, "EventReason", 50)? {
        page.push_str(&row([
            &code(value(&event, "reason")),
            value(&event, "kind"),
            value(&event, "object"),
            value(&event, "when"),
        ]));
    }
    Ok(page)
}

pub(super) fn conditions(files: &[SourceFile]) -> Result<String, Finding> {
    let about = "The conditions of the Node that the agent sets, each with the state that needs a look. `kubectl describe node` shows \
                 them. NetworkUnavailable is set by a cloud's or a pod network's controller.";
    let mut page = opening("Conditions of the Node", &code(CONDITIONS), about);
    page.push_str(&format!("\n{}", head(["condition", "look at", "reasons", "origin", "meaning"])));
    for condition in table(files, CONDITIONS, "ConditionRunbook", 5)? {
        let kind = value(&condition, "kind");
        let link = format!("[{kind}](../runbooks/node-conditions.md#{})", kind.to_lowercase());
        page.push_str(&row([
            &link,
            &code(value(&condition, "bad")),
            value(&condition, "reasons"),
            value(&condition, "origin"),
            value(&condition, "meaning"),
        ]));
    }
    Ok(page)
}

pub(super) fn problems(files: &[SourceFile]) -> Result<String, Finding> {
    let about = "What a node says about itself when something is wrong: on its consoles (`orlop-agent: problem: OBJECT: SENTENCE; \
                 REMEDY [runbook ID]`) and by `orlopctl status`. Words in capitals stand for others. Problems of the boot have the \
                 name of their phase: [runbooks/boot.md](../runbooks/boot.md).";
    let mut page = opening("Problems of a node", &code(PROBLEMS), about);
    page.push_str(&format!("\n{}", head(["runbook", "object", "sentence", "remedy"])));
    for problem in table(files, PROBLEMS, "ProblemRunbook", 15)? {
        let id = value(&problem, "id");
        let link = format!("[{id}](../runbooks/{}.md#{id})", value(&problem, "page"));
        let remedy = match value(&problem, "remedy") {
            "" => "in the sentence",
            remedy => remedy,
        };
        page.push_str(&row([&link, value(&problem, "subject"), value(&problem, "sentence"), remedy]));
    }
    Ok(page)
}

/// Each place that emits an event has a row of the table for its reason and severity, and each row has a place.
#[must_use]
pub fn event_reasons(files: &[SourceFile]) -> Vec<Finding> {
    let rows = match table(files, REASONS, "EventReason", 1) {
        Ok(rows) => rows,
        Err(finding) => return vec![finding],
    };
    let known: BTreeSet<(&str, &str)> =
        rows.iter().map(|row| (value(row, "reason"), value(row, "kind"))).collect();
    let sources: Vec<(&str, Vec<Token>)> = files
        .iter()
        .filter(|file| may_emit(&file.path))
        .map(|file| (file.path.as_str(), product(&tokens(file.text.as_deref().unwrap_or_default()))))
        .collect();
    let constants = constants(&sources);
    let mut findings = Vec::new();
    let mut spelled: BTreeSet<&str> = BTreeSet::new();
    for (path, all) in &sources {
        for (reason, kind) in emitted(all) {
            let texts = texts(reason, &constants);
            if !texts.is_empty() && !texts.iter().any(|text| known.contains(&(*text, kind))) {
                let reason = texts.join("` or `");
                let message = format!(
                    "emits a {kind} event `{reason}`, which {REASONS} does not have: add it with its occasion"
                );
                findings.push(Finding::new(path, 0, message));
            }
        }
        spelled.extend(all.iter().filter_map(Token::text));
    }
    for (reason, _) in known.iter().filter(|(reason, _)| !spelled.contains(reason)) {
        if !PUT_TOGETHER.contains(reason) {
            let message = format!("has `{reason}`, which no place of the code spells: remove its row");
            findings.push(Finding::new(REASONS, 0, message));
        }
    }
    findings
}

fn may_emit(path: &str) -> bool {
    path.starts_with("agent/")
        && path.contains("/src/")
        && path.ends_with(".rs")
        && path != REASONS
        && !is_test_file(path)
        && !OTHERS.iter().any(|other| path.starts_with(other))
}

/// Reasons in the places that emit events, each with its severity. A reason is a text or a name.
fn emitted(all: &[Token]) -> Vec<(&Token, &str)> {
    let mut found = Vec::new();
    for at in 0..all.len() {
        match &all[at..] {
            // `EventKind::Warning, "Reason"`
            [
                Token::Word(name),
                Token::Mark(':'),
                Token::Mark(':'),
                Token::Word(kind),
                Token::Mark(','),
                reason,
                ..,
            ] if name == "EventKind" => found.push((reason, kind.as_str())),
            // `self.warn(REASON, text)`
            [Token::Mark('.'), Token::Word(name), Token::Mark('('), reason, Token::Mark(','), ..]
                if name == "warn" =>
            {
                found.push((reason, "Warning"));
            }
            // Each refusal of admission is a warning.
            [
                Token::Word(name),
                Token::Mark(':'),
                Token::Mark(':'),
                Token::Word(call),
                Token::Mark('('),
                reason,
                Token::Mark(','),
                ..,
            ] if name == "Rejection" && call == "new" => found.push((reason, "Warning")),
            _ => {}
        }
    }
    found
}

/// Values of the constants that are texts, by name. A name that several files have keeps all of its values.
fn constants<'a>(sources: &'a [(&str, Vec<Token>)]) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, all) in sources {
        for at in 0..all.len() {
            if let [
                Token::Word(keyword),
                Token::Word(name),
                Token::Mark(':'),
                Token::Mark('&'),
                Token::Word(kind),
                Token::Mark('='),
                Token::Text(value),
                ..,
            ] = &all[at..]
                && keyword == "const"
                && kind == "str"
            {
                found.entry(name).or_default().insert(value);
            }
        }
    }
    found
}

/// What a reason may be: its text, or the values of the constants of its name; nothing for a variable.
fn texts<'a>(reason: &'a Token, constants: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<&'a str> {
    match reason {
        Token::Text(text) => vec![text.as_str()],
        Token::Word(name) => constants.get(name.as_str()).into_iter().flatten().copied().collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "const A: &[EventReason] = &[EventReason { reason: \"Pulled\", kind: EventKind::Normal, object: \"Pod\", when: \"x\" }];";

    fn found(code: &str) -> Vec<String> {
        let files = [SourceFile::of(REASONS, TABLE), SourceFile::of("agent/core/src/a.rs", code)];
        event_reasons(&files).iter().map(|finding| finding.message.clone()).collect()
    }

    #[test]
    fn reasons_without_a_row_and_rows_without_a_place_are_found() {
        let both = found("b.event(EventKind::Warning, \"Pulled\", text); c(EventKind::Normal, \"Odd\")");
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both[0].contains("Warning event `Pulled`") && both[1].contains("`Odd`"), "{both:?}");
        let none = found("");
        assert!(none.len() == 1 && none[0].contains("no place of the code"), "{none:?}");
        assert!(found("b.event(EventKind::Normal, \"Pulled\", text)").is_empty());
        assert_eq!(event_reasons(&[]).len(), 1);
    }

    #[test]
    fn reasons_may_be_constants_and_come_from_helpers() {
        let both = found(
            "const ODD: &str = \"Odd\"; const PULLED: &str = \"Pulled\"; a(EventKind::Normal, PULLED, x); self.warn(ODD, x); \
             Rejection::new(\"Off\", x); b(EventKind::Normal, reason, x); tracing::warn!(\"Text\", x)",
        );
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(
            both[0].contains("Warning event `Odd`") && both[1].contains("Warning event `Off`"),
            "{both:?}"
        );
    }

    #[test]
    fn problems_and_conditions_link_to_their_runbooks() {
        let problem =
            "ProblemRunbook { id: \"a-b\", page: \"p\", subject: \"s\", sentence: \"t\", remedy: \"\" }, "
                .repeat(15);
        let condition = "ConditionRunbook { kind: \"Ready\", bad: \"False\", reasons: \"R\", origin: \"own\", meaning: \"m\" }, ".repeat(5);
        let files = [SourceFile::of(PROBLEMS, &problem), SourceFile::of(CONDITIONS, &condition)];
        assert!(
            problems(&files).unwrap().contains("| [a-b](../runbooks/p.md#a-b) | s | t | in the sentence |\n")
        );
        let page = conditions(&files).unwrap();
        assert!(
            page.contains("| [Ready](../runbooks/node-conditions.md#ready) | `False` | R | own | m |\n"),
            "{page}"
        );
    }
}
