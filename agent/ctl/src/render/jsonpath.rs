//! Templates of kubectl's `-o jsonpath=`, on documents of this API. Pure.
//!
//! ```text
//! {.items[*].metadata.name}   {range .items[?(@.status.active=="failed")]}{.metadata.name}{"\n"}{end}
//! ```
//! In: a template; a document. Out: text. Understood: text, fields (`.a`, `['a']`, `\.` in a name), `*`, `..`, indexes, slices, lists
//! of those, conditions with one comparison or none, `$`, `@`, `range` and `end`. What is not there gives no text, as with kubectl. Invariants:
//! a template of any form is a template or a sentence that says why not; control characters of a document reach no terminal. Why no
//! crate: the crates of RFC 9535 have neither braces nor ranges nor escaped dots, and kubectl's form is the one that operators know.

use std::cmp::Ordering;

use serde_json::Value;

use super::plain;

/// Ranges within ranges, and conditions within conditions.
const DEPTH_MAX: usize = 16;

/// A template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Values(Query),
    Range(Query, Vec<Part>),
}

/// Steps from the document, or from the present value.
#[derive(Clone, Debug, Default, PartialEq)]
struct Query {
    is_from_root: bool,
    steps: Vec<PathStep>,
}

#[derive(Clone, Debug, PartialEq)]
enum PathStep {
    /// The value, and all that is in it.
    Deep,
    Select(Vec<Selector>),
    Where(Box<Condition>),
}

#[derive(Clone, Debug, PartialEq)]
enum Selector {
    All,
    Field(String),
    Index(i64),
    Slice { start: Option<i64>, end: Option<i64>, step: i64 },
}

#[derive(Clone, Debug, PartialEq)]
struct Condition {
    left: Query,
    /// Without one: something is there.
    comparison: Option<(Operator, Operand)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The longer ones first.
const OPERATORS: &[(&str, Operator)] = &[
    ("==", Operator::Equal),
    ("!=", Operator::Unequal),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Constant(Value),
    Values(Query),
}

impl JsonPath {
    /// # Errors
    /// Why the text is no template.
    pub(crate) fn parse(template: &str) -> Result<JsonPath, String> {
        if !template.contains('{') {
            return Err(format!("{template:?} has no part in braces, such as {{.items[*].metadata.name}}"));
        }
        Ok(JsonPath(TemplateParser { rest: template, conditions: 0 }.parts(0)?))
    }

    /// The text for a document.
    pub(crate) fn apply(&self, document: &Value) -> String {
        let mut text = String::new();
        print(&self.0, document, document, &mut text);
        text
    }
}

struct TemplateParser<'a> {
    rest: &'a str,
    /// Conditions around the present place.
    conditions: usize,
}

impl TemplateParser<'_> {
    fn parts(&mut self, depth: usize) -> Result<Vec<Part>, String> {
        if depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} ranges are within each other"));
        }
        let mut parts = Vec::new();
        loop {
            let Some((text, rest)) = self.rest.split_once('{') else {
                if depth > 0 {
                    return Err("a {range} has no {end}".to_owned());
                }
                parts.push(Part::Text(self.rest.to_owned()));
                return Ok(parts);
            };
            parts.push(Part::Text(text.to_owned()));
            self.rest = rest.trim_start();
            if self.takes("range ") {
                let query = self.query()?;
                self.expect("}")?;
                parts.push(Part::Range(query, self.parts(depth + 1)?));
            } else if self.takes("end") {
                self.expect("}")?;
                return if depth > 0 { Ok(parts) } else { Err("an {end} has no {range}".to_owned()) };
            } else if self.rest.starts_with(['"', '\'']) {
                let text = self.quoted()?;
                self.expect("}")?;
                parts.push(Part::Text(text));
            } else {
                let query = self.query()?;
                self.expect("}")?;
                parts.push(Part::Values(query));
            }
        }
    }

    fn takes(&mut self, word: &str) -> bool {
        let rest = self.rest.strip_prefix(word);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        self.rest = self.rest.trim_start();
        if self.takes(word) {
            return Ok(());
        }
        let found: String = self.rest.chars().take(20).collect();
        Err(if found.is_empty() {
            format!("{word:?} is missing at the end")
        } else {
            format!("{word:?} is missing before {found:?}")
        })
    }

    fn query(&mut self) -> Result<Query, String> {
        self.rest = self.rest.trim_start();
        let mut query = Query { is_from_root: self.takes("$"), steps: Vec::new() };
        if !query.is_from_root {
            self.takes("@");
        }
        loop {
            if self.takes("..") {
                query.steps.push(PathStep::Deep);
                if !self.rest.starts_with('[') {
                    query.steps.push(PathStep::Select(vec![self.dotted()?]));
                }
            } else if self.takes(".") {
                // `{.}` is the value itself, and `.[` is `[`.
                if !self.rest.starts_with(['[', '}', ')', ' ', '=', '!', '<', '>']) {
                    query.steps.push(PathStep::Select(vec![self.dotted()?]));
                }
            } else if self.takes("[?(") {
                self.conditions += 1;
                if self.conditions > DEPTH_MAX {
                    return Err(format!("more than {DEPTH_MAX} conditions are within each other"));
                }
                let condition = self.condition()?;
                self.conditions -= 1;
                self.expect(")")?;
                self.expect("]")?;
                query.steps.push(PathStep::Where(Box::new(condition)));
            } else if self.takes("[") {
                query.steps.push(PathStep::Select(self.selectors()?));
            } else {
                return Ok(query);
            }
        }
    }

    /// What follows a dot.
    fn dotted(&mut self) -> Result<Selector, String> {
        if self.takes("*") {
            return Ok(Selector::All);
        }
        let mut name = String::new();
        while let Some(c) = self.rest.chars().next() {
            let is_escape = c == '\\';
            if !is_escape && (c.is_whitespace() || ".[]{}()=!<>,'\"".contains(c)) {
                break;
            }
            self.rest = &self.rest[c.len_utf8()..];
            if !is_escape {
                name.push(c);
            } else if let Some(escaped) = self.rest.chars().next() {
                self.rest = &self.rest[escaped.len_utf8()..];
                name.push(escaped);
            }
        }
        if name.is_empty() {
            Err("a name is missing behind a dot".to_owned())
        } else {
            Ok(Selector::Field(name))
        }
    }

    /// What stands in brackets.
    fn selectors(&mut self) -> Result<Vec<Selector>, String> {
        let mut selectors = Vec::new();
        loop {
            self.rest = self.rest.trim_start();
            selectors.push(if self.takes("*") {
                Selector::All
            } else if self.rest.starts_with(['"', '\'']) {
                Selector::Field(self.quoted()?)
            } else {
                self.place()?
            });
            self.rest = self.rest.trim_start();
            if !self.takes(",") {
                self.expect("]")?;
                return Ok(selectors);
            }
        }
    }

    /// An index, or a slice.
    fn place(&mut self) -> Result<Selector, String> {
        let end = self.rest.find([']', ',']).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let wrong = || format!("{text:?} is neither an index nor a slice nor a name in quotes");
        let number = |text: &str| match text.trim() {
            "" => Ok(None),
            digits => digits.parse::<i64>().map(Some).map_err(|_| wrong()),
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            [index] => Ok(Selector::Index(number(index)?.ok_or_else(wrong)?)),
            [start, end] => Ok(Selector::Slice { start: number(start)?, end: number(end)?, step: 1 }),
            [start, end, step] => {
                let step = number(step)?.unwrap_or(1);
                if step < 1 {
                    return Err(wrong());
                }
                Ok(Selector::Slice { start: number(start)?, end: number(end)?, step })
            }
            _ => Err(wrong()),
        }
    }

    fn condition(&mut self) -> Result<Condition, String> {
        let left = self.query()?;
        self.rest = self.rest.trim_start();
        let found = OPERATORS.iter().find(|(word, _)| self.rest.starts_with(*word));
        let Some((word, operator)) = found else { return Ok(Condition { left, comparison: None }) };
        self.takes(word);
        let right = self.operand()?;
        Ok(Condition { left, comparison: Some((*operator, right)) })
    }

    fn operand(&mut self) -> Result<Operand, String> {
        self.rest = self.rest.trim_start();
        if self.rest.starts_with(['"', '\'']) {
            return Ok(Operand::Constant(Value::String(self.quoted()?)));
        }
        if self.rest.starts_with(['@', '$']) {
            return Ok(Operand::Values(self.query()?));
        }
        let end = self.rest.find([')', ' ']).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let constant = serde_json::from_str(text);
        constant
            .map(Operand::Constant)
            .map_err(|_| format!("{text:?} is neither a number nor a text in quotes"))
    }

    fn quoted(&mut self) -> Result<String, String> {
        let mut chars = self.rest.char_indices();
        let quote = chars.next().map_or('"', |(_, quote)| quote);
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.rest = &self.rest[at + c.len_utf8()..];
                return Ok(text);
            }
            text.push(match c {
                '\\' => match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, 't')) => '\t',
                    Some((_, escaped)) => escaped,
                    None => break,
                },
                c => c,
            });
        }
        Err(format!("a text has no {quote} at its end"))
    }
}

fn print(parts: &[Part], root: &Value, current: &Value, text: &mut String) {
    for part in parts {
        match part {
            Part::Text(words) => text.push_str(words),
            Part::Values(query) => {
                let found: Vec<String> = values(query, root, current).into_iter().map(shown).collect();
                text.push_str(&found.join(" "));
            }
            Part::Range(query, inner) => {
                for value in values(query, root, current) {
                    print(inner, root, value, text);
                }
            }
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => plain(text),
        other => plain(&other.to_string()),
    }
}

fn values<'a>(query: &Query, root: &'a Value, current: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![if query.is_from_root { root } else { current }];
    for step in &query.steps {
        let mut next = Vec::new();
        for value in found {
            match step {
                PathStep::Deep => deep(value, &mut next),
                PathStep::Select(selectors) => {
                    selectors.iter().for_each(|selector| select(selector, value, &mut next));
                }
                PathStep::Where(condition) => {
                    let mut children = Vec::new();
                    select(&Selector::All, value, &mut children);
                    next.extend(children.into_iter().filter(|child| holds(condition, root, child)));
                }
            }
        }
        found = next;
    }
    found
}

fn deep<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    found.push(value);
    let mut children = Vec::new();
    select(&Selector::All, value, &mut children);
    children.into_iter().for_each(|child| deep(child, found));
}

fn select<'a>(selector: &Selector, value: &'a Value, found: &mut Vec<&'a Value>) {
    match (selector, value) {
        (Selector::All, Value::Array(list)) => found.extend(list),
        (Selector::All, Value::Object(fields)) => found.extend(fields.values()),
        (Selector::Field(name), Value::Object(fields)) => found.extend(fields.get(name)),
        (Selector::Index(index), Value::Array(list)) => {
            found.extend(usize::try_from(from_start(*index, list.len())).ok().and_then(|at| list.get(at)));
        }
        (Selector::Slice { start, end, step }, Value::Array(list)) => {
            let edge = |place: &Option<i64>, missing: usize| match place {
                Some(place) => usize::try_from(from_start(*place, list.len())).unwrap_or(0).min(list.len()),
                None => missing,
            };
            let (start, end) = (edge(start, 0), edge(end, list.len()));
            let step = usize::try_from(*step).unwrap_or(1).max(1);
            found.extend(list.get(start..end).unwrap_or_default().iter().step_by(step));
        }
        _ => {}
    }
}

/// A negative place counts from the end.
fn from_start(place: i64, length: usize) -> i64 {
    if place < 0 { place.saturating_add(i64::try_from(length).unwrap_or(i64::MAX)) } else { place }
}

fn holds(condition: &Condition, root: &Value, value: &Value) -> bool {
    let left = values(&condition.left, root, value);
    let Some((operator, operand)) = &condition.comparison else { return !left.is_empty() };
    let Some(left) = left.first() else { return false };
    match operand {
        Operand::Constant(right) => compares(left, *operator, right),
        Operand::Values(query) => {
            values(query, root, value).first().is_some_and(|right| compares(left, *operator, right))
        }
    }
}

fn compares(left: &Value, operator: Operator, right: &Value) -> bool {
    let order = match (left, right) {
        (Value::Number(left), Value::Number(right)) => match (left.as_i128(), right.as_i128()) {
            (Some(left), Some(right)) => Some(left.cmp(&right)),
            _ => left.as_f64().zip(right.as_f64()).and_then(|(left, right)| left.partial_cmp(&right)),
        },
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (left, right) => (left == right).then_some(Ordering::Equal),
    };
    match operator {
        Operator::Equal => order == Some(Ordering::Equal),
        Operator::Unequal => order != Some(Ordering::Equal),
        Operator::Less => order == Some(Ordering::Less),
        Operator::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Operator::Greater => order == Some(Ordering::Greater),
        Operator::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "kind": "List",
            "items": [
                {"metadata": {"name": "a.service", "labels": {"x.dev/y": "1"}}, "status": {"active": "active", "pid": 7}},
                {"metadata": {"name": "b.service"}, "status": {"active": "failed", "pid": 0}},
                {"metadata": {"name": "c\u{1b}\n"}, "status": {"active": "failed"}},
            ],
        })
    }

    #[test]
    fn templates_of_kubectl() {
        for (template, text) in [
            ("{.kind}", "List"),
            ("kind: {.kind}!", "kind: List!"),
            ("{.items[0].metadata.name}", "a.service"),
            ("{.items[-2].metadata.name}", "b.service"),
            ("{$.items[1]['metadata'].name}", "b.service"),
            ("{.items[*].metadata.name}", "a.service b.service c? "),
            ("{.items[0:2].status.active}", "active failed"),
            ("{.items[::2].status.active}", "active failed"),
            ("{.items[0,1].status.pid}", "7 0"),
            ("{.items[0].metadata.labels.x\\.dev/y}", "1"),
            ("{.items[?(@.status.active==\"failed\")].metadata.name}", "b.service c? "),
            ("{.items[?(@.status.pid)].metadata.name}", "a.service b.service"),
            ("{.items[?(@.status.pid > 0)].metadata.name}", "a.service"),
            ("{.items[?(@.status.active != 'failed')].status}", "{\"active\":\"active\",\"pid\":7}"),
            ("{..pid}", "7 0"),
            (
                "{range .items[0:2]}{.metadata.name}{\"\\t\"}{@.status.active}{\"\\n\"}{end}",
                "a.service\tactive\nb.service\tfailed\n",
            ),
            ("{range .items[0:1]}{$.kind}{end}", "List"),
            ("{.none.at[7].all}", ""),
            ("{.items[9].metadata}", ""),
        ] {
            assert_eq!(JsonPath::parse(template).unwrap().apply(&document()), text, "{template}");
        }
    }

    #[test]
    fn texts_that_are_no_template_are_refused_with_a_reason() {
        for (template, reason) in [
            (".kind", "no part in braces"),
            ("{.kind", "missing at the end"),
            ("{kind}", "missing before"),
            ("{range .items[*]}{.kind}", "no {end}"),
            ("{.kind}{end}", "no {range}"),
            ("{.items[x]}", "neither an index"),
            ("{.items[0:1:0]}", "neither an index"),
            ("{.items[0:1:2:3]}", "neither an index"),
            ("{.items[9999999999999999999]}", "neither an index"),
            ("{..}", "a name is missing"),
            ("{\"x}", "at its end"),
            ("{.items[?(@.a==b)]}", "neither a number"),
            ("{.items[?(@.a==1]}", "neither a number"),
            ("{.items[?(@.a]}", "missing before"),
        ] {
            let error = JsonPath::parse(template).unwrap_err();
            assert!(error.contains(reason), "{template}: {error}");
        }
        let nested = "{range .a}".repeat(20);
        assert!(JsonPath::parse(&nested).unwrap_err().contains("more than 16 ranges"));
        let nested = format!("{{.a{}", "[?(@".repeat(10_000));
        assert!(JsonPath::parse(&nested).unwrap_err().contains("more than 16 conditions"));
    }

    #[test]
    fn places_beyond_every_list_are_empty() {
        for template in [
            format!("{{.items[{}]}}", i64::MIN),
            format!("{{.items[{}:{}].kind}}", i64::MAX, i64::MIN),
            "{.items[2:1]}".to_owned(),
        ] {
            assert_eq!(JsonPath::parse(&template).unwrap().apply(&document()), "", "{template}");
        }
    }
}
