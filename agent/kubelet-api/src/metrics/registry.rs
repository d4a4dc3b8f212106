//! Families and the numbers under them.
//!
//! Invariants: how many labels a family has is part of its type, so that a sample cannot have others; a counter only
//! grows; samples are kept in the order of their labels, so that the same numbers are the same text.

use std::collections::BTreeMap;

use super::text;
use crate::metrics::kind::{Kind, Sample, Series};

/// A family that only grows. `N` is the number of its labels.
#[derive(Debug)]
pub struct Counter<const N: usize> {
    /// Its name, whole.
    pub name: &'static str,
    /// What people read about it.
    pub help: &'static str,
    /// Names of its labels.
    pub labels: [&'static str; N],
}

/// A gauge: a value that rises and falls.
#[derive(Debug)]
pub struct Gauge<const N: usize> {
    /// Its name, whole.
    pub name: &'static str,
    /// What people read about it.
    pub help: &'static str,
    /// Names of its labels.
    pub labels: [&'static str; N],
}

/// A family of distributions.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    /// Its name, whole.
    pub name: &'static str,
    /// What people read about it.
    pub help: &'static str,
    /// Names of its labels.
    pub labels: [&'static str; N],
    /// Upper bounds of the buckets, ascending, without the infinite one.
    pub buckets: &'static [f64],
}

/// The values of one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Registry(BTreeMap<&'static str, Series>);

impl Registry {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Shows a counter without labels from now on, starting at 0.
    pub fn begin(&mut self, counter: &'static Counter<0>) {
        self.add(counter, [], 0.0);
    }

    /// The same for a histogram.
    pub fn begin_histogram(&mut self, histogram: &'static Histogram<0>) {
        self.distribution(histogram, []);
    }

    /// Adds to a counter. What is no number that counts (negative, not finite) adds nothing.
    pub fn add<const N: usize>(&mut self, counter: &'static Counter<N>, values: [&str; N], by: f64) {
        let series = self.series(counter.name, counter.help, &counter.labels, Kind::Counter);
        if let Sample::Number(number) = series.sample(&values)
            && by.is_finite()
            && by >= 0.0
        {
            *number += by;
        }
    }

    /// Increments a counter.
    pub fn count<const N: usize>(&mut self, counter: &'static Counter<N>, values: [&str; N]) {
        self.add(counter, values, 1.0);
    }

    /// Sets a counter whose value another component counts (the kernel, a view).
    pub fn total<const N: usize>(&mut self, counter: &'static Counter<N>, values: [&str; N], is: f64) {
        let series = self.series(counter.name, counter.help, &counter.labels, Kind::Counter);
        *series.sample(&values) = Sample::Number(is);
    }

    /// Sets a gauge.
    pub fn set<const N: usize>(&mut self, gauge: &'static Gauge<N>, values: [&str; N], is: f64) {
        let series = self.series(gauge.name, gauge.help, &gauge.labels, Kind::Gauge);
        *series.sample(&values) = Sample::Number(is);
    }

    /// Moves a gauge.
    pub fn shift<const N: usize>(&mut self, gauge: &'static Gauge<N>, values: [&str; N], by: f64) {
        let series = self.series(gauge.name, gauge.help, &gauge.labels, Kind::Gauge);
        if let Sample::Number(number) = series.sample(&values) {
            *number += by;
        }
    }

    /// Adds an observation to a histogram; a value that is not a number is left out.
    pub fn observe<const N: usize>(
        &mut self,
        histogram: &'static Histogram<N>,
        values: [&str; N],
        observed: f64,
    ) {
        if observed.is_nan() {
            return;
        }
        if let Sample::Distribution { counts, sum } = self.distribution(histogram, values) {
            // A bucket holds values up to its bound, inclusive.
            let at = histogram.buckets.partition_point(|bound| *bound < observed);
            if let Some(count) = counts.get_mut(at) {
                *count += 1;
                *sum += observed;
            }
        }
    }

    /// Drops the samples of a family that have all these labels: their object is gone.
    pub fn forget(&mut self, family: &str, of: &[(&str, &str)]) {
        let Some(series) = self.0.get_mut(family) else { return };
        let labels = series.labels;
        series.samples.retain(|(values, _)| {
            let has = |(label, value): &(&str, &str)| {
                labels.iter().zip(values.iter()).any(|(name, is)| name == label && &**is == *value)
            };
            !of.iter().all(has)
        });
    }

    /// Drops all samples of a family.
    pub fn clear(&mut self, family: &str) {
        self.0.remove(family);
    }

    /// What an endpoint answers.
    #[must_use]
    pub fn text(&self) -> String {
        text::of(&self.0)
    }

    fn distribution<const N: usize>(
        &mut self,
        histogram: &'static Histogram<N>,
        values: [&str; N],
    ) -> &mut Sample {
        let kind = Kind::Histogram(histogram.buckets);
        self.series(histogram.name, histogram.help, &histogram.labels, kind).sample(&values)
    }

    fn series(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        kind: Kind,
    ) -> &mut Series {
        self.0.entry(name).or_insert_with(|| Series { kind, help, labels, samples: Vec::new() })
    }
}
