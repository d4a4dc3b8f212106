//! Variables from Secrets and ConfigMaps: `envFrom`, `configMapKeyRef`, `secretKeyRef`.
//!
//! In: the container's sources, the objects that the node knows. Out: names and values, or upstream's message
//! about the missing object or key. Invariant: an optional source that is missing defines nothing. Names are
//! not checked: the API server validates them. Upstream: `makeEnvironmentVariables` of
//! pkg/kubelet/kubelet_pods.go.

use agent_types::objects::{ObjectData, ObjectKind, ObjectRef, Objects, look_up};
use agent_types::pod;
use agent_types::spec_error::SpecError;
use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod};

/// All variables of `envFrom`, in order; later ones of the same name win.
///
/// # Errors
/// An object is missing or unavailable.
pub fn env_from(
    p: &Pod,
    container: &Container,
    objects: &Objects,
) -> Result<Vec<(String, String)>, SpecError> {
    let mut vars = Vec::new();
    for from in container.env_from.iter().flatten() {
        let (kind, name, optional) = if let Some(source) = &from.config_map_ref {
            (ObjectKind::ConfigMap, &source.name, source.optional)
        } else if let Some(source) = &from.secret_ref {
            (ObjectKind::Secret, &source.name, source.optional)
        } else {
            continue;
        };
        let Some(object) = object(p, kind, name, optional, objects)? else { continue };
        let prefix = from.prefix.as_deref().unwrap_or("");
        vars.extend(object.data.iter().map(|(key, value)| (format!("{prefix}{key}"), text(value))));
    }
    Ok(vars)
}

/// The value of one key; `None` for an optional key that is missing. The outer `None`: the source is of
/// another kind.
///
/// # Errors
/// The object or its key is missing.
pub fn key_ref(
    p: &Pod,
    source: &EnvVarSource,
    objects: &Objects,
) -> Option<Result<Option<String>, SpecError>> {
    let (kind, shown, name, key, optional) = if let Some(source) = &source.config_map_key_ref {
        (ObjectKind::ConfigMap, "ConfigMap", &source.name, &source.key, source.optional)
    } else {
        let source = source.secret_key_ref.as_ref()?;
        (ObjectKind::Secret, "Secret", &source.name, &source.key, source.optional)
    };
    let found = match object(p, kind, name, optional, objects) {
        Ok(Some(object)) => object,
        Ok(None) => return Some(Ok(None)),
        Err(e) => return Some(Err(e)),
    };
    Some(match found.data.get(key) {
        Some(value) => Ok(Some(text(value))),
        None if optional == Some(true) => Ok(None),
        None => Err(SpecError::container(format!(
            "couldn't find key {key} in {shown} {}/{name}",
            pod::namespace(p)
        ))),
    })
}

fn object<'o>(
    p: &Pod,
    kind: ObjectKind,
    name: &str,
    optional: Option<bool>,
    objects: &'o Objects,
) -> Result<Option<&'o ObjectData>, SpecError> {
    let of = ObjectRef::of(p, kind, name);
    look_up(objects, &of, optional == Some(true)).map_err(SpecError::container)
}

/// Upstream passes bytes on that are no UTF-8, and containerd replaces each of them when it writes them as JSON. Variables are text
/// here, so each is replaced before: the container sees the same.
fn text(value: &[u8]) -> String {
    let mut out = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_that_is_no_utf8_is_replaced() {
        assert_eq!(text("ä=1".as_bytes()), "ä=1");
        assert_eq!(text(b"a\xff\xfeb"), "a\u{fffd}\u{fffd}b");
        assert_eq!(text(b"\xe2\x82A"), "\u{fffd}\u{fffd}A", "both bytes of half a character");
    }
}
