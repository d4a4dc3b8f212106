//! The disk is full: pods that have ended give up their dead containers.

use super::*;

#[test]
fn those_that_are_over_give_up_what_nobody_needs() {
    let pods = [pod("a", "a", "file"), pod("b", "b", "file")];
    let mut m = running(&pods.each_ref());
    assert_eq!(step(&mut m, ManagerEvent::DeleteUnused), "deleted", "nobody is over");
    step(&mut m, ManagerEvent::Ended(PodUid::from("a")));
    step(&mut m, ManagerEvent::Ended(PodUid::from("b")));
    assert_eq!(step(&mut m, ManagerEvent::DeleteUnused), "a:DeleteUnused b:DeleteUnused");
    assert_eq!(step(&mut m, ManagerEvent::Stripped(PodUid::from("c"))), "", "it was not asked");
    assert_eq!(step(&mut m, ManagerEvent::Stripped(PodUid::from("a"))), "");
    step(&mut m, file(PodOp::Remove, &[&pods[1]]));
    assert_eq!(step(&mut m, finished("b")), "deleted -b", "gone altogether");
    assert_eq!(step(&mut m, ManagerEvent::Stripped(PodUid::from("a"))), "", "once");
}
