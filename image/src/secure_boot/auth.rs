//! Files with which a loader enrols keys: signed writes of the firmware's variables (EFI_VARIABLE_AUTHENTICATION_2). Pure.
//!
//! Format: UEFI 2.10, 8.2.2 and 32.4.1. What is written is what `bootctl install --secure-boot-auto-enroll=yes` writes, but with three
//! keys in place of one.

use anyhow::{Context, Result};
use orlop_config::boot_trust::{X509_SIGNATURE_TYPE, signed_data};
use orlop_config::release::UtcSecond;
use std::ops::Range;

/// EFI_GLOBAL_VARIABLE, 8be4df61-93ca-11d2-aa0d-00e098032b8c, as in memory.
const GLOBAL: [u8; 16] =
    [0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c];
/// EFI_IMAGE_SECURITY_DATABASE_GUID, d719b2cb-3d3a-4596-a3bc-dad00e67656f.
const DATABASE: [u8; 16] =
    [0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f];
/// EFI_CERT_TYPE_PKCS7_GUID, 4aafd29d-68df-49ee-8aa9-347d375665a7.
const PKCS7: [u8; 16] =
    [0x9d, 0xd2, 0xaf, 0x4a, 0xdf, 0x68, 0xee, 0x49, 0x8a, 0xa9, 0x34, 0x7d, 0x37, 0x56, 0x65, 0xa7];
/// Non-volatile, boot services, run-time services, time-based authenticated write.
const ATTRIBUTES: u32 = 0x27;
/// Header of WIN_CERTIFICATE_UEFI_GUID, and its revision and kind.
const HEADER: usize = 24;
const REVISION: u16 = 0x0200;
const KIND: u16 = 0x0ef1;
/// Owner of a signature in front of it: nobody in particular.
const OWNER: [u8; 16] = [0; 16];

/// A write of a variable that replaces what is there.
#[derive(Clone, Debug)]
pub(super) struct VariableWrite {
    name: &'static str,
    time: [u8; 16],
    list: Vec<u8>,
}

impl VariableWrite {
    /// Writes the certificate, DER, to `PK`, `KEK` or `db`.
    pub(super) fn new(name: &'static str, certificate: &[u8], at: UtcSecond) -> Result<VariableWrite> {
        let each = u32::try_from(OWNER.len() + certificate.len()).context("the certificate is too long")?;
        let mut list = X509_SIGNATURE_TYPE.to_vec();
        // The list's own length, that of a further header, that of each signature.
        for field in [each + 28, 0, each] {
            list.extend(field.to_le_bytes());
        }
        list.extend(OWNER);
        list.extend(certificate);
        Ok(VariableWrite { name, time: efi_time(at)?, list })
    }

    /// What is signed.
    pub(super) fn signed_bytes(&self) -> Vec<u8> {
        let owner = if self.name == "db" { DATABASE } else { GLOBAL };
        let mut bytes: Vec<u8> = self.name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        bytes.extend(owner);
        bytes.extend(ATTRIBUTES.to_le_bytes());
        bytes.extend(self.time);
        bytes.extend(&self.list);
        bytes
    }

    /// The file, with a signature of [`VariableWrite::signed_bytes`]: a PKCS #7 message without its content, DER.
    pub(super) fn file(&self, pkcs7: &[u8]) -> Result<Vec<u8>> {
        let signature = signed_data(pkcs7).context("openssl has made no SignedData")?;
        let length = u32::try_from(HEADER + signature.len()).context("the signature is too long")?;
        let mut file = self.time.to_vec();
        file.extend(length.to_le_bytes());
        file.extend(REVISION.to_le_bytes());
        file.extend(KIND.to_le_bytes());
        file.extend(PKCS7);
        file.extend(signature);
        file.extend(&self.list);
        Ok(file)
    }
}

/// EFI_TIME: year, month, day, hour, minute, second; the rest must be zero.
fn efi_time(at: UtcSecond) -> Result<[u8; 16]> {
    // 2026-11-30T09:30:00Z
    let text = at.to_string();
    let number = |digits: Range<usize>| -> Result<u16> {
        let digits = text.get(digits).context("a time has digits")?;
        digits.parse().context("a time has digits")
    };
    let mut time = [0; 16];
    time[..2].copy_from_slice(&number(0..4)?.to_le_bytes());
    for (place, digits) in (2usize..).zip([5..7, 8..10, 11..13, 14..16, 17..19]) {
        time[place] = u8::try_from(number(digits)?).context("two digits")?;
    }
    Ok(time)
}
