//! The kernel command line: text in, the arguments that concern init out.
//!
//! Seam: docs/internals/architecture.md, "Kernel command line". The command line is part of the UKI; only `roothash=` is trusted to
//! choose a root, so a second, different one is refused and not merged.

use super::guid::Guid;
use std::fmt;

/// A dm-verity root hash (256 bits).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RootHash(pub [u8; 32]);

impl RootHash {
    /// From 64 hex digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<RootHash> {
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut out = [0u8; 32];
        for (i, byte) in out.iter_mut().enumerate() {
            let pair = &text[i * 2..i * 2 + 2];
            if !pair.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(RootHash(out))
    }

    /// PARTUUID of the root partition: the first 128 bits (discoverable partitions specification).
    #[must_use]
    pub fn root_partuuid(&self) -> Guid {
        let mut b = [0; 16];
        b.copy_from_slice(&self.0[..16]);
        Guid(b)
    }

    /// PARTUUID of the hash partition: the last 128 bits.
    #[must_use]
    pub fn verity_partuuid(&self) -> Guid {
        let mut b = [0; 16];
        b.copy_from_slice(&self.0[16..]);
        Guid(b)
    }
}

impl fmt::Display for RootHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for RootHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What init takes from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootArgs {
    /// `roothash=`.
    pub roothash: RootHash,
    /// `orlop.config=` as written (base64), in order.
    pub configs: Vec<String>,
    /// `orlop.set=` as written (`dotted.path=scalar`), in order.
    pub sets: Vec<String>,
    /// `orlop.drive=always`: drives and the ESP's file are read in this boot, too.
    pub drives_always: bool,
    /// `orlop.reset=` as written (`keep:ID`, `forget:ID`), in order.
    pub resets: Vec<String>,
    /// Arguments that say nothing that init knows: each a line for a person.
    pub mistakes: Vec<String>,
}

/// Why the command line cannot be booted from.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CmdlineError {
    /// No `roothash=`.
    #[error(
        "the kernel command line has no roothash=; boot through the unified kernel image, which carries it"
    )]
    NoRootHash,
    /// Not 64 hex digits.
    #[error("roothash={0} on the kernel command line is not 64 hex digits; rebuild the unified kernel image")]
    BadRootHash(String),
    /// Two that differ.
    #[error(
        "the kernel command line names two root hashes, {0} and {1}; something was appended to it: remove it"
    )]
    TwoRootHashes(String, String),
}

/// Splits as the kernel does: blanks separate, double quotes keep blanks together, quotes around a whole
/// argument or a whole value are dropped.
#[must_use]
pub fn split(text: &str) -> Vec<(String, Option<String>)> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for c in text.chars() {
        if c == '"' {
            quoted = !quoted;
        }
        if !quoted && (c.is_ascii_whitespace() || c == '\0') {
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
        } else {
            word.push(c);
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words.iter().map(|w| key_value(w)).collect()
}

fn key_value(word: &str) -> (String, Option<String>) {
    let word = unquote(word);
    match word.split_once('=') {
        None => (word.to_string(), None),
        Some((k, v)) => (k.to_string(), Some(unquote(v).to_string())),
    }
}

fn unquote(s: &str) -> &str {
    match s.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"').unwrap_or(rest),
        None => s,
    }
}

/// Reads the arguments; everything from `--` on belongs to init's argv and is ignored.
///
/// # Errors
/// No root hash, a malformed one, or two different ones.
pub fn parse(text: &str) -> Result<BootArgs, CmdlineError> {
    let mut roothash: Option<RootHash> = None;
    let (mut configs, mut sets, mut mistakes) = (Vec::new(), Vec::new(), Vec::new());
    let mut resets = Vec::new();
    let mut drives_always = false;
    for (key, value) in split(text) {
        if key == "--" && value.is_none() {
            break;
        }
        let Some(value) = value else { continue };
        match key.as_str() {
            "roothash" => {
                let found = RootHash::parse(&value).ok_or(CmdlineError::BadRootHash(value))?;
                if let Some(first) = roothash.filter(|first| *first != found) {
                    return Err(CmdlineError::TwoRootHashes(first.to_string(), found.to_string()));
                }
                roothash = Some(found);
            }
            "orlop.config" => configs.push(value),
            "orlop.set" => sets.push(value),
            "orlop.reset" => resets.push(value),
            "orlop.drive" if value == "always" => drives_always = true,
            "orlop.drive" => mistakes.push(format!(
                "orlop.drive={value} on the kernel command line is ignored: its only value is \"always\""
            )),
            _ => {}
        }
    }
    let roothash = roothash.ok_or(CmdlineError::NoRootHash)?;
    Ok(BootArgs { roothash, configs, sets, drives_always, resets, mistakes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HASH: &str = "0011223344556677889900112233445566778899aabbccddeeff001122334455";

    #[test]
    fn quoting_follows_the_kernel() {
        type Words = &'static [(&'static str, Option<&'static str>)];
        let cases: &[(&str, Words)] = &[
            ("", &[]),
            ("quiet  ro\n", &[("quiet", None), ("ro", None)]),
            ("a=b c=", &[("a", Some("b")), ("c", Some(""))]),
            (r#"a="b c" d"#, &[("a", Some("b c")), ("d", None)]),
            (r#""a=b c" d"#, &[("a", Some("b c")), ("d", None)]),
            (r#"a=b" c"d"#, &[("a", Some("b\" c\"d"))]),
            (r#"a="open end"#, &[("a", Some("open end"))]),
            ("orlop.set=x.y=z=1", &[("orlop.set", Some("x.y=z=1"))]),
        ];
        for (text, want) in cases {
            let want: Vec<(String, Option<String>)> =
                want.iter().map(|(k, v)| ((*k).to_string(), v.map(str::to_string))).collect();
            assert_eq!(split(text), want, "{text:?}");
        }
    }

    #[test]
    fn arguments_of_init() {
        let text = format!(
            "console=ttyS0 roothash={HASH} orlop.set=nodeName=a orlop.set=b=2 orlop.config=QUI= orlop.reset=keep:1 -- roothash=x"
        );
        let args = parse(&text).expect("valid");
        assert_eq!(args.sets, ["nodeName=a", "b=2"]);
        assert_eq!(args.configs, ["QUI="]);
        assert_eq!(args.resets, ["keep:1"]);
        assert_eq!(args.roothash.to_string(), HASH);
        assert_eq!(args.roothash.root_partuuid().to_string(), "00112233-4455-6677-8899-001122334455");
        assert_eq!(args.roothash.verity_partuuid().to_string(), "66778899-aabb-ccdd-eeff-001122334455");
    }

    #[test]
    fn drives_are_read_again_only_on_purpose() {
        let of = |words: &str| parse(&format!("roothash={HASH} {words}")).expect("valid");
        assert!(!of("").drives_always && !of("-- orlop.drive=always").drives_always);
        assert!(of("orlop.drive=always").drives_always && of("orlop.drive=always").mistakes.is_empty());
        let other = of("orlop.drive=never orlop.drive");
        assert!(!other.drives_always && other.mistakes.len() == 1, "{:?}", other.mistakes);
        assert!(other.mistakes[0].contains("orlop.drive=never"), "{:?}", other.mistakes);
    }

    #[test]
    fn root_hash_is_mandatory_and_single() {
        assert_eq!(parse("quiet"), Err(CmdlineError::NoRootHash));
        assert_eq!(parse("roothash=12"), Err(CmdlineError::BadRootHash("12".into())));
        assert!(parse(&format!("roothash={HASH} roothash={HASH}")).is_ok());
        let other = HASH.replace("00", "ff");
        let err = parse(&format!("roothash={HASH} roothash={other}"));
        assert_eq!(err, Err(CmdlineError::TwoRootHashes(HASH.into(), other)));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_errors(text in ".{0,300}") {
            let _ = parse(&text);
        }

        #[test]
        fn unquoted_words_survive(words in proptest::collection::vec("[a-z]{1,8}(=[a-z0-9.=]{0,8})?", 0..20)) {
            let back: Vec<String> = split(&words.join(" ")).into_iter()
                .map(|(k, v)| v.map_or(k.clone(), |v| format!("{k}={v}"))).collect();
            prop_assert_eq!(back, words);
        }
    }
}
