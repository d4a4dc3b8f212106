//! Names of an X.509 certificate (RFC 5280).

use super::der::{CONTEXT_0, DerReader, INTEGER, OBJECT, SEQUENCE, SET};

/// `commonName`: 2.5.4.3.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// A string of UTF-16, big-endian.
const BMP_STRING: u8 = 0x1e;
/// Longest name that is shown, characters.
const NAME_CHARS_MAX: usize = 64;

/// A certificate, as far as it is told apart from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootCertificate {
    /// All of it, DER.
    der: Vec<u8>,
    /// Issuer and serial number, by which a signature names it.
    pub(super) issuer: Vec<u8>,
    pub(super) serial: Vec<u8>,
    pub(super) subject: Vec<u8>,
}

impl BootCertificate {
    /// Reads one; `None` for other bytes. What follows it is passed over.
    #[must_use]
    pub fn parse(der: &[u8]) -> Option<BootCertificate> {
        let whole = DerReader(der).expect(SEQUENCE)?;
        let body = DerReader(whole.content).expect(SEQUENCE)?;
        let mut fields = DerReader(body.content).skip_while(|field| field.tag == CONTEXT_0);
        let serial = fields.next().filter(|field| field.tag == INTEGER)?.content.to_vec();
        let _algorithm = fields.next()?;
        let issuer = fields.next().filter(|field| field.tag == SEQUENCE)?.whole.to_vec();
        let _validity = fields.next()?;
        let subject = fields.next().filter(|field| field.tag == SEQUENCE)?.whole.to_vec();
        Some(BootCertificate { der: whole.whole.to_vec(), issuer, serial, subject })
    }

    /// The subject's common name: printable characters, at most 64 of them.
    #[must_use]
    pub fn name(&self) -> String {
        let name = common_name(&self.subject).unwrap_or_default();
        let shown = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
        let name: String = name.chars().take(NAME_CHARS_MAX).map(shown).collect();
        if name.trim().is_empty() { "a certificate without a name".to_owned() } else { name }
    }

    /// It is this certificate, or names it as its issuer.
    #[must_use]
    pub fn leads_to(&self, other: &BootCertificate) -> bool {
        self.der == other.der || self.issuer == other.subject
    }
}

fn common_name(subject: &[u8]) -> Option<String> {
    let names = DerReader(DerReader(subject).expect(SEQUENCE)?.content);
    let attributes = names.filter(|set| set.tag == SET).flat_map(|set| DerReader(set.content));
    attributes.filter(|attribute| attribute.tag == SEQUENCE).find_map(|attribute| {
        let mut parts = DerReader(attribute.content);
        let is_name = parts.expect(OBJECT)?.content == COMMON_NAME;
        let value = parts.next().filter(|_| is_name)?;
        if value.tag != BMP_STRING {
            return Some(String::from_utf8_lossy(value.content).into_owned());
        }
        let units = value.content.chunks_exact(2).map(|unit| u16::from_be_bytes([unit[0], unit[1]]));
        Some(char::decode_utf16(units).map(|c| c.unwrap_or('?')).collect())
    })
}
