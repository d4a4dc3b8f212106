//! Which release of a channel a node takes, and when its turn comes.

use std::collections::BTreeSet;

use super::channel::{ChannelDocument, ChannelRelease, Rollout};
use super::image_release::NodeRelease;
use super::{ReleaseVersion, UtcSecond};
use crate::fnv::fnv64;

/// Seconds of an hour.
const HOUR: u64 = 3600;

/// What a channel offers to a node now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseChoice {
    /// Nothing newer.
    UpToDate,
    /// This version.
    Take(ReleaseVersion),
    /// This version, later.
    Waits {
        /// Version whose turn comes first.
        version: ReleaseVersion,
        /// The node's turn.
        turn: UtcSecond,
    },
}

/// Chooses the newest release whose turn has come and that the running version may install. `seed` is the node's own and lasts as
/// long as the node; `refused` are versions that the node has gone back from: it takes only what is newer than each of them; `now` is
/// none while the clock is not trusted, and then no turn has come.
#[must_use]
pub fn choose(
    channel: &ChannelDocument,
    node: &NodeRelease<'_>,
    seed: &[u8],
    refused: &BTreeSet<ReleaseVersion>,
    now: Option<UtcSecond>,
) -> ReleaseChoice {
    let fits = |release: &&ChannelRelease| {
        release.arch == node.arch
            && release.version > node.running
            && release.min_version.is_none_or(|min| min <= node.running)
            && channel.withdrawal(release.version).is_none()
            // An older one would take the newer one's place, and the node would go to and fro between both.
            && refused.iter().all(|refused| release.version > *refused)
    };
    let mut waits: Option<(UtcSecond, ReleaseVersion)> = None;
    let mut take: Option<ReleaseVersion> = None;
    for release in channel.releases.iter().filter(fits) {
        match release.rollout.map(|rollout| turn(rollout, release.version, seed)) {
            Some(turn) if now.is_none_or(|now| now < turn) => {
                let own = (turn, release.version);
                waits = Some(waits.map_or(own, |first| first.min(own)));
            }
            _ => take = take.max(Some(release.version)),
        }
    }
    match (take, waits) {
        (Some(version), _) => ReleaseChoice::Take(version),
        (None, Some((turn, version))) => ReleaseChoice::Waits { version, turn },
        (None, None) => ReleaseChoice::UpToDate,
    }
}

/// When the turn of the node with this seed comes: evenly spread over the rollout, and for each version another order of the nodes.
#[must_use]
pub fn turn(rollout: Rollout, version: ReleaseVersion, seed: &[u8]) -> UtcSecond {
    let mut text = version.to_string().into_bytes();
    text.push(0);
    text.extend(seed);
    let place = u128::from(spread(fnv64(&text)));
    let seconds = u128::from(rollout.hours.saturating_mul(HOUR));
    // The high half of the product: below `seconds`, which fits.
    let delay = u64::try_from((place * seconds) >> 64).unwrap_or(u64::MAX);
    rollout.start.after(delay)
}

/// The last steps of SplitMix64 (Steele, Lea, Flood 2014): FNV's high bits are not spread enough for short texts.
fn spread(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
