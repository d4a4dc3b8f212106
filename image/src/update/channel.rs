//! The documents of a channel, each made from the one before it.

use super::keys::{KeyDirectory, directory, newest_trust, trust_chain, write_text};
use super::now;
use crate::arch::Arch;
use crate::profile::Dirs;
use anyhow::{Context, Result, bail};
use clap::Args;
use orlop_config::release::{
    ChannelDocument, ChannelRelease, KeyRole, PRODUCT, RELEASE_DOCUMENT, ReleaseDocument, ReleaseVersion,
    Rollout, TrustDocument, UtcSecond, WithdrawnRelease, channel_path, release_path,
};
use orlop_update::RingSignatures;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Seconds of a day.
const DAY: u64 = 86_400;

/// A channel and when its releases are taken; shared by `bundle` and `sign`.
#[derive(Args, Debug)]
pub(super) struct ChannelArgs {
    /// Channel
    #[arg(long, default_value = "stable")]
    pub(super) channel: String,
    /// Spread the nodes over so many hours
    #[arg(long, value_name = "HOURS")]
    rollout: Option<u64>,
    /// The first node's turn, as 2026-11-30T09:30:00Z [default: now]
    #[arg(long, requires = "rollout", value_name = "TIME")]
    rollout_start: Option<UtcSecond>,
    /// Nodes take the document for so many days
    #[arg(long, default_value_t = 30, value_name = "DAYS")]
    expires: u64,
}

impl ChannelArgs {
    /// A change that adds nothing and withdraws nothing.
    pub(super) fn change(&self, arch: Arch) -> Result<ChannelChange> {
        let now = now()?;
        let start = self.rollout_start.unwrap_or(now);
        Ok(ChannelChange {
            arch: arch.facts().systemd,
            add: Vec::new(),
            withdraw: Vec::new(),
            rollout: self.rollout.map(|hours| Rollout { start, hours }),
            expires: now.after(self.expires.saturating_mul(DAY)),
        })
    }
}

/// Arguments of `orlop-image sign`.
#[derive(Args, Debug)]
pub struct SignArgs {
    /// The published directory
    #[arg(long)]
    published: PathBuf,
    /// Directory of the keys [default: $ORLOP_CACHE/keys]
    #[arg(long)]
    keys: Option<PathBuf>,
    /// Offer this published version, or offer it again with another rollout; repeatable
    #[arg(long, value_name = "VERSION")]
    add: Vec<ReleaseVersion>,
    /// Withdraw this version; repeatable
    #[arg(long, requires = "reason", value_name = "VERSION")]
    withdraw: Vec<ReleaseVersion>,
    /// Why it is withdrawn, one line
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    channel: ChannelArgs,
}

/// What the next document of a channel says otherwise.
#[derive(Clone, Debug)]
pub struct ChannelChange {
    /// Architecture of what is added, as systemd names it.
    pub arch: &'static str,
    /// Versions that are offered, each with its barrier.
    pub add: Vec<(ReleaseVersion, Option<ReleaseVersion>)>,
    /// Versions that are withdrawn, each with the reason.
    pub withdraw: Vec<(ReleaseVersion, String)>,
    /// When nodes take what is added.
    pub rollout: Option<Rollout>,
    /// End of the document's time.
    pub expires: UtcSecond,
}

/// Runs `orlop-image sign`.
///
/// # Errors
/// A release is not published, or the document cannot be signed or written.
pub fn sign(dirs: &Dirs, args: &SignArgs) -> Result<()> {
    let reason = args.reason.clone().unwrap_or_default();
    let keys = directory(dirs, args.keys.as_ref());
    let mut change = args.channel.change(dirs.arch)?;
    for version in &args.add {
        let min_version = published_barrier(&keys, &args.published, change.arch, *version)?;
        change.add.push((*version, min_version));
    }
    change.withdraw = args.withdraw.iter().map(|version| (*version, reason.clone())).collect();
    let channel = change_channel(&args.published, &args.channel.channel, &keys, &change)?;
    println!("channel {} {}, good until {}", channel.channel, channel.sequence, channel.expires);
    for release in &channel.releases {
        let rollout =
            release.rollout.map_or_else(String::new, |r| format!(", {} hours from {}", r.hours, r.start));
        let withdrawn =
            channel.withdrawal(release.version).map_or_else(String::new, |why| format!(", withdrawn: {why}"));
        println!("  {} for {}{rollout}{withdrawn}", release.version, release.arch);
    }
    Ok(())
}

// The barrier that the release itself has.
fn published_barrier(
    keys: &KeyDirectory,
    published: &Path,
    arch: &str,
    version: ReleaseVersion,
) -> Result<Option<ReleaseVersion>> {
    let path = published.join(release_path(version, arch, RELEASE_DOCUMENT));
    let text = fs::read(&path)
        .with_context(|| format!("{version} for {arch} is not published: reading {}", path.display()))?;
    let trust = newest_trust(keys.path())?;
    Ok(ReleaseDocument::read(&trust, version, arch, &text, &RingSignatures)?.min_version)
}

/// Signs and writes the next document of a channel; the first one if there is none.
///
/// # Errors
/// The one before is damaged, or the new one cannot be signed or written.
pub fn change_channel(
    published: &Path,
    channel: &str,
    keys: &KeyDirectory,
    change: &ChannelChange,
) -> Result<ChannelDocument> {
    keys.publish_trust(published)?;
    let path = published.join(channel_path(channel));
    let before = match fs::read(&path) {
        Ok(text) => Some(before(keys, channel, &text)?),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
    };
    let trust = newest_trust(keys.path())?.number;
    let next = ChannelDocument { trust, ..changed(before, channel, change)? };
    write_text(&path, &keys.signed(&next, KeyRole::Channel)?)?;
    Ok(next)
}

// A replaced channel key has signed the documents of its time.
fn before(keys: &KeyDirectory, channel: &str, text: &[u8]) -> Result<ChannelDocument> {
    let read = |trust: &TrustDocument| ChannelDocument::read(trust, channel, text, &RingSignatures);
    let chain = trust_chain(keys.path())?;
    let (newest, older) = chain.split_last().context("a chain has a first document")?;
    match read(newest) {
        Err(why) => older.iter().rev().find_map(|trust| read(trust).ok()).ok_or(why.into()),
        good => Ok(good?),
    }
}

fn changed(
    before: Option<ChannelDocument>,
    channel: &str,
    change: &ChannelChange,
) -> Result<ChannelDocument> {
    let mut next = before.unwrap_or_else(|| ChannelDocument {
        product: PRODUCT.to_owned(),
        channel: channel.to_owned(),
        trust: 1,
        sequence: 0,
        expires: change.expires,
        releases: Vec::new(),
        withdrawn: Vec::new(),
    });
    next.sequence += 1;
    next.expires = change.expires;
    for (version, min_version) in change.add.iter().copied() {
        if let Some(why) = next.withdrawal(version) {
            bail!("{version} is withdrawn ({why}): publish a higher version");
        }
        next.releases.retain(|release| release.version != version || release.arch != change.arch);
        let (arch, rollout) = (change.arch.to_owned(), change.rollout);
        next.releases.push(ChannelRelease { version, arch, min_version, rollout });
    }
    next.releases.sort_by_key(|release| std::cmp::Reverse(release.version));
    for (version, reason) in &change.withdraw {
        next.withdrawn.retain(|withdrawn| withdrawn.version != *version);
        next.withdrawn.push(WithdrawnRelease { version: *version, reason: reason.clone() });
    }
    Ok(next)
}
