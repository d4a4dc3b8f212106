//! Resource claims: news of their health, and a node without claims of extended resources.

use super::*;

#[test]
fn news_of_claims_go_to_the_worker_of_the_pod() {
    let mut m = running(&[&pod("a", "a", "file")]);
    let news = |uid: &str| ManagerEvent::Claims { uid: PodUid::from(uid), claims: Arc::default() };
    assert!(step(&mut m, news("a")).starts_with("a:ClaimsChanged"));
    assert_eq!(step(&mut m, news("b")), "");
}

#[test]
fn a_node_without_claims_of_extended_resources_does_not_see_them() {
    let mut with = (*pod("a", "a", "api")).clone();
    let status = json!({"extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": []}});
    with.status = Some(serde_json::from_value(status).unwrap());
    let with = Arc::new(with);
    for no_extended_claims in [false, true] {
        let admission = AdmissionContext { no_extended_claims, ..AdmissionContext::default() };
        let sources = [Source::Api].into();
        let mut m = PodManager::new(sources, Leftovers::default(), Arc::new(admission), Ok(()));
        step(&mut m, update(PodOp::Add, Source::Api, &[&with]));
        let seen = m.desired()[&PodUid::from("a")].status.clone().unwrap();
        assert_eq!(seen.extended_resource_claim_status.is_none(), no_extended_claims);
    }
}
