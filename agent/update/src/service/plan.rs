//! What a request comes to, by the node's settings. Pure.

use orlop_config::node::{Update, UpdateDrives, UpdatePolicy};
use orlop_config::release::ReleaseVersion;

use super::protocol::{UpdateReport, UpdateRequest, UpdateState};

/// Where a release comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedSource {
    /// A directory by HTTPS.
    Https(String),
    /// The drive that is plugged in.
    Stick,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdatePlan {
    /// Where the release comes from.
    pub source: PlannedSource,
    /// Channel.
    pub channel: String,
    /// The one version that is taken, in place of the channel's choice.
    pub version: Option<ReleaseVersion>,
    /// A person has named that version in the request: it is taken although the node has gone back from it.
    pub is_named: bool,
}

/// Plans a request.
///
/// # Errors
/// The report that says why nothing is done.
pub fn plan(settings: &Update, request: UpdateRequest) -> Result<UpdatePlan, UpdateReport> {
    let idle = |message: &str| Err(UpdateReport::new(UpdateState::Idle, message));
    // init has checked the text; an empty one is no version.
    let pinned = settings.version.parse::<ReleaseVersion>().ok();
    let https = || PlannedSource::Https(settings.source.clone());
    let (source, version) = match request {
        // The server answers these by itself.
        UpdateRequest::Status | UpdateRequest::Slots | UpdateRequest::Try { .. } => {
            return idle("nothing runs");
        }
        UpdateRequest::Check if settings.policy == UpdatePolicy::Manual => {
            return idle("update.policy is manual: nothing is done without being asked");
        }
        UpdateRequest::Check if settings.source.is_empty() => {
            return idle("update.source is empty: there is nothing to look at");
        }
        UpdateRequest::Check => (https(), pinned),
        UpdateRequest::Take { .. } if settings.source.is_empty() => {
            let message = "update.source is empty: set it in the NodeConfig, or use a drive";
            return Err(UpdateReport::new(UpdateState::Failed, message));
        }
        UpdateRequest::Take { version } => (https(), version.or(pinned)),
        UpdateRequest::Stick if settings.usb == UpdateDrives::Ignore => {
            return idle("update.usb is ignore: the drive is left alone");
        }
        UpdateRequest::Stick => (PlannedSource::Stick, pinned),
    };
    let is_named = matches!(request, UpdateRequest::Take { version: Some(_) });
    Ok(UpdatePlan { source, channel: settings.channel.clone(), version, is_named })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(policy: UpdatePolicy, version: &str) -> Update {
        let (source, version) = ("https://updates.example/o".to_owned(), version.to_owned());
        Update { source, policy, version, ..Update::default() }
    }

    fn take(version: &str) -> UpdateRequest {
        UpdateRequest::Take { version: version.parse().ok() }
    }

    #[test]
    fn each_request_by_each_setting() {
        let version = |text: &str| text.parse::<ReleaseVersion>().ok();
        let https = || PlannedSource::Https("https://updates.example/o".to_owned());
        let (manual, stage) = (settings(UpdatePolicy::Manual, ""), settings(UpdatePolicy::Stage, ""));
        let pinned = settings(UpdatePolicy::Stage, "0.3.0");
        for (settings, request, source, want, is_named) in [
            (&stage, UpdateRequest::Check, https(), None, false),
            (&pinned, UpdateRequest::Check, https(), version("0.3.0"), false),
            (&manual, take(""), https(), None, false),
            (&manual, take("0.2.0"), https(), version("0.2.0"), true),
            (&pinned, take(""), https(), version("0.3.0"), false),
            (&pinned, take("0.2.0"), https(), version("0.2.0"), true),
            (&manual, UpdateRequest::Stick, PlannedSource::Stick, None, false),
            (&pinned, UpdateRequest::Stick, PlannedSource::Stick, version("0.3.0"), false),
        ] {
            let plan = plan(settings, request).expect("something to do");
            assert_eq!((plan.source, plan.version, plan.is_named), (source, want, is_named), "{request:?}");
            assert_eq!(plan.channel, "stable");
        }
        let ignored = Update { usb: UpdateDrives::Ignore, ..stage.clone() };
        let nowhere = Update { source: String::new(), ..stage };
        for (settings, request, state, words) in [
            (&manual, UpdateRequest::Check, UpdateState::Idle, "update.policy is manual"),
            (&nowhere, UpdateRequest::Check, UpdateState::Idle, "update.source is empty"),
            (&nowhere, take("0.2.0"), UpdateState::Failed, "update.source is empty"),
            (&ignored, UpdateRequest::Stick, UpdateState::Idle, "update.usb is ignore"),
            (&ignored, UpdateRequest::Status, UpdateState::Idle, "nothing runs"),
        ] {
            let report = plan(settings, request).expect_err("nothing to do");
            assert_eq!(report.state, state, "{request:?}");
            assert!(report.message.starts_with(words), "{}", report.message);
        }
    }
}
