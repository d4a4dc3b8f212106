//! Rules of `update`.

use super::{Rules, is_url};
use crate::node::types::Update;
use crate::release::{ReleaseVersion, is_document_name};

impl Rules<'_> {
    pub(super) fn update(&mut self, update: &Update) {
        let source = update.source.as_str();
        if source.starts_with("oci://") {
            let reason = "is a registry, and this version takes releases from https:// directories only";
            self.broken("update.source", Some(source), reason);
        } else if has_user(source) {
            // The name of a user may be a secret: it is not shown.
            self.broken("update.source", None, "has a user, and releases are for everybody");
        } else {
            let directory = is_url(source) && source.starts_with("https://") && !source.contains(['?', '#']);
            let reason = "must be an https:// URL of a directory, without ? and #";
            self.rule(source.is_empty() || directory, "update.source", source, reason);
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
    }
}

/// Does a URL have a user before its host?
fn has_user(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().is_some_and(|host| host.contains('@'))
}
