//! Contents of a volume: objects, tokens and known files put together.
//!
//! In: sources, the known objects and tokens. Out: files by path, or upstream's message about a missing part.
//! Invariant: every path is clean ([`super::paths`]).

use std::collections::BTreeMap;

use agent_types::objects::{Bundle, Fetched, ObjectData, ObjectKind, ObjectRef, Objects, look_up};

use super::pod_certificate::{CertificateSource, Certified};
use super::token::TokenRef;
use super::{FileContent, FileSource, Item, paths, trust_bundle};

/// Files by their path in the volume.
pub type Payload = BTreeMap<String, FileContent>;

/// Tokens, or why there is none.
pub type Tokens = BTreeMap<TokenRef, Result<String, String>>;

/// Certificates of the pod with their keys, or why there is none.
pub type Certificates = BTreeMap<CertificateSource, Result<Certified, String>>;

/// What is known of a volume's sources.
#[derive(Clone, Debug, Default)]
pub struct SourceValues {
    /// Objects.
    pub objects: Objects,
    /// Tokens.
    pub tokens: Tokens,
    /// Certificates.
    pub certificates: Certificates,
}

/// The files of a volume.
///
/// # Errors
/// An object, a key or a token is missing, or a path would leave the volume.
pub fn payload(sources: &[FileSource], projected: bool, known: &SourceValues) -> Result<Payload, String> {
    let mut files = Payload::new();
    let mut mistakes = Vec::new();
    for source in sources {
        match from_source(source, known) {
            Ok(more) => files.extend(more),
            Err(why) => mistakes.push(why),
        }
    }
    match mistakes.as_slice() {
        [] => {}
        [one] => return Err(one.clone()),
        several if projected => return Err(format!("[{}]", several.join(", "))),
        [first, ..] => return Err(first.clone()),
    }
    files.into_iter().map(|(path, content)| Ok((paths::clean(&path)?, content))).collect()
}

fn from_source(source: &FileSource, known: &SourceValues) -> Result<Payload, String> {
    match source {
        FileSource::Known(files) => Ok(files.clone()),
        FileSource::Object { object, items, optional, mode } => {
            let empty = ObjectData::default();
            let data = look_up(&known.objects, object, *optional)?.unwrap_or(&empty);
            from_object(data, object.kind, items, *optional, *mode)
        }
        FileSource::Token { token, path, mode, user } => {
            let text = known.tokens.get(token).cloned();
            let text =
                text.unwrap_or_else(|| Err("failed to fetch token: it was not asked for".to_owned()))?;
            let content = FileContent { data: text.into_bytes(), mode: *mode, user: *user };
            Ok(Payload::from([(path.clone(), content)]))
        }
        FileSource::Anchors { choice, optional, uid, path, mode, user } => {
            let all = bundles(&known.objects)?;
            let data = trust_bundle::anchors(all, choice, *optional, uid)?;
            Ok(Payload::from([(path.clone(), FileContent { data, mode: *mode, user: *user })]))
        }
        FileSource::Certificate { of, paths, mode, user } => {
            let credential = known.certificates.get(of).cloned();
            let credential = credential.unwrap_or_else(|| Err(format!("no credentials yet for {of}")))?;
            let file = |data| FileContent { data, mode: *mode, user: *user };
            let mut files = Payload::new();
            if let Some(path) = &paths.bundle {
                files.insert(path.clone(), file([&*credential.key, &*credential.chain].concat()));
            }
            if let Some(path) = &paths.key {
                files.insert(path.clone(), file(credential.key.to_vec()));
            }
            if let Some(path) = &paths.chain {
                files.insert(path.clone(), file(credential.chain.to_vec()));
            }
            Ok(files)
        }
    }
}

/// Every ClusterTrustBundle, once the watch has said which there are.
fn bundles(objects: &Objects) -> Result<&BTreeMap<String, Bundle>, String> {
    match objects.get(&ObjectRef::trust_bundles()) {
        Some(Fetched::Found(data)) => Ok(&data.bundles),
        Some(Fetched::Unknown(why)) => Err(format!("ClusterTrustBundle informer has not yet synced: {why}")),
        Some(Fetched::Missing) | None => Err("ClusterTrustBundle informer has not yet synced".to_owned()),
    }
}

fn from_object(
    object: &ObjectData,
    kind: ObjectKind,
    items: &[Item],
    optional: bool,
    mode: u32,
) -> Result<Payload, String> {
    let file = |data: &Vec<u8>, mode: Option<u32>, default: u32| FileContent {
        data: data.clone(),
        mode: mode.unwrap_or(default),
        user: None,
    };
    if items.is_empty() {
        let all = object.data.iter().chain(&object.binary);
        return Ok(all.map(|(key, data)| (key.clone(), file(data, None, mode))).collect());
    }
    let mut files = Payload::new();
    for item in items {
        match object.data.get(&item.key).or_else(|| object.binary.get(&item.key)) {
            Some(data) => {
                files.insert(item.path.clone(), file(data, item.mode, mode));
            }
            None if optional => {}
            None => return Err(missing_key(kind, &item.key)),
        }
    }
    Ok(files)
}

fn missing_key(kind: ObjectKind, key: &str) -> String {
    match kind {
        ObjectKind::ConfigMap => format!("configmap references non-existent config key: {key}"),
        ObjectKind::Secret => format!("references non-existent secret key: {key}"),
        ObjectKind::Services => format!("references a variable of services that is not there: {key}"),
        ObjectKind::RuntimeClass => format!("references a field of a runtimeclass that is not there: {key}"),
        ObjectKind::TrustBundles => format!("references a trust bundle that is not there: {key}"),
    }
}
