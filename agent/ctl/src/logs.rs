//! `logs`: lines as they come. A reader that follows goes on after a lost connection, where it was.
//!
//! In: a [`LogQuestion`], for the journal here, for a container in `pod_logs`. Invariant: what was shown moves the question on. For the
//! journal that is the cursor of the last line, so a reboot of the node costs no line and shows none twice.

use std::io::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use orlop_proto::node_api::v1alpha1::logs_client::LogsClient;
use orlop_proto::node_api::v1alpha1::{LogLine, ReadRequest};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Response, Status, Streaming};

use crate::cli::{LogArgs, OutputForm};
use crate::commands::{Verdict, show, within, write};
use crate::failure::CtlError;
use crate::render::{escaped, plain};
use crate::target::{NodeChannel, Target};

/// Pause before each try to reach a node that went away.
const RETRY: Duration = Duration::from_secs(2);
/// A node that has been away for so long is not waited for.
const AWAY_MAX: Duration = Duration::from_secs(600);

/// A question for lines of a log.
pub(crate) trait LogQuestion {
    /// The log, for messages.
    const LOG: &'static str;

    /// Lines come for as long as there is a connection.
    fn follows(&self) -> bool;

    /// Lines may come with the newest first.
    fn may_be_backwards(&self) -> bool;

    /// Asks.
    async fn ask(&self, client: &mut LogsClient<NodeChannel>)
    -> Result<Response<Streaming<LogLine>>, Status>;

    /// The line was shown: the question begins behind it, if it is asked again.
    fn go_behind(&mut self, line: LogLine);
}

impl LogQuestion for ReadRequest {
    const LOG: &'static str = "the node's log";

    fn follows(&self) -> bool {
        self.follow
    }

    fn may_be_backwards(&self) -> bool {
        // journalctl looks for the last lines with a pattern from the end, and shows them in that order.
        !self.follow && self.lines > 0 && !self.grep.is_empty()
    }

    async fn ask(
        &self,
        client: &mut LogsClient<NodeChannel>,
    ) -> Result<Response<Streaming<LogLine>>, Status> {
        client.read(self.clone()).await
    }

    fn go_behind(&mut self, line: LogLine) {
        if !line.cursor.is_empty() {
            (self.after_cursor, self.lines) = (line.cursor, 0);
        }
    }
}

/// Shows the lines of the journal or of a file.
pub(crate) async fn run(
    target: &Target,
    limit: Duration,
    form: OutputForm,
    args: &LogArgs,
) -> Result<Verdict, CtlError> {
    read(target, limit, form, args.request(Timestamp::now())?).await
}

/// Shows the lines of a log.
pub(crate) async fn read(
    target: &Target,
    limit: Duration,
    form: OutputForm,
    mut question: impl LogQuestion,
) -> Result<Verdict, CtlError> {
    let mut channel = target.connect(limit).await?;
    loop {
        match stream(channel, limit, form, &mut question).await {
            Ok(()) => return Ok(Verdict::Fine),
            Err(error) if question.follows() && error.is_lost_connection() => {
                // If stderr is gone, there is no other place for it.
                let _ = writeln!(std::io::stderr(), "orlopctl: the connection is lost; waiting for {target}");
                channel = again(target, limit).await?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A new connection, once the node is back.
async fn again(target: &Target, limit: Duration) -> Result<NodeChannel, CtlError> {
    let until = Instant::now() + AWAY_MAX;
    loop {
        // A node may take each connection and lose it at once.
        sleep_until(Instant::now() + RETRY).await;
        let error = match target.connect(limit).await {
            Ok(channel) => return Ok(channel),
            Err(error) => error,
        };
        if Instant::now() >= until {
            return Err(error);
        }
    }
}

/// Shows lines until the stream ends; the question then begins behind the last one.
async fn stream<Q: LogQuestion>(
    channel: NodeChannel,
    limit: Duration,
    form: OutputForm,
    question: &mut Q,
) -> Result<(), CtlError> {
    let mut client = LogsClient::new(channel);
    let mut lines = within(limit, "the node", question.ask(&mut client)).await?;
    let mut kept = Vec::new();
    loop {
        let next = if question.follows() {
            lines.message().await
        } else {
            let silent = |_| CtlError::TimedOut { what: Q::LOG.to_owned(), limit };
            timeout(limit, lines.message()).await.map_err(silent)?
        };
        let Some(line) = next.map_err(CtlError::Refused)? else {
            return forwards(kept).iter().try_for_each(|line| show_line(form, line));
        };
        if question.may_be_backwards() {
            kept.push(line);
            continue;
        }
        show_line(form, &line)?;
        question.go_behind(line);
    }
}

/// The lines with the oldest first.
fn forwards(mut lines: Vec<LogLine>) -> Vec<LogLine> {
    if lines.first().map(|line| line.time_us) > lines.last().map(|line| line.time_us) {
        lines.reverse();
    }
    lines
}

fn show_line(form: OutputForm, line: &LogLine) -> Result<(), CtlError> {
    let document = serde_json::to_value(line).unwrap_or_default();
    match form {
        OutputForm::Json => write(&escaped(&format!("{document}\n"))),
        OutputForm::Yaml => show(form, &document, String::new).and_then(|()| write("---\n")),
        OutputForm::JsonPath(_) => show(form, &document, String::new).and_then(|()| write("\n")),
        OutputForm::Table | OutputForm::Name => write(&text(line)),
    }
}

/// A line for people. A line of a file has neither time nor source.
pub(crate) fn text(line: &LogLine) -> String {
    let message = plain(&line.message);
    if line.time_us == 0 {
        return format!("{message}\n");
    }
    let time = i64::try_from(line.time_us).ok().and_then(|us| Timestamp::from_microsecond(us).ok());
    let time = time.map_or_else(|| line.time_us.to_string(), |time| format!("{time:.3}"));
    format!("{time} {}: {message}\n", plain(&line.source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_line_is_the_first() {
        let lines = |times: &[u64]| -> Vec<LogLine> {
            times.iter().map(|time_us| LogLine { time_us: *time_us, ..LogLine::default() }).collect()
        };
        for shown in [&[1, 2, 2, 3][..], &[3, 2, 2, 1]] {
            assert_eq!(forwards(lines(shown)), lines(&[1, 2, 2, 3]));
        }
        assert_eq!(forwards(Vec::new()), []);
    }

    #[test]
    fn a_line_has_time_source_and_a_printable_message() {
        let line = LogLine {
            time_us: 1_700_000_000_123_456,
            source: "kubelet.service".to_owned(),
            message: "a\u{1b}[2J\tb".to_owned(),
            ..LogLine::default()
        };
        assert_eq!(text(&line), "2023-11-14T22:13:20.123Z kubelet.service: a?[2J\tb\n");
        assert_eq!(text(&LogLine { message: "{".to_owned(), ..LogLine::default() }), "{\n");
        let odd = LogLine { time_us: u64::MAX, ..LogLine::default() };
        assert!(text(&odd).starts_with("18446744073709551615 "));
    }
}
