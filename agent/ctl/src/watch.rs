//! `get --watch`: objects as they are, then one line or document for each change.
//!
//! Invariant: it ends when the connection does: what changed meanwhile would be missing, so the caller asks again.

use std::time::Duration;

use orlop_proto::node_api::v1alpha1::node_client::NodeClient;
use orlop_proto::node_api::v1alpha1::{GetRequest, WatchEvent};
use tokio::time::timeout;

use crate::cli::OutputForm;
use crate::commands::{Verdict, show, within, write};
use crate::failure::CtlError;
use crate::render::{escaped, name, plain, table};
use crate::target::NodeChannel;

/// The node has an event at least as often as that.
const SILENT_MAX: Duration = Duration::from_secs(60);

/// Shows the events until the connection ends.
pub(crate) async fn run(
    client: &mut NodeClient<NodeChannel>,
    limit: Duration,
    form: OutputForm,
    request: GetRequest,
) -> Result<Verdict, CtlError> {
    let mut events = within(limit, "the node", client.watch(request)).await?;
    loop {
        let silent = |_| CtlError::TimedOut { what: "the node".to_owned(), limit: SILENT_MAX };
        let event = timeout(SILENT_MAX, events.message()).await.map_err(silent)?;
        let Some(event) = event.map_err(CtlError::Refused)? else {
            let (target, why) = ("the node".to_owned(), "its server has ended".to_owned());
            return Err(CtlError::Unreachable { target, why });
        };
        let document = serde_json::to_value(&event).unwrap_or_default();
        match form {
            OutputForm::Json => write(&escaped(&format!("{document}\n")))?,
            OutputForm::Yaml => show(form, &document, String::new).and_then(|()| write("---\n"))?,
            OutputForm::JsonPath(_) => show(form, &document, String::new).and_then(|()| write("\n"))?,
            OutputForm::Table | OutputForm::Name => write(&text(&event))?,
        }
    }
}

/// An event for people; a sign of life is none.
fn text(event: &WatchEvent) -> String {
    let kind = plain(&event.r#type);
    match (&event.object, &event.failure) {
        (Some(object), _) => {
            let cells = table::cells(object).join("  ");
            let line = format!("{kind:<9} {}/{}  {}", object.kind, name(object), cells);
            plain(line.trim_end()) + "\n"
        }
        (None, Some(failure)) => plain(&format!("{kind:<9} {}: {}", failure.kind, failure.message)) + "\n",
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::v1alpha1::object::Status;
    use orlop_proto::node_api::v1alpha1::{AddressStatus, KindFailure, Meta, Object};

    use super::*;

    #[test]
    fn each_event_is_a_line_and_a_sign_of_life_is_none() {
        let status = AddressStatus { interface: "eth0".to_owned(), address: "192.0.2.1".to_owned() };
        let object = Object {
            kind: "addresses".to_owned(),
            metadata: Some(Meta { name: "eth0/192.0.2.1".to_owned(), ..Meta::default() }),
            status: Some(Status::Address(status)),
            ..Object::default()
        };
        let added = WatchEvent { r#type: "ADDED".to_owned(), object: Some(object), failure: None };
        assert_eq!(text(&added), "ADDED     addresses/eth0/192.0.2.1  eth0  192.0.2.1\n");
        let failure = KindFailure { kind: "services".to_owned(), message: "a\u{1b}".to_owned(), error: None };
        let failed = WatchEvent { r#type: "FAILED".to_owned(), object: None, failure: Some(failure) };
        assert_eq!(text(&failed), "FAILED    services: a?\n");
        assert_eq!(text(&WatchEvent { r#type: "BOOKMARK".to_owned(), ..WatchEvent::default() }), "");
    }
}
