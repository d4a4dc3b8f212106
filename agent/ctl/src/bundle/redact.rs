//! Takes secrets out of what a node says. Pure.
//!
//! In: lines, and JSON documents. Out: the same with [`MASK`] in the place of secrets, and their number. A secret is what stands after a
//! name of secrets (`password=`, `"token": "…"`, `--token …`, `Authorization: …`), the userinfo of a URL, a private key in PEM, and a
//! word that has the form of a token. Invariant: what is in doubt is masked; a sentence such as `no token: ask for one` stays, because
//! the word after its name is a plain one. docs/reference/node-api.md says what a person still has to look at.

use orlop_config::node::MASK;
use serde_json::Value;

/// Ends of names whose values are secrets; without `-`, `_` and `.`, in lower case.
const SECRET_NAMES: [&str; 24] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "credential",
    "credentials",
    "privatekey",
    "secretkey",
    "accesskey",
    "apikey",
    "encryptionkey",
    "presharedkey",
    "keydata",
    "authorization",
    "cookie",
    "psk",
    // The key of certificates that kubeadm uploads; a credential of systemd in base64.
    "certificatekey",
    "credentialbinary",
    "signingkey",
    "dockerconfigjson",
    "dockercfg",
    "passwordhash",
];
/// Whole names, the same.
const WHOLE_NAMES: [&str; 2] = ["auth", "pass"];
/// Names that are words of a sentence, too; there a plain word after them stays, unless it is as long as a token.
const PLAIN_NAMES: [&str; 5] = ["token", "secret", "credential", "credentials", "cookie"];
const PLAIN_CHARS_MAX: usize = 15;
/// Ends of names whose secret is all that follows.
const HEADERS: [&str; 2] = ["authorization", "cookie"];
/// Schemes of authentication, whose secret is the next word.
const SCHEMES: [&str; 4] = ["bearer", "basic", "token", "digest"];
/// Beginnings of tokens that say so themselves.
const TOKEN_BEGINNINGS: [&str; 9] =
    ["AGE-SECRET-KEY-1", "ghp_", "gho_", "ghu_", "ghs_", "github_pat_", "glpat-", "xoxb-", "xoxp-"];
/// A scheme's word of this length with a digit is a secret, wherever it stands.
const BEARER_CHARS_MIN: usize = 8;
/// Characters after `://` in which an `@` is looked for after a slash: a line may have thousands of `://`.
const URL_CHARS_MAX: usize = 512;
/// Longer words are no names.
const NAME_CHARS_MAX: usize = 128;
/// Lines after the beginning of a private key without its end; a key of RSA with 16384 bits has some 200.
const PEM_LINES_MAX: usize = 256;
const PEM_BEGIN: &str = "-----BEGIN ";
const PEM_PRIVATE: &str = "PRIVATE KEY";
const PEM_END: &str = "-----END ";

/// Takes secrets out of the lines of one part.
#[derive(Debug, Default)]
pub(crate) struct Redactor {
    /// Lines of a private key that may still come.
    pem_lines_left: usize,
    masked: usize,
}

impl Redactor {
    /// How many secrets were there.
    pub(crate) fn masked(&self) -> usize {
        self.masked
    }

    /// A text of one or several lines.
    pub(crate) fn text(&mut self, text: &str) -> String {
        let lines: Vec<String> = text.split('\n').map(|line| self.line(line)).collect();
        lines.join("\n")
    }

    /// A document. Its texts are looked at, each as a text of its own.
    pub(crate) fn document(&mut self, document: &mut Value) {
        self.value("", document);
    }

    fn value(&mut self, name: &str, value: &mut Value) {
        match value {
            Value::String(text) if is_secret_name(name) && !text.is_empty() => self.mask(value),
            Value::Number(_) if is_secret_name(name) => self.mask(value),
            Value::String(text) => {
                // A key whose end is missing hides nothing of the next text.
                self.pem_lines_left = 0;
                *text = self.text(text);
                self.pem_lines_left = 0;
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(name, item)),
            Value::Object(fields) => {
                // `{"name": "DB_PASSWORD", "value": "…"}`, and keys of the configuration by their paths.
                let words = ["name", "key", "path"].map(|key| fields.get(key).and_then(Value::as_str));
                let is_named = words.into_iter().flatten().any(is_secret_name);
                for (key, item) in fields.iter_mut() {
                    let name = if is_named && key == "value" { "secret" } else { key.as_str() };
                    self.value(name, item);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn mask(&mut self, value: &mut Value) {
        if value.as_str() != Some(MASK) {
            self.masked += 1;
            *value = Value::from(MASK);
        }
    }

    /// One line.
    fn line(&mut self, line: &str) -> String {
        let mut out = String::with_capacity(line.len());
        let mut rest = line;
        if self.pem_lines_left > 0 {
            self.pem_lines_left -= 1;
            match rest.split_once(PEM_END) {
                Some((before, after)) => {
                    self.pem_lines_left = 0;
                    out.push_str(&without_last_word(before));
                    out.push_str(PEM_END);
                    rest = after;
                }
                None => return without_last_word(rest),
            }
        }
        while let Some((before, begin, after)) = private_key(rest) {
            self.words(before, &mut out);
            out.push_str(begin);
            out.push_str(MASK);
            self.masked += 1;
            match after.split_once(PEM_END) {
                Some((_, after)) => {
                    out.push_str(PEM_END);
                    rest = after;
                }
                None => {
                    self.pem_lines_left = PEM_LINES_MAX;
                    rest = "";
                }
            }
        }
        self.words(rest, &mut out);
        out
    }

    /// A line without private keys, word by word.
    fn words(&mut self, text: &str, out: &mut String) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            if let Some(after) = rest.strip_prefix("://") {
                out.push_str("://");
                rest = self.without_userinfo(after, out);
                continue;
            }
            if !is_word(first) {
                out.push(first);
                rest = rest.get(first.len_utf8()..).unwrap_or_default();
                continue;
            }
            let (word, after) = split(rest, is_word);
            rest = after;
            if has_form_of_token(word) {
                self.say(out);
                continue;
            }
            out.push_str(word);
            if let Some(masked) = secret_after(word, rest) {
                out.push_str(masked.before);
                if !masked.secret.starts_with(MASK) {
                    self.masked += 1;
                }
                out.push_str(MASK);
                rest = masked.after;
            }
        }
    }

    fn say(&mut self, out: &mut String) {
        out.push_str(MASK);
        self.masked += 1;
    }

    /// What follows `://`: name and password before an `@` go.
    fn without_userinfo<'a>(&mut self, text: &'a str, out: &mut String) -> &'a str {
        let is_url = |c: char| !c.is_whitespace() && !"\"'<>\\".contains(c);
        let (authority, _) = split(text, |c| is_url(c) && !"/?#".contains(c));
        // A password with a slash, which should not be there: what follows the colon is no port.
        let has_odd_password = authority.split_once(':').is_some_and(|(host, port)| {
            !host.starts_with('[') && port.contains(|c: char| !c.is_ascii_digit())
        });
        let end = text.char_indices().nth(URL_CHARS_MAX).map_or(text.len(), |(at, _)| at);
        let searched =
            if has_odd_password { split(text.get(..end).unwrap_or_default(), is_url).0 } else { authority };
        let Some((userinfo, _)) = searched.rsplit_once('@') else { return text };
        self.say(out);
        text.get(userinfo.len()..).unwrap_or_default()
    }
}

/// A secret and what is around it.
struct FoundSecret<'a> {
    before: &'a str,
    secret: &'a str,
    after: &'a str,
}

/// The secret that follows a word, if the word announces one.
fn secret_after<'a>(word: &str, text: &'a str) -> Option<FoundSecret<'a>> {
    if word.len() > NAME_CHARS_MAX {
        return None;
    }
    let lower = word.to_ascii_lowercase();
    let cut = |from: &'a str| text.get(..text.len() - from.len()).unwrap_or_default();
    if SCHEMES.contains(&lower.as_str())
        && let Some(after) = text.strip_prefix(' ')
    {
        let (secret, after_secret) = split(after, is_value);
        if secret.len() >= BEARER_CHARS_MIN && secret.contains(|c: char| c.is_ascii_digit() || c == '=') {
            return Some(FoundSecret { before: cut(after), secret, after: after_secret });
        }
    }
    if !is_secret_name(word) {
        return None;
    }
    // A quote that ends the name, also one that is escaped.
    let (_, unquoted) = split(text, |c| c == '\\' || c == '"' || c == '\'');
    let (_, at_sign) = split(unquoted, |c| c == ' ');
    let (sign, after_sign) = split(at_sign, |c| c == '=' || c == ':');
    let is_flag = word.starts_with("--") && sign.is_empty() && text.starts_with(' ');
    if sign.is_empty() && !is_flag {
        return None;
    }
    let (blanks, value) = split(if is_flag { text } else { after_sign }, char::is_whitespace);
    let opening = opening(value);
    let is_quoted = !opening.is_empty();
    let value = value.get(opening.len()..).unwrap_or_default();
    let scheme = SCHEMES.into_iter().find_map(|scheme| {
        let start = value.get(..scheme.len())?;
        let after = value.get(scheme.len()..)?.strip_prefix(' ')?;
        start.eq_ignore_ascii_case(scheme).then_some(after)
    });
    let value = scheme.unwrap_or(value);
    let is_header = HEADERS.iter().any(|name| lower.ends_with(name));
    let (secret, after) = match (is_quoted, is_header) {
        (true, _) => quoted(value, opening),
        (false, true) => (value.trim_end(), ""),
        (false, false) => split(value, is_value),
    };
    let is_sentence = !is_quoted && !blanks.is_empty() && !is_flag && PLAIN_NAMES.contains(&lower.as_str());
    let is_plain_word = secret.len() <= PLAIN_CHARS_MAX
        && secret.chars().all(|c| c.is_ascii_lowercase() || ".,;:`!?".contains(c));
    let is_no_value = secret.is_empty() || matches!(secret, "true" | "false" | "null" | "none");
    if is_no_value || (is_sentence && scheme.is_none() && is_plain_word) {
        return None;
    }
    Some(FoundSecret { before: cut(value), secret, after })
}

/// The quote that opens a value, with the backslashes before it; empty: there is none.
fn opening(text: &str) -> &str {
    let (_, after) = split(text, |c| c == '\\');
    let is_quote = after.starts_with(['"', '\'', '`']);
    let length = if is_quote { text.len() - after.len() + 1 } else { 0 };
    text.get(..length).unwrap_or_default()
}

/// A value in quotes until the one that closes it, and what follows. Each level of escapes doubles the backslashes of the one in it. A
/// value without an end is all that follows.
fn quoted<'a>(value: &'a str, opening: &str) -> (&'a str, &'a str) {
    let unit = 2 * opening.len();
    let mut from = 0;
    while let Some(at) = value.get(from..).and_then(|rest| rest.find(opening)) {
        let (before, after) = value.split_at(from + at);
        let escapes = before.len() - before.trim_end_matches('\\').len();
        if escapes.is_multiple_of(unit) {
            return (before, after);
        }
        from += at + opening.len();
    }
    (value, "")
}

/// What precedes a private key, its first line, and what follows that.
fn private_key(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    while let Some(at) = text.get(from..)?.find(PEM_BEGIN) {
        let begin = from + at;
        let label = text.get(begin + PEM_BEGIN.len()..)?;
        let length = label.find("-----")?;
        let end = begin + PEM_BEGIN.len() + length + "-----".len();
        if label.get(..length)?.contains(PEM_PRIVATE) {
            return Some((text.get(..begin)?, text.get(begin..end)?, text.get(end..)?));
        }
        from = end;
    }
    None
}

/// A line of a private key: its last word goes, if it may be one of the key.
fn without_last_word(line: &str) -> String {
    let trimmed = line.trim_end();
    let start = trimmed.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let (head, word) = trimmed.split_at(start);
    let is_key = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "+/=-_\\".contains(c));
    if is_key { format!("{head}{MASK}") } else { line.to_owned() }
}

/// The longest beginning whose characters are all such, and the rest.
fn split(text: &str, is: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c: char| !is(c)).unwrap_or(text.len()))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// A character of a secret without quotes.
fn is_value(c: char) -> bool {
    !c.is_whitespace() && c != '"'
}

fn is_secret_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let joined: String = lower.chars().filter(|c| !matches!(c, '-' | '_' | '.')).collect();
    let last = lower.rsplit(['-', '_', '.']).next().unwrap_or_default();
    SECRET_NAMES.iter().any(|end| joined.ends_with(end)) || WHOLE_NAMES.contains(&last)
}

/// A bootstrap token, a JSON web token, or one that begins as tokens of its kind do.
fn has_form_of_token(word: &str) -> bool {
    let word = word.trim_end_matches('.');
    let is_low = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_bootstrap = word.split_once('.').is_some_and(|(id, secret)| {
        let has_digit = word.contains(|c: char| c.is_ascii_digit());
        id.len() == 6 && secret.len() == 16 && is_low(id) && is_low(secret) && has_digit
    });
    let is_web = word.starts_with("eyJ") && word.len() >= 20 && word.matches('.').count() >= 2;
    let is_cloud_key = word.len() == 20
        && ["AKIA", "ASIA"].iter().any(|start| word.starts_with(start))
        && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    let says_so =
        TOKEN_BEGINNINGS.iter().any(|start| word.len() > start.len() + 8 && word.starts_with(start));
    is_bootstrap || is_web || is_cloud_key || says_so
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redacted(text: &str) -> String {
        Redactor::default().text(text)
    }

    #[test]
    fn secrets_are_masked_wherever_they_stand() {
        for (text, expected) in [
            ("password=hunter2", "password=<secret>"),
            ("DB_PASSWORD=a,b;c)d next", "DB_PASSWORD=<secret> next"),
            ("user=a&token=hunter2&x=1 next", "user=a&token=<secret> next"),
            ("password: swordfish", "password: <secret>"),
            ("x {\"token\":\"a b\",\"n\":1}", "x {\"token\":\"<secret>\",\"n\":1}"),
            ("x {\\\"clientKeyData\\\": \\\"aGk=\\\"}", "x {\\\"clientKeyData\\\": \\\"<secret>\\\"}"),
            ("kubeadm join --token q1w2 a:6443", "kubeadm join --token <secret> a:6443"),
            ("Authorization: Bearer abc", "Authorization: Bearer <secret>"),
            ("authorization: \"Basic dXNl\"", "authorization: \"Basic <secret>\""),
            ("sent Bearer abcdefg1 to it", "sent Bearer <secret> to it"),
            ("GET https://u:hunter2@p/x?y", "GET https://<secret>@p/x?y"),
            ("http://u:hu@nter@p", "http://<secret>@p"),
            ("http://u:hu/nter@p/x end", "http://<secret>@p/x end"),
            ("X-Auth-Token: swordfish", "X-Auth-Token: <secret>"),
            ("token: swordfishswordfish", "token: <secret>"),
            ("Cookie: a=hunter2; b=hunter3", "Cookie: <secret>"),
            ("{\"password\":\"a\\\"b\\\\\",\"n\":1}", "{\"password\":\"<secret>\",\"n\":1}"),
            ("{\\\"token\\\":\\\"a\\\\\\\"b\\\"}", "{\\\"token\\\":\\\"<secret>\\\"}"),
            ("{\"password\":\"\",\"token\":\"a\"}", "{\"password\":\"\",\"token\":\"<secret>\"}"),
            ("password='it is", "password='<secret>"),
            ("join abcdef.0123456789abcdef.", "join <secret>"),
            ("t eyJhbGciOiJI.eyJzdWIi.c2ln end", "t <secret> end"),
            ("k AKIAIOSFODNN7EXAMPLE", "k <secret>"),
            ("ghp_0123456789abcdef", "<secret>"),
            ("kubeadm join --certificate-key 00ff a:6443", "kubeadm join --certificate-key <secret> a:6443"),
            ("systemd.set_credential_binary=a:aGk=", "systemd.set_credential_binary=<secret>"),
            (
                "a -----BEGIN PRIVATE KEY-----\\nMII\\n-----END PRIVATE KEY----- b",
                "a -----BEGIN PRIVATE KEY-----<secret>-----END PRIVATE KEY----- b",
            ),
        ] {
            assert_eq!(redacted(text), expected, "{text}");
        }
    }

    #[test]
    fn sentences_and_public_things_stay() {
        for text in [
            "running; no token: kubeadm token create",
            "https://a:6443/x@y",
            "http://[::1]:80/x@y",
            "no secret: configuration, ask",
            "the secret of default/web is not there",
            "automountServiceAccountToken: true",
            "sha256:0011 ed25519:MCow SHA256:k",
            "-----BEGIN CERTIFICATE-----",
            "basic usage of tokens",
            "é password",
            "token=",
            "abcdef.ghijklmnopqrstuv",
            "",
        ] {
            assert_eq!(redacted(text), text);
        }
    }

    #[test]
    fn a_private_key_goes_over_lines_and_lines_after_it_stay() {
        let mut redactor = Redactor::default();
        let lines = [
            ("unit: -----BEGIN EC PRIVATE KEY-----", "unit: -----BEGIN EC PRIVATE KEY-----<secret>"),
            ("unit: MHcCAQEE", "unit: <secret>"),
            ("unit: Qg==", "unit: <secret>"),
            ("unit: -----END EC PRIVATE KEY-----", "unit: -----END EC PRIVATE KEY-----"),
            ("unit: started", "unit: started"),
        ];
        for (line, expected) in lines {
            assert_eq!(redactor.text(line), expected);
        }
        assert_eq!(redactor.masked(), 1);
        // One that never ends hides no more than its lines.
        redactor.text("-----BEGIN PRIVATE KEY-----");
        for _ in 0..PEM_LINES_MAX {
            redactor.text("x y");
        }
        assert_eq!(redactor.text("x y"), "x y");
    }

    #[test]
    fn documents_are_masked_by_their_keys_and_texts() {
        let mut document = json!({
            "env": [{"name": "DB_PASSWORD", "value": "hunter2"}, {"name": "A", "value": "b"}],
            "keys": [{"path": "join.token", "value": "\"hunter3\""}],
            "token": "hunter4", "pin": {"secret": 1234}, "tokens": ["x"], "auth": "dXNl",
            "text": "password=hunter5\n-----BEGIN PRIVATE KEY-----", "after": "MII", "masked": {"token": MASK},
        });
        let mut redactor = Redactor::default();
        redactor.document(&mut document);
        let expected = json!({
            "env": [{"name": "DB_PASSWORD", "value": MASK}, {"name": "A", "value": "b"}],
            "keys": [{"path": "join.token", "value": MASK}],
            "token": MASK, "pin": {"secret": MASK}, "tokens": ["x"], "auth": MASK,
            "text": "password=<secret>\n-----BEGIN PRIVATE KEY-----<secret>", "after": "MII",
            "masked": {"token": MASK},
        });
        assert_eq!(document, expected);
        assert_eq!(redactor.masked(), 7);
    }

    #[test]
    fn the_at_sign_of_an_odd_password_is_near() {
        let url = |length: usize| format!("http://u:a/{}@h", "b".repeat(length));
        assert_eq!(redacted(&url(100)), "http://<secret>@h");
        assert_eq!(redacted(&url(URL_CHARS_MAX)), url(URL_CHARS_MAX));
        let many = "://u:x/".repeat(1 << 12);
        assert_eq!(redacted(&many), many);
    }

    #[test]
    fn what_is_redacted_is_redacted_once() {
        for text in
            ["password=hunter2", "http://u:p@h/", "Authorization: Bearer abcdefg1", "{\"token\":\"a\"}"]
        {
            let once = redacted(text);
            let mut again = Redactor::default();
            assert_eq!((again.text(&once), again.masked()), (once.clone(), 0), "{text}");
        }
    }
}
