//! Prometheus' text format, version 0.0.4.
//!
//! Invariant: every family appears with its type and its help before its samples, and only if it has any.

use std::fmt::Write;

use agent_types::time::Wall;

/// `Content-Type` of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counter: the value only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// The kernel does not say which of both it is.
    Untyped,
}

/// Labels of a sample, in the order in which they are written.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Labels that many samples share, written once: runs of neighbours in the alphabet, between which a sample has others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedLabels(Vec<(String, String)>);

impl SharedLabels {
    /// Runs of labels in their order; those of a sample come before the first run that begins with a greater name.
    #[must_use]
    pub fn new(runs: &[Labels<'_>]) -> SharedLabels {
        let run = |labels: &Labels<'_>| {
            let mut text = String::new();
            labels.iter().for_each(|(label, value)| push_label(&mut text, label, value));
            Some((labels.first()?.0.to_owned(), text))
        };
        SharedLabels(runs.iter().filter_map(run).collect())
    }
}

/// Labels of one sample in addition to the shared ones, in alphabetical order; an entry without a name is
/// unused.
pub type OwnLabels<'a> = [(&'a str, &'a str); 4];

/// No own labels.
pub const NO_LABELS: OwnLabels<'static> = [("", ""); 4];

/// These as a sample's own.
#[must_use]
pub fn own<'a>(labels: &[(&'a str, &'a str)]) -> OwnLabels<'a> {
    let mut all = NO_LABELS;
    all.iter_mut().zip(labels).for_each(|(to, label)| *to = *label);
    all
}

fn push_label(text: &mut String, label: &str, value: &str) {
    if !text.is_empty() && !text.ends_with('{') {
        text.push(',');
    }
    text.push_str(label);
    text.push_str("=\"");
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        text.push_str(&rest[..at]);
        text.push('\\');
        text.push(if rest[at..].starts_with('\n') { 'n' } else { char::from(rest.as_bytes()[at]) });
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
    text.push('"');
}

/// A text that grows.
#[derive(Clone, Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// A family and its samples, with one optional timestamp for all; nothing if it has none.
    pub fn family<'a>(
        &mut self,
        family: (&str, Kind, &str),
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
        at: Option<Wall>,
    ) {
        self.timed(family, samples.into_iter().map(|(labels, value)| (labels, value, at)));
    }

    /// A family and its samples, each with its own timestamp; nothing if it has none.
    pub fn timed<'a>(
        &mut self,
        family: (&str, Kind, &str),
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64, Option<Wall>)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_some() {
            self.head(family);
        }
        for (labels, value, at) in samples {
            self.0.push_str(family.0);
            self.0.push(if labels.is_empty() { ' ' } else { '{' });
            for (label, value) in &labels {
                push_label(&mut self.0, label, value);
            }
            self.value(if labels.is_empty() { "" } else { "} " }, value, at);
        }
    }

    /// A family and its samples with labels that others have, too; nothing if it has none.
    pub fn shared<'a>(
        &mut self,
        family: (&str, Kind, &str),
        samples: impl IntoIterator<Item = (&'a SharedLabels, OwnLabels<'a>, f64, Option<Wall>)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_some() {
            self.head(family);
        }
        self.more(family.0, samples);
    }

    /// Further samples of the last family, if it appeared; nothing otherwise.
    pub fn more<'a>(
        &mut self,
        name: &str,
        samples: impl IntoIterator<Item = (&'a SharedLabels, OwnLabels<'a>, f64, Option<Wall>)>,
    ) {
        for (SharedLabels(runs), own, value, at) in samples {
            self.0.push_str(name);
            self.0.push('{');
            let mut own = own.into_iter().filter(|(label, _)| !label.is_empty()).peekable();
            for (first, run) in runs {
                while let Some((label, value)) = own.next_if(|(label, _)| *label < first.as_str()) {
                    push_label(&mut self.0, label, value);
                }
                if !self.0.ends_with('{') {
                    self.0.push(',');
                }
                self.0.push_str(run);
            }
            own.for_each(|(label, value)| push_label(&mut self.0, label, value));
            self.value("} ", value, at);
        }
    }

    fn head(&mut self, (name, kind, help): (&str, Kind, &str)) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Untyped => "untyped",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, before: &str, value: f64, at: Option<Wall>) {
        let _ = write!(self.0, "{before}{value}");
        if let Some(at) = at {
            let _ = write!(self.0, " {}", at.0.div_euclid(1_000_000));
        }
        self.0.push('\n');
    }

    /// The complete text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }
}
