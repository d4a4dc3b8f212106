//! Variables from files of the pod's volumes: `fileKeyRef` (KEP-3721, gate EnvFiles).
//!
//! In: the container's sources, the files as read just before its creation. Out: values, or upstream's
//! message about the error with its class. Invariants: a message contains line numbers of a file, never its
//! contents; an optional key that is missing defines nothing, but a missing or malformed file is an error
//! even then. Format: a strict subset of the POSIX shell's, `KEY='value'`. Upstream:
//! `makeEnvironmentVariables` of pkg/kubelet/kubelet_pods.go, pkg/kubelet/util/env.

use std::collections::BTreeSet;

use agent_types::node_context::NodeContext;
use agent_types::pod;
use agent_types::spec_error::SpecError;
use agent_volumes::bound::Claims;
use agent_volumes::env_file::{EnvFile, EnvFiles};
use agent_volumes::plan::location;
use k8s_openapi::api::core::v1::{Container, FileKeySelector, Pod};

/// Longest line, bytes.
const LINE_MAX: usize = 65_535;

/// All files that the container's variables come from.
///
/// # Errors
/// A volume that the pod does not have.
pub fn files(p: &Pod, container: &Container, node: &NodeContext) -> Result<BTreeSet<EnvFile>, SpecError> {
    if !node.features.env_files {
        return Ok(BTreeSet::new());
    }
    let sources = container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()?.file_key_ref.as_ref());
    sources.map(|source| file(p, source, node)).collect()
}

fn file(p: &Pod, source: &FileKeySelector, node: &NodeContext) -> Result<EnvFile, SpecError> {
    let name = &source.volume_name;
    let volume = pod::spec(p).volumes.iter().flatten().find(|v| v.name == *name);
    // Only an emptyDir may be named: no claim matters.
    let claims = Claims::new();
    let found = volume.and_then(|v| location(p, v, &claims, node)).ok_or_else(|| {
        SpecError::container(format!("cannot find the volume {name:?} referenced by FileKeyRef"))
    })?;
    Ok(EnvFile { root: found.path, path: source.path.clone() })
}

/// The value of one key; `None` for an optional key that is missing or empty.
///
/// # Errors
/// The file cannot be read or is malformed, or the key is missing.
pub fn value(
    p: &Pod,
    source: &FileKeySelector,
    read: &EnvFiles,
    node: &NodeContext,
) -> Result<Option<String>, SpecError> {
    let file = file(p, source, node)?;
    let broken = |why: &str| SpecError::container(format!("couldn't parse env file: {}: {why}", file.path));
    let text = match read.get(&file) {
        None => return Err(broken("it was not read")),
        Some(Err(why)) => return Err(broken(why)),
        Some(Ok(text)) => text,
    };
    let value = value_of(text, &source.key).map_err(|why| broken(&why))?;
    if value.is_none() && source.optional != Some(true) {
        let path = format!("{}/{}", file.root, file.path.trim_start_matches('/'));
        return Err(SpecError::container(format!(
            "environment variable key {:?} not found in file {path:?}",
            source.key
        )));
    }
    Ok(value)
}

/// Lines as a reader of lines sees them: without their ends, the last one perhaps without one.
struct Lines<'t> {
    rest: &'t [u8],
    number: usize,
}

impl<'t> Lines<'t> {
    fn next(&mut self) -> Result<Option<&'t [u8]>, String> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let end = self.rest.iter().position(|b| *b == b'\n');
        let (line, rest) = end.map_or((self.rest, &[][..]), |at| (&self.rest[..at], &self.rest[at + 1..]));
        self.rest = rest;
        if line.len() > LINE_MAX {
            return Err(format!("line {} is longer than {LINE_MAX} bytes", self.number));
        }
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }
}

fn unblanked(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    text
}

/// The value of `key`; `None` if it is missing or empty. What comes after it is not looked at.
fn value_of(text: &[u8], key: &str) -> Result<Option<String>, String> {
    let mut lines = Lines { rest: text, number: 0 };
    while let Some(line) = lines.next()? {
        let line = unblanked(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let wrong =
            |at: usize, what: &str| Err(format!("invalid environment variable format at line {at}: {what}"));
        let at = lines.number;
        let Some(equals) = line.iter().position(|b| *b == b'=') else { return wrong(at, "missing '='") };
        let (name, assigned) = (&line[..equals], &line[equals + 1..]);
        match name.last() {
            _ if unblanked(name).is_empty() => return wrong(at, "empty variable name"),
            Some(b' ' | b'\t') => return wrong(at, "whitespace before '=' is not allowed"),
            _ => {}
        }
        // As in a shell: text after a blank is another word, and the variable is empty.
        let found = match assigned {
            [b' ' | b'\t', ..] => Vec::new(),
            [b'\'', rest @ ..] => quoted(rest, &mut lines)?,
            _ => return wrong(at, "value must be enclosed in single quotes"),
        };
        if name == key.as_bytes() {
            return Ok(Some(String::from_utf8_lossy(&found).into_owned()).filter(|v| !v.is_empty()));
        }
    }
    Ok(None)
}

/// What stands before the closing quote, which may be some lines below.
fn quoted(first: &[u8], lines: &mut Lines<'_>) -> Result<Vec<u8>, String> {
    let (mut rest, began) = (first, lines.number);
    let mut value = Vec::new();
    loop {
        if let Some(end) = rest.iter().position(|b| *b == b'\'') {
            value.extend_from_slice(&rest[..end]);
            let after = unblanked(&rest[end + 1..]);
            if after.is_empty() || after.starts_with(b"#") {
                return Ok(value);
            }
            let at = lines.number;
            return Err(format!(
                "invalid environment variable format at line {at}: unexpected content after closing quote"
            ));
        }
        value.extend_from_slice(rest);
        value.push(b'\n');
        rest = lines.next()?.ok_or_else(|| {
            format!("invalid environment variable format starting at line {began}: unclosed single quote")
        })?;
    }
}

#[cfg(test)]
mod tests;
