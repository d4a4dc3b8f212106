//! A strict parser of Prometheus' text format: families with their kind, labels and buckets, and samples.
//!
//! In: a text of version 0.0.4. Out: [`Text`], [`Families`]. Invariant: a text that a scraper could misread
//! is an error.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// One family without its numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cases) struct Family {
    kind: String,
    labels: BTreeSet<String>,
    /// Upper bounds of a histogram's buckets, as they are written.
    buckets: BTreeSet<String>,
}

/// Families by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cases) struct Families(BTreeMap<String, Family>);

/// A sample: name, labels, value.
type Sample = (String, BTreeMap<String, String>, f64);

/// Contents of a text.
#[derive(Clone, Debug, Default)]
pub(in crate::cases) struct Text {
    families: Families,
    samples: Vec<Sample>,
}

impl Text {
    /// Reads a text.
    ///
    /// # Errors
    /// The line that is not as it must be, and why.
    pub(in crate::cases) fn parse(text: &str) -> Result<Text> {
        ensure!(text.is_empty() || text.ends_with('\n'), "the last line has no end");
        let mut read = Text::default();
        let mut seen = BTreeSet::new();
        let mut current = String::new();
        for line in text.lines() {
            let said = || format!("line {line:?}");
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').with_context(said)?;
                ensure!(seen.insert(name.to_owned()), "family {name} is told twice");
                name.clone_into(&mut current);
                let family = Family { kind: kind.to_owned(), ..Family::default() };
                read.families.0.insert(current.clone(), family);
            } else if !line.starts_with('#') {
                let (name, labels, value) = sample(line).with_context(said)?;
                let family = read.families.0.get_mut(&current).with_context(said)?;
                family.take(&current, &name, &labels).with_context(said)?;
                let same = |s: &Sample| s.0 == name && s.1 == labels;
                ensure!(!read.samples.iter().any(same), "told twice: {line:?}");
                read.samples.push((name, labels, value));
            }
        }
        Ok(read)
    }

    /// The families, without the values.
    #[must_use]
    pub(in crate::cases) fn families(&self) -> &Families {
        &self.families
    }

    /// The sum of the samples of this name with these labels among theirs; `None` if there is none.
    #[must_use]
    pub(in crate::cases) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |s: &&Sample| {
            let has = |(key, value): &(&str, &str)| s.1.get(*key).is_some_and(|v| v == value);
            s.0 == name && labels.iter().all(has)
        };
        let found: Vec<f64> = self.samples.iter().filter(fits).map(|s| s.2).collect();
        (!found.is_empty()).then(|| found.iter().sum())
    }
}

impl Family {
    /// A sample of this family.
    fn take(&mut self, family: &str, name: &str, labels: &BTreeMap<String, String>) -> Result<()> {
        let rest = name.strip_prefix(family).context("a sample of another family")?;
        let histogram = self.kind == "histogram";
        ensure!(
            match rest {
                "" => !histogram,
                "_bucket" | "_sum" | "_count" => histogram || self.kind == "summary",
                _ => false,
            },
            "a {} has no {name}",
            self.kind
        );
        for (label, value) in labels {
            if histogram && label == "le" {
                self.buckets.insert(value.clone());
            } else {
                self.labels.insert(label.clone());
            }
        }
        Ok(())
    }
}

/// One sample's line.
fn sample(line: &str) -> Result<Sample> {
    let end = line.find(['{', ' ']).context("no value")?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").context("a label without a value")?;
            let (value, after) = quoted(after).context("a label's value without an end")?;
            ensure!(labels.insert(label.to_owned(), value).is_none(), "label {label} twice");
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let mut words = rest.strip_prefix(' ').context("no value")?.split(' ');
    let value = match words.next().context("no value")? {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => {
            ensure!(!number.contains(|c: char| c.is_alphabetic() && c != 'e'), "{number} is no number");
            number.parse().with_context(|| number.to_owned())?
        }
    };
    ensure!(words.count() <= 1, "more than a value and a time");
    Ok((name.to_owned(), labels, value))
}

/// Text up to the next quotation mark, and the rest.
fn quoted(text: &str) -> Result<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('\\' | '"'))) => value.push(c),
                other => bail!("\\{other:?} means nothing"),
            },
            c => value.push(c),
        }
    }
    bail!("no quotation mark")
}

impl Families {
    /// Number of families.
    #[must_use]
    pub(in crate::cases) fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is a family of this name.
    #[must_use]
    pub(in crate::cases) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Each family that `others` lack, or have in another form.
    #[must_use]
    pub(in crate::cases) fn not_in(&self, others: &Families) -> Vec<String> {
        let told = |(name, ours): (&String, &Family)| match others.0.get(name) {
            Some(theirs) if ours == theirs => None,
            Some(theirs) => Some(format!("{name}: {ours:?}, upstream {theirs:?}")),
            None => Some(format!("{name}: upstream does not tell it")),
        };
        self.0.iter().filter_map(told).collect()
    }

    /// The families as JSON, for the record.
    #[must_use]
    pub(in crate::cases) fn to_json(&self) -> Value {
        let one = |(name, f): (&String, &Family)| {
            let mut family = json!({"type": f.kind, "labels": f.labels});
            if !f.buckets.is_empty() {
                family["buckets"] = json!(f.buckets);
            }
            (name.clone(), family)
        };
        Value::Object(self.0.iter().map(one).collect())
    }

    /// From the record.
    ///
    /// # Errors
    /// It is no record.
    pub(in crate::cases) fn of_json(value: &Value) -> Result<Families> {
        let words = |value: &Value| -> BTreeSet<String> {
            value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
        };
        let one = |(name, family): (&String, &Value)| {
            let kind = family["type"].as_str().context("a family without a type")?.to_owned();
            let (labels, buckets) = (words(&family["labels"]), words(&family["buckets"]));
            Ok((name.clone(), Family { kind, labels, buckets }))
        };
        let all = value.as_object().context("no families")?;
        Ok(Families(all.iter().map(one).collect::<Result<_>>()?))
    }
}

#[cfg(test)]
mod tests {
    use crate::cases::api::metrics::families::*;

    const GOOD: &str = "# HELP a_total x\n# TYPE a_total counter\na_total{b=\"c\\\"\\\\\\n,}\",d=\"\"} 1 1000\n\
                        a_total{b=\"\",d=\"\"} 2e+06\n# TYPE h histogram\nh_bucket{le=\"0.1\"} 0\n\
                        h_bucket{le=\"+Inf\"} 1\nh_sum 0.5\nh_count 1\n# TYPE g gauge\ng +Inf\n";

    #[test]
    fn texts_are_read() {
        let text = Text::parse(GOOD).unwrap();
        assert_eq!(text.sum("a_total", &[("b", "c\"\\\n,}")]), Some(1.0));
        assert_eq!(text.sum("a_total", &[("d", "")]), Some(2_000_001.0));
        assert_eq!((text.sum("g", &[]), text.sum("x", &[])), (Some(f64::INFINITY), None));
        let families = text.families();
        assert_eq!(families.len(), 3);
        assert_eq!(&Families::of_json(&families.to_json()).unwrap(), families);
        assert!(families.not_in(families).is_empty());
        let other = Text::parse("# TYPE g counter\ng 1\n").unwrap();
        assert_eq!(other.families().not_in(families).len(), 1);
        assert_eq!(families.not_in(other.families()).len(), 3);
    }

    #[test]
    fn what_a_scraper_could_misread_is_an_error() {
        for text in [
            "g 1\n",
            "# TYPE g gauge\ng 1",
            "# TYPE g gauge\ng 1\ng 1\n",
            "# TYPE g gauge\ng 1\n# TYPE g gauge\n",
            "# TYPE g gauge\nother 1\n",
            "# TYPE g gauge\ng_sum 1\n",
            "# TYPE g gauge\ng inf\n",
            "# TYPE g gauge\ng{a=\"b} 1\n",
            "# TYPE g gauge\ng\n",
            "# TYPE h histogram\nh 1\n",
        ] {
            assert!(Text::parse(text).is_err(), "{text:?}");
        }
    }
}
