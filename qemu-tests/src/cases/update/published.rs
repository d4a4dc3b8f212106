//! A release made from the built image, and a server of it that can be cut off.
//!
//! The release is the image with other bytes in some blocks: so a case knows how many of them a node has to fetch. Nothing boots
//! it; its content counts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use orlop_config::release::{ARCH, HexDigest, ReleaseDocument, ReleaseVersion, UtcSecond};
use orlop_harness::cluster::pki::Authority;
use orlop_harness::vm::lab::Image;
use orlop_image::build::VERITY_SALT;
use orlop_image::format::verity::Tree;
use orlop_image::update::{
    BuildFiles, ChannelChange, KeyDirectory, ReleaseSigning, ReleaseTerms, change_channel, write_release,
};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Version of the release.
pub(super) const VERSION: &str = "0.9.0";
/// The first block of the root that is another one.
const FIRST_BLOCK: u64 = 2000;
const BLOCK: u64 = 4096;
/// Bytes that the server sends at once.
const PIECE: usize = 64 << 10;
/// This machine's loopback, as a VM sees it.
const HERE: &str = "10.0.2.2";

/// A published release.
pub(super) struct Published {
    /// What is served, or copied to a drive.
    pub(super) dir: PathBuf,
    /// Its first trust document.
    pub(super) trust: String,
    /// The release.
    pub(super) release: ReleaseDocument,
}

/// Publishes the built image with so many other blocks in its root, and one in its UKI.
pub(super) fn publish(scratch: &Path, changed: u64) -> Result<Published> {
    let image = Image::test()?;
    let (root, uki) = (scratch.join("root.erofs"), scratch.join("orlop.efi"));
    fs::copy(image.path("root.erofs"), &root).context("copy the root")?;
    fs::copy(image.path("orlop.efi"), &uki).context("copy the UKI")?;
    let file = File::options().read(true).write(true).open(&root).context("open the root")?;
    for n in 0..changed {
        file.write_all_at(&noise(n), (FIRST_BLOCK + n) * BLOCK).context("change the root")?;
    }
    let tree = Tree::over(&mut BufReader::with_capacity(1 << 20, &file), &VERITY_SALT).context("its tree")?;
    let file = File::options().write(true).open(&uki).context("open the UKI")?;
    file.write_all_at(&noise(changed), file.metadata()?.len() / 2 / BLOCK * BLOCK)
        .context("change the UKI")?;
    let (version, dir) = (VERSION.parse::<ReleaseVersion>()?, scratch.join("published"));
    let keys = KeyDirectory::new(&scratch.join("keys"));
    keys.create(3, 2)?;
    let roothash = HexDigest(tree.root);
    let (root_file, uki_file, packages) = (root.clone(), uki.clone(), BTreeMap::new());
    let build = BuildFiles { root: root_file, uki: uki_file, roothash, arch: ARCH, version, packages };
    let terms = ReleaseTerms { generation: 1, revokes: None, min_version: None };
    let release = write_release(&build, terms, &keys, ReleaseSigning::Here, &dir)?;
    // The clock of this machine; nodes without NTP do not look at it.
    let now = u64::try_from(jiff::Timestamp::now().as_second())?;
    let change = ChannelChange {
        arch: ARCH,
        add: vec![(version, None)],
        withdraw: Vec::new(),
        rollout: None,
        expires: UtcSecond::new(now + 30 * 86_400),
    };
    change_channel(&dir, "stable", &keys, &change)?;
    fs::remove_file(&root).and_then(|()| fs::remove_file(&uki)).context("remove the copies")?;
    let trust = fs::read_to_string(dir.join("trust/1.json")).context("read the trust document")?;
    Ok(Published { dir, trust, release })
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

/// A web server of a published directory, on this machine's loopback. Its thread ends with the process.
pub(super) struct Server {
    /// URL for a VM.
    pub(super) base: String,
    /// The authority's certificate, PEM.
    pub(super) authority: String,
    given: Arc<AtomicU64>,
    limit: Limit,
}

impl Server {
    /// Serves `published`; keys are made in `scratch`.
    pub(super) fn start(scratch: &Path, published: &Path) -> Result<Server> {
        let authority = Authority::make(scratch, "update-ca", "update-ca")?;
        let tls = authority.server(scratch, "update-server", &[HERE])?.server_config()?;
        let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
        let base = format!("https://{HERE}:{}", listener.local_addr()?.port());
        let (given, limit): (Arc<AtomicU64>, Limit) = Default::default();
        let (count, stop, dir) = (Arc::clone(&given), Arc::clone(&limit), published.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away, or a server that is cut off: the next connection counts.
                let _ = answer(stream, &tls, &dir, &count, &stop);
            }
        });
        Ok(Server { base, authority: authority.pem.clone(), given, limit })
    }

    /// Bytes of files that it has sent.
    pub(super) fn given(&self) -> u64 {
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
