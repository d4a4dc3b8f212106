//! Pull of an image: with the pod's credentials, then with the node's, then with those of plugins, one after the other;
//! anonymously if there are none.
//!
//! In: an image, credentials. Out: the image, or the error of each attempt; pull records on disk. Upstream: PullImage
//! of kuberuntime, EnsureImageExists.

use std::path::{Path, PathBuf};

use agent_core::images;
use agent_core::images::keyring::Keyring;
use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult, ImageUser};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_types::credential::{Credential, Source};
use agent_types::ids::PodKey;
use agent_types::runtime::image::ImageInfo;
use tracing::warn;

use super::{Executor, error, runtime_error};
use crate::tasks::stops::AgentStops;

/// Largest credentials file that is read, bytes (upstream's limit for its downloads).
const FILE_MAX: u64 = 10 << 20;

/// Checks whether the image is on the node and the pod may use it.
pub(super) async fn look<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    image: &str,
    mut user: ImageUser,
) -> EffectResult {
    let found = executor.images.image_status(image).await.map_err(error)?;
    let info = match found {
        Some(info) if !executor.records.is_off() => info,
        found => return Ok(EffectOk::Image(found)),
    };
    let (written, own) = (user.written.clone(), user.credentials.clone());
    let now = executor.tasks.now().wall;
    let mut access = executor.records.check(written, info.id.clone(), own, now).await;
    if access.by_account {
        let repository = images::repository(image);
        user.credentials.extend(executor.plugins.credentials(&repository, key, &user.account).await);
        let now = executor.tasks.now().wall;
        access = executor.records.check(user.written, info.id.clone(), user.credentials, now).await;
    }
    executor.metrics.must_pull_checked(access.check.label());
    Ok(EffectOk::Image(access.check.may_use().then_some(info)))
}

pub(super) async fn pull<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    image: &str,
    user: ImageUser,
) -> EffectResult {
    let ImageUser { written, mut credentials, account } = user;
    let (root, repository) = (executor.dirs.root().to_owned(), images::repository(image));
    let of = repository.clone();
    let of_node = executor.tasks.blocking(move || of_node(&root).lookup(&of)).await;
    credentials.extend(of_node.unwrap_or_default());
    credentials.extend(executor.plugins.credentials(&repository, key, &account).await);
    let _permit = executor.pulls.begin(&executor.tasks).await?;
    if executor.records.is_off() {
        return attempt_all(executor, image, credentials).await.map(|(info, _)| EffectOk::Image(Some(info)));
    }
    let (begun, (intents, pulled)) = executor.records.begin(written).await.ok_or(AgentStops)?;
    executor.metrics.pull_records(intents, pulled);
    let under_way = begun.map_err(|e| error(e.into()))?;
    let result = attempt_all(executor, image, credentials).await;
    let now = executor.tasks.now().wall;
    let (outcome, told) = match result {
        Ok((info, source)) => (Ok((info.id.clone(), source)), Ok(EffectOk::Image(Some(info)))),
        Err(e) => (Err(()), Err(e)),
    };
    if let Some((intents, pulled)) = under_way.end(outcome, now).await {
        executor.metrics.pull_records(intents, pulled);
    }
    told
}

/// The image, and the source of the credential of the pull if the credential belongs to a pod.
async fn attempt_all<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    image: &str,
    credentials: Vec<Credential>,
) -> Result<(ImageInfo, Option<Source>), EffectError> {
    let mut failures: Vec<EffectError> = Vec::new();
    let mut attempts: Vec<Option<&Credential>> = credentials.iter().map(Some).collect();
    if attempts.is_empty() {
        attempts.push(None);
    }
    for credential in attempts {
        match executor.images.pull(image, credential).await {
            Ok(info) => return Ok((info, credential.and_then(|c| c.source.clone()))),
            Err(e) => failures.push(runtime_error(e)),
        }
    }
    Err(one_of(failures))
}

/// All messages, once each, with the class of the last failure.
fn one_of(failures: Vec<EffectError>) -> EffectError {
    let mut messages: Vec<&str> = Vec::new();
    for failure in &failures {
        if !messages.contains(&failure.message.as_str()) {
            messages.push(&failure.message);
        }
    }
    let message = match messages.as_slice() {
        [one] => (*one).to_owned(),
        several => format!("[{}]", several.join(", ")),
    };
    let class = failures.last().map_or(agent_types::failure::Class::Invalid, |last| last.class);
    EffectError { class, message }
}

/// The node's own credentials: the first `config.json` and the first `.dockercfg` that can be read. Read at each pull: a
/// file that was renewed counts at once.
fn of_node(root: &Path) -> Keyring {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    let mut keyring = Keyring::default();
    let docker = home.join(".docker");
    for (directories, name) in [
        ([root, Path::new("."), docker.as_path(), Path::new("/.docker")], "config.json"),
        ([root, Path::new("."), home.as_path(), Path::new("/")], ".dockercfg"),
    ] {
        let found = directories.iter().find_map(|directory| {
            let path = directory.join(name);
            let short = path.metadata().is_ok_and(|m| m.is_file() && m.len() <= FILE_MAX);
            let bytes = if short { std::fs::read(&path).ok() } else { None };
            bytes.map(|bytes| (path, bytes))
        });
        let Some((path, bytes)) = found else { continue };
        let added = if name == "config.json" {
            keyring.add_config_json(&bytes)
        } else {
            keyring.add_docker_cfg(&bytes)
        };
        if let Err(why) = added {
            warn!(path = %path.display(), why, "the node's credentials for registries are not used");
        }
    }
    keyring
}

#[cfg(test)]
mod tests {
    use agent_types::failure::Class;

    use super::*;

    #[test]
    fn failures_are_told_once_each() {
        let failure = |text: &str, class| EffectError { class, message: text.to_owned() };
        let again = Class::Retryable { after_ms: 5 };
        let one = one_of(vec![failure("no", Class::Invalid), failure("no", again)]);
        assert_eq!((one.message.as_str(), one.class), ("no", again));
        let two = one_of(vec![failure("no", again), failure("denied", Class::Invalid)]);
        assert_eq!((two.message.as_str(), two.class), ("[no, denied]", Class::Invalid));
    }

    #[test]
    fn files_of_the_node() {
        let root = tempfile::tempdir().unwrap();
        let lookup = || of_node(root.path()).lookup("r.example/x");
        std::fs::write(root.path().join("config.json"), r#"{"auths": {"r.example": {"auth": "YTpi"}}}"#)
            .unwrap();
        assert_eq!(
            lookup(),
            [Credential { username: "a".to_owned(), password: "b".to_owned(), source: None }]
        );
        std::fs::write(root.path().join("config.json"), "{").unwrap();
        std::fs::write(
            root.path().join(".dockercfg"),
            r#"{"r.example": {"username": "c", "password": "d"}}"#,
        )
        .unwrap();
        assert_eq!(
            lookup(),
            [Credential { username: "c".to_owned(), password: "d".to_owned(), source: None }]
        );
    }
}
