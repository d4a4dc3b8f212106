//! Prometheus' text format, version 0.0.4.
//!
//! Invariant: every family is told with its kind and its help before its samples, and only if it has any.

use std::fmt::Write;

use crate::time::Wall;

/// `Content-Type` of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Labels of a sample, in the order in which they are written.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// A text that grows.
#[derive(Clone, Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// A family and its samples, all of one moment if any; nothing if it has none.
    pub fn family<'a>(
        &mut self,
        family: (&str, Kind, &str),
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
        at: Option<Wall>,
    ) {
        self.timed(family, samples.into_iter().map(|(labels, value)| (labels, value, at)));
    }

    /// A family and its samples, each of its own moment; nothing if it has none.
    pub fn timed<'a>(
        &mut self,
        (name, kind, help): (&str, Kind, &str),
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64, Option<Wall>)>,
    ) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_some() {
            // Writing to a String cannot fail.
            let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
        for (labels, value, at) in samples {
            self.sample(name, &labels, value, at);
        }
    }

    /// More samples of the family that was told last, if any was; without one there is nothing to add to.
    pub fn more<'a>(
        &mut self,
        name: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64, Option<Wall>)>,
    ) {
        for (labels, value, at) in samples {
            self.sample(name, &labels, value, at);
        }
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64, at: Option<Wall>) {
        self.0.push_str(name);
        for (n, (label, value)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if n == 0 { '{' } else { ',' });
            for c in value.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        let _ = write!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
        if let Some(at) = at {
            let _ = write!(self.0, " {}", at.0.div_euclid(1_000_000));
        }
        self.0.push('\n');
    }

    /// The text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }
}
