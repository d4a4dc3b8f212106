//! What is written into a volume: objects, tokens and known files put together.
//!
//! In: sources, what is known of their objects and tokens. Out: files by path, or upstream's words about what is missing.
//! Invariant: every path is clean ([`super::paths`]).

use std::collections::BTreeMap;

use super::token::TokenRef;
use super::{FileContent, FileSource, Item, ObjectData, ObjectKind, Objects, look_up, paths};

/// Files by their path in the volume.
pub type Payload = BTreeMap<String, FileContent>;

/// Tokens, or why there is none.
pub type Tokens = BTreeMap<TokenRef, Result<String, String>>;

/// The files of a volume.
///
/// # Errors
/// An object, a key or a token is missing, or a path would leave the volume.
pub fn payload(
    sources: &[FileSource],
    projected: bool,
    objects: &Objects,
    tokens: &Tokens,
) -> Result<Payload, String> {
    let mut files = Payload::new();
    let mut mistakes = Vec::new();
    for source in sources {
        match from_source(source, objects, tokens) {
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

fn from_source(source: &FileSource, objects: &Objects, tokens: &Tokens) -> Result<Payload, String> {
    match source {
        FileSource::Known(files) => Ok(files.clone()),
        FileSource::Object { object, items, optional, mode } => {
            let empty = ObjectData::default();
            let data = look_up(objects, object, *optional)?.unwrap_or(&empty);
            from_object(data, object.kind, items, *optional, *mode)
        }
        FileSource::Token { token, path, mode, user } => {
            let known = tokens.get(token).cloned();
            let text =
                known.unwrap_or_else(|| Err("failed to fetch token: it was not asked for".to_owned()))?;
            let content = FileContent { data: text.into_bytes(), mode: *mode, user: *user };
            Ok(Payload::from([(path.clone(), content)]))
        }
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
    }
}
