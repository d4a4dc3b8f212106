//! A release from a build: the files, their digests, and the signed document next to them.

use super::channel::{ChannelArgs, ChannelChange, change_channel};
use super::keys::{KeyDirectory, directory, write_text};
use super::sbom;
use crate::arch::Arch;
use crate::build::{Manifest, VERITY_SALT, read_manifest};
use crate::format::digest;
use crate::format::verity::{BLOCK, Tree, block_digests};
use crate::profile::{Dirs, Profile};
use anyhow::{Context, Result, bail};
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use orlop_config::release::{
    BLOCK_BYTES, Envelope, HexDigest, KeyRole, PRODUCT, RELEASE_DOCUMENT, RELEASE_FILES, ROOT_FILE,
    ReleaseDocument, ReleaseFile, ReleaseVersion, RootTree, SBOM_FILE, UKI_BLOCKS_FILE, UKI_FILE,
    VERITY_ALGORITHM, VERITY_FILE, release_path,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// Minor version of Kubernetes that the agent of this checkout speaks.
const KUBERNETES: &str = "1.36";
/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// Arguments of `orlop-image bundle`.
#[derive(Args, Debug)]
pub struct BundleArgs {
    /// Which image
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// Directory to publish in
    #[arg(long)]
    to: PathBuf,
    /// Directory of the keys [default: $ORLOP_CACHE/keys]
    #[arg(long)]
    keys: Option<PathBuf>,
    /// Rollback index: nodes never go below the least one of their slots
    #[arg(long)]
    generation: u64,
    /// After this release nodes take none with a lower generation than this one
    #[arg(long)]
    revokes: Option<u64>,
    /// Nodes with an older version take another release first
    #[arg(long)]
    min_version: Option<ReleaseVersion>,
    /// Leave release.json without a signature and the channel as it is: the release key is elsewhere (`sign-file`)
    #[arg(long)]
    unsigned: bool,
    #[command(flatten)]
    channel: ChannelArgs,
}

/// A build, as far as it is published.
#[derive(Clone, Debug)]
pub struct BuildFiles {
    /// The root's file system, at the slot's size or without zeros at its end.
    pub root: PathBuf,
    /// The UKI.
    pub uki: PathBuf,
    /// Root hash that the UKI names.
    pub roothash: HexDigest,
    /// Architecture, as systemd names it.
    pub arch: &'static str,
    /// Version.
    pub version: ReleaseVersion,
    /// Name and version of each package.
    pub packages: BTreeMap<String, String>,
}

/// What a person says about a release.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseTerms {
    /// Rollback index.
    pub generation: u64,
    /// Lower generations are given up.
    pub revokes: Option<u64>,
    /// A barrier.
    pub min_version: Option<ReleaseVersion>,
}

/// Where the release key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseSigning {
    /// In the directory of the keys.
    Here,
    /// Elsewhere: the document gets its signature later.
    Elsewhere,
}

/// Runs `orlop-image bundle`.
///
/// # Errors
/// There is no build, it is damaged, the release is published already, or something cannot be signed or written.
pub fn bundle(dirs: &Dirs, args: &BundleArgs) -> Result<()> {
    let output = dirs.output(args.profile);
    let manifest = read_manifest(dirs, args.profile).with_context(|| {
        format!("{} has no build: `orlop-image build --profile {}`", output.display(), args.profile.name())
    })?;
    let keys = directory(dirs, args.keys.as_ref());
    let (generation, revokes, min_version) = (args.generation, args.revokes, args.min_version);
    let terms = ReleaseTerms { generation, revokes, min_version };
    let build = build_files(&output, dirs.arch, manifest)?;
    let signing = if args.unsigned { ReleaseSigning::Elsewhere } else { ReleaseSigning::Here };
    let release = write_release(&build, terms, &keys, signing, &args.to)?;
    let size: u64 = release.files.iter().map(|file| file.size).sum();
    println!(
        "release {} for {}: {} bytes, root hash {}",
        release.version, release.arch, size, release.root.hash
    );
    if args.unsigned {
        let path = args.to.join(release_path(release.version, &release.arch, RELEASE_DOCUMENT));
        println!("{}: not signed; `orlop-image sign-file`, then `orlop-image sign --add`", path.display());
        return Ok(());
    }
    let change =
        ChannelChange { add: vec![(release.version, args.min_version)], ..args.channel.change(dirs.arch)? };
    let channel = change_channel(&args.to, &args.channel.channel, &keys, &change)?;
    println!("channel {} {}, good until {}", channel.channel, channel.sequence, channel.expires);
    Ok(())
}

// The build as its manifest has it: nothing else is signed.
fn build_files(output: &Path, arch: Arch, manifest: Manifest) -> Result<BuildFiles> {
    let (root, uki) = (output.join("root.erofs"), output.join("orlop.efi"));
    for (path, name) in [(&root, "root.erofs"), (&uki, "orlop.efi")] {
        let known = manifest.outputs.get(name).with_context(|| format!("manifest.json lacks {name}"))?;
        if digest::file(path)? != known.sha256 {
            bail!("{} is not the file of manifest.json: build the image again", path.display());
        }
    }
    let roothash = manifest.roothash.parse::<HexDigest>().context("the root hash of manifest.json")?;
    let version = manifest.version.parse::<ReleaseVersion>()?;
    Ok(BuildFiles { root, uki, roothash, arch: arch.facts().systemd, version, packages: manifest.packages })
}

/// Writes the files of a release, its document and the trust documents below `to`.
///
/// # Errors
/// The release is there already, the root does not have its root hash, or something cannot be signed or written.
pub fn write_release(
    build: &BuildFiles,
    terms: ReleaseTerms,
    keys: &KeyDirectory,
    signing: ReleaseSigning,
    to: &Path,
) -> Result<ReleaseDocument> {
    keys.publish_trust(to)?;
    let directory = to.join(release_path(build.version, build.arch, ""));
    if directory.exists() {
        bail!(
            "{} is there already: a release is published once, so take a higher version",
            directory.display()
        );
    }
    // Beside it, and named as it is once it is whole.
    let partial = to.join(release_path(build.version, &format!("{}.partial", build.arch), ""));
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("removing {}", partial.display()))?;
    }
    fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
    let root = write_files(build, &partial)?;
    let document = ReleaseDocument {
        product: PRODUCT.to_owned(),
        arch: build.arch.to_owned(),
        version: build.version,
        generation: terms.generation,
        revokes: terms.revokes,
        min_version: terms.min_version,
        kubernetes: KUBERNETES.to_owned(),
        root,
        files: RELEASE_FILES.iter().map(|name| entry(&partial, name)).collect::<Result<_>>()?,
    };
    let text = match signing {
        ReleaseSigning::Here => keys.signed(&document, KeyRole::Release)?,
        ReleaseSigning::Elsewhere => Envelope::around(&document)?.text(),
    };
    write_text(&partial.join(RELEASE_DOCUMENT), &text)?;
    fs::rename(&partial, &directory).with_context(|| format!("publishing {}", directory.display()))?;
    Ok(document)
}

fn entry(directory: &Path, name: &str) -> Result<ReleaseFile> {
    let path = directory.join(name);
    let size = fs::metadata(&path).with_context(|| format!("reading {}", path.display()))?.len();
    let sha256 = digest::file(&path)?.parse::<HexDigest>()?;
    Ok(ReleaseFile { name: name.to_owned(), size, sha256 })
}

fn write_files(build: &BuildFiles, to: &Path) -> Result<RootTree> {
    let shown = build.root.display();
    let root = File::open(&build.root).with_context(|| format!("opening {shown}"))?;
    let tree = Tree::over(&mut BufReader::with_capacity(PIECE, &root), &VERITY_SALT)
        .with_context(|| format!("making the verity tree of {shown}"))?;
    if tree.root != build.roothash.0 {
        bail!("{shown} has root hash {}, and the UKI names {}", HexDigest(tree.root), build.roothash);
    }
    let blocks = root.metadata()?.len() / BLOCK_BYTES;
    copy(&build.root, used_bytes(&build.root)?, &to.join(ROOT_FILE))?;
    let mut packed = GzEncoder::new(create(&to.join(VERITY_FILE))?, Compression::best());
    packed.write_all(&tree.bytes).context("writing the verity tree")?;
    packed.finish().and_then(|file| file.sync_all()).context("writing the verity tree")?;
    copy(&build.uki, u64::MAX, &to.join(UKI_FILE))?;
    write(&to.join(UKI_BLOCKS_FILE), &uki_blocks(&build.uki, &VERITY_SALT)?)?;
    write(&to.join(SBOM_FILE), sbom::text(&build.version.to_string(), &build.packages).as_bytes())?;
    let (hash, salt) = (HexDigest(tree.root), HexDigest(VERITY_SALT));
    Ok(RootTree { algorithm: VERITY_ALGORITHM.to_owned(), hash, salt, blocks })
}

/// The digests of the blocks of a UKI.
pub(super) fn uki_blocks(uki: &Path, salt: &[u8; 32]) -> Result<Vec<u8>> {
    let file = File::open(uki).with_context(|| format!("opening {}", uki.display()))?;
    block_digests(&mut BufReader::with_capacity(PIECE, file), salt)
        .with_context(|| format!("reading {}", uki.display()))
}

/// Bytes up to the last block that is not all zeros; a block at least.
fn used_bytes(path: &Path) -> Result<u64> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut reader = BufReader::with_capacity(PIECE, file);
    let (mut block, mut at, mut used) = ([0; BLOCK], 0, BLOCK_BYTES);
    // The tree has shown that all blocks are whole.
    while reader.read_exact(&mut block).is_ok() {
        at += BLOCK_BYTES;
        if block.iter().any(|byte| *byte != 0) {
            used = at;
        }
    }
    Ok(used)
}

fn create(path: &Path) -> Result<File> {
    File::create_new(path).with_context(|| format!("making {}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = create(path)?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .with_context(|| format!("writing {}", path.display()))
}

fn copy(from: &Path, bytes_max: u64, to: &Path) -> Result<()> {
    let source = File::open(from).with_context(|| format!("opening {}", from.display()))?;
    let mut file = create(to)?;
    io::copy(&mut source.take(bytes_max), &mut file)
        .and_then(|_| file.sync_all())
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minor_version_is_the_agents() {
        let agent = include_str!("../../../agent/daemon/src/cluster/plan.rs");
        assert!(agent.contains(&format!("concat!(\"v{KUBERNETES}.")), "KUBELET_VERSION is another one");
    }
}
