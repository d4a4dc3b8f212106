//! Pulling an image: with the pod's credentials, then with the node's, one after the other; anonymously if there are none.
//!
//! In: an image, credentials. Out: the image, or why each attempt failed. Upstream: PullImage of kuberuntime.

use std::path::{Path, PathBuf};

use agent_core::drivers::{ImageService, Runtime};
use agent_core::images;
use agent_core::images::keyring::{Credential, Keyring};
use agent_core::runtime::effect::{EffectError, EffectOk, EffectResult};
use tracing::warn;

use super::{Executor, said};

/// Largest file of credentials that is read, bytes (upstream's limit for what it fetches).
const FILE_MAX: u64 = 10 << 20;

pub(super) async fn pull<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    image: &str,
    mut credentials: Vec<Credential>,
) -> EffectResult {
    // The semaphore is never closed; waiting for it counts as part of the pull.
    let _permit = executor.pulls.acquire().await;
    let (root, repository) = (executor.dirs.root().to_owned(), images::repository(image));
    let of_node = executor.tasks.blocking(move || of_node(&root).lookup(&repository)).await;
    credentials.extend(of_node.unwrap_or_default());
    let mut failures: Vec<EffectError> = Vec::new();
    let mut attempts: Vec<Option<&Credential>> = credentials.iter().map(Some).collect();
    if attempts.is_empty() {
        attempts.push(None);
    }
    for credential in attempts {
        match executor.images.pull(image, credential).await {
            Ok(info) => return Ok(EffectOk::Image(Some(info))),
            Err(e) => failures.push(said(e)),
        }
    }
    Err(one_of(failures))
}

/// All that was said, once each; what is worth doing about it is what the last one says.
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
    let class = failures.last().map_or(agent_core::drivers::Class::Invalid, |last| last.class);
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
    use agent_core::drivers::Class;

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
        assert_eq!(lookup(), [Credential { username: "a".to_owned(), password: "b".to_owned() }]);
        std::fs::write(root.path().join("config.json"), "{").unwrap();
        std::fs::write(
            root.path().join(".dockercfg"),
            r#"{"r.example": {"username": "c", "password": "d"}}"#,
        )
        .unwrap();
        assert_eq!(lookup(), [Credential { username: "c".to_owned(), password: "d".to_owned() }]);
    }
}
