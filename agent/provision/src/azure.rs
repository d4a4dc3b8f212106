//! Azure's word that a new machine is ready: without it the platform takes the machine for one that does not come up.
//!
//! In: the goal state of the wire server (XML). Out: the health report with the same identifiers. Upstream: WALinuxAgent, the wire
//! protocol of version 2012-11-30.

use super::exchange::{MetadataRequest, RequestMethod, Service};

/// Host of the wire server.
pub const FABRIC_ADDRESS: &str = "168.63.129.16";
/// A goal state is a few kilobytes.
const BYTES_MAX: usize = 64 << 10;
/// Longest identifier, bytes.
const ID_BYTES_MAX: usize = 128;
/// Version of the protocol.
const VERSION: (&str, &str) = ("x-ms-version", "2012-11-30");

/// Identifiers of a goal state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoalState {
    incarnation: String,
    container: String,
    instance: String,
}

impl GoalState {
    /// Reads them; `None` if one is missing or is no identifier.
    #[must_use]
    pub fn parse(text: &str) -> Option<GoalState> {
        Some(GoalState {
            incarnation: element(text, "Incarnation")?,
            container: element(text, "ContainerId")?,
            instance: element(text, "InstanceId")?,
        })
    }
}

/// The text of the first element of this name. No attributes: the elements in question have none.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (value, _) = rest.split_once(&format!("</{name}>"))?;
    let value = value.trim();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let is_id = !value.is_empty() && value.len() <= ID_BYTES_MAX && value.bytes().all(plain);
    is_id.then(|| value.to_owned())
}

/// The question for the goal state.
#[must_use]
pub fn goal_state_request() -> MetadataRequest {
    request(RequestMethod::Get, "/machine?comp=goalstate", Vec::new(), String::new())
}

/// The report that the machine is ready.
#[must_use]
pub fn ready_request(state: &GoalState) -> MetadataRequest {
    let GoalState { incarnation, container, instance } = state;
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><Health>\
         <GoalStateIncarnation>{incarnation}</GoalStateIncarnation>\
         <Container><ContainerId>{container}</ContainerId><RoleInstanceList><Role>\
         <InstanceId>{instance}</InstanceId><Health><State>Ready</State></Health>\
         </Role></RoleInstanceList></Container></Health>"
    );
    let headers = vec![("content-type", "text/xml; charset=utf-8".to_owned())];
    request(RequestMethod::Post, "/machine?comp=health", headers, body)
}

fn request(
    method: RequestMethod,
    target: &'static str,
    mut headers: Vec<(&'static str, String)>,
    body: String,
) -> MetadataRequest {
    headers.push((VERSION.0, VERSION.1.to_owned()));
    headers.push(("x-ms-agent-name", "orlop".to_owned()));
    let (service, host) = (Service::Fabric, FABRIC_ADDRESS);
    MetadataRequest { method, service, host, ipv6: None, target, headers, body, bytes_max: BYTES_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATE: &str = "<?xml version=\"1.0\"?><GoalState><Version>2012-11-30</Version><Incarnation>3</Incarnation>\
        <Machine><ExpectedState>Started</ExpectedState></Machine><Container><ContainerId>c-1</ContainerId>\
        <RoleInstanceList><RoleInstance><InstanceId>i.2</InstanceId></RoleInstance></RoleInstanceList></Container></GoalState>";

    #[test]
    fn the_report_carries_the_goal_states_identifiers() {
        let state = GoalState::parse(STATE).expect("a goal state");
        let report = ready_request(&state);
        for part in [
            "<GoalStateIncarnation>3</GoalStateIncarnation>",
            "<ContainerId>c-1</ContainerId>",
            "<InstanceId>i.2</InstanceId>",
            "<State>Ready</State>",
        ] {
            assert!(report.body.contains(part), "{part}: {}", report.body);
        }
        assert_eq!((report.method, report.service), (RequestMethod::Post, Service::Fabric));
    }

    #[test]
    fn what_is_no_identifier_is_not_repeated() {
        for bad in [
            STATE.replace("c-1", "<x>"),
            STATE.replace("c-1", ""),
            STATE.replace("c-1", &"a".repeat(200)),
            STATE.replace("</InstanceId>", ""),
            String::new(),
        ] {
            assert_eq!(GoalState::parse(&bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text(text in "\\PC{0,80}") {
            let _ = GoalState::parse(&text);
        }
    }
}
