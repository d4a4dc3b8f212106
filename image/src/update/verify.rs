//! A published directory as a node sees it, and every file of its releases.

use super::bundle::uki_blocks;
use super::keys::newest_trust;
use super::now;
use crate::format::digest;
use crate::format::verity::Tree;
use crate::profile::Dirs;
use crate::secure_boot::file_signatures;
use anyhow::{Context, Result, bail};
use clap::Args;
use flate2::read::GzDecoder;
use orlop_config::release::{
    BLOCK_BYTES, ChannelDocument, NodeRelease, RELEASE_DOCUMENT, ROOT_FILE, ReleaseDocument, ReleaseVersion,
    UKI_BLOCKS_FILE, UKI_FILE, UtcSecond, VERITY_FILE, channel_path, release_path, trust_path,
};
use orlop_update::{
    MountedDirectory, RingSignatures, SurveyAnswer, SurveyRequest, UpdateStore, survey_directory,
};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// Arguments of `orlop-image verify`.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// The published directory
    published: PathBuf,
    /// Trust document of the image [default: trust/1.json of the directory]
    #[arg(long)]
    trust: Option<PathBuf>,
    /// Channel of the node
    #[arg(long, default_value = "stable")]
    channel: String,
    /// Version that the node runs
    #[arg(long, default_value = "0.0.0")]
    running: ReleaseVersion,
    /// Least generation that the node takes
    #[arg(long, default_value_t = 1)]
    floor: u64,
    /// Seed of the node, which gives its place in a rollout
    #[arg(long, default_value = "")]
    seed: String,
    /// Time of the node [default: now]
    #[arg(long)]
    at: Option<UtcSecond>,
    /// Ask for this version in place of the channel's choice
    #[arg(long)]
    version: Option<ReleaseVersion>,
}

/// Runs `orlop-image verify`: prints what a node would do and what is wrong with the files. Fails if anything is wrong.
///
/// # Errors
/// A document is not taken, or a file cannot be read.
pub fn verify(dirs: &Dirs, args: &VerifyArgs) -> Result<ExitCode> {
    let trust = args.trust.clone().unwrap_or_else(|| args.published.join(trust_path(1)));
    let kept = Scratch::make()?;
    let mut store = UpdateStore::open(&kept.0, &trust)?;
    let (refused, now) = (BTreeSet::new(), args.at.map_or_else(now, Ok)?);
    let request = SurveyRequest {
        channel: &args.channel,
        node: NodeRelease { arch: dirs.arch.facts().systemd, running: args.running, floor: args.floor },
        seed: args.seed.as_bytes(),
        refused: &refused,
        now: Some(now),
        version: args.version,
    };
    // The files first: a node that takes nothing is no reason not to look at them.
    let wrong = wrong_files(&args.published, &args.channel)?;
    wrong.iter().for_each(|what| println!("wrong: {what}"));
    boot_signatures(&args.published, &args.channel)?.iter().for_each(|line| println!("{line}"));
    let survey = survey_directory(&MountedDirectory::new(&args.published), &mut store, &request)?;
    println!("trust {}, channel {} {}", survey.trust.number, survey.channel.channel, survey.channel.sequence);
    match survey.answer {
        SurveyAnswer::UpToDate => println!("a node with {} stays at it", args.running),
        SurveyAnswer::Take(release) => println!("a node with {} takes {}", args.running, release.version),
        SurveyAnswer::Waits { version, turn } => {
            println!("a node with {} takes {version} from {turn} on", args.running);
        }
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A directory of this process, gone with it: a node that has kept nothing.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("orlop-verify-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is of no use to anybody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

// Of all releases that the channel offers, for every architecture. One whose key was replaced is wrong as well.
pub(super) fn wrong_files(published: &Path, channel: &str) -> Result<Vec<String>> {
    let trust = newest_trust(published)?;
    let read = |path: String| {
        let path = published.join(path);
        fs::read(&path).with_context(|| format!("reading {}", path.display()))
    };
    let channel = ChannelDocument::read(&trust, channel, &read(channel_path(channel))?, &RingSignatures)?;
    let mut wrong = Vec::new();
    for offered in channel.releases.iter().filter(|r| channel.withdrawal(r.version).is_none()) {
        let (version, arch) = (offered.version, offered.arch.as_str());
        let text = read(release_path(version, arch, RELEASE_DOCUMENT))?;
        match ReleaseDocument::read(&trust, version, arch, &text, &RingSignatures) {
            Ok(release) => {
                wrong.extend(check_files(&published.join(release_path(version, arch, "")), &release)?);
            }
            Err(why) => wrong.push(format!("{why}; or withdraw it")),
        }
    }
    Ok(wrong)
}

/// Says of every release that the channel offers who has signed its UKI for Secure Boot. A firmware checks such a signature, and no
/// node: a UKI without one is not wrong.
pub(super) fn boot_signatures(published: &Path, channel: &str) -> Result<Vec<String>> {
    let trust = newest_trust(published)?;
    let path = published.join(channel_path(channel));
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let channel = ChannelDocument::read(&trust, channel, &text, &RingSignatures)?;
    let mut lines = Vec::new();
    for offered in channel.releases.iter().filter(|r| channel.withdrawal(r.version).is_none()) {
        let (version, arch) = (offered.version, offered.arch.as_str());
        let uki = published.join(release_path(version, arch, UKI_FILE));
        // That it is not there, or is another file, was said.
        let words = match file_signatures(&uki) {
            Err(why) => format!("not known: {why:#}"),
            Ok(found) if found.is_empty() => "not signed for Secure Boot".to_owned(),
            Ok(found) => {
                let names: Vec<String> = found.iter().map(|signature| signature.signer.name()).collect();
                format!("signed for Secure Boot by {}", names.join(", "))
            }
        };
        lines.push(format!("{UKI_FILE} of {version} for {arch}: {words}"));
    }
    Ok(lines)
}

/// Compares the files in `directory` with their document: sizes and digests, the verity tree with root and root hash, the list of blocks
/// with the UKI. Each finding names its file.
///
/// # Errors
/// A file cannot be read.
pub fn check_files(directory: &Path, release: &ReleaseDocument) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for file in &release.files {
        let path = directory.join(&file.name);
        let shown = path.display();
        match fs::metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => wrong.push(format!("{shown} is not there")),
            Err(e) => return Err(e).with_context(|| format!("reading {shown}")),
            Ok(found) if found.len() != file.size => {
                wrong.push(format!("{shown} has {} bytes, and {} are signed", found.len(), file.size));
            }
            Ok(_) if digest::file(&path)? != file.sha256.to_string() => {
                wrong.push(format!("{shown} does not have the digest that is signed"));
            }
            Ok(_) => {}
        }
    }
    // What the publisher has signed may still not fit together.
    if wrong.is_empty() {
        wrong.extend(check_root(directory, release)?);
        let list = directory.join(UKI_BLOCKS_FILE);
        if fs::read(&list)? != uki_blocks(&directory.join(UKI_FILE), &release.root.salt.0)? {
            wrong.push(format!("{} is not the list of the UKI's blocks", list.display()));
        }
    }
    Ok(wrong)
}

fn check_root(directory: &Path, release: &ReleaseDocument) -> Result<Option<String>> {
    let (root, packed) = (directory.join(ROOT_FILE), directory.join(VERITY_FILE));
    let file = File::open(&root).with_context(|| format!("opening {}", root.display()))?;
    let bytes = file.metadata()?.len();
    let slot = release.root.blocks * BLOCK_BYTES;
    let Some(zeros) = slot.checked_sub(bytes) else { bail!("{} is larger than its slot", root.display()) };
    let mut data = BufReader::with_capacity(PIECE, file).chain(io::repeat(0).take(zeros));
    let tree = Tree::over(&mut data, &release.root.salt.0)
        .with_context(|| format!("making the verity tree of {}", root.display()))?;
    if tree.root != release.root.hash.0 {
        return Ok(Some(format!("{} does not have the root hash that is signed", root.display())));
    }
    let limit = u64::try_from(tree.bytes.len())?.saturating_add(1);
    let mut unpacked = Vec::new();
    let file = File::open(&packed).with_context(|| format!("opening {}", packed.display()))?;
    let read = GzDecoder::new(file).take(limit).read_to_end(&mut unpacked);
    Ok(match read {
        Ok(_) if unpacked == tree.bytes => None,
        Ok(_) => Some(format!("{} is not the tree of {ROOT_FILE}", packed.display())),
        Err(why) => Some(format!("{} cannot be unpacked: {why}", packed.display())),
    })
}
