//! Cuts a body into lines; the server may send anything.
//!
//! In: pieces of a body. Out: whole lines; or that one was too long and was skipped.
//! Invariant: no more than one line of the longest length is held.

use bytes::{Buf, Bytes, BytesMut};

/// One line of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Without its end.
    Whole(Bytes),
    /// It was longer than the limit; its start.
    TooLong(Bytes),
}

/// Keeps of a line that is too long, for its name in a message.
const START: usize = 4096;

#[derive(Debug)]
pub(super) struct Lines {
    max: usize,
    held: BytesMut,
    searched: usize,
    /// The start of a line whose rest is being skipped.
    skipping: Option<Bytes>,
}

impl Lines {
    pub(super) fn new(max: usize) -> Lines {
        Lines { max, held: BytesMut::new(), searched: 0, skipping: None }
    }

    /// Takes a piece of the body.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.held.extend_from_slice(piece);
    }

    /// The next line that is complete.
    pub(super) fn next(&mut self) -> Option<Line> {
        loop {
            let end =
                self.held[self.searched..].iter().position(|b| *b == b'\n').map(|at| self.searched + at);
            let Some(end) = end else {
                self.searched = self.held.len();
                if self.held.len() > self.max {
                    let start = Bytes::copy_from_slice(&self.held[..START.min(self.held.len())]);
                    self.skipping.get_or_insert(start);
                    self.forget();
                } else if self.skipping.is_some() {
                    self.forget();
                } else if self.held.is_empty() {
                    // One large object must not keep its size for ever.
                    self.held = BytesMut::new();
                }
                return None;
            };
            let line = self.held.split_to(end);
            self.held.advance(1);
            self.searched = 0;
            if let Some(start) = self.skipping.take() {
                return Some(Line::TooLong(start));
            }
            if line.len() > self.max {
                return Some(Line::TooLong(Bytes::copy_from_slice(&line[..START.min(line.len())])));
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(Line::Whole(line.freeze()));
            }
        }
    }

    fn forget(&mut self) {
        self.held = BytesMut::new();
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_of_any_length() {
        let mut lines = Lines::new(5);
        lines.push(b"ab");
        assert_eq!(lines.next(), None);
        lines.push(b"c\n\n12345\nlonger\nx");
        assert_eq!(lines.next(), Some(Line::Whole(Bytes::from_static(b"abc"))));
        assert_eq!(lines.next(), Some(Line::Whole(Bytes::from_static(b"12345"))));
        assert_eq!(lines.next(), Some(Line::TooLong(Bytes::from_static(b"longer"))));
        assert_eq!(lines.next(), None);
        for _ in 0..1000 {
            lines.push(b"yyyyyyyyyy");
            assert_eq!(lines.next(), None);
            assert!(lines.held.len() <= 16);
        }
        lines.push(b"\nok\n");
        assert!(matches!(lines.next(), Some(Line::TooLong(start)) if start.starts_with(b"xyy")));
        assert_eq!(lines.next(), Some(Line::Whole(Bytes::from_static(b"ok"))));
    }

    proptest! {
        #[test]
        fn cutting_does_not_depend_on_the_pieces(text in "[ab\n]{0,80}", cuts in proptest::collection::vec(1_usize..9, 1..80)) {
            let whole = |pieces: Vec<&[u8]>| {
                let (mut lines, mut out) = (Lines::new(6), Vec::new());
                for piece in pieces {
                    lines.push(piece);
                    while let Some(line) = lines.next() {
                        out.push(matches!(line, Line::Whole(_)));
                    }
                }
                out
            };
            let (mut rest, mut pieces, mut cut) = (text.as_bytes(), Vec::new(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (piece, more) = rest.split_at((*cut.next().unwrap()).min(rest.len()));
                pieces.push(piece);
                rest = more;
            }
            prop_assert_eq!(whole(pieces), whole(vec![text.as_bytes()]));
        }
    }
}
