//! The runtime's containers of a pod, found by name without a search through all of them.
//!
//! A pod may have a thousand, and each pass over it looks up each by its name. In: instances in any order.
//! Out: slices of one name. Invariant: sorted by name, within a name the newest first.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use super::observed::ContainerObserved;
use crate::ids::ContainerId;

/// Instances of a pod's containers, sorted by name, within a name the newest first (attempt, then creation).
///
/// The fields of the sort order must not be changed in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<ContainerObserved>", into = "Vec<ContainerObserved>")]
pub struct Containers(Vec<ContainerObserved>);

impl Containers {
    /// The instances of one container, the newest first.
    #[must_use]
    pub fn of(&self, name: &str) -> &[ContainerObserved] {
        let begin = self.0.partition_point(|c| c.name.as_str() < name);
        let rest = self.0.get(begin..).unwrap_or_default();
        let end = rest.iter().take_while(|c| c.name == name).count();
        rest.get(..end).unwrap_or_default()
    }

    /// The ids of all instances, for callers that look for many.
    #[must_use]
    pub fn ids(&self) -> BTreeSet<&ContainerId> {
        self.0.iter().map(|c| &c.id).collect()
    }

    /// Removes the instances for which `kept` is false.
    pub fn retain(&mut self, kept: impl FnMut(&ContainerObserved) -> bool) {
        self.0.retain(kept);
    }
}

impl From<Vec<ContainerObserved>> for Containers {
    fn from(mut all: Vec<ContainerObserved>) -> Containers {
        all.sort_by(|a, b| {
            a.name
                .cmp(&b.name)
                .then_with(|| (b.attempt, b.created, &b.id).cmp(&(a.attempt, a.created, &a.id)))
        });
        Containers(all)
    }
}

impl From<Containers> for Vec<ContainerObserved> {
    fn from(containers: Containers) -> Vec<ContainerObserved> {
        containers.0
    }
}

impl FromIterator<ContainerObserved> for Containers {
    fn from_iter<I: IntoIterator<Item = ContainerObserved>>(all: I) -> Containers {
        all.into_iter().collect::<Vec<_>>().into()
    }
}

impl<'a> IntoIterator for &'a Containers {
    type Item = &'a ContainerObserved;
    type IntoIter = std::slice::Iter<'a, ContainerObserved>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl IntoIterator for Containers {
    type Item = ContainerObserved;
    type IntoIter = std::vec::IntoIter<ContainerObserved>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Deref for Containers {
    type Target = [ContainerObserved];

    fn deref(&self) -> &[ContainerObserved] {
        &self.0
    }
}

impl DerefMut for Containers {
    fn deref_mut(&mut self) -> &mut [ContainerObserved] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Wall;

    #[test]
    fn instances_of_a_name_are_together_the_newest_first() {
        let seen =
            |id: &str, name: &str, attempt| ContainerObserved::created(id, "s", name, attempt, Wall(1));
        let all: Containers = vec![
            seen("1", "b", 0),
            seen("2", "a", 0),
            seen("3", "b", 2),
            seen("4", "ba", 0),
            seen("5", "b", 1),
        ]
        .into();
        let ids = |name: &str| all.of(name).iter().map(|c| c.id.to_string()).collect::<Vec<_>>();
        assert_eq!(ids("a"), ["2"]);
        assert_eq!(ids("b"), ["3", "5", "1"]);
        assert_eq!(ids("ba"), ["4"]);
        for name in ["", "0", "aa", "bb", "z"] {
            assert_eq!(ids(name), [""; 0], "{name}");
        }
        assert!(all.ids().into_iter().map(ContainerId::as_str).eq(["1", "2", "3", "4", "5"]));
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Containers>(&text).unwrap(), all);
    }
}
