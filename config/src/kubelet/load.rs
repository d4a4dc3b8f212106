//! Text to effective KubeletConfiguration: base file, drop-ins, flags.
//!
//! Pure: the caller reads files and walks the drop-in directory. Order: base file with its defaults, drop-ins as
//! RFC 7386 patches on its JSON form, defaults again, flags, validation. Upstream: cmd/kubelet/app/server.go.

use super::types::{API_VERSION, KIND, KubeletConfiguration};
use super::{defaults, gates, validate};
use crate::field::{self, Describe, Kind, Lines, NoLines};
use crate::merge;
use crate::problem::{ConfigError, Problem};
use crate::yaml::{self, Document};
use serde_json::Value;

/// Extension of drop-in files; others are not read.
pub const DROP_IN_EXTENSION: &str = "conf";

/// A drop-in file: its path and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropIn {
    /// For messages.
    pub path: String,
    /// YAML or JSON.
    pub text: String,
}

/// The file at `path` with defaults applied, checked and validated; relative paths in it start at its directory.
///
/// # Errors
/// Everything that is wrong, each with line, path, value and what is allowed.
pub fn load_kubelet_config(text: &str, path: &str) -> Result<KubeletConfiguration, ConfigError> {
    let mut config = decode(text, path)?;
    resolve_relative_paths(&mut config, path);
    ConfigError::check(validate::validate(&config, path))?;
    Ok(config)
}

/// Base file (none: defaults), then drop-ins in the order given, then flags; validated.
///
/// # Errors
/// Everything that is wrong in the first of these that has a mistake.
pub fn load_kubelet_config_with(
    base: Option<(&str, &str)>,
    drop_ins: &[DropIn],
    flags: &super::flags::Overlay,
) -> Result<KubeletConfiguration, ConfigError> {
    let (mut config, mut source) = match base {
        Some((text, path)) => {
            let mut config = decode(text, path)?;
            resolve_relative_paths(&mut config, path);
            (config, path)
        }
        None => (defaults::without_file(), "flags"),
    };
    if let Some(last) = drop_ins.last() {
        config = merge_drop_ins(&config, drop_ins)?;
        source = &last.path;
    }
    if !flags.is_empty() {
        config = flags.apply(&config)?;
        source = "flags";
    }
    ConfigError::check(validate::validate(&config, source))?;
    Ok(config)
}

/// Drop-ins as merge patches on the JSON form of `base`, which has its defaults; defaults again afterwards.
///
/// # Errors
/// What is wrong in the first drop-in that has a mistake. The result is not validated yet.
pub fn merge_drop_ins(
    base: &KubeletConfiguration,
    drop_ins: &[DropIn],
) -> Result<KubeletConfiguration, ConfigError> {
    let mut merged = to_value(base);
    for drop_in in drop_ins {
        let document = read(&drop_in.text, &drop_in.path)?;
        check(&document.value, &drop_in.path, &document, true)?;
        merge::apply(&mut merged, document.value);
    }
    let source = drop_ins.last().map_or("defaults", |d| d.path.as_str());
    from_value(merged, source, &NoLines)
}

/// The JSON form, every field that has a value.
#[must_use]
pub fn to_value(config: &KubeletConfiguration) -> Value {
    serde_json::to_value(config).unwrap_or_default()
}

/// A checked document to the typed form, defaults applied.
///
/// # Errors
/// Unknown fields, wrong types, values out of range.
pub fn from_value(
    mut value: Value,
    source: &str,
    lines: &dyn Lines,
) -> Result<KubeletConfiguration, ConfigError> {
    field::strip_unset(&mut value, KubeletConfiguration::KIND);
    ConfigError::check(field::check(&value, KubeletConfiguration::KIND, source, lines, false))?;
    let switched = gates::FeatureGates::lenient(&value);
    defaults::complete(&mut value, &switched);
    typed(value, source)
}

/// A document that has every default back to the typed form, as it is: what is missing is none, zero is zero.
///
/// # Errors
/// Wrong types and values out of range.
pub(super) fn retype(mut value: Value, source: &str) -> Result<KubeletConfiguration, ConfigError> {
    let problems = field::check(&value, KubeletConfiguration::KIND, source, &NoLines, false);
    ConfigError::check(problems)?;
    if let (Kind::Object(fields), Value::Object(map)) = (KubeletConfiguration::KIND, &mut value) {
        for field in *fields {
            map.entry(field.name).or_insert(Value::Null);
        }
    }
    typed(value, source)
}

fn typed(value: Value, source: &str) -> Result<KubeletConfiguration, ConfigError> {
    serde_json::from_value(value).map_err(|e| {
        Problem { source: source.to_owned(), reason: e.to_string(), ..Problem::default() }.into()
    })
}

fn decode(text: &str, path: &str) -> Result<KubeletConfiguration, ConfigError> {
    let document = read(text, path)?;
    check(&document.value, path, &document, false)?;
    from_value(document.value.clone(), path, &document)
}

fn read(text: &str, path: &str) -> Result<Document, ConfigError> {
    let document = yaml::parse(text).map_err(|e| Problem {
        source: path.to_owned(),
        line: Some(e.line),
        reason: e.reason,
        ..Problem::default()
    })?;
    if document.value.is_null() {
        let reason = "is empty: at least apiVersion and kind are needed".to_owned();
        return Err(Problem { source: path.to_owned(), reason, ..Problem::default() }.into());
    }
    Ok(document)
}

/// Version and kind first (a foreign document needs one message, not a hundred), then the shape.
fn check(value: &Value, path: &str, lines: &dyn Lines, patch: bool) -> Result<(), ConfigError> {
    let head = [("apiVersion", API_VERSION), ("kind", KIND)];
    let wrong = head.into_iter().filter(|(key, want)| value.get(key).and_then(Value::as_str) != Some(*want));
    let problems: Vec<Problem> = wrong
        .map(|(key, want)| Problem {
            source: path.to_owned(),
            line: lines.line(key),
            path: key.to_owned(),
            value: value.get(key).map(field::shown),
            reason: format!("must be {want}"),
        })
        .collect();
    ConfigError::check(problems)?;
    let mut value = value.clone();
    // Zeros and nulls mean "not set" to a patch as well.
    field::strip_unset(&mut value, KubeletConfiguration::KIND);
    ConfigError::check(field::check(&value, KubeletConfiguration::KIND, path, lines, patch))
}

/// Relative file names start at the directory of the file that names them.
fn resolve_relative_paths(config: &mut KubeletConfiguration, file: &str) {
    let dir = file.rsplit_once('/').map_or("", |(dir, _)| dir);
    let refs = [
        &mut config.static_pod_path,
        &mut config.authentication.x509.client_ca_file,
        &mut config.tls_cert_file,
        &mut config.tls_private_key_file,
        &mut config.resolv_conf,
        &mut config.volume_plugin_dir,
        &mut config.pod_logs_dir,
    ];
    for path in refs {
        if !path.is_empty() && !path.starts_with('/') && file.starts_with('/') {
            *path = clean(&format!("{dir}/{path}"));
        }
    }
}

/// An absolute path without `.`, `..` and empty components.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests;
