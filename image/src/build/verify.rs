//! Proves that a build is reproducible: root, initrd and disk are made twice, the seed and containers once more,
//! and the root hashes are compared.

use super::{Builder, Options};
use crate::plan::BuildStep;
use crate::profile::{Dirs, Profile};
use anyhow::{Result, bail};

/// Builds twice from the package tree on and compares.
///
/// # Errors
/// A build fails, or the root hashes differ; both are named.
pub fn verify_reproducible(dirs: &Dirs, profile: Profile, options: &Options) -> Result<String> {
    let mut hashes = Vec::new();
    for round in 1..=2 {
        println!("build {round} of 2");
        let options = Options { fresh: true, ..options.clone() };
        let mut builder = Builder::new(dirs.clone(), profile, options)?;
        hashes.push(builder.build()?.roothash);
    }
    let [one, two] = [&hashes[0], &hashes[1]];
    if one != two {
        bail!("not reproducible: the first build has root hash {one}, the second {two}");
    }
    Ok(one.clone())
}

/// Whether a step is made again for the proof: everything that is ours and everything that has a clock in it.
pub(super) fn made_again(step: BuildStep) -> bool {
    matches!(
        step,
        BuildStep::Containers | BuildStep::Seed | BuildStep::Root | BuildStep::Initrd | BuildStep::Disk
    )
}
