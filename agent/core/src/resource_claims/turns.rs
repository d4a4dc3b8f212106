//! Turns of pods' work on claims: who works on which claim, and who waits for it.
//!
//! In: the claims that a work needs, the end of a work. Out: whether it is the work's turn. Invariants: a claim is worked on for one pod at
//! a time; a work gets all claims that it needs or none, so that no two works wait for each other; works that wait for the same claims get
//! them in order of arrival; a work may take a claim that an earlier one waits for only while that one waits for another claim, too,
//! and only [`PASSES_MAX`] works pass it. So each work gets its turn, and a driver that hangs does not hold the works that share a claim
//! with a pod that waits for it. Upstream: one lock for all claims of the node (pkg/kubelet/cm/dra/manager.go).

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::PodUid;

use super::cache::ClaimKey;

/// So many later works may pass a work that waits. A driver has 45 s for a call, and a claim is shared by a handful of pods.
const PASSES_MAX: u32 = 4;

/// A work that waits.
#[derive(Clone, Debug)]
struct Waiter {
    pod: PodUid,
    wants: BTreeSet<ClaimKey>,
    /// Later works that took one of its claims.
    passed: u32,
}

/// The turns of all works; a pod has one work at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimTurns {
    /// Claims that are being worked on, and for which pod.
    held: BTreeMap<ClaimKey, PodUid>,
    /// Works that wait, in order of arrival.
    waiting: Vec<Waiter>,
    /// A work that waits may get its turn, and does not know it yet.
    freed: bool,
}

impl ClaimTurns {
    /// Holds all these claims for the pod's work. False: it is not its turn; the work waits from now on, and asks again when claims
    /// became free.
    pub(super) fn take(&mut self, wants: &BTreeSet<ClaimKey>, pod: &PodUid) -> bool {
        let place = self.waiting.iter().position(|waiter| waiter.pod == *pod);
        let earlier = place.unwrap_or(self.waiting.len());
        let lets_pass = |waiter: &Waiter| {
            waiter.wants.is_disjoint(wants)
                || (waiter.passed < PASSES_MAX && !self.is_free(&waiter.wants, &waiter.pod))
        };
        if !self.is_free(wants, pod) || !self.waiting.iter().take(earlier).all(lets_pass) {
            self.wait(place, wants, pod);
            return false;
        }
        let passed = self.waiting.iter_mut().take(earlier);
        passed.filter(|waiter| !waiter.wants.is_disjoint(wants)).for_each(|waiter| waiter.passed += 1);
        self.leave(pod);
        self.held.extend(wants.iter().map(|key| (key.clone(), pod.clone())));
        true
    }

    /// The pod's work needs no other claims than these any more, and waits for none.
    pub(super) fn keep_only(&mut self, keys: &BTreeSet<ClaimKey>, pod: &PodUid) {
        let before = self.held.len();
        self.held.retain(|key, holder| holder != pod || keys.contains(key));
        self.freed |= self.held.len() < before;
        self.leave(pod);
    }

    /// Claims became free since the last question about that.
    pub(super) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// No other pod's work has one of the claims.
    fn is_free(&self, keys: &BTreeSet<ClaimKey>, pod: &PodUid) -> bool {
        keys.iter().all(|key| self.held.get(key).is_none_or(|holder| holder == pod))
    }

    fn wait(&mut self, place: Option<usize>, wants: &BTreeSet<ClaimKey>, pod: &PodUid) {
        match place.and_then(|place| self.waiting.get_mut(place)) {
            Some(waiter) if waiter.wants == *wants => {}
            Some(waiter) => {
                waiter.wants.clone_from(wants);
                self.freed = true;
            }
            None => self.waiting.push(Waiter { pod: pod.clone(), wants: wants.clone(), passed: 0 }),
        }
    }

    /// The pod's work waits no longer: those behind it may go on.
    fn leave(&mut self, pod: &PodUid) {
        let before = self.waiting.len();
        self.waiting.retain(|waiter| waiter.pod != *pod);
        self.freed |= self.waiting.len() < before;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(names: &str) -> BTreeSet<ClaimKey> {
        names.chars().map(|name| ("ns".to_owned(), name.to_string())).collect()
    }

    impl ClaimTurns {
        /// The pod asks for these claims, one letter each.
        fn asks(&mut self, pod: &str, claims: &str) -> bool {
            self.take(&keys(claims), &PodUid::from(pod))
        }

        fn ends(&mut self, pod: &str) -> bool {
            self.keep_only(&BTreeSet::new(), &PodUid::from(pod));
            self.take_freed()
        }
    }

    #[test]
    fn works_on_one_claim_come_in_order_of_arrival() {
        let mut turns = ClaimTurns::default();
        assert!(turns.asks("z", "c"));
        assert!(!turns.asks("y", "c") && !turns.asks("a", "c"));
        assert!(turns.ends("z"));
        assert!(!turns.asks("a", "c"), "y came first");
        assert!(!turns.asks("z", "c"), "its next work is behind both");
        assert!(turns.asks("y", "c"));
        assert!(turns.ends("y"));
        assert!(!turns.asks("z", "c") && turns.asks("a", "c"));
        assert!(turns.ends("a"));
        assert!(turns.asks("z", "c"));
    }

    #[test]
    fn a_work_passes_one_that_waits_for_another_claim_and_not_without_end() {
        let mut turns = ClaimTurns::default();
        assert!(turns.asks("hangs", "c"));
        assert!(!turns.asks("waits", "ce"));
        assert!(turns.asks("elsewhere", "x"), "no claim in common");
        for _ in 0..PASSES_MAX {
            assert!(turns.asks("a", "e"));
            assert!(turns.ends("a"));
        }
        assert!(!turns.asks("a", "e") && !turns.asks("b", "ex"));
        assert!(turns.ends("hangs"));
        assert!(turns.asks("waits", "ce"));
        assert!(turns.ends("waits"));
        assert!(turns.asks("a", "e"));
        assert!(!turns.asks("b", "ex"));
    }

    #[test]
    fn a_work_that_can_go_on_is_not_passed() {
        let mut turns = ClaimTurns::default();
        assert!(turns.asks("first", "c"));
        assert!(!turns.asks("waits", "ce"));
        assert!(turns.ends("first"));
        assert!(!turns.asks("a", "e") && !turns.asks("first", "c"));
        assert!(turns.asks("waits", "ce"));
    }

    #[test]
    fn a_work_that_waits_for_less_or_no_longer_lets_others_go_on() {
        let mut turns = ClaimTurns::default();
        assert!(turns.asks("holds", "c"));
        assert!(!turns.asks("waits", "ce"));
        for _ in 0..PASSES_MAX {
            assert!(turns.asks("a", "e") && turns.ends("a"));
        }
        assert!(!turns.asks("a", "e") && !turns.take_freed());
        assert!(!turns.asks("waits", "c"));
        assert!(turns.take_freed(), "e is wanted by nobody before a");
        assert!(turns.asks("a", "e") && turns.ends("a"));
        assert!(turns.ends("waits"), "it gave up");
        assert!(!turns.asks("b", "c"));
        turns.keep_only(&keys("c"), &PodUid::from("holds"));
        assert!(!turns.asks("b", "c"), "it is still needed");
    }

    /// A work: its pod, its claims, and whether it has them.
    type Work = (PodUid, BTreeSet<ClaimKey>, bool);

    /// Works by arrival, as the owner of the claims runs them.
    #[derive(Default)]
    struct Works {
        turns: ClaimTurns,
        all: BTreeMap<u32, Work>,
        /// How often each work was passed.
        passed: BTreeMap<u32, u32>,
        arrivals: u32,
    }

    impl Works {
        fn ask(&mut self, number: u32) {
            let (pod, wants, _) = self.all[&number].clone();
            if !self.turns.take(&wants, &pod) {
                return;
            }
            for (other, (_, others, works)) in &self.all {
                if *other == number || others.is_disjoint(&wants) {
                    continue;
                }
                assert!(!works, "two works on one claim");
                if *other < number {
                    let passed = self.passed.entry(*other).or_default();
                    *passed += 1;
                    assert!(*passed <= PASSES_MAX, "a work waits without end");
                }
            }
            self.all.insert(number, (pod, wants, true));
        }

        /// Works that wait ask again, in the order of their pods.
        fn wake(&mut self) {
            while self.turns.take_freed() {
                let waiting = self.all.iter().filter(|(_, (_, _, works))| !works);
                let mut waiting: Vec<_> =
                    waiting.map(|(number, (pod, _, _))| (pod.clone(), *number)).collect();
                waiting.sort();
                waiting.into_iter().for_each(|(_, number)| self.ask(number));
            }
        }

        /// The pod begins a work, or ends the one that has its claims.
        fn go_on(&mut self, pod: &PodUid, wants: BTreeSet<ClaimKey>) {
            let current = self.all.iter().find(|(_, (of, _, _))| of == pod);
            match current.map(|(number, (_, _, works))| (*number, *works)) {
                None => {
                    self.arrivals += 1;
                    self.all.insert(self.arrivals, (pod.clone(), wants, false));
                    self.ask(self.arrivals);
                }
                Some((number, true)) => {
                    self.all.remove(&number);
                    self.turns.keep_only(&BTreeSet::new(), pod);
                }
                Some((_, false)) => {}
            }
            self.wake();
        }
    }

    proptest! {
        #[test]
        fn every_work_gets_its_turn(moves in prop::collection::vec((0..6_u8, 1..16_u8), 1..300)) {
            let mut works = Works::default();
            for (pod, wants) in moves {
                let letters = "abcd".chars().enumerate().filter(|(bit, _)| (wants >> *bit) & 1 == 1);
                let wants = keys(&letters.map(|(_, letter)| letter).collect::<String>());
                works.go_on(&PodUid::from(format!("p{pod}").as_str()), wants);
            }
            while !works.all.is_empty() {
                let working = works.all.values().find(|(_, _, works)| *works).map(|(pod, _, _)| pod.clone());
                let pod = working.expect("a work that is not told of its turn waits for ever");
                works.go_on(&pod, BTreeSet::new());
            }
        }
    }
}
