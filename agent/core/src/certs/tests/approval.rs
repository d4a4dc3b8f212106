//! Requests that no approver takes.

use super::*;

#[test]
fn an_unapproved_request_is_looked_at_gently_and_replaced_after_a_quarter_of_an_hour() {
    let mut w = World::joining();
    w.approve = false;
    w.run(Duration::from_secs(14 * 60), &mut peace());
    let message = w.machine.state(w.now.wall).message().to_owned();
    assert!(message.contains("kubectl certificate approve csr-1"), "{message}");
    assert_eq!(w.shown, message);
    assert_eq!(w.requests.len(), 1);
    assert!(w.actions().len() < 120);
    w.run(Duration::from_secs(120), &mut peace());
    assert_eq!(w.requests.len(), 2);
    w.approve = true;
    w.run(Duration::from_secs(10), &mut peace());
    assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }));
}

#[test]
fn a_request_is_not_called_overdue_before_somebody_could_have_approved_it() {
    let mut w = World::joining();
    w.approve = false;
    w.run(Duration::from_secs(3), &mut peace());
    assert_eq!(w.shown, "");
    w.run(Duration::from_secs(2), &mut peace());
    assert!(w.shown.contains("kubectl certificate approve csr-1"), "{}", w.shown);
    w.approve = true;
    w.run(Duration::from_secs(5), &mut peace());
    assert_eq!(w.shown, "");
    // The same for the renewal of a good certificate: there is time left to approve it.
    w.approve = false;
    w.run(hours(1) - Duration::from_secs(120), &mut peace());
    assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }));
    assert!(w.shown.contains("kubectl certificate approve csr-1"), "{}", w.shown);
}
