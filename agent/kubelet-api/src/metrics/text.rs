//! Prometheus' text format, version 0.0.4, of a registry.
//!
//! Invariants: numbers are written as Go writes them (bounds of buckets are compared as text by queries); nothing in a
//! label's value can end it.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::metrics::kind::{Kind, Sample, Series};

/// Digits before the point from which on Go writes an exponent.
const PLAIN_DIGITS_MAX: i32 = 6;

pub(super) fn of(families: &BTreeMap<&'static str, Series>) -> String {
    let mut out = String::new();
    for (name, series) in families.iter().filter(|(_, series)| !series.samples.is_empty()) {
        let kind = match series.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {kind}", series.help);
        for (values, sample) in &series.samples {
            let labels = || series.labels.iter().copied().zip(values.iter().map(|v| &**v));
            match (sample, series.kind) {
                (Sample::Distribution { counts, sum }, Kind::Histogram(bounds)) => {
                    let (mut below, bucket) = (0, format!("{name}_bucket"));
                    for (at, count) in counts.iter().enumerate() {
                        below += count;
                        let bound = number(bounds.get(at).copied().unwrap_or(f64::INFINITY));
                        line(&mut out, &bucket, labels(), Some(&bound), &below.to_string());
                    }
                    line(&mut out, &format!("{name}_sum"), labels(), None, &number(*sum));
                    line(&mut out, &format!("{name}_count"), labels(), None, &below.to_string());
                }
                (Sample::Number(is), _) => line(&mut out, name, labels(), None, &number(*is)),
                // A family has samples of its own type only.
                (Sample::Distribution { .. }, _) => {}
            }
        }
    }
    out
}

/// One sample; `bound` is that of a bucket.
fn line<'a>(
    out: &mut String,
    name: &str,
    labels: impl Iterator<Item = (&'static str, &'a str)>,
    bound: Option<&str>,
    value: &str,
) {
    out.push_str(name);
    let mut open = '{';
    for (label, value) in labels {
        write_label(out, open, label, value);
        open = ',';
    }
    if let Some(bound) = bound {
        write_label(out, open, "le", bound);
        open = ',';
    }
    let _ = writeln!(out, "{} {value}", if open == ',' { "}" } else { "" });
}

fn write_label(out: &mut String, open: char, label: &str, value: &str) {
    let _ = write!(out, "{open}{label}=\"");
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The shortest text that is this number, as Go's `strconv` writes it with `'g'`.
pub(super) fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..PLAIN_DIGITS_MAX).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
