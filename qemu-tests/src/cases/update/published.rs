//! A release made from the built image, and a server of it that can be cut off.
//!
//! The release is the image with other bytes in some blocks: so a case knows how many of them a node has to fetch. Nothing boots
//! it; its content counts. A release that boots has one more block, behind its file system, and so another root hash.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_config::release::{ARCH, HexDigest, ReleaseDocument, ReleaseVersion, UtcSecond};
use orlop_harness::cluster::flags::ADDRESS;
use orlop_harness::cluster::pki::Authority;
use orlop_harness::cluster::proxy::inside;
use orlop_harness::vm::lab::Image;
use orlop_image::build::VERITY_SALT;
use orlop_image::format::verity::Tree;
use orlop_image::update::{
    BuildFiles, ChannelChange, KeyDirectory, ReleaseSigning, ReleaseTerms, change_channel, write_release,
};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Version of the release.
pub(crate) const VERSION: &str = "0.9.0";
/// The first block of the root that is another one.
const FIRST_BLOCK: u64 = 2000;
const BLOCK: u64 = 4096;
/// Where an erofs has its superblock, and how that begins; the number of its blocks is 36 bytes behind.
const EROFS_SUPERBLOCK: u64 = 1024;
const EROFS_MAGIC: [u8; 4] = [0xe2, 0xe1, 0xf5, 0xe0];
/// Bytes that the server sends at once.
const PIECE: usize = 64 << 10;
/// This machine's loopback, as a VM sees it.
pub(super) const HERE: &str = "10.0.2.2";

/// A published release.
pub(crate) struct Published {
    /// What is served, or copied to a drive.
    pub(crate) dir: PathBuf,
    /// Its first trust document.
    pub(crate) trust: String,
    /// The release.
    pub(crate) release: ReleaseDocument,
}

/// Publishes the built image with so many other blocks in its root, and one in its UKI.
pub(super) fn publish(scratch: &Path, changed: u64) -> Result<Published> {
    let keys = new_keys(scratch)?;
    let release = publish_release(scratch, &keys, VERSION, changed, Ok)?;
    published(scratch, release)
}

/// Keys of releases.
pub(crate) fn new_keys(scratch: &Path) -> Result<KeyDirectory> {
    let keys = KeyDirectory::new(&scratch.join("keys"));
    keys.create(3, 2)?;
    Ok(keys)
}

/// What is published below `scratch`, whose newest release this is.
pub(crate) fn published(scratch: &Path, release: ReleaseDocument) -> Result<Published> {
    let dir = scratch.join("published");
    let trust = fs::read_to_string(dir.join("trust/1.json")).context("read the trust document")?;
    Ok(Published { dir, trust, release })
}

/// Publishes a version: so many other blocks in the root, one in the UKI, which `finish` makes the one that is published.
pub(crate) fn publish_release(
    scratch: &Path,
    keys: &KeyDirectory,
    version: &str,
    changed: u64,
    finish: impl FnOnce(Vec<u8>) -> Result<Vec<u8>>,
) -> Result<ReleaseDocument> {
    let copies = copies(scratch)?;
    for n in 0..changed {
        let at = (FIRST_BLOCK + n) * BLOCK;
        copies.file.write_all_at(&noise(n), at).context("change the root")?;
    }
    let roothash = roothash(&copies.file)?;
    let mut program = fs::read(&copies.uki).context("read the UKI")?;
    let block = usize::try_from(BLOCK)?;
    let middle = program.len() / 2 / block * block;
    program[middle..middle + block].copy_from_slice(&noise(changed));
    fs::write(&copies.uki, finish(program)?).context("write the UKI")?;
    released(scratch, keys, version, &copies, roothash)
}

/// Publishes the built image so that it boots under another version and another root hash.
pub(crate) fn publish_bootable(scratch: &Path) -> Result<Published> {
    let keys = new_keys(scratch)?;
    let release = publish_bootable_release(scratch, &keys, VERSION, 1)?;
    published(scratch, release)
}

/// The same as one version of several: `mark` makes its root another one.
pub(super) fn publish_bootable_release(
    scratch: &Path,
    keys: &KeyDirectory,
    version: &str,
    mark: u64,
) -> Result<ReleaseDocument> {
    publish_spoilt_release(scratch, keys, version, mark, |_| Ok(()))
}

/// The same with another UKI, which is published as it is.
pub(super) fn publish_spoilt_release(
    scratch: &Path,
    keys: &KeyDirectory,
    version: &str,
    mark: u64,
    spoil: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<ReleaseDocument> {
    publish_marked_release(scratch, keys, version, mark..mark + 1, spoil)
}

/// The same with a block for each of these marks behind the root's file system: so many have to be fetched.
pub(crate) fn publish_marked_release(
    scratch: &Path,
    keys: &KeyDirectory,
    version: &str,
    marks: Range<u64>,
    spoil: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<ReleaseDocument> {
    let copies = copies(scratch)?;
    let mut superblock = [0; 40];
    copies.file.read_exact_at(&mut superblock, EROFS_SUPERBLOCK).context("read the root's superblock")?;
    ensure!(superblock.starts_with(&EROFS_MAGIC), "the root is no erofs");
    let blocks = u32::from_le_bytes([superblock[36], superblock[37], superblock[38], superblock[39]]);
    let ends = (u64::from(blocks)..).map(|block| block * BLOCK);
    for (mark, end) in marks.zip(ends) {
        copies.file.write_all_at(&noise(mark), end).context("write behind the root's file system")?;
    }
    let roothash = roothash(&copies.file)?;
    let before = fs::read_to_string(Image::test()?.path("roothash")).context("read the root hash")?;
    let mut bytes = fs::read(&copies.uki).context("read the UKI")?;
    replace(&mut bytes, before.trim(), &roothash.to_string())?;
    let running = version_of(&bytes)?;
    replace(&mut bytes, &format!("IMAGE_VERSION=\"{running}\""), &format!("IMAGE_VERSION=\"{version}\""))?;
    spoil(&mut bytes)?;
    fs::write(&copies.uki, bytes).context("write the UKI")?;
    released(scratch, keys, version, &copies, roothash)
}

/// Copies of the built root and UKI.
struct ImageCopies {
    root: PathBuf,
    uki: PathBuf,
    /// The root, open.
    file: File,
}

fn copies(scratch: &Path) -> Result<ImageCopies> {
    let image = Image::test()?;
    let (root, uki) = (scratch.join("root.erofs"), scratch.join("orlop.efi"));
    fs::copy(image.path("root.erofs"), &root).context("copy the root")?;
    fs::copy(image.path("orlop.efi"), &uki).context("copy the UKI")?;
    let file = File::options().read(true).write(true).open(&root).context("open the root")?;
    Ok(ImageCopies { root, uki, file })
}

fn roothash(mut root: &File) -> Result<HexDigest> {
    root.rewind().context("go to the root's beginning")?;
    let tree = Tree::over(&mut BufReader::with_capacity(1 << 20, root), &VERITY_SALT).context("its tree")?;
    Ok(HexDigest(tree.root))
}

/// The version in the UKI's `.osrel`.
fn version_of(uki: &[u8]) -> Result<String> {
    let key = b"IMAGE_VERSION=\"";
    let at = uki.windows(key.len()).position(|part| part == key).context("a UKI without a version")?;
    let text = uki[at + key.len()..].iter().take_while(|byte| **byte != b'"').copied().collect();
    String::from_utf8(text).context("the UKI's version")
}

/// Puts a text in place of one of the same length, which the UKI has once.
fn replace(uki: &mut [u8], before: &str, after: &str) -> Result<()> {
    ensure!(before.len() == after.len(), "{before:?} and {after:?} differ in length");
    let at = uki.windows(before.len()).position(|part| part == before.as_bytes());
    let at = at.with_context(|| format!("the UKI does not have {before:?}"))?;
    uki[at..at + after.len()].copy_from_slice(after.as_bytes());
    Ok(())
}

/// Signs and publishes a version, and takes the copies away.
fn released(
    scratch: &Path,
    keys: &KeyDirectory,
    version: &str,
    copies: &ImageCopies,
    roothash: HexDigest,
) -> Result<ReleaseDocument> {
    let (version, dir) = (version.parse::<ReleaseVersion>()?, scratch.join("published"));
    let ImageCopies { root, uki, .. } = copies;
    let (root_file, uki_file, packages) = (root.clone(), uki.clone(), BTreeMap::new());
    let build = BuildFiles { root: root_file, uki: uki_file, roothash, arch: ARCH, version, packages };
    let terms = ReleaseTerms { generation: 1, revokes: None, min_version: None };
    let release = write_release(&build, terms, keys, ReleaseSigning::Here, &dir)?;
    // The clock of this machine; nodes without NTP do not look at it.
    let now = u64::try_from(jiff::Timestamp::now().as_second())?;
    let change = ChannelChange {
        arch: ARCH,
        add: vec![(version, None)],
        withdraw: Vec::new(),
        rollout: None,
        expires: UtcSecond::new(now + 30 * 86_400),
    };
    change_channel(&dir, "stable", keys, &change)?;
    fs::remove_file(root).and_then(|()| fs::remove_file(uki)).context("remove the copies")?;
    Ok(release)
}

/// A block that is no other one (xorshift).
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..BLOCK / 8).flat_map(word).collect()
}

/// Where the server stops, and whom it tells.
type Limit = Arc<Mutex<Option<(u64, Sender<()>)>>>;

/// A web server of a published directory, on this machine's loopback or in a cluster's network. It has a thread for each connection;
/// its threads end with the process.
pub(crate) struct Server {
    /// URL for a VM.
    pub(crate) base: String,
    /// The authority's certificate, PEM.
    pub(crate) authority: String,
    given: Arc<AtomicU64>,
    limit: Limit,
}

impl Server {
    /// Serves `published`; keys are made in `scratch`.
    pub(crate) fn start(scratch: &Path, published: &Path) -> Result<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
        Server::serve(scratch, published, HERE, listener)
    }

    /// The same for the nodes of a cluster, in whose network the process `pid` is.
    pub(super) fn start_inside(pid: i32, scratch: &Path, published: &Path) -> Result<Server> {
        // The socket stays in the network of the thread that makes it.
        let listener = inside(pid, async || -> Result<TcpListener> {
            TcpListener::bind((ADDRESS, 0)).context("listen in the cluster's network")
        })?;
        Server::serve(scratch, published, ADDRESS, listener)
    }

    fn serve(scratch: &Path, published: &Path, host: &str, listener: TcpListener) -> Result<Server> {
        let authority = Authority::make(scratch, "update-ca", "update-ca")?;
        let tls = authority.server(scratch, "update-server", &[host])?.server_config()?;
        let base = format!("https://{host}:{}", listener.local_addr()?.port());
        let (given, limit): (Arc<AtomicU64>, Limit) = Default::default();
        let (count, stop, dir) = (Arc::clone(&given), Arc::clone(&limit), published.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (tls, dir) = (Arc::clone(&tls), dir.clone());
                let (count, stop) = (Arc::clone(&count), Arc::clone(&stop));
                // Several nodes ask at once, and an emulated one is slow: nobody waits for the connection of another one.
                std::thread::spawn(move || {
                    // A client that goes away, or a server that is cut off: the next connection counts.
                    let _ = answer(stream, &tls, &dir, &count, &stop);
                });
            }
        });
        Ok(Server { base, authority: authority.pem.clone(), given, limit })
    }

    /// Bytes of files that it has sent.
    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::SeqCst)
    }

    /// From `bytes` on it closes every connection, and tells the receiver once.
    pub(super) fn stop_at(&self, bytes: u64) -> Receiver<()> {
        let (tells, told) = mpsc::channel();
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = Some((bytes, tells));
        told
    }

    /// It answers again.
    pub(super) fn go_on(&self) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// An error once the server is to stop.
fn check(given: &AtomicU64, limit: &Limit) -> io::Result<()> {
    let limit = limit.lock().unwrap_or_else(PoisonError::into_inner);
    match limit.as_ref().filter(|(bytes, _)| given.load(Ordering::SeqCst) >= *bytes) {
        None => Ok(()),
        Some((_, tells)) => {
            // Who waited may be gone.
            let _ = tells.send(());
            Err(io::Error::other("cut off"))
        }
    }
}

fn answer(
    stream: TcpStream,
    tls: &Arc<ServerConfig>,
    dir: &Path,
    given: &AtomicU64,
    limit: &Limit,
) -> io::Result<()> {
    check(given, limit)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    let connection = ServerConnection::new(Arc::clone(tls)).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
    let Ok(file) = File::open(dir.join(path)) else {
        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        return close(&mut stream);
    };
    let size = file.metadata()?.len();
    let (status, from, to) = match range(&head) {
        Some((from, last)) => ("206 Partial Content", from, (last + 1).min(size)),
        None => ("200 OK", 0, size),
    };
    let length = to.saturating_sub(from);
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Range: bytes {from}-{}/{size}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n",
        to.saturating_sub(1)
    )?;
    let (mut at, mut memory) = (from, vec![0; PIECE]);
    while at < to {
        check(given, limit)?;
        let wanted = usize::try_from(to - at).unwrap_or(PIECE).min(PIECE);
        file.read_exact_at(&mut memory[..wanted], at)?;
        stream.write_all(&memory[..wanted])?;
        given.fetch_add(wanted as u64, Ordering::SeqCst);
        at += wanted as u64;
    }
    close(&mut stream)
}

fn close(stream: &mut StreamOwned<ServerConnection, TcpStream>) -> io::Result<()> {
    stream.conn.send_close_notify();
    stream.flush()
}

/// First and last byte of a request for a part.
fn range(head: &str) -> Option<(u64, u64)> {
    let text = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned))?;
    let (from, last) = text.trim().split_once('-')?;
    Some((from.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_client_keeps_nobody_waiting() {
        let dir = std::env::temp_dir().join(format!("orlop-published-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let server = Server::start(&dir, &dir).expect("a server");
        let address = server.base.replace("https://", "").replace(HERE, "127.0.0.1");
        let _silent = TcpStream::connect(&address).expect("connected");
        let mut other = TcpStream::connect(&address).expect("connected");
        other.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        other.write_all(b"this is no TLS\r\n\r\n").expect("written");
        let ended = other.read_to_end(&mut Vec::new());
        // By an alert, or by a reset.
        assert!(!matches!(&ended, Err(e) if e.kind() == io::ErrorKind::WouldBlock), "{ended:?}");
        fs::remove_dir_all(&dir).expect("removed");
    }
}
