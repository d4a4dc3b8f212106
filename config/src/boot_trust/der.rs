//! As much of DER (ITU-T X.690) as certificates and signatures of boot files need.

/// Tags.
pub(super) const INTEGER: u8 = 0x02;
pub(super) const OBJECT: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
pub(super) const CONTEXT_0: u8 = 0xa0;

/// Bytes of a length that are read: what is longer than 16 MiB is no signature.
const LENGTH_BYTES_MAX: usize = 3;
/// `signedData` of PKCS #7: 1.2.840.113549.1.7.2.
const SIGNED_DATA: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x02];

/// An element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DerElement<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// With tag and length.
    pub(super) whole: &'a [u8],
}

/// Elements behind one another. It ends at the first byte that is none.
#[derive(Clone, Debug)]
pub(super) struct DerReader<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for DerReader<'a> {
    type Item = DerElement<'a>;

    fn next(&mut self) -> Option<DerElement<'a>> {
        let bytes = self.0;
        let (&tag, rest) = bytes.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = if first < 0x80 {
            (usize::from(first), rest)
        } else {
            let digits = usize::from(first & 0x7f);
            if digits == 0 || digits > LENGTH_BYTES_MAX {
                return None;
            }
            let (digits, rest) = rest.split_at_checked(digits)?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        };
        let (content, rest) = rest.split_at_checked(length)?;
        let whole = &bytes[..bytes.len() - rest.len()];
        self.0 = rest;
        Some(DerElement { tag, content, whole })
    }
}

impl<'a> DerReader<'a> {
    /// The next element, if it has this tag.
    pub(super) fn expect(&mut self, tag: u8) -> Option<DerElement<'a>> {
        self.next().filter(|element| element.tag == tag)
    }
}

/// The SignedData of a PKCS #7 message, without the ContentInfo around it: the form that a firmware takes for a variable.
#[must_use]
pub fn signed_data(pkcs7: &[u8]) -> Option<&[u8]> {
    let mut content_info = DerReader(DerReader(pkcs7).expect(SEQUENCE)?.content);
    let kind = content_info.expect(OBJECT)?;
    if kind.content != SIGNED_DATA {
        return None;
    }
    let content = content_info.expect(CONTEXT_0)?.content;
    Some(DerReader(content).expect(SEQUENCE)?.whole)
}
