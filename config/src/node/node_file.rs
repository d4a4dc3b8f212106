//! Files of a node, as NodeConfig carries them: authorities, kubeconfigs, credentials that programs of the node read.
//!
//! In: path, content as text or in base64, mode, owner. Out: what is wrong with an entry, and the file that init writes.
//! Invariant: what [`NodeFile::problem`] passes lies in one of the places for such files, on the state partition, and
//! over nothing that the image, init or the agent owns.

use super::secret::Secret;
use crate::base64;
use crate::field::config_struct;

config_struct! {
    /// A file of the node; its content is never shown.
    pub struct NodeFile {
        /// Absolute path, in one of the places for such files.
        path: String = String::new(), "path", required;
        /// Content as text; secret.
        content: Option<Secret> = None, "content", secret;
        /// Content in base64, instead of `content`; secret.
        data: Option<Secret> = None, "data", secret;
        /// Permission bits, octal digits in quotes.
        mode: String = "0600".to_owned(), "mode";
        /// Number of the user who owns it.
        uid: u32 = 0, "uid", range(0, 4_294_967_294);
        /// Number of its group.
        gid: u32 = 0, "gid", range(0, 4_294_967_294);
    }
}

/// Directories for such files, as documents name them and below `/var`. `/etc/kubernetes` is a link of the image.
const DIRECTORIES: [(&str, &str); 2] =
    [("/var/lib/orlop/files/", "lib/orlop/files/"), ("/etc/kubernetes/", "lib/orlop/kubernetes/")];
/// Single files: the agent reads the node's credentials for registries at each pull.
const FILES: [(&str, &str); 1] = [("/var/lib/kubelet/config.json", "lib/kubelet/config.json")];
/// Manifests are `staticPods`.
const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// Longest path, bytes.
const PATH_BYTES_MAX: usize = 1024;
/// Longest name of a file, bytes (Linux: `NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// Start of the names through which files are replaced (`orlop_files::temporary_name`).
const TEMPORARY: &str = ".orlop-new-";
/// Bits of a mode: no set-user-id, set-group-id or sticky bit.
const MODE_MAX: u32 = 0o777;

const NO_PATH: &str =
    "must be an absolute path of letters, digits, ., _, -, +, @ and :, without . and .. as names";
const NO_PLACE: &str = "must be below /var/lib/orlop/files or /etc/kubernetes (but not in its manifests), or \
                        /var/lib/kubelet/config.json";

/// A file as init writes it; `Debug` does not show its content.
#[derive(Clone, PartialEq, Eq)]
pub struct PlacedFile {
    /// As the document names it.
    pub path: String,
    /// The same below `/var`, without a link in it.
    pub below_var: String,
    /// Permission bits.
    pub mode: u32,
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Content.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for PlacedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let owner = format!("{}:{}", self.uid, self.gid);
        write!(f, "{} ({:o}, {owner}, {} bytes)", self.path, self.mode, self.content.len())
    }
}

impl NodeFile {
    /// What is wrong: a key of the entry (may be empty) and what is allowed.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        if !is_path(&self.path) {
            return Some(("path", NO_PATH));
        }
        if place_of(&self.path).is_none() {
            return Some(("path", NO_PLACE));
        }
        if self.mode_bits().is_none() {
            return Some(("mode", "must be octal digits in quotes, \"0000\" to \"0777\""));
        }
        match (&self.content, &self.data) {
            (Some(_), Some(_)) => Some(("data", "excludes content: give one of them")),
            (None, None) => Some(("", "needs content or data")),
            (None, Some(data)) if base64::decode(data.reveal()).is_none() => Some(("data", "must be base64")),
            _ => None,
        }
    }

    /// The file; `None` if the entry has a mistake.
    #[must_use]
    pub fn placed(&self) -> Option<PlacedFile> {
        let content = match (&self.content, &self.data) {
            (Some(text), None) => text.reveal().as_bytes().to_vec(),
            (None, Some(data)) => base64::decode(data.reveal())?,
            _ => return None,
        };
        Some(PlacedFile {
            path: self.path.clone(),
            below_var: place_of(&self.path)?,
            mode: self.mode_bits()?,
            uid: self.uid,
            gid: self.gid,
            content,
        })
    }

    fn mode_bits(&self) -> Option<u32> {
        let digits = (3..=4).contains(&self.mode.len()) && self.mode.bytes().all(|b| b.is_ascii_digit());
        let bits = digits.then(|| u32::from_str_radix(&self.mode, 8).ok()).flatten();
        bits.filter(|bits| *bits <= MODE_MAX)
    }
}

/// Where the file of this path is below `/var`, without a link in it; `None` if the path is in no place for such files.
#[must_use]
pub fn place_of(path: &str) -> Option<String> {
    if !is_path(path) || is_within(path, MANIFESTS) {
        return None;
    }
    let directory = DIRECTORIES.iter().find_map(|(named, below)| Some((path.strip_prefix(*named)?, below)));
    if let Some((rest, below)) = directory {
        return Some(format!("{below}{rest}"));
    }
    FILES.iter().find(|(named, _)| *named == path).map(|(_, below)| (*below).to_owned())
}

/// The path is `directory`, or below it.
pub(super) fn is_within(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An absolute path in one spelling, which needs no quotes anywhere.
pub(super) fn is_path(path: &str) -> bool {
    let name = |name: &str| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-+@:".contains(&b);
        !matches!(name, "" | "." | "..")
            && name.len() <= NAME_BYTES_MAX
            && name.bytes().all(fits)
            && !name.starts_with(TEMPORARY)
    };
    path.len() <= PATH_BYTES_MAX && path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> NodeFile {
        NodeFile { path: path.to_owned(), content: Some(Secret::new("x")), ..NodeFile::default() }
    }

    #[test]
    fn places() {
        for (path, below_var) in [
            ("/var/lib/orlop/files/a", "lib/orlop/files/a"),
            ("/var/lib/orlop/files/a/b.pem", "lib/orlop/files/a/b.pem"),
            ("/etc/kubernetes/pki/ca.crt", "lib/orlop/kubernetes/pki/ca.crt"),
            ("/etc/kubernetes/manifests.json", "lib/orlop/kubernetes/manifests.json"),
            ("/var/lib/kubelet/config.json", "lib/kubelet/config.json"),
        ] {
            assert_eq!(file(path).problem(), None, "{path}");
            assert_eq!(place_of(path).as_deref(), Some(below_var));
        }
        for path in [
            "/etc/kubernetes",
            "/etc/kubernetes/manifests",
            "/etc/kubernetes/manifests/a.yaml",
            "/var/lib/orlop/kubernetes/a",
            "/var/lib/orlop/files",
            "/var/lib/orlop/machine-id",
            "/var/lib/orlop/config/first-boot.json",
            "/var/lib/kubelet/kubeconfig",
            "/var/lib/kubelet/config.json/a",
            "/var/lib/kubelet/pki/kubelet.crt",
            "/etc/passwd",
            "/run/orlop/join.yaml",
        ] {
            assert_eq!(file(path).problem(), Some(("path", NO_PLACE)), "{path}");
            assert_eq!((place_of(path), file(path).placed().map(|_| ())), (None, None), "{path}");
        }
        let long = format!("/var/lib/orlop/files/{}", "a".repeat(256));
        for path in [
            "",
            "a",
            "var/lib/orlop/files/a",
            "/var/lib/orlop/files/",
            "/var/lib/orlop/files//a",
            "/var/lib/orlop/files/./a",
            "/var/lib/orlop/files/../machine-id",
            "/var/lib/orlop/files/a b",
            "/var/lib/orlop/files/a\0",
            "/var/lib/orlop/files/.orlop-new-0123456789abcdef",
            long.as_str(),
        ] {
            assert_eq!(file(path).problem(), Some(("path", NO_PATH)), "{path:?}");
        }
    }

    #[test]
    fn modes() {
        for (mode, bits) in [("0600", 0o600), ("644", 0o644), ("0000", 0), ("0777", 0o777)] {
            let file = NodeFile { mode: mode.to_owned(), ..file("/etc/kubernetes/a") };
            assert_eq!(file.placed().map(|placed| placed.mode), Some(bits), "{mode}");
        }
        for mode in ["", "7", "0888", "4755", "1777", "00644", "+644", "rw-"] {
            let file = NodeFile { mode: mode.to_owned(), ..file("/etc/kubernetes/a") };
            assert_eq!(file.problem().map(|(key, _)| key), Some("mode"), "{mode}");
        }
    }

    #[test]
    fn content_is_text_or_base64() {
        let secret = |text: &str| Some(Secret::new(text));
        let with = |content, data| NodeFile { content, data, ..file("/etc/kubernetes/a") };
        let content = |file: NodeFile| file.placed().map(|placed| placed.content);
        assert_eq!(content(with(secret("a\n"), None)), Some(b"a\n".to_vec()));
        assert_eq!(content(with(secret(""), None)), Some(Vec::new()));
        assert_eq!(content(with(None, secret("/wA="))), Some(vec![0xff, 0]));
        for (file, problem) in [
            (with(None, None), ("", "needs content or data")),
            (with(secret("a"), secret("YQ==")), ("data", "excludes content: give one of them")),
            (with(None, secret("?")), ("data", "must be base64")),
        ] {
            assert_eq!(file.problem(), Some(problem));
            assert_eq!(content(file), None);
        }
    }

    #[test]
    fn nothing_shows_the_content() {
        let file = NodeFile { content: Some(Secret::new("topsecret")), ..file("/etc/kubernetes/a") };
        let placed = file.placed().expect("no mistake");
        assert_eq!(format!("{placed:?}"), "/etc/kubernetes/a (600, 0:0, 9 bytes)");
        assert!(!format!("{file:?}").contains("topsecret"));
    }
}
