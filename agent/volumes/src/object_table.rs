//! The table of objects that pods of this node get values from: [`WatchedObjects`], its watches, and the requests that
//! wait for the first news of one. Only one owner in the daemon has the table.
//!
//! ```text
//! pods ──► WatchedObjects ──► Begin, End ──► watches ──► news ──┬─► Changed: the manager
//! questions ──► known? ──► at once, or they wait SYNC_WAIT ─────┴─► answers
//! ```
//! In: pods with their objects, news of watches, questions, the time. Out: [`ObjectOrder`]s, answers. Invariants: every question has
//! one answer, after [`SYNC_WAIT`] at the latest; news of a watch that has ended changes nothing, even if the object is watched again.
//! Upstream: pkg/kubelet/util/manager/watch_based_manager.go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::objects::{Fetched, ObjectKind, ObjectRef};
use agent_types::time::Mono;

use crate::watched::{ObjectNews, WatchAction, WatchedObjects, is_always_watched};

/// How long a question waits for the first news of a watch (upstream's).
pub const SYNC_WAIT: Duration = Duration::from_secs(1);

/// Time between two reports of changes of one object, for each pod that uses it. Each report makes all of them look through their
/// volumes: an object that changes all the time and has hundreds of pods would take the whole node.
pub const CHANGES_APART: Duration = Duration::from_millis(10);

/// Number of a watch; an object that is watched again has a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchNumber(u64);

/// Number of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuestionNumber(u64);

/// Work for the owner of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectOrder {
    /// The watch begins; its news come with the number.
    Begin(ObjectRef, WatchNumber),
    /// The watch ends, if there is one: no pod uses the object any more, or the object never changes again.
    End(ObjectRef),
    /// The values of these pods changed.
    Changed(BTreeSet<PodUid>),
}

/// The table.
#[derive(Clone, Debug)]
pub struct ObjectTable {
    watched: WatchedObjects,
    /// Secrets and ConfigMaps are watched, too.
    watches_values: bool,
    running: BTreeMap<ObjectRef, WatchNumber>,
    /// Questions without an answer, and the time of their last answer.
    waiting: BTreeMap<QuestionNumber, (ObjectRef, Mono)>,
    /// Objects that changed a moment ago.
    changed: BTreeMap<ObjectRef, RecentChange>,
    /// Watches and questions so far.
    numbers: u64,
    orders: Vec<ObjectOrder>,
    answers: Vec<(QuestionNumber, Fetched)>,
}

/// A change that was reported, and the pods that have not heard of a later one.
#[derive(Clone, Debug)]
struct RecentChange {
    /// The next report may be made then.
    next: Mono,
    held: BTreeSet<PodUid>,
}

impl ObjectTable {
    /// An empty table. `watches_values`: Secrets and ConfigMaps are watched, too.
    #[must_use]
    pub fn new(watches_values: bool) -> ObjectTable {
        ObjectTable {
            watched: WatchedObjects::default(),
            watches_values,
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            changed: BTreeMap::new(),
            numbers: 0,
            orders: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Work since the last call.
    pub fn orders(&mut self) -> Vec<ObjectOrder> {
        std::mem::take(&mut self.orders)
    }

    /// Answers since the last call.
    pub fn answers(&mut self) -> Vec<(QuestionNumber, Fetched)> {
        std::mem::take(&mut self.answers)
    }

    /// A pod uses these objects now; none if it is gone.
    pub fn pod(&mut self, uid: &PodUid, objects: BTreeSet<ObjectRef>) {
        let actions = self.watched.pod(uid, objects);
        self.apply(actions);
    }

    /// News of the watch with this number.
    pub fn heard(&mut self, object: &ObjectRef, number: WatchNumber, news: ObjectNews, now: Mono) {
        if self.running.get(object) != Some(&number) {
            return;
        }
        let mut actions = self.watched.heard(object, news);
        actions.retain_mut(|action| match action {
            WatchAction::Changed(pods) => {
                *pods = self.changed_now(object, std::mem::take(pods), now);
                !pods.is_empty()
            }
            WatchAction::Begin(_) | WatchAction::End(_) => true,
        });
        self.apply(actions);
        let Some(known) = self.watched.known(object) else { return };
        for (question, _) in self.waiting.extract_if(.., |_, (of, _)| of == object) {
            self.answers.push((question, known.clone()));
        }
    }

    /// A question for an object's contents. Its answer comes at once if they are known.
    pub fn ask(&mut self, object: ObjectRef, now: Mono) -> QuestionNumber {
        let question = QuestionNumber(self.next_number());
        match self.watched.known(&object) {
            Some(known) => self.answers.push((question, known)),
            None => drop(self.waiting.insert(question, (object, now.after(SYNC_WAIT)))),
        }
        question
    }

    /// No worker waits for the answer any more.
    pub fn withdraw(&mut self, question: QuestionNumber) {
        self.waiting.remove(&question);
    }

    /// The pods that hear of a change now: none if the last report was a moment ago, else also those that were held back since.
    fn changed_now(&mut self, object: &ObjectRef, mut pods: BTreeSet<PodUid>, now: Mono) -> BTreeSet<PodUid> {
        if let Some(recent) = self.changed.get_mut(object) {
            if now < recent.next {
                recent.held.append(&mut pods);
                return BTreeSet::new();
            }
            pods.append(&mut recent.held);
        }
        let next = now.after(CHANGES_APART.saturating_mul(u32::try_from(pods.len()).unwrap_or(u32::MAX)));
        self.changed.insert(object.clone(), RecentChange { next, held: BTreeSet::new() });
        pods
    }

    /// Time passed: questions that waited for [`SYNC_WAIT`] get an answer, and changes that were held back are reported.
    pub fn tick(&mut self, now: Mono) {
        let due: Vec<(ObjectRef, RecentChange)> =
            self.changed.extract_if(.., |_, recent| recent.next <= now).collect();
        for (object, recent) in due.into_iter().filter(|(_, recent)| !recent.held.is_empty()) {
            let pods = self.changed_now(&object, recent.held, now);
            self.orders.push(ObjectOrder::Changed(pods));
        }
        for (question, (object, _)) in self.waiting.extract_if(.., |_, (_, until)| *until <= now) {
            self.watched.missed(&object);
            self.answers.push((question, Fetched::Unknown(unsynced(object.kind))));
        }
    }

    /// Time of the next tick.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        let questions = self.waiting.values().map(|(_, until)| *until);
        questions.chain(self.changed.values().map(|recent| recent.next)).min()
    }

    fn apply(&mut self, actions: Vec<WatchAction>) {
        for action in actions {
            match action {
                WatchAction::Begin(object) => {
                    if self.watches_values || is_always_watched(object.kind) {
                        let number = WatchNumber(self.next_number());
                        self.running.insert(object.clone(), number);
                        self.orders.push(ObjectOrder::Begin(object, number));
                    }
                }
                WatchAction::End(object) => {
                    self.running.remove(&object);
                    self.orders.push(ObjectOrder::End(object));
                }
                WatchAction::Changed(pods) => self.orders.push(ObjectOrder::Changed(pods)),
            }
        }
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

/// Upstream's message for an object that its watch has not delivered yet.
fn unsynced(kind: ObjectKind) -> String {
    let kind = match kind {
        ObjectKind::Secret => "secret",
        ObjectKind::ConfigMap => "configmap",
        ObjectKind::Services => "service",
        ObjectKind::RuntimeClass => "runtimeclass",
        ObjectKind::TrustBundles => "clustertrustbundle",
    };
    format!("failed to sync {kind} cache: timed out waiting for the condition")
}

#[cfg(test)]
mod tests {
    use agent_types::objects::ObjectData;

    use super::*;

    fn object(kind: ObjectKind) -> ObjectRef {
        ObjectRef { kind, namespace: "ns".to_owned(), name: "o".to_owned() }
    }

    fn secret() -> ObjectRef {
        object(ObjectKind::Secret)
    }

    fn found(value: &str, immutable: bool) -> ObjectNews {
        let data = [("k".to_owned(), value.as_bytes().to_vec())].into();
        ObjectNews::Found { data: ObjectData { data, ..ObjectData::default() }, immutable }
    }

    fn fetched(value: &str) -> Fetched {
        let data = [("k".to_owned(), value.as_bytes().to_vec())].into();
        Fetched::Found(ObjectData { data, ..ObjectData::default() })
    }

    fn value(fetched: &Fetched) -> String {
        match fetched {
            Fetched::Found(data) => String::from_utf8(data.data["k"].clone()).unwrap(),
            other => format!("{other:?}"),
        }
    }

    fn at(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    fn pod() -> PodUid {
        PodUid::from("p")
    }

    /// A pod uses the Secret: its watch.
    fn begin(table: &mut ObjectTable) -> WatchNumber {
        table.pod(&pod(), [secret()].into());
        match table.orders().as_slice() {
            [ObjectOrder::Begin(of, number)] if *of == secret() => *number,
            other => panic!("{other:?}"),
        }
    }

    /// The only answer since the last call.
    fn answer(table: &mut ObjectTable) -> (QuestionNumber, String) {
        match table.answers().as_slice() {
            [(question, fetched)] => (*question, value(fetched)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_question_waits_for_the_first_news() {
        let mut table = ObjectTable::new(true);
        let early = table.ask(secret(), at(0));
        assert_eq!((table.answers(), table.deadline()), (vec![], Some(at(1000))));
        let watch = begin(&mut table);
        table.heard(&secret(), watch, ObjectNews::Lost("down".to_owned()), at(0));
        assert_eq!(table.answers(), []);
        table.heard(&secret(), watch, found("1", false), at(0));
        assert_eq!(answer(&mut table), (early, "1".to_owned()));
        assert_eq!(table.deadline(), None);
        let late = table.ask(secret(), at(5000));
        assert_eq!(answer(&mut table), (late, "1".to_owned()));
        table.tick(at(9000));
        assert_eq!((table.orders(), table.answers()), (vec![], vec![]), "one answer for a question");
    }

    #[test]
    fn a_question_gets_an_answer_in_time_and_the_pod_hears_of_the_first_news() {
        let mut table = ObjectTable::new(true);
        let watch = begin(&mut table);
        let (first, second) = (table.ask(secret(), at(0)), table.ask(secret(), at(400)));
        table.tick(at(999));
        assert_eq!(table.answers(), []);
        table.tick(at(1000));
        let why = "Unknown(\"failed to sync secret cache: timed out waiting for the condition\")";
        assert_eq!(answer(&mut table), (first, why.to_owned()));
        assert_eq!(table.deadline(), Some(at(1400)));
        table.withdraw(second);
        assert_eq!(table.deadline(), None);
        table.heard(&secret(), watch, ObjectNews::Missing, at(0));
        assert_eq!(table.orders(), [ObjectOrder::Changed([pod()].into())]);
    }

    #[test]
    fn an_object_that_changes_all_the_time_is_reported_now_and_then_and_in_the_end() {
        let mut table = ObjectTable::new(true);
        let pods: BTreeSet<PodUid> = (0..200).map(|n| PodUid::from(format!("p{n}").as_str())).collect();
        for pod in &pods {
            table.pod(pod, [secret()].into());
        }
        let watch = match table.orders().as_slice() {
            [ObjectOrder::Begin(_, number)] => *number,
            other => panic!("{other:?}"),
        };
        table.heard(&secret(), watch, found("0", false), at(0));
        assert_eq!(table.orders(), [], "the first news is no change");
        let mut reported = Vec::new();
        for change in 1..=200 {
            let now = at(change * 50);
            if table.deadline().is_some_and(|due| due <= now) {
                table.tick(now);
            }
            table.heard(&secret(), watch, found(&change.to_string(), false), now);
            for order in table.orders() {
                assert_eq!(order, ObjectOrder::Changed(pods.clone()));
                reported.push(change * 50);
            }
        }
        assert_eq!(reported, [50, 2050, 4050, 6050, 8050], "200 pods: every two seconds");
        let due = table.deadline().expect("a change is held back");
        table.tick(due);
        assert_eq!(table.orders(), [ObjectOrder::Changed(pods)]);
        assert_eq!((due, table.watched.known(&secret())), (at(10_050), Some(fetched("200"))));
        table.tick(at(20_000));
        assert_eq!((table.orders(), table.deadline()), (vec![], None));
    }

    #[test]
    fn a_change_after_a_pause_is_reported_at_once_with_what_was_held_back() {
        let mut table = ObjectTable::new(true);
        let watch = begin(&mut table);
        table.heard(&secret(), watch, found("0", false), at(0));
        table.heard(&secret(), watch, found("1", false), at(100));
        assert_eq!(table.orders(), [ObjectOrder::Changed([pod()].into())]);
        table.heard(&secret(), watch, found("2", false), at(105));
        assert_eq!((table.orders(), table.deadline()), (vec![], Some(at(110))));
        // The tick is late.
        table.heard(&secret(), watch, found("3", false), at(130));
        assert_eq!(table.orders(), [ObjectOrder::Changed([pod()].into())]);
    }

    #[test]
    fn a_question_that_was_withdrawn_is_no_reason_for_a_change() {
        let mut table = ObjectTable::new(true);
        let watch = begin(&mut table);
        let question = table.ask(secret(), at(0));
        table.withdraw(question);
        table.tick(at(2000));
        table.heard(&secret(), watch, found("1", false), at(0));
        assert_eq!((table.orders(), table.answers()), (vec![], vec![]));
    }

    #[test]
    fn late_news_of_a_watch_that_ended_is_not_that_of_the_next_one() {
        let mut table = ObjectTable::new(true);
        let old = begin(&mut table);
        table.pod(&pod(), BTreeSet::new());
        assert_eq!(table.orders(), [ObjectOrder::End(secret())]);
        let new = begin(&mut table);
        table.heard(&secret(), old, found("old", false), at(0));
        let question = table.ask(secret(), at(0));
        assert_eq!(table.answers(), []);
        table.heard(&secret(), new, found("new", false), at(0));
        assert_eq!(answer(&mut table), (question, "new".to_owned()));
    }

    #[test]
    fn an_immutable_object_is_known_without_a_watch() {
        let mut table = ObjectTable::new(true);
        let watch = begin(&mut table);
        table.heard(&secret(), watch, found("1", true), at(0));
        assert_eq!(table.orders(), [ObjectOrder::End(secret())]);
        table.heard(&secret(), watch, ObjectNews::Missing, at(0));
        let question = table.ask(secret(), at(0));
        assert_eq!(answer(&mut table), (question, "1".to_owned()));
    }

    #[test]
    fn without_watches_of_values_only_the_other_kinds_are_watched() {
        let mut table = ObjectTable::new(false);
        let all = [ObjectKind::ConfigMap, ObjectKind::Secret, ObjectKind::Services, ObjectKind::RuntimeClass]
            .map(object);
        table.pod(&pod(), all.clone().into());
        let orders = table.orders();
        let begun: Vec<_> = orders
            .iter()
            .map(|order| match order {
                ObjectOrder::Begin(of, _) => of.kind,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(begun, [ObjectKind::Services, ObjectKind::RuntimeClass]);
        // Who asked for the others forgets the answer.
        table.pod(&pod(), BTreeSet::new());
        let ended = [&all[0], &all[1], &all[3]].map(|of| ObjectOrder::End(of.clone()));
        assert_eq!(table.orders(), ended, "Services outlive their pods for a while");
    }
}
