//! Sets of processors, and their text form (`0-2,5`).
//!
//! In: numbers or text. Out: a set, and its canonical text. Invariant: the text of a set is one that upstream's parser and the
//! kernel's cpuset files read. Upstream: k8s.io/utils/cpuset.

use std::collections::BTreeSet;
use std::fmt;

use orlop_config::formats::parse_cpu_list;

/// Processors by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// No processor.
    #[must_use]
    pub fn new() -> CpuSet {
        CpuSet::default()
    }

    /// Number of processors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the processor is one of them.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Adds a processor.
    pub fn insert(&mut self, cpu: u32) {
        self.0.insert(cpu);
    }

    /// Ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Processors of either set.
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        self.0.union(&other.0).copied().collect()
    }

    /// Processors of this set that the other one does not have.
    #[must_use]
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        self.0.difference(&other.0).copied().collect()
    }

    /// Processors of both sets.
    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        self.0.intersection(&other.0).copied().collect()
    }

    /// True if the other set has all of these.
    #[must_use]
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        CpuSet(cpus.into_iter().collect())
    }
}

impl Extend<u32> for CpuSet {
    fn extend<T: IntoIterator<Item = u32>>(&mut self, cpus: T) {
        self.0.extend(cpus);
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut cpus = self.0.iter().copied().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| *next == last + 1) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// A text that is not a set of processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of processors such as 0-3,8")]
pub struct NotACpuList(String);

impl std::str::FromStr for CpuSet {
    type Err = NotACpuList;

    /// Parses the forms that upstream reads; an empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_cpu_list(text).map(CpuSet).ok_or_else(|| NotACpuList(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts() {
        for (cpus, text) in
            [(vec![], ""), (vec![3], "3"), (vec![0, 1], "0-1"), (vec![7, 0, 2, 3, 4, 6], "0,2-4,6-7")]
        {
            let set: CpuSet = cpus.into_iter().collect();
            assert_eq!(set.to_string(), text);
            assert_eq!(text.parse(), Ok(set));
        }
        for wrong in [",", "1,", "2-1", "a", "1-", "-1", "+1", "1 ", "0-4294967295"] {
            assert!(wrong.parse::<CpuSet>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_text_is_read_as_the_set_that_it_was_written_for(cpus in proptest::collection::btree_set(0_u32..300, 0..80)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse(), Ok(set));
        }
    }
}
