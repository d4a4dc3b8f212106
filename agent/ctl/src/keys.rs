//! Keys of administrators: made once, kept in a file of their owner alone, shown as the NodeConfig wants them.
//!
//! Invariant: a key file is never written over, and the private key is in no output. Form: PKCS #8 in PEM (RFC 5958, RFC 7468).

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use orlop_config::node::{API_VERSION, KIND, Source, load as load_config};
use orlop_config::{admin_key, base64};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use crate::failure::CtlError;

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";

/// A key with its private half.
pub(crate) struct OwnKey {
    /// PKCS #8.
    pub(crate) private: Vec<u8>,
    /// SubjectPublicKeyInfo.
    pub(crate) public: Vec<u8>,
}

/// Makes a key and keeps it in a file that does not exist yet.
pub(crate) fn make(file: &Path) -> Result<OwnKey, CtlError> {
    let failed = |why: String| CtlError::Key(format!("{}: {why}", file.display()));
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    let pkcs8 = pkcs8.map_err(|_| failed("the system has no random numbers".to_owned()))?;
    let text = format!("{BEGIN}\n{}\n{END}\n", base64::encode(pkcs8.as_ref()));
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let written = opened.and_then(|mut opened| opened.write_all(text.as_bytes()));
    written.map_err(|error| failed(error.to_string()))?;
    load(file)
}

/// A key that lives as long as this program.
pub(crate) fn passing() -> Result<OwnKey, CtlError> {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    let pkcs8 = pkcs8.map_err(|_| CtlError::Key("the system has no random numbers".to_owned()))?;
    of_pkcs8(pkcs8.as_ref().to_vec()).ok_or_else(|| CtlError::Key("a new key is not accepted".to_owned()))
}

/// Reads a key.
pub(crate) fn load(file: &Path) -> Result<OwnKey, CtlError> {
    let text = fs::read_to_string(file).map_err(|e| CtlError::Key(format!("{}: {e}", file.display())))?;
    parse(&text)
        .ok_or_else(|| CtlError::Key(format!("{}: it has no key of `orlopctl key new`", file.display())))
}

fn parse(text: &str) -> Option<OwnKey> {
    let (_, rest) = text.split_once(BEGIN)?;
    of_pkcs8(base64::decode(rest.split_once(END)?.0)?)
}

fn of_pkcs8(private: Vec<u8>) -> Option<OwnKey> {
    let pair = Ed25519KeyPair::from_pkcs8(&private).ok()?;
    let public = admin_key::of_bytes(pair.public_key().as_ref())?;
    Some(OwnKey { private, public })
}

/// A NodeConfig that lets the key's owner in.
pub(crate) fn document(name: &str, key: &OwnKey) -> String {
    format!("apiVersion: {API_VERSION}\nkind: {KIND}\napi:\n  admins:\n  {}", line(name, key))
}

/// Refuses a name that no node takes, before a key is made for it.
pub(crate) fn check_name(name: &str) -> Result<(), CtlError> {
    let text = document(name, &passing()?);
    let source = Source { name: "key".to_owned(), origin: format!("--name {name:?}"), text };
    let effective = load_config(&[source], &[]);
    if effective.accepted.is_empty() {
        let why: Vec<String> = effective.problems.iter().map(ToString::to_string).collect();
        return Err(CtlError::Usage(why.join("\n")));
    }
    Ok(())
}

/// The line for `api.admins` of the NodeConfig.
pub(crate) fn line(name: &str, key: &OwnKey) -> String {
    format!("- {{name: \"{name}\", key: \"{}\"}}\n", admin_key::render(&key.public))
}

/// The short name of a public key.
pub(crate) fn fingerprint(key: &[u8]) -> String {
    admin_key::fingerprint(digest(&SHA256, key).as_ref())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_document_of_a_key_is_a_whole_configuration() {
        let key = passing().unwrap();
        let text = document("ops-1", &key);
        let source = Source { name: "esp".to_owned(), origin: "esp".to_owned(), text };
        let effective = load_config(&[source], &[]);
        assert_eq!((effective.problems, effective.accepted), (vec![], vec!["esp".to_owned()]));
        let admins = effective.config.api.admins;
        let shown: Vec<(&str, &str)> = admins.iter().map(|a| (a.name.as_str(), a.key.as_str())).collect();
        assert_eq!(shown, [("ops-1", admin_key::render(&key.public).as_str())]);
    }

    #[test]
    fn names_that_no_node_takes_are_refused() {
        for good in ["admin", "a@b.example"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a\"b", "a\nb"] {
            let refused = check_name(bad).unwrap_err();
            assert!(refused.to_string().contains("--name"), "{refused}");
            assert_eq!(refused.exit_code(), 2);
        }
    }

    #[test]
    fn a_key_is_kept_for_its_owner_and_never_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let made = make(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(load(&file).unwrap().public, made.public);
        let text = line("ops-1", &made);
        assert!(text.starts_with("- {name: \"ops-1\", key: \"ed25519:MCow"), "{text}");
        assert!(!text.contains(&base64::encode(&made.private)));
        assert!(make(&file).is_err(), "the file is there");
        assert_ne!(passing().unwrap().public, passing().unwrap().public);
        assert_eq!(load(&file).unwrap().public, made.public);
        fs::write(&file, "text").unwrap();
        assert_eq!(load(&file).map(drop).unwrap_err().exit_code(), 2);
    }
}
