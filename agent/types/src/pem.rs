//! PEM: extracts the bytes of blocks, and encodes blocks.
//!
//! In: text of certificates that an API server accepted. Out: their bytes; certificates as PEM with no other
//! text. Invariant: text outside of blocks and headers of blocks are skipped; a broken block is ignored.
//! Upstream: encoding/pem of Go.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
/// Characters of a line.
const LINE: usize = 64;

/// The bytes of every block, with any label.
pub fn blocks(text: &str) -> impl Iterator<Item = Vec<u8>> + '_ {
    let mut lines = text.lines().map(str::trim_end);
    std::iter::from_fn(move || {
        // The current block, if one has begun.
        let mut block: Option<(&str, String)> = None;
        loop {
            let line = lines.next()?;
            if let Some(label) = label(line, BEGIN) {
                block = Some((label, String::new()));
                continue;
            }
            let Some((of, body)) = &mut block else { continue };
            match label(line, END) {
                Some(label) if label == *of => match STANDARD.decode(body.as_str()) {
                    Ok(bytes) => return Some(bytes),
                    Err(_) => block = None,
                },
                Some(_) => block = None,
                // A header: `Proc-Type: 4,ENCRYPTED`.
                None if line.contains(':') => {}
                None => body.push_str(line.trim()),
            }
        }
    })
}

fn label<'l>(line: &'l str, begins: &str) -> Option<&'l str> {
    line.strip_prefix(begins)?.strip_suffix(DASHES)
}

/// A certificate's block.
#[must_use]
pub fn certificate(der: &[u8]) -> String {
    block("CERTIFICATE", der)
}

/// A block with this label.
#[must_use]
pub fn block(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let mut text = format!("{BEGIN}{label}{DASHES}\n");
    // Base64 is ASCII: every offset is a character's.
    for at in (0..body.len()).step_by(LINE) {
        text.push_str(&body[at..body.len().min(at + LINE)]);
        text.push('\n');
    }
    text + END + label + DASHES + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_among_other_text() {
        let long = vec![7_u8; 100];
        let text = format!(
            "# a comment: with a colon\n{}trailing\r\n-----BEGIN CERTIFICATE-----\r\nHeader: x\r\n\r\naGk=\r\n\
             -----END CERTIFICATE-----\r\n-----BEGIN A-----\naGk=\n-----END B-----\n-----BEGIN A-----\n!!\n-----END A-----\n\
             -----BEGIN A-----\n-----BEGIN CERTIFICATE-----\nYm8=\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nYm8=\n",
            certificate(&long)
        );
        assert_eq!(blocks(&text).collect::<Vec<_>>(), [long, b"hi".to_vec(), b"bo".to_vec()]);
        assert_eq!(blocks("").count() + blocks("-----END A-----\n").count(), 0);
    }

    #[test]
    fn lines_have_64_characters() {
        let text = certificate(&[0; 96]);
        let lengths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(lengths, [27, 64, 64, 25]);
        assert_eq!(certificate(b""), "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n");
    }
}
