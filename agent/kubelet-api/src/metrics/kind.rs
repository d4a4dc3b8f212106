//! One metric family with its samples.

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

/// Value for one set of labels.
#[derive(Clone, Debug)]
pub(super) enum Sample {
    Number(f64),
    Distribution {
        /// For each bucket, the number of observations that no smaller bucket has; the last bucket has no
        /// bound.
        counts: Box<[u64]>,
        sum: f64,
    },
}

/// Values of labels, in the order of the family's names.
pub(super) type Values = Box<[Box<str>]>;

/// One family with its samples.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) samples: Vec<(Values, Sample)>,
}

impl Series {
    /// The sample with these values, made if there is none.
    pub(super) fn sample(&mut self, values: &[&str]) -> &mut Sample {
        let place = self
            .samples
            .binary_search_by(|(known, _)| known.iter().map(|v| &**v).cmp(values.iter().copied()));
        let at = match place {
            Ok(at) => at,
            Err(at) => {
                let values = values.iter().map(|v| Box::from(*v)).collect();
                let sample = match self.kind {
                    Kind::Counter | Kind::Gauge => Sample::Number(0.0),
                    Kind::Histogram(buckets) => {
                        Sample::Distribution { counts: vec![0; buckets.len() + 1].into(), sum: 0.0 }
                    }
                };
                self.samples.insert(at, (values, sample));
                at
            }
        };
        &mut self.samples[at].1
    }
}
