//! `PodLogOptions` from a query string, with upstream's rules.

use std::str::FromStr;

use agent_types::time::Wall;
use k8s_openapi::jiff::Timestamp;

use super::Output;

/// Options of a request for a container's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on as the log grows.
    pub follow: bool,
    /// Read the log of the previous instance.
    pub previous: bool,
    /// Each line with its time.
    pub timestamps: bool,
    /// Nothing from before.
    pub since: Option<Wall>,
    /// The last so many records only.
    pub tail: Option<u64>,
    /// Not more than this.
    pub limit_bytes: Option<u64>,
    /// One of the container's two outputs alone; the gate PodLogsQuerySplitStreams allows it.
    pub stream: Option<Output>,
}

/// Why a query is none; both have upstream's status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// A value of another kind: 400.
    #[error("Unable to decode query.")]
    Undecodable,
    /// Values that make no sense, alone or together: 422.
    #[error("Invalid request.")]
    Invalid,
}

impl LogOptions {
    /// Reads decoded pairs of a query; unknown keys are ignored. `sinceSeconds` counts back from `now`.
    ///
    /// # Errors
    /// See [`OptionsError`].
    pub fn from_query<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
        now: Wall,
    ) -> Result<LogOptions, OptionsError> {
        let mut options = LogOptions::default();
        let (mut since_seconds, mut since_time, mut stream) = (None, None, None);
        let (mut tail, mut old_tail, mut limit) = (None, None, None);
        let mut seen: Vec<&str> = Vec::new();
        for (key, value) in pairs {
            // Of a repeated key the first value counts.
            if seen.contains(&key) {
                continue;
            }
            seen.push(key);
            match key {
                "follow" => options.follow = truth(value),
                "previous" => options.previous = truth(value),
                "timestamps" => options.timestamps = truth(value),
                "tail" if !value.is_empty() => old_tail = Some(value),
                "tailLines" => tail = Some(number(value)?),
                "limitBytes" => limit = Some(number(value)?),
                "sinceSeconds" => since_seconds = Some(number(value)?),
                "sinceTime" if !value.is_empty() => since_time = Some(time(value)?),
                "stream" => stream = Some(value),
                _ => {}
            }
        }
        match old_tail {
            // The name of tailLines in old clients; it wins.
            Some("all") => tail = None,
            Some(lines) => tail = Some(number(lines)?),
            None => {}
        }
        let below = |value: Option<i64>, least: i64| value.is_some_and(|v| v < least);
        if below(tail, 0) || below(limit, 1) || below(since_seconds, 1) {
            return Err(OptionsError::Invalid);
        }
        if since_seconds.is_some() && since_time.is_some() {
            return Err(OptionsError::Invalid);
        }
        options.stream = match stream {
            None | Some("" | "All") => None,
            Some(name) => Some(Output::of(name).ok_or(OptionsError::Invalid)?),
        };
        if options.stream.is_some() && tail.is_some() {
            return Err(OptionsError::Invalid);
        }
        let unsigned = |value: Option<i64>| value.and_then(|v| u64::try_from(v).ok());
        options.tail = unsigned(tail);
        options.limit_bytes = unsigned(limit);
        let ago = |s: i64| Wall(now.0.saturating_sub(s.saturating_mul(1_000_000_000)));
        options.since = since_time.or_else(|| since_seconds.map(ago));
        Ok(options)
    }
}

/// As upstream's decoder: the key alone is true, and so is every value but `false` and `0`.
fn truth(value: &str) -> bool {
    !value.eq_ignore_ascii_case("false") && value != "0"
}

fn number(value: &str) -> Result<i64, OptionsError> {
    i64::from_str(value).map_err(|_| OptionsError::Undecodable)
}

fn time(value: &str) -> Result<Wall, OptionsError> {
    let time = Timestamp::from_str(value).map_err(|_| OptionsError::Undecodable)?;
    let nanos = time.as_nanosecond().clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Ok(Wall(i64::try_from(nanos).unwrap_or_default()))
}
