//! Variables of a firmware with Secure Boot, and what follows from them for a boot file.

use super::boot_file::BootSignature;
use super::certificate::BootCertificate;
use std::fmt;

/// Secure Boot is on (1) or off (0).
pub const VARIABLE_SECURE_BOOT: &str = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// There is no platform key (1): anybody may enrol one.
pub const VARIABLE_SETUP_MODE: &str = "SetupMode-8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// What may be started.
pub const VARIABLE_DB: &str = "db-d719b2cb-3d3a-4596-a3bc-dad00e67656f";
/// Longest variable that is read, bytes.
pub const EFI_VARIABLE_BYTES_MAX: u64 = 256 << 10;
/// Type of a signature list of X.509 certificates: EFI_CERT_X509_GUID, a5c059a1-94e4-4aa7-87b5-ab155c2bf072, as on the disk.
pub const X509_SIGNATURE_TYPE: [u8; 16] =
    [0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72];

/// Bytes of attributes in front of a variable's content, in efivarfs.
const ATTRIBUTES: usize = 4;
/// Header of a signature list: type, its length, that of a further header, that of each signature.
const LIST_HEADER: usize = 28;
/// Owner of a signature, in front of it.
const OWNER: usize = 16;
/// Certificates of a firmware that are kept, and named.
const KEYS_MAX: usize = 64;
const NAMED_MAX: usize = 4;

/// Secure Boot, as the firmware has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecureBootMode {
    /// Everything is started.
    Off,
    /// Everything is started, and the first key that is enrolled counts.
    SetupMode,
    /// Only what is signed is started.
    On,
}

/// What a firmware starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirmwareTrust {
    /// Its mode.
    pub mode: SecureBootMode,
    /// Certificates in its `db`.
    pub keys: Vec<BootCertificate>,
}

/// Why a firmware would not start a UKI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootRefusal {
    /// No signature.
    #[error(
        "its UKI is not signed, and the firmware of this node starts only what {keys} has signed (Secure Boot): publish a build with --secure-boot-keys, or switch Secure Boot off"
    )]
    Unsigned {
        /// Names of the firmware's certificates.
        keys: String,
    },
    /// Signed by another.
    #[error(
        "its UKI is signed by {signers}, and the firmware of this node starts only what {keys} has signed (Secure Boot): sign it with that key, or enrol the certificate of {signers} first"
    )]
    Foreign {
        /// Names of those who have signed.
        signers: String,
        /// Names of the firmware's certificates.
        keys: String,
    },
}

impl FirmwareTrust {
    /// From variables as efivarfs has them; `variable` gives one by its name. `None`: the firmware knows no Secure Boot.
    #[must_use]
    pub fn read(variable: impl Fn(&str) -> Option<Vec<u8>>) -> Option<FirmwareTrust> {
        let flag = |name: &str| variable(name)?.get(ATTRIBUTES).map(|byte| *byte == 1);
        let mode = match (flag(VARIABLE_SECURE_BOOT)?, flag(VARIABLE_SETUP_MODE)) {
            (true, _) => SecureBootMode::On,
            (false, Some(true)) => SecureBootMode::SetupMode,
            (false, _) => SecureBootMode::Off,
        };
        let db = variable(VARIABLE_DB).unwrap_or_default();
        Some(FirmwareTrust { mode, keys: certificates(db.get(ATTRIBUTES..).unwrap_or_default()) })
    }

    /// Only what is signed is started.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.mode == SecureBootMode::On
    }

    /// Would it start a UKI with these signatures? A digest in `db` does not count, and `dbx` is not looked at. If no certificate of `db`
    /// is known, for example because the variable cannot be read, every signature will do.
    ///
    /// # Errors
    /// It would not.
    pub fn judge(&self, signatures: &[BootSignature]) -> Result<(), BootRefusal> {
        if !self.is_on() {
            return Ok(());
        }
        let keys = self.names("a certificate of its db");
        if signatures.is_empty() {
            return Err(BootRefusal::Unsigned { keys });
        }
        let is_known = |certificate: &BootCertificate| self.keys.iter().any(|key| certificate.leads_to(key));
        // What else comes with a signature says nothing about who has signed.
        if self.keys.is_empty() || signatures.iter().any(|signature| signature.chain().any(is_known)) {
            return Ok(());
        }
        let signers = listed(signatures.iter().map(|signature| signature.signer.name()));
        Err(BootRefusal::Foreign { signers, keys })
    }

    /// Of its certificates; `none` if it has none, or none that can be read.
    fn names(&self, none: &str) -> String {
        if self.keys.is_empty() {
            return none.to_owned();
        }
        listed(self.keys.iter().map(BootCertificate::name))
    }
}

impl fmt::Display for FirmwareTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            SecureBootMode::Off => f.write_str("Secure Boot off"),
            SecureBootMode::SetupMode => f.write_str("Secure Boot off (setup mode)"),
            SecureBootMode::On => write!(f, "Secure Boot on (keys: {})", self.names("unknown")),
        }
    }
}

/// Some names, and how many there are besides.
fn listed(names: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = names.collect();
    let shown = all.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().checked_sub(NAMED_MAX) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

/// The certificates of signature lists (EFI_SIGNATURE_LIST). Lists of other things are passed over.
fn certificates(mut lists: &[u8]) -> Vec<BootCertificate> {
    let mut found = Vec::new();
    let field = |list: &[u8], at: usize| -> Option<usize> {
        let bytes: [u8; 4] = list.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    while let (Some(length), Some(further), Some(each)) =
        (field(lists, 16), field(lists, 20), field(lists, 24))
    {
        let Some((list, rest)) = lists.split_at_checked(length.max(LIST_HEADER)) else { break };
        let content = further.checked_add(LIST_HEADER).and_then(|start| list.get(start..));
        if let (Some(content), true) = (content, list.starts_with(&X509_SIGNATURE_TYPE) && each > OWNER) {
            let of = content.chunks_exact(each).filter_map(|entry| BootCertificate::parse(&entry[OWNER..]));
            found.extend(of.take(KEYS_MAX.saturating_sub(found.len())));
        }
        lists = rest;
    }
    found
}
