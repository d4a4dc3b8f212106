//! Recent uses of images by pods, and removals under way: no image is removed between a pod's look at it and the creation of the
//! container.
//!
//! In: effects that look at, pull or use an image; removals that begin and end; the time. Out: whether the effect or the removal may
//! begin, the images used lately. Invariants: an image is not removed while an effect has used it lately; no effect uses an image
//! that is being removed; an image is removed once at a time. Entries are removed by age, so their number is that of
//! the images of a few minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::time::Mono;

/// The time from the look at an image to its container is shorter, unless the pod waits for something else.
const LATELY: Duration = Duration::from_mins(2);

/// By then the collector, which runs every five minutes, has seen the image.
const KEPT: Duration = Duration::from_mins(10);

/// The uses of images on one node.
#[derive(Clone, Debug, Default)]
pub struct UseRecords {
    /// Time of the last use of each image.
    last: BTreeMap<String, Mono>,
    /// And of the first.
    first: BTreeMap<String, Mono>,
    removing: BTreeSet<String>,
}

impl UseRecords {
    /// An effect wants the image, as it spells it. False: the image is being removed, and the effect waits for the end of that.
    #[must_use]
    pub fn begin_use(&mut self, image: &str, now: Mono) -> bool {
        if self.removing.contains(image) {
            return false;
        }
        self.last.retain(|_, at| now.since(*at) < LATELY);
        self.last.insert(image.to_owned(), now);
        self.first.retain(|_, at| now.since(*at) < KEPT);
        self.first.entry(image.to_owned()).or_insert(now);
        true
    }

    /// First use of each image that was not long ago.
    #[must_use]
    pub fn first_uses(&self) -> &BTreeMap<String, Mono> {
        &self.first
    }

    /// Removal of an image with these names. False: a pod used one of them lately, or another removal has one; nothing begins.
    #[must_use]
    pub fn begin_removal(&mut self, names: &[String], now: Mono) -> bool {
        let used_lately = |name: &String| self.last.get(name).is_some_and(|at| now.since(*at) < LATELY);
        if names.iter().any(|name| used_lately(name) || self.removing.contains(name)) {
            return false;
        }
        self.removing.extend(names.iter().cloned());
        self.first.retain(|name, _| !names.contains(name));
        true
    }

    /// The removal of an image with these names is over, whether the image is gone or not.
    pub fn end_removal(&mut self, names: &[String]) {
        for name in names {
            self.removing.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(0).after(Duration::from_secs(seconds))
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_use_and_a_removal_exclude_each_other() {
        let mut uses = UseRecords::default();
        let of_a = names(&["sha256:a", "r.example/a:1"]);
        assert!(uses.begin_use("r.example/a:1", at(0)));
        assert!(!uses.begin_removal(&of_a, at(119)));
        assert!(uses.begin_use("r.example/a:1", at(119)), "a refused removal keeps nobody away");
        assert!(!uses.begin_removal(&of_a, at(238)));
        assert!(uses.begin_removal(&of_a, at(239)));
        for name in &of_a {
            assert!(!uses.begin_use(name, at(239)));
        }
        assert!(uses.begin_use("r.example/b:1", at(239)));
        uses.end_removal(&of_a);
        assert!(uses.begin_use("r.example/a:1", at(240)));
        assert!(!uses.begin_removal(&of_a, at(241)));
    }

    #[test]
    fn an_image_is_removed_once_at_a_time() {
        let mut uses = UseRecords::default();
        let (one, other) = (names(&["sha256:a", "shared"]), names(&["sha256:b", "shared"]));
        assert!(uses.begin_removal(&one, at(0)));
        assert!(!uses.begin_removal(&other, at(0)));
        assert!(uses.begin_use("sha256:b", at(0)), "the refused removal has begun nothing");
        uses.end_removal(&one);
        assert!(uses.begin_removal(&names(&["shared"]), at(0)));
    }

    #[test]
    fn old_uses_are_forgotten() {
        let mut uses = UseRecords::default();
        for (image, seconds) in [("a", 0), ("b", 100), ("a", 599), ("c", 600)] {
            assert!(uses.begin_use(image, at(seconds)));
        }
        let first: Vec<_> = uses.first_uses().iter().map(|(name, at)| (name.as_str(), *at)).collect();
        assert_eq!(first, [("b", at(100)), ("c", at(600))]);
        assert_eq!(uses.last.keys().collect::<Vec<_>>(), ["a", "c"]);
        assert!(uses.begin_removal(&names(&["b"]), at(600)));
        assert_eq!(uses.first_uses().keys().collect::<Vec<_>>(), ["c"]);
    }
}
