//! Image references: checks the grammar and adds the implied tag.
//!
//! In: text such as `busybox`, `registry:5000/team/app:1`, `app@sha256:...`. Out: the same text, with
//! `:latest` if it has neither tag nor digest; the registry stays unchanged (the runtime completes it).
//! Upstream: pkg/util/parsers, distribution/reference.

/// Why a text is no image reference; the status reason is `InvalidImageName`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name {image:?}: {problem}")]
pub struct ReferenceError {
    /// As the pod spells it.
    pub image: String,
    /// The mistake, in upstream's words and, if these are unclear, ours.
    pub problem: String,
}

/// Longest repository name, registry included.
const NAME_MAX: usize = 255;
/// Longest tag.
const TAG_MAX: usize = 128;

/// Check `image` and add `:latest` if it has neither tag nor digest.
///
/// # Errors
/// [`ReferenceError`] if the text does not have the form `[registry[:port]/]name[:tag][@digest]`.
pub fn normalize(image: &str) -> Result<String, ReferenceError> {
    let refused = |detail| ReferenceError { image: image.to_owned(), problem: problem(image, detail) };
    let (tagged, _) = check(image).map_err(refused)?;
    Ok(if tagged { image.to_owned() } else { format!("{image}:latest") })
}

/// The repository of a good reference as registries know it: with its domain, without tag and digest.
#[must_use]
pub fn repository(image: &str) -> String {
    let name = name(image);
    let (first, rest) = name.split_once('/').unwrap_or(("", name));
    let (domain, path) = match first {
        "docker.io" | "index.docker.io" => ("docker.io", rest),
        _ if is_registry(first) => return name.to_owned(),
        _ => ("docker.io", name),
    };
    let official = if path.contains('/') { "" } else { "library/" };
    format!("{domain}/{official}{path}")
}

/// Upstream looks for capitals first.
fn problem(image: &str, detail: &str) -> String {
    let rest = match image.split_once('/') {
        Some((first, rest)) if is_registry(first) => rest,
        _ => image,
    };
    let path = rest.split(':').next().unwrap_or(rest);
    if path.chars().any(char::is_uppercase) {
        return format!("invalid reference format: repository name ({path}) must be lowercase");
    }
    format!("invalid reference format: {detail}")
}

/// The reference as spelled, without tag and digest; a malformed one stays whole.
#[must_use]
pub fn name(image: &str) -> &str {
    check(image).ok().and_then(|(_, length)| image.get(..length)).unwrap_or(image)
}

/// (has tag or digest, length of the name).
fn check(image: &str) -> Result<(bool, usize), &'static str> {
    if image.is_empty() {
        return Err("it is empty");
    }
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    if let Some(digest) = digest {
        check_digest(digest)?;
    }
    let last_slash = rest.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match rest[last_slash..].find(':') {
        Some(at) => (&rest[..last_slash + at], Some(&rest[last_slash + at + 1..])),
        None => (rest, None),
    };
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    if name.len() > NAME_MAX {
        return Err("repository name must not be more than 255 characters");
    }
    check_name(name)?;
    Ok((tag.is_some() || digest.is_some(), name.len()))
}

fn check_name(name: &str) -> Result<(), &'static str> {
    let mut components = name.split('/');
    let first = components.next().unwrap_or("");
    let mut rest: Vec<&str> = components.collect();
    if !rest.is_empty() && is_registry(first) {
        check_registry(first)?;
    } else {
        rest.insert(0, first);
    }
    for component in rest {
        check_component(component)?;
    }
    Ok(())
}

/// The first of several parts of a name is a registry and not a part of the path.
fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost" || first.bytes().any(|b| b.is_ascii_uppercase())
}

fn check_registry(registry: &str) -> Result<(), &'static str> {
    let host = if let Some(v6) = registry.strip_prefix('[') {
        let (address, port) = v6.split_once(']').ok_or("the registry's address lacks a closing bracket")?;
        if !address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':') {
            return Err("the registry's address is not an IPv6 address");
        }
        return check_port(port);
    } else if let Some((host, port)) = registry.split_once(':') {
        if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err("the registry's port is not a number");
        }
        host
    } else {
        registry
    };
    let label_ok = |label: &str| {
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        edge(label.as_bytes().first())
            && edge(label.as_bytes().last())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    if host.split('.').all(label_ok) { Ok(()) } else { Err("the registry's host name is not valid") }
}

fn check_port(port: &str) -> Result<(), &'static str> {
    let digits = port.strip_prefix(':');
    match digits {
        None if port.is_empty() => Ok(()),
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => Ok(()),
        _ => Err("the registry's port is not a number"),
    }
}

/// Lower-case alphanumerics, parted by one `.`, one or two `_`, or any number of `-`.
fn check_component(component: &str) -> Result<(), &'static str> {
    const PROBLEM: &str = "repository name must be lower-case letters, digits and separators";
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return Err("repository name has an empty part");
    };
    if !alphanumeric(*first) || !alphanumeric(*last) {
        return Err(PROBLEM);
    }
    for separator in component.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()) {
        let dashes = separator.bytes().all(|b| b == b'-');
        if !dashes && !matches!(separator, "." | "_" | "__") {
            return Err(PROBLEM);
        }
    }
    Ok(())
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let first_ok = tag.bytes().next().is_some_and(word);
    let rest_ok = tag.bytes().all(|b| word(b) || b == b'.' || b == b'-');
    if first_ok && rest_ok && tag.len() <= TAG_MAX { Ok(()) } else { Err("the tag is not valid") }
}

fn check_digest(digest: &str) -> Result<(), &'static str> {
    let (algorithm, value) = digest.split_once(':').ok_or("the digest has no algorithm")?;
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err("the digest's algorithm must be sha256, sha384 or sha512"),
    };
    let hex = value.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if hex && value.len() == length { Ok(()) } else { Err("the digest is not valid") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn repositories() {
        for (image, expected) in [
            ("busybox", "docker.io/library/busybox"),
            ("busybox:1.37", "docker.io/library/busybox"),
            ("docker.io/busybox", "docker.io/library/busybox"),
            ("index.docker.io/a/b:1", "docker.io/a/b"),
            ("a/b", "docker.io/a/b"),
            ("localhost/a", "localhost/a"),
            ("10.0.0.1:5000/a/b:1", "10.0.0.1:5000/a/b"),
        ] {
            assert_eq!(repository(image), expected, "{image}");
        }
        let digest = format!("quay.io/x@sha256:{}", "a".repeat(64));
        assert_eq!(repository(&digest), "quay.io/x");
    }

    #[test]
    fn valid_references() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let with_digest = format!("app@{digest}");
        let with_both = format!("registry.example:5000/app:1@{digest}");
        let table = [
            ("busybox", "busybox:latest"),
            ("busybox:1.36", "busybox:1.36"),
            ("localhost/orlop/pause:1", "localhost/orlop/pause:1"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            ("a.b/c_d/e__f/g--h", "a.b/c_d/e__f/g--h:latest"),
            ("[2001:db8::1]:5000/a", "[2001:db8::1]:5000/a:latest"),
            ("UPPER.example/a", "UPPER.example/a:latest"),
            (with_digest.as_str(), with_digest.as_str()),
            (with_both.as_str(), with_both.as_str()),
        ];
        for (image, expected) in table {
            assert_eq!(normalize(image).as_deref(), Ok(expected), "{image}");
        }
    }

    #[test]
    fn problems_are_told_in_upstreams_words() {
        for (image, words) in [
            ("Upper/Case:not a tag", "invalid reference format: repository name (Case) must be lowercase"),
            ("r.example/A@b", "invalid reference format: repository name (A@b) must be lowercase"),
            ("a:not a tag", "invalid reference format: the tag is not valid"),
        ] {
            assert_eq!(normalize(image).unwrap_err().problem, words, "{image}");
        }
    }

    #[test]
    fn invalid_references() {
        let long = "a".repeat(256);
        let table = [
            "",
            " ",
            "Busybox",
            "a b",
            "a//b",
            "/a",
            "a/",
            "a:",
            "a:-",
            "a:b:c",
            "a@",
            "a@sha256:12",
            "a@md5:00",
            "-a",
            "a-",
            "a._b",
            "a___b",
            "a..b",
            "registry:port/a",
            "http://a/b",
            ":1",
            "é",
            long.as_str(),
        ];
        for image in table {
            assert!(normalize(image).is_err(), "{image:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_is_idempotent(image in "\\PC{0,40}") {
            if let Ok(full) = normalize(&image) {
                prop_assert_eq!(normalize(&full).unwrap(), full);
            }
        }
    }
}
