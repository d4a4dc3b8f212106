//! The directory of keys: private keys and the chain of trust documents that names them.
//!
//! ```text
//! <directory>/root-1.pem …  release.pem  channel.pem     mode 0600
//! <directory>/trust/<n>.json                             what nodes get
//! ```
//! Invariants: a private key is never overwritten; a trust document is one that follows for every node.

use super::signing_key::SigningKey;
use crate::format::digest;
use crate::profile::Dirs;
use anyhow::{Context, Result, bail};
use clap::Args;
use orlop_config::release::{
    Base64Bytes, Envelope, KeyRole, PRODUCT, RoleKeys, SignedDocument, TrustDocument, TrustedKey, trust_path,
};
use orlop_files::Durability;
use orlop_update::RingSignatures;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Most root keys: a trust document that replaces one is signed by those of two documents, and an envelope holds 16 signatures.
const ROOTS_MAX: usize = 8;

/// Arguments of `orlop-image keys`.
#[derive(Args, Debug)]
pub struct KeysArgs {
    /// Directory of the keys [default: $ORLOP_CACHE/keys]
    #[arg(long)]
    keys: Option<PathBuf>,
    /// Root keys to make
    #[arg(long, default_value_t = 3)]
    roots: usize,
    /// Root keys that must sign
    #[arg(long, default_value_t = 2)]
    threshold: usize,
    /// Replace this key (root-1, release, channel, …) in the next trust document
    #[arg(long, conflicts_with_all = ["roots", "threshold"])]
    replace: Option<String>,
}

/// A directory of keys.
#[derive(Clone, Debug)]
pub struct KeyDirectory {
    path: PathBuf,
}

/// The directory that was named, or the usual one.
pub(super) fn directory(dirs: &Dirs, named: Option<&PathBuf>) -> KeyDirectory {
    KeyDirectory::new(&named.cloned().unwrap_or_else(|| dirs.cache.join("keys")))
}

/// Runs `orlop-image keys`.
///
/// # Errors
/// A key exists, or something cannot be written.
pub fn keys(dirs: &Dirs, args: &KeysArgs) -> Result<()> {
    let directory = directory(dirs, args.keys.as_ref());
    let trust = match &args.replace {
        None => directory.create(args.roots, args.threshold)?,
        Some(name) => directory.replace(name)?,
    };
    println!("{}", directory.path.join(trust_path(trust.number)).display());
    for role in KeyRole::ALL {
        let names: Vec<&str> = trust.keys_of(role).iter().map(|key| key.id.as_str()).collect();
        println!("  {role}: {} of {}", trust.threshold(role), names.join(", "));
    }
    Ok(())
}

/// Follows the chain of the trust documents in `<directory>/trust`, the newest last.
///
/// # Errors
/// There is none, or one does not follow.
pub(super) fn trust_chain(directory: &Path) -> Result<Vec<TrustDocument>> {
    let read = |number| -> Result<Option<Vec<u8>>> {
        let path = directory.join(trust_path(number));
        match fs::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            text => text.map(Some).with_context(|| format!("reading {}", path.display())),
        }
    };
    let Some(first) = read(1)? else {
        bail!("{} has no {}: `orlop-image keys` makes it", directory.display(), trust_path(1));
    };
    let mut newest = TrustDocument::first(&first, &RingSignatures)?;
    let mut chain = vec![newest.clone()];
    while let Some(text) = read(newest.next_number())? {
        newest = newest.next(&text, &RingSignatures)?;
        chain.push(newest.clone());
    }
    Ok(chain)
}

/// The newest trust document in `<directory>/trust`.
///
/// # Errors
/// There is none, or one does not follow.
pub fn newest_trust(directory: &Path) -> Result<TrustDocument> {
    trust_chain(directory)?.pop().context("a chain has a first document")
}

impl KeyDirectory {
    /// The directory at `path`.
    #[must_use]
    pub fn new(path: &Path) -> KeyDirectory {
        KeyDirectory { path: path.to_owned() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the trust documents below `published`; what is there is not changed.
    ///
    /// # Errors
    /// Those that are there are of other keys or go on after those of this directory, or one cannot be written.
    pub(super) fn publish_trust(&self, published: &Path) -> Result<()> {
        let chain = trust_chain(&self.path)?;
        for trust in &chain {
            let [from, to] =
                [self.path.as_path(), published].map(|directory| directory.join(trust_path(trust.number)));
            let text = fs::read_to_string(&from).with_context(|| format!("reading {}", from.display()))?;
            match fs::read_to_string(&to) {
                Ok(there) if there == text => {}
                Ok(_) => bail!("{} is not {}: these are other keys", to.display(), from.display()),
                Err(e) if e.kind() == ErrorKind::NotFound => write_text(&to, &text)?,
                Err(e) => return Err(e).with_context(|| format!("reading {}", to.display())),
            }
        }
        let newer = published.join(trust_path(chain.last().map_or(1, TrustDocument::next_number)));
        if newer.exists() {
            bail!(
                "{} follows the trust documents in {}: copy it there, nodes may refuse what the keys of an older one sign",
                newer.display(),
                self.path.display()
            );
        }
        Ok(())
    }

    /// Makes all keys and the first trust document.
    ///
    /// # Errors
    /// There are keys already, or something cannot be written; then the keys that this call has made are removed.
    pub fn create(&self, roots: usize, threshold: usize) -> Result<TrustDocument> {
        let shown = self.path.display();
        let first = self.path.join(trust_path(1));
        if first.exists() {
            bail!("{shown} has keys already; nodes that know them would never know others");
        }
        if threshold == 0 || threshold > roots || roots > ROOTS_MAX {
            bail!(
                "{threshold} of {roots} root keys cannot sign: at most {ROOTS_MAX} are made, and 1 or more must sign"
            );
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .with_context(|| format!("making {shown}"))?;
        let mut made = Vec::new();
        let trust = self.first_trust(roots, threshold, &mut made);
        // No document names them.
        if trust.is_err() && !first.exists() {
            for path in &made {
                let _ = fs::remove_file(path);
            }
        }
        trust
    }

    // The private keys that are written are told in `made`.
    fn first_trust(&self, roots: usize, threshold: usize, made: &mut Vec<PathBuf>) -> Result<TrustDocument> {
        let mut keys = Vec::new();
        let root: Vec<String> = (1..=roots).map(|number| format!("root-{number}")).collect();
        for name in root.iter().map(String::as_str).chain(["release", "channel"]) {
            let key = self.make(name).with_context(|| {
                format!(
                    "{} may have keys of a call that was cut off: no node knows them",
                    self.path.display()
                )
            })?;
            made.push(self.path.join(format!("{name}.pem")));
            keys.push(key);
        }
        let ids = |keys: &[TrustedKey]| keys.iter().map(|key| key.id.clone()).collect();
        let trust = TrustDocument {
            product: PRODUCT.to_owned(),
            number: 1,
            root: RoleKeys { keys: ids(&keys[..roots]), threshold },
            release: RoleKeys { keys: ids(&keys[roots..=roots]), threshold: 1 },
            channel: RoleKeys { keys: ids(&keys[roots + 1..]), threshold: 1 },
            keys,
        };
        self.write_trust(&trust, &trust)?;
        Ok(trust)
    }

    // The private key is written; its name says which one it is, and part of its digest that it is another one next time.
    fn make(&self, name: &str) -> Result<TrustedKey> {
        let key = SigningKey::create(&self.path.join(format!("{name}.pem")))?;
        let id = format!("{name}-{}", &digest::bytes(key.public())[..8]);
        let public = Base64Bytes(key.public().to_vec());
        Ok(TrustedKey { id, algorithm: key.algorithm(), public })
    }

    /// Makes another key in place of `<name>.pem`, which gets the name `<name>.<number>.replaced`, and the trust document that follows.
    /// A key that is lost is found by its name.
    ///
    /// # Errors
    /// There is no such key in the newest trust document, too few root keys are here, or something cannot be written.
    pub fn replace(&self, name: &str) -> Result<TrustDocument> {
        let before = newest_trust(&self.path)?;
        let path = self.path.join(format!("{name}.pem"));
        let key = if path.exists() { Some(SigningKey::read(&path)?) } else { None };
        let place = before.keys.iter().position(|known| match &key {
            Some(key) => key.is(known),
            None => is_named(&known.id, name),
        });
        // The old root key still has to sign.
        let set_aside = self.path.join(format!("{name}.{}.replaced", before.number));
        let place = place.with_context(|| {
            let (path, aside) = (path.display(), set_aside.display());
            format!(
                "{path} is no key of trust {}; if a replacement was cut off, {aside} is the key: rename it",
                before.number
            )
        })?;
        if key.is_some() {
            if set_aside.exists() {
                bail!("{} is there already: an earlier replacement has not ended", set_aside.display());
            }
            fs::rename(&path, &set_aside).with_context(|| format!("renaming {}", path.display()))?;
        }
        let written = self.replaced(&before, place, name);
        // As before, as no node has seen the new key: but not if the document that names it is there, also if a later step failed.
        if written.is_err() && !self.path.join(trust_path(before.next_number())).exists() {
            let _ = fs::remove_file(&path);
            if key.is_some() {
                fs::rename(&set_aside, &path).with_context(|| format!("renaming {}", set_aside.display()))?;
            }
        }
        written
    }

    fn replaced(&self, before: &TrustDocument, place: usize, name: &str) -> Result<TrustDocument> {
        let (new, mut next) = (self.make(name)?, before.clone());
        let old = std::mem::replace(&mut next.keys[place], new.clone());
        for role in [&mut next.root, &mut next.release, &mut next.channel] {
            for id in role.keys.iter_mut().filter(|id| **id == old.id) {
                new.id.clone_into(id);
            }
        }
        next.number = before.next_number();
        self.write_trust(before, &next)?;
        Ok(next)
    }

    // Signed by the root keys of both.
    fn write_trust(&self, before: &TrustDocument, next: &TrustDocument) -> Result<()> {
        let mut envelope = Envelope::around(next)?;
        for trust in [before, next] {
            self.sign(&mut envelope, trust, KeyRole::Root)?;
        }
        let text = envelope.text();
        // What a node would say of it, before any node can.
        match next.number {
            1 => TrustDocument::first(text.as_bytes(), &RingSignatures)?,
            _ => before.next(text.as_bytes(), &RingSignatures)?,
        };
        write_text(&self.path.join(trust_path(next.number)), &text)
    }

    /// Signs with every key of the role that is here.
    ///
    /// # Errors
    /// A key cannot be read, or fewer are here than must sign.
    pub fn sign(&self, envelope: &mut Envelope, trust: &TrustDocument, role: KeyRole) -> Result<()> {
        let mut signed = 0;
        for path in self.private_keys()? {
            let key = SigningKey::read(&path)?;
            if let Some(known) = trust.keys_of(role).into_iter().find(|known| key.is(known)) {
                let signature = key.sign(&envelope.signed_bytes())?;
                envelope.sign(&known.id, signature);
                signed += 1;
            }
        }
        let threshold = trust.threshold(role);
        if signed < threshold {
            let names: Vec<&str> = trust.keys_of(role).iter().map(|key| key.id.as_str()).collect();
            bail!(
                "{} has {signed} of the {threshold} keys of role {role} that must sign; trust {} names {}",
                self.path.display(),
                trust.number,
                names.join(", ")
            );
        }
        Ok(())
    }

    /// Signs a document of the newest trust.
    ///
    /// # Errors
    /// It cannot be signed, or no node would take it.
    pub fn signed<T: SignedDocument>(&self, document: &T, role: KeyRole) -> Result<String> {
        let mut envelope = Envelope::around(document)?;
        self.sign(&mut envelope, &newest_trust(&self.path)?, role)?;
        Ok(envelope.text())
    }

    // Those set aside sign their own successor.
    fn private_keys(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.path).with_context(|| format!("listing {}", self.path.display()))?;
        let mut found: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "pem" || e == "replaced"))
            .collect();
        found.sort();
        Ok(found)
    }
}

// `<name>-<digits of the digest>`, as `make` has it: root-1 is no other key of the name root.
fn is_named(id: &str, name: &str) -> bool {
    let digits = id.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    digits.is_some_and(|digits| !digits.contains('-'))
}

/// Writes a published text, with its directory.
pub(super) fn write_text(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    Ok(orlop_files::replace(path, text.as_bytes(), 0o644, Durability::Synced)?)
}
