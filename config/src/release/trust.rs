//! The trust document: which keys may sign what, and how many of them must.
//!
//! Trust documents form a chain. Number n is signed by enough root keys of n - 1 and of n itself, so a node that knows any of them
//! follows to the newest, and only the root keys of the last one can add to it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::envelope::{Envelope, SignatureCheck, SignedDocument};
use super::values::{Base64Bytes, check_count, check_name};
use super::{DocumentError, DocumentFault, DocumentName};

/// Most keys of a document.
const KEYS_MAX: usize = 32;
/// Largest number: what JSON readers of any language keep exact.
pub(super) const NUMBER_MAX: u64 = (1 << 53) - 1;

/// What a key may sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyRole {
    /// Trust documents. Its keys are kept offline.
    Root,
    /// Releases.
    Release,
    /// Channels. Its keys may be on a server.
    Channel,
}

impl KeyRole {
    /// All of them.
    pub const ALL: [KeyRole; 3] = [KeyRole::Root, KeyRole::Release, KeyRole::Channel];

    /// Name in documents and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KeyRole::Root => "root",
            KeyRole::Release => "release",
            KeyRole::Channel => "channel",
        }
    }
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a key signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KeyAlgorithm {
    /// Ed25519 (RFC 8032); a public key has 32 bytes.
    #[serde(rename = "ed25519")]
    Ed25519,
    /// ECDSA over P-256 with SHA-256; a public key is an uncompressed point of 65 bytes, a signature is DER.
    #[serde(rename = "ecdsa-p256")]
    EcdsaP256,
}

impl KeyAlgorithm {
    /// Bytes of a public key.
    #[must_use]
    pub fn public_bytes(self) -> usize {
        match self {
            KeyAlgorithm::Ed25519 => 32,
            KeyAlgorithm::EcdsaP256 => 65,
        }
    }
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustedKey {
    /// Name of the key in this document and in signatures.
    pub id: String,
    /// How it signs.
    pub algorithm: KeyAlgorithm,
    /// The key.
    pub public: Base64Bytes,
}

/// The keys of a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleKeys {
    /// Identifiers of keys.
    pub keys: Vec<String>,
    /// So many of them must sign.
    pub threshold: usize,
}

/// A trust document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustDocument {
    /// Product whose documents these keys sign.
    pub product: String,
    /// Place in the chain, from 1.
    pub number: u64,
    /// All keys.
    pub keys: Vec<TrustedKey>,
    /// Who signs trust documents.
    pub root: RoleKeys,
    /// Who signs releases.
    pub release: RoleKeys,
    /// Who signs channels.
    pub channel: RoleKeys,
}

impl SignedDocument for TrustDocument {
    const PAYLOAD_TYPE: &'static str = "application/vnd.orlop.trust.v1+json";

    fn name(&self) -> DocumentName {
        DocumentName::Trust(Some(self.number))
    }

    fn check(&self) -> Result<(), DocumentFault> {
        check_name("product", &self.product)?;
        if !(1..=NUMBER_MAX).contains(&self.number) {
            return Err(DocumentFault::field("number", "must be 1 or more"));
        }
        check_count("keys", self.keys.len(), KEYS_MAX)?;
        let (mut ids, mut publics) = (BTreeSet::new(), BTreeSet::new());
        for (at, key) in self.keys.iter().enumerate() {
            check_name(&format!("keys[{at}].id"), &key.id)?;
            let bytes = key.algorithm.public_bytes();
            if key.public.0.len() != bytes {
                return Err(DocumentFault::field(
                    format!("keys[{at}].public"),
                    format!("must have {bytes} bytes"),
                ));
            }
            // A key under two names would count twice.
            if !ids.insert(key.id.as_str()) || !publics.insert(&key.public) {
                return Err(DocumentFault::field(format!("keys[{at}]"), "is in the list twice"));
            }
        }
        for role in KeyRole::ALL {
            self.check_role(role, &ids)?;
        }
        let root: BTreeSet<&String> = self.root.keys.iter().collect();
        for role in [KeyRole::Release, KeyRole::Channel] {
            if self.role(role).keys.iter().any(|id| root.contains(id)) {
                let why = "has a key of the role root: root keys stay offline and sign nothing else";
                return Err(DocumentFault::field(role.name(), why));
            }
        }
        Ok(())
    }
}

impl TrustDocument {
    fn role(&self, role: KeyRole) -> &RoleKeys {
        match role {
            KeyRole::Root => &self.root,
            KeyRole::Release => &self.release,
            KeyRole::Channel => &self.channel,
        }
    }

    fn check_role(&self, role: KeyRole, known: &BTreeSet<&str>) -> Result<(), DocumentFault> {
        let RoleKeys { keys, threshold } = self.role(role);
        let mut own = BTreeSet::new();
        for id in keys {
            if !known.contains(id.as_str()) || !own.insert(id) {
                let why = "must name keys of the document, each once";
                return Err(DocumentFault::field(format!("{role}.keys"), why));
            }
        }
        if !(1..=keys.len()).contains(threshold) {
            let why = format!("must be from 1 to the number of the role's keys, {}", keys.len());
            return Err(DocumentFault::field(format!("{role}.threshold"), why));
        }
        Ok(())
    }

    /// The keys of a role.
    #[must_use]
    pub fn keys_of(&self, role: KeyRole) -> Vec<&TrustedKey> {
        let names = &self.role(role).keys;
        self.keys.iter().filter(|key| names.contains(&key.id)).collect()
    }

    /// How many keys of a role must sign.
    #[must_use]
    pub fn threshold(&self, role: KeyRole) -> usize {
        self.role(role).threshold
    }

    /// Reads a document that needs no other one before it: that of the image, or one that the node has kept. Its own root
    /// keys must have signed it, so that a damaged file is found.
    ///
    /// # Errors
    /// It is not readable, or not signed by its own root keys.
    pub fn first(text: &[u8], check: &impl SignatureCheck) -> Result<TrustDocument, DocumentError> {
        let envelope = Envelope::read(text).map_err(|fault| fault.of(DocumentName::Trust(None)))?;
        let document: TrustDocument =
            envelope.document().map_err(|fault| fault.of(DocumentName::Trust(None)))?;
        let name = document.name();
        envelope.verify(&document, KeyRole::Root, check).map_err(|fault| fault.of(name))?;
        Ok(document)
    }

    /// Number of the document that may follow.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.number + 1
    }

    /// Reads the document that follows this one.
    ///
    /// # Errors
    /// It is not readable, not signed by enough root keys of this one and of its own, or not the next one.
    pub fn next(&self, text: &[u8], check: &impl SignatureCheck) -> Result<TrustDocument, DocumentError> {
        let read = || -> Result<TrustDocument, DocumentFault> {
            let envelope = Envelope::read(text)?;
            envelope.verify(self, KeyRole::Root, check)?;
            let document: TrustDocument = envelope.document()?;
            if document.number != self.next_number() {
                return Err(DocumentFault::OutOfOrder { found: document.number, want: self.next_number() });
            }
            if document.product != self.product {
                let (found, want) = (document.product, self.product.clone());
                return Err(DocumentFault::OtherProduct { found, want });
            }
            envelope.verify(&document, KeyRole::Root, check)?;
            Ok(document)
        };
        read().map_err(|fault| fault.of(DocumentName::Trust(Some(self.next_number()))))
    }
}
