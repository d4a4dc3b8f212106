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

use super::Executor;
use super::results::{error, runtime_error};
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
    let found = executor.images.image_status(image).await.map_err(runtime_error)?;
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
    let now = || executor.tasks.now();
    if executor.records.is_off() {
        let began = now().mono;
        let (image, _) = attempt_all(executor, image, credentials).await?;
        return Ok(EffectOk::Pulled { image, took: now().mono.since(began) });
    }
    let (begun, (intents, pulled)) = executor.records.begin(written).await.ok_or(AgentStops)?;
    executor.metrics.pull_records(intents, pulled);
    let under_way = begun.map_err(|e| error(e.into()))?;
    let began = now().mono;
    let result = attempt_all(executor, image, credentials).await;
    let ended = now();
    let (outcome, told) = match result {
        Ok((image, source)) => {
            let took = ended.mono.since(began);
            (Ok((image.id.clone(), source)), Ok(EffectOk::Pulled { image, took }))
        }
        Err(e) => (Err(()), Err(e)),
    };
    if let Some((intents, pulled)) = under_way.end(outcome, ended.wall).await {
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

/// The node's own credentials: those of the first file that can be read, a `config.json` before a `.dockercfg`. Read at each
/// pull: a file that was renewed counts at once. Upstream: `ReadDockerConfigFile` of pkg/credentialprovider/config.go.
fn of_node(root: &Path) -> Keyring {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    let docker = home.join(".docker");
    let configs = [root, Path::new("."), docker.as_path(), Path::new("/.docker")]
        .map(|directory| (directory.join("config.json"), true));
    let legacy = [root, Path::new("."), home.as_path(), Path::new("/")]
        .map(|directory| (directory.join(".dockercfg"), false));
    for (path, is_config) in configs.into_iter().chain(legacy) {
        let short = path.metadata().is_ok_and(|m| m.is_file() && m.len() <= FILE_MAX);
        let Some(bytes) = short.then(|| std::fs::read(&path).ok()).flatten() else { continue };
        let mut keyring = Keyring::default();
        let added = if is_config { keyring.add_config_json(&bytes) } else { keyring.add_docker_cfg(&bytes) };
        match added {
            Ok(()) => return keyring,
            Err(why) => {
                warn!(path = %path.display(), why, "the node's credentials for registries are not used");
            }
        }
    }
    Keyring::default()
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
        std::fs::write(
            root.path().join(".dockercfg"),
            r#"{"r.example": {"username": "c", "password": "d"}}"#,
        )
        .unwrap();
        assert_eq!(lookup()[0].username, "a", "a .dockercfg beside a config.json does not count");
        assert_eq!(lookup().len(), 1);
        std::fs::write(root.path().join("config.json"), "{").unwrap();
        assert_eq!(
            lookup(),
            [Credential { username: "c".to_owned(), password: "d".to_owned(), source: None }]
        );
    }
}
