//! A signature by a key that is not on the machine that builds: the bytes go to the key, or the document does.

use super::keys::write_text;
use super::signing_key::SigningKey;
use anyhow::{Context, Result, bail};
use clap::Args;
use orlop_config::release::{
    ChannelDocument, Envelope, ReleaseDocument, SignatureCheck, SignedDocument, TrustDocument,
};
use orlop_update::RingSignatures;
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `orlop-image sign-file`.
#[derive(Args, Debug)]
pub struct SignFileArgs {
    /// The document: release.json of `bundle --unsigned`
    file: PathBuf,
    /// Trust document that names the key
    #[arg(long)]
    trust: PathBuf,
    #[command(flatten)]
    by: SignatureArgs,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
struct SignatureArgs {
    /// Write the bytes that a key elsewhere signs to this file, and change nothing
    #[arg(long, conflicts_with_all = ["key", "key_id", "signature"])]
    bytes: Option<PathBuf>,
    /// Sign with this private key
    #[arg(long, conflicts_with_all = ["key_id", "signature"])]
    key: Option<PathBuf>,
    /// Identifier of the key elsewhere
    #[arg(long, requires = "signature")]
    key_id: Option<String>,
    /// File with the signature of the key elsewhere: 64 bytes (Ed25519) or DER (ECDSA P-256)
    #[arg(long, requires = "key_id")]
    signature: Option<PathBuf>,
}

/// Runs `orlop-image sign-file`.
///
/// # Errors
/// The document or the key cannot be read, or the signature is not good.
pub fn sign_file(args: &SignFileArgs) -> Result<()> {
    let text = fs::read(&args.file).with_context(|| format!("reading {}", args.file.display()))?;
    let mut envelope = Envelope::read(&text).with_context(|| args.file.display().to_string())?;
    println!("{}: {}", args.file.display(), described(&envelope)?);
    let message = envelope.signed_bytes();
    let SignatureArgs { bytes, key, key_id, signature } = &args.by;
    if let Some(path) = bytes {
        return fs::write(path, message).with_context(|| format!("writing {}", path.display()));
    }
    let trust = fs::read(&args.trust).with_context(|| format!("reading {}", args.trust.display()))?;
    let trust = TrustDocument::first(&trust, &RingSignatures)?;
    let (id, signature) = match (key, key_id, signature) {
        (Some(path), _, _) => by_key(&trust, path, &message)?,
        (None, Some(id), Some(path)) => {
            (id.clone(), fs::read(path).with_context(|| format!("reading {}", path.display()))?)
        }
        _ => bail!("neither --bytes nor --key nor --key-id with --signature is given"),
    };
    add_signature(&mut envelope, &trust, &id, signature)?;
    write_text(&args.file, &envelope.text())?;
    println!("{}: signed by {id}", args.file.display());
    Ok(())
}

/// The document that a signature would be for, read from the bytes that are signed: the key's owner did not write them.
///
/// # Errors
/// It is no document that a node reads, or one that no node takes.
pub(super) fn described(envelope: &Envelope) -> Result<String> {
    let kind = envelope.payload_type.as_str();
    Ok(if kind == ReleaseDocument::PAYLOAD_TYPE {
        let release = envelope.document::<ReleaseDocument>()?;
        let (name, root) = (release.name(), release.root.hash);
        format!("{name} for {}, generation {}, root hash {root}", release.arch, release.generation)
    } else if kind == ChannelDocument::PAYLOAD_TYPE {
        let channel = envelope.document::<ChannelDocument>()?;
        format!("{}, sequence {}, good until {}", channel.name(), channel.sequence, channel.expires)
    } else {
        envelope.document::<TrustDocument>()?.name().to_string()
    })
}

fn by_key(trust: &TrustDocument, path: &Path, message: &[u8]) -> Result<(String, Vec<u8>)> {
    let key = SigningKey::read(path)?;
    let known = trust.keys.iter().find(|known| key.is(known));
    let known = known.with_context(|| format!("{} is no key of trust {}", path.display(), trust.number))?;
    Ok((known.id.clone(), key.sign(message)?))
}

/// Adds a signature that was made elsewhere.
///
/// # Errors
/// The trust document has no such key, or the key has not made this signature over this document.
pub fn add_signature(
    envelope: &mut Envelope,
    trust: &TrustDocument,
    id: &str,
    signature: Vec<u8>,
) -> Result<()> {
    let Some(key) = trust.keys.iter().find(|key| key.id == id) else {
        let known: Vec<&str> = trust.keys.iter().map(|key| key.id.as_str()).collect();
        bail!("trust {} has no key {id:?}, it has {}", trust.number, known.join(", "));
    };
    if !RingSignatures.is_good(key, &envelope.signed_bytes(), &signature) {
        bail!("this is no signature of key {id} over this document");
    }
    envelope.sign(id, signature);
    Ok(())
}
