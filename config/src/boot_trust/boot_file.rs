//! Signatures of a boot file: where a PE file has them, and whose they are.

use super::certificate::BootCertificate;
use super::der::{CONTEXT_0, DerReader, INTEGER, SEQUENCE, SET, signed_data};

/// Bytes of a file's beginning that are looked at.
pub const BOOT_FILE_HEAD: usize = 4096;
/// Longest signatures that are read, bytes.
pub const SIGNATURES_BYTES_MAX: u64 = 64 << 10;

/// Place of the PE header's place in the file.
const PE_AT: usize = 0x3c;
/// Bytes of signature and COFF header, in front of the optional header.
const COFF: usize = 24;
/// Bytes of the optional header of PE32+ and PE32 in front of the data directories.
const DIRECTORIES: [(u16, usize); 2] = [(0x20b, 112), (0x10b, 96)];
/// Data directory of the signatures.
const SECURITY: usize = 4;
/// WIN_CERTIFICATE: length, revision, kind; then the content.
const HEADER: usize = 8;
/// WIN_CERT_TYPE_PKCS_SIGNED_DATA.
const PKCS_SIGNED_DATA: u16 = 2;
/// Certificates from a signer upwards. One that has signed itself leads to itself.
const CHAIN_MAX: usize = 8;

/// A file that is no boot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no EFI program")]
pub struct NoBootFile;

/// Where a file has its signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignaturePlace {
    /// Bytes from the file's beginning.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Whose a signature is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootSignature {
    /// Certificate of the key that has signed.
    pub signer: BootCertificate,
    /// All certificates that come with it.
    pub certificates: Vec<BootCertificate>,
}

impl BootSignature {
    /// The signer's certificate, and of those that come with it its issuer, the issuer's issuer and so on, by their names.
    pub(super) fn chain(&self) -> impl Iterator<Item = &BootCertificate> {
        let above = move |below: &&BootCertificate| {
            let issuer = below.issuer.as_slice();
            self.certificates.iter().find(|known| known.subject == issuer)
        };
        std::iter::successors(Some(&self.signer), above).take(CHAIN_MAX)
    }
}

fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Where the file with this beginning ([`BOOT_FILE_HEAD`] bytes of it) has its signatures; `None` if it is not signed.
///
/// # Errors
/// It is no PE file, or its header is not in the beginning.
pub fn signature_place(head: &[u8]) -> Result<Option<SignaturePlace>, NoBootFile> {
    directory(head).ok_or(NoBootFile)
}

fn directory(head: &[u8]) -> Option<Option<SignaturePlace>> {
    let pe = usize::try_from(le32(head, PE_AT)?).ok()?;
    if !head.starts_with(b"MZ") || head.get(pe..pe.checked_add(4)?)? != b"PE\0\0" {
        return None;
    }
    let optional = pe + COFF;
    let magic = le16(head, optional)?;
    let (_, before) = DIRECTORIES.into_iter().find(|(known, _)| *known == magic)?;
    // The number of directories stands in front of them.
    let count = usize::try_from(le32(head, optional + before - 4)?).ok()?;
    if count <= SECURITY {
        return Some(None);
    }
    let entry = optional + before + SECURITY * 8;
    let (offset, length) = (u64::from(le32(head, entry)?), u64::from(le32(head, entry + 4)?));
    Some((length > 0).then_some(SignaturePlace { offset, length }))
}

/// The signatures in the bytes of a [`SignaturePlace`]. Those that are not understood are left out.
#[must_use]
pub fn signatures(mut table: &[u8]) -> Vec<BootSignature> {
    let mut found = Vec::new();
    while let Some(length) = le32(table, 0).and_then(|length| usize::try_from(length).ok()) {
        let Some(content) = table.get(HEADER..length) else { break };
        if le16(table, 6) == Some(PKCS_SIGNED_DATA) {
            found.extend(signature(content));
        }
        // Each begins at a multiple of 8.
        let next = length.next_multiple_of(8).min(table.len());
        table = &table[next..];
    }
    found
}

fn signature(pkcs7: &[u8]) -> Option<BootSignature> {
    let content = DerReader(signed_data(pkcs7)?).expect(SEQUENCE)?.content;
    let mut fields = DerReader(content);
    fields.expect(INTEGER)?;
    fields.expect(SET)?;
    fields.expect(SEQUENCE)?;
    let certificates = fields.expect(CONTEXT_0)?.content;
    let certificates: Vec<BootCertificate> =
        DerReader(certificates).filter_map(|element| BootCertificate::parse(element.whole)).collect();
    // Lists of revoked certificates may stand in front of it.
    let signers = fields.find(|field| field.tag == SET)?;
    let mut signer = DerReader(DerReader(signers.content).expect(SEQUENCE)?.content);
    signer.expect(INTEGER)?;
    let mut names = DerReader(signer.expect(SEQUENCE)?.content);
    let (issuer, serial) = (names.expect(SEQUENCE)?.whole, names.expect(INTEGER)?.content);
    let signer = certificates.iter().find(|known| known.issuer == issuer && known.serial == serial)?.clone();
    Some(BootSignature { signer, certificates })
}
