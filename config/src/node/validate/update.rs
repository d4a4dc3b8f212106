//! Rules of `update`.

use super::{Rules, is_url};
use crate::node::update::{Update, UpdateTrial};
use crate::path;
use crate::release::{ReleaseVersion, is_document_name};

impl Rules<'_> {
    pub(super) fn update(&mut self, update: &Update) {
        let source = update.source.as_str();
        if has_user(source) {
            // The name of a user may be a secret: it is not shown.
            self.broken("update.source", None, "has a user, and releases are for everybody");
        } else {
            let directory = is_url(source) && source.starts_with("https://") && !source.contains(['?', '#']);
            let known = directory || is_repository(source);
            let reason = "must be an https:// URL of a directory, without ? and #, or oci://registry/repository, without a tag";
            self.rule(source.is_empty() || known, "update.source", source, reason);
        }
        let channel = update.channel.as_str();
        self.rule(
            is_document_name(channel),
            "update.channel",
            channel,
            "must be a name of at most 64 letters, digits, dots, underscores and hyphens",
        );
        let version = update.version.as_str();
        self.rule(
            version.is_empty() || version.parse::<ReleaseVersion>().is_ok(),
            "update.version",
            version,
            "must be a version such as 0.2.0",
        );
        self.rule(
            is_document_name(&update.group),
            "update.group",
            &update.group,
            "must be a name of at most 64 letters, digits, dots, underscores and hyphens",
        );
        for (i, window) in update.windows.iter().enumerate() {
            let at = path::child(&path::index("update.windows", i), "start");
            let reason = "must be a time of the day with four digits, such as 02:30";
            self.rule(is_time_of_day(&window.start), &at, &window.start, reason);
        }
        if update.windows.len() > WINDOWS_MAX {
            self.broken("update.windows", None, "has more than 50 windows");
        }
        let UpdateTrial { deadline, soak, .. } = update.trial;
        let reason = "must be less than update.trial.deadline";
        self.rule(soak < deadline, "update.trial.soak", &soak.to_string(), reason);
    }
}

/// Is it a repository of a registry, with a host and a path of small letters, digits, and `.`, `_`, `-` between them?
fn is_repository(source: &str) -> bool {
    let Some((host, path)) = source.strip_prefix("oci://").and_then(|rest| rest.split_once('/')) else {
        return false;
    };
    let is_end = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let is_part = |part: &str| {
        let inner = |b: u8| is_end(Some(b)) || matches!(b, b'.' | b'_' | b'-');
        is_end(part.bytes().next()) && is_end(part.bytes().next_back()) && part.bytes().all(inner)
    };
    !host.contains(['?', '#'])
        && is_url(&format!("https://{host}/"))
        && path.trim_end_matches('/').split('/').all(is_part)
}

/// Most windows of a node.
const WINDOWS_MAX: usize = 50;

/// Four digits of a clock with 24 hours.
fn is_time_of_day(text: &str) -> bool {
    let digits = |part: &str, below: u8| {
        part.len() == 2
            && part.bytes().all(|b| b.is_ascii_digit())
            && part.parse::<u8>().is_ok_and(|n| n < below)
    };
    text.split_once(':').is_some_and(|(hour, minute)| digits(hour, 24) && digits(minute, 60))
}

/// Does a URL have a user before its host?
fn has_user(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().is_some_and(|host| host.contains('@'))
}
