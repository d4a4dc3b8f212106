//! `logs --pod`: lines of a container. A reader that follows goes on after a lost connection, behind the last line.
//!
//! Invariant: the next request begins behind the newest time that was shown, so no line is shown twice. A line that is not newer and was
//! not shown yet is lost with the connection.

use std::time::Duration;

use jiff::Timestamp;
use orlop_proto::node_api::v1alpha1::logs_client::LogsClient;
use orlop_proto::node_api::v1alpha1::{LogLine, PodLogRequest};
use tonic::{Response, Status, Streaming};

use crate::cli::{LogArgs, OutputForm, since};
use crate::commands::Verdict;
use crate::failure::CtlError;
use crate::logs::{self, LogQuestion};
use crate::target::{NodeChannel, Target};

/// Microseconds of a second.
const SECOND_US: u64 = 1_000_000;

/// Shows the lines.
pub(crate) async fn run(
    target: &Target,
    limit: Duration,
    form: OutputForm,
    args: &LogArgs,
) -> Result<Verdict, CtlError> {
    logs::read(target, limit, form, request(args, Timestamp::now())?).await
}

/// The request. `now` is for times that are relative.
fn request(args: &LogArgs, now: Timestamp) -> Result<PodLogRequest, CtlError> {
    let name = args.pod.clone().unwrap_or_default();
    let (namespace, pod) = name.split_once('/').unwrap_or(("default", name.as_str()));
    let since = args.since.as_deref().map(|text| since(text, now)).transpose()?.unwrap_or(0);
    Ok(PodLogRequest {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        container: args.container.clone(),
        previous: args.previous,
        since_us: u64::try_from(since).unwrap_or(0).saturating_mul(SECOND_US),
        lines: args.lines.unwrap_or(0),
        follow: args.follow,
    })
}

impl LogQuestion for PodLogRequest {
    const LOG: &'static str = "the log of the pod";

    fn follows(&self) -> bool {
        self.follow
    }

    fn may_be_backwards(&self) -> bool {
        false
    }

    async fn ask(
        &self,
        client: &mut LogsClient<NodeChannel>,
    ) -> Result<Response<Streaming<LogLine>>, Status> {
        client.read_pod(self.clone()).await
    }

    fn go_behind(&mut self, line: LogLine) {
        // A line has the time of its first part, so one of the other output that came in between may be newer.
        (self.since_us, self.lines) = (self.since_us.max(line.time_us.saturating_add(1)), 0);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn asked(words: &[&str]) -> PodLogRequest {
        let cli = Cli::try_parse_from(["orlopctl", "logs"].iter().chain(words)).unwrap();
        let Verb::Logs(args) = cli.verb else { panic!("{words:?}") };
        request(&args, Timestamp::from_second(100_000).unwrap()).unwrap()
    }

    #[test]
    fn a_pod_is_named_with_its_namespace_or_is_of_the_default_one() {
        let found = asked(&["--pod", "shop/web-0", "-c", "app", "-f", "--tail", "5", "--since", "10m"]);
        assert_eq!((found.namespace.as_str(), found.pod.as_str()), ("shop", "web-0"));
        assert_eq!((found.container.as_str(), found.follow, found.lines), ("app", true, 5));
        assert_eq!((found.since_us, found.previous), (99_400 * SECOND_US, false));
        let other = asked(&["--pod", "web-0", "-p", "--lines", "2"]);
        assert_eq!((other.namespace.as_str(), other.container.as_str()), ("default", ""));
        assert_eq!((other.lines, other.previous, other.since_us), (2, true, 0));
    }
}
