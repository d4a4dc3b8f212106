//! The volume table: turns, looks at the disk, what goes back to drivers.

use super::*;
use crate::attach::VolumeOnDisk;

fn key(handle: &str) -> VolumeKey {
    VolumeKey { driver: "d".to_owned(), handle: handle.to_owned() }
}

fn held(pods: &[&str], staged: bool) -> VolumeOnDisk {
    let pods = pods.iter().map(|p| PodUid::from(*p)).collect();
    VolumeOnDisk { pods, staged, attached: true, ..VolumeOnDisk::default() }
}

fn disk(all: &[(&str, VolumeOnDisk)]) -> OnDisk {
    all.iter().map(|(handle, held)| (key(handle), held.clone())).collect()
}

fn volume(handle: &str) -> Subject {
    Subject::Volume(key(handle))
}

/// A table whose first look found nothing.
fn table() -> VolumeTable {
    let mut table = VolumeTable::default();
    table.tick(Mono(0));
    assert_eq!(table.orders(), [Order::ReadDisk]);
    table.disk(Some(OnDisk::new()), Mono(0));
    assert_eq!(table.orders(), [Order::Report(Vec::new())]);
    table
}

#[test]
fn a_wish_is_reported_once_and_hints_are_not_lost_while_the_disk_is_read() {
    let mut table = table();
    let pod = PodUid::from("u");
    assert_eq!(table.wish(&pod, &key("h"), true), Attached::NotInUse);
    assert_eq!(table.orders(), [Order::ReadDisk]);
    table.wish(&pod, &key("h"), true);
    assert!(table.orders().is_empty(), "it was known");
    table.look();
    table.look();
    assert!(table.orders().is_empty() && table.deadline().is_none(), "one look at a time");
    table.disk(Some(OnDisk::new()), Mono(5));
    let names = vec!["kubernetes.io/csi/d^h".to_owned()];
    assert_eq!(table.orders(), [Order::Report(names.clone()), Order::ReadDisk]);
    table.disk(Some(OnDisk::new()), Mono(7));
    assert!(table.orders().is_empty(), "nothing new");
    assert_eq!(table.deadline(), Some(Mono(7).after(RESCAN)));
    table.tick(Mono(8));
    assert!(table.orders().is_empty(), "too early");
    table.tick(Mono(7).after(RESCAN));
    assert_eq!(table.orders(), [Order::ReadDisk]);
    let names: BTreeSet<String> = names.into_iter().collect();
    let devices = BTreeMap::from([("kubernetes.io/csi/d^h".to_owned(), "/dev/x".to_owned())]);
    assert_eq!(table.node_says(names.clone(), names, devices), [pod.clone()].into());
    assert_eq!(table.wish(&pod, &key("h"), true), Attached::Yes);
    assert_eq!((table.device(&key("h")).as_str(), table.device(&key("x")).as_str()), ("/dev/x", ""));
}

#[test]
fn what_cannot_be_read_is_taken_to_be_here_still() {
    let mut first = VolumeTable::default();
    first.tick(Mono(0));
    first.disk(None, Mono(0));
    assert_eq!(first.orders(), [Order::ReadDisk], "nothing is said before the disk was read once");
    let mut table = table();
    table.look();
    table.disk(Some(disk(&[("h", held(&["u"], true))])), Mono(1));
    table.orders();
    table.forget(&PodUid::from("u"));
    table.disk(None, Mono(2));
    assert_eq!(table.orders(), [Order::ReadDisk], "it stays in use, and nothing is given back");
}

#[test]
fn a_volume_goes_back_in_a_turn_of_its_own() {
    let mut table = table();
    let task = table.ask(volume("h"));
    assert_eq!(table.orders(), [Order::Grant(task)]);
    table.set_staged(task, true);
    assert!(table.is_staged(&key("h")));
    let free = disk(&[("h", held(&[], true))]);
    table.look();
    table.disk(Some(free.clone()), Mono(1));
    let next = table.ask(volume("h"));
    let orders = table.orders();
    assert!(!orders.iter().any(|o| matches!(o, Order::Unstage(..) | Order::Grant(_))), "{orders:?}");
    table.set_staged(next, false);
    assert!(table.is_staged(&key("h")), "only the task in its turn can say so");
    table.end(task);
    let orders = table.orders();
    let [Order::Unstage(of, ticket)] = orders.as_slice() else { panic!("{orders:?}") };
    assert_eq!(*of, key("h"));
    // A pod wants it meanwhile: its driver is not asked.
    table.wish(&PodUid::from("v"), &key("h"), false);
    assert!(!table.may_unstage(&key("h"), &free) && table.is_staged(&key("h")));
    table.unstaged(&key("h"), *ticket, false, Mono(2));
    assert!(table.orders().contains(&Order::Grant(next)), "the one that waited is next");
    table.end(next);
    assert!(table.is_idle());
}

#[test]
fn a_driver_that_does_not_let_go_is_asked_again_after_a_while() {
    let mut table = table();
    let free = disk(&[("h", held(&[], true))]);
    table.look();
    table.disk(Some(free.clone()), Mono(1));
    let unstage = |orders: Vec<Order>| {
        orders.into_iter().find_map(|order| match order {
            Order::Unstage(_, ticket) => Some(ticket),
            _ => None,
        })
    };
    let ticket = unstage(table.orders()).unwrap();
    assert!(table.may_unstage(&key("h"), &free));
    table.unstaged(&key("h"), ticket, false, Mono(1));
    table.disk(Some(free.clone()), Mono(1));
    assert_eq!(unstage(table.orders()), None, "not at once");
    let at = table.deadline().unwrap();
    table.tick(at);
    table.disk(Some(free), at);
    let ticket = unstage(table.orders()).unwrap();
    table.unstaged(&key("h"), ticket, true, at);
    table.disk(Some(OnDisk::new()), at);
    assert!(table.orders().contains(&Order::Report(Vec::new())) && table.is_idle());
}

#[test]
fn what_is_published_is_settled_unless_the_driver_wants_more() {
    let mut table = table();
    let of = |again| Published { pod: "u".into(), name: "v".to_owned(), key: key("h"), again };
    table.set_published("t", Some(of(true)));
    assert!(table.is_published("t") && !table.is_settled("t"));
    table.set_published("t", Some(of(false)));
    assert!(table.is_settled("t") && table.published().len() == 1);
    table.set_published("t", None);
    assert!(!table.is_published("t") && !table.is_settled("t"));
}

/// Else each read that fails would be followed by the next at once, for as long as the disk cannot be read.
#[test]
fn a_disk_that_cannot_be_read_is_read_again_after_a_while_also_if_a_driver_is_to_be_asked_before() {
    let mut table = table();
    table.look();
    table.disk(Some(disk(&[("h", held(&[], true))])), Mono(0));
    let orders = table.orders();
    let Some(Order::Unstage(of, ticket)) =
        orders.into_iter().find(|order| matches!(order, Order::Unstage(..)))
    else {
        panic!("no order to unstage")
    };
    table.unstaged(&of, ticket, false, Mono(0));
    let retry = Mono(0).after(Duration::from_millis(500));
    table.disk(Some(disk(&[("h", held(&[], true))])), Mono(0));
    assert!(table.deadline().is_some_and(|at| at <= retry), "{:?}", table.deadline());
    table.tick(retry);
    table.disk(None, retry);
    assert_eq!(table.deadline(), Some(retry.after(RESCAN)));
}
