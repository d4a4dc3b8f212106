//! Credential provider plugins: programs that supply the credentials of images.
//!
//! In: an image, the pod that uses the image, and the pod's service account. Out: credentials for the image in the
//! order of use. Invariants: a plugin that fails supplies nothing, and the log has its error; the log contains neither
//! the plugin's standard output nor a token; only one program runs at a time for the same image and account; no program
//! runs longer than a minute. See [`agent_core::images::providers`] for the decisions. Upstream:
//! pkg/credentialprovider/plugin.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use agent_core::images::keyring::Keyring;
use agent_core::images::providers::{
    ANSWER_BYTES_MAX, Account, Auth, CredentialCache, For, ProviderResponse, TIME_MAX, annotations, answer,
    fits, hash, request,
};
use agent_types::credential::{AccountName, Credential, Source};
use agent_types::ids::PodKey;
use agent_types::lock::Lock;
use agent_volumes::token::{DEFAULT_LIFE_S, TokenRef};
use anyhow::{Context, bail};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use orlop_config::credential_provider::{Provider, Token, parse};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::pods::pod_values::Sources;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Tasks;

/// Largest part of a program's standard error that is logged, bytes.
const COMPLAINT_BYTES_MAX: u64 = 4096;

type ProviderFuture = BoxFuture<'static, Result<ProviderResponse, String>>;
/// The image, and the account: the hash of its token and the annotations that the plugin gets.
type Question = (String, Option<(String, BTreeMap<String, String>)>);

/// Reads and checks `--image-credential-provider-config` (a file, or a directory of `*.json`, `*.yaml` and `*.yml`),
/// and looks for the programs in `--image-credential-provider-bin-dir`.
///
/// A missing program is only logged (upstream does not start): a pod of this very node may install it later.
///
/// # Errors
/// A file that cannot be read, or an invalid configuration.
pub fn load(config: &Path, bin_dir: &Path, tokens: bool) -> anyhow::Result<Vec<Provider>> {
    let mut files = Vec::new();
    for path in config_files(config)? {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("--image-credential-provider-config: read {}", path.display()))?;
        files.push((path.display().to_string(), text));
    }
    let providers = parse(&files, tokens)?;
    for provider in &providers {
        let program = bin_dir.join(&provider.name);
        if let Err(why) = executable(&program) {
            tracing::error!(
                provider = provider.name,
                program = %program.display(),
                why,
                "a credential-provider plugin cannot be asked; images are pulled without it until it can"
            );
        }
    }
    Ok(providers)
}

/// The reason why the program cannot be run.
fn executable(program: &Path) -> Result<(), String> {
    let found = program.metadata().map_err(|e| e.to_string())?;
    let runs = found.is_file() && found.permissions().mode() & 0o111 != 0;
    if runs {
        Ok(())
    } else {
        Err("it is no executable file; the pod that puts it there has to give it mode 0755".to_owned())
    }
}

fn config_files(config: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let flag = "--image-credential-provider-config";
    let of = || format!("{flag}: unable to access path {:?}", config.display().to_string());
    if !config.metadata().with_context(of)?.is_dir() {
        return Ok(vec![config.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(config).with_context(of)? {
        let path = entry.with_context(of)?.path();
        let known = path.extension().is_some_and(|e| e == "json" || e == "yaml" || e == "yml");
        if known && !path.is_dir() {
            files.push(path);
        }
    }
    if files.is_empty() {
        bail!("{flag}: no configuration files found in directory {:?}", config.display().to_string());
    }
    files.sort();
    Ok(files)
}

/// The plugins of a node.
pub struct Plugins {
    bin_dir: PathBuf,
    plugins: Vec<Plugin>,
    sources: Arc<dyn Sources>,
    metrics: Metrics,
    tasks: Tasks,
}

struct Plugin {
    provider: Arc<Provider>,
    answers: Lock<CredentialCache>,
    under_way: Lock<BTreeMap<Question, WeakShared<ProviderFuture>>>,
}

impl Plugins {
    /// `sources` supplies the pods' service accounts and their tokens.
    #[must_use]
    pub fn new(
        bin_dir: &Path,
        providers: Vec<Provider>,
        sources: Arc<dyn Sources>,
        metrics: Metrics,
        tasks: Tasks,
    ) -> Plugins {
        let plugin = |provider| Plugin {
            provider: Arc::new(provider),
            answers: Lock::default(),
            under_way: Lock::default(),
        };
        Plugins {
            bin_dir: bin_dir.to_owned(),
            plugins: providers.into_iter().map(plugin).collect(),
            sources,
            metrics,
            tasks,
        }
    }

    /// The plugins' credentials for `image` (registry and path, without tag and digest) and the pod `pod`, whose
    /// service account is `account` (may be empty).
    pub async fn credentials(&self, image: &str, pod: &PodKey, account: &str) -> Vec<Credential> {
        let mut keyring = Keyring::default();
        for plugin in self.plugins.iter().filter(|plugin| fits(&plugin.provider, image)) {
            match self.ask(plugin, image, pod, account).await {
                Ok(Some((auth, source))) => keyring.add_logins(&auth, source.as_ref()),
                Ok(None) => {}
                Err(why) => tracing::error!(
                    provider = plugin.provider.name,
                    image,
                    pod = %pod,
                    account,
                    why,
                    "no credentials from a plugin; the image is pulled without them"
                ),
            }
        }
        keyring.lookup(image)
    }

    /// `None`: the plugin does not apply to this pod.
    async fn ask(
        &self,
        plugin: &Plugin,
        image: &str,
        pod: &PodKey,
        account: &str,
    ) -> Result<Option<(Auth, Option<Source>)>, String> {
        let held = match &plugin.provider.token {
            Some(token) if account.is_empty() && token.require_account => return Ok(None),
            Some(token) if !account.is_empty() => match self.account(token, pod, account).await? {
                Some(held) => Some(held),
                None => return Ok(None),
            },
            Some(_) | None => None,
        };
        let whom = plugin.provider.token.as_ref().zip(held.as_ref());
        let whom = whom.map(|(token, (account, text))| For::new(token, account.clone(), text));
        let source = held.as_ref().map(|(account, _)| {
            Source::Account(AccountName {
                uid: account.uid.clone(),
                namespace: account.namespace.clone(),
                name: account.name.clone(),
            })
        });
        let kept = plugin.answers.lock().find(image, whom.as_ref(), self.tasks.now().mono);
        if let Some(auth) = kept {
            return Ok(Some((auth, source)));
        }
        let answered = self.single(plugin, image, held).await?;
        let (default, now) = (plugin.provider.default_cache, self.tasks.now().mono);
        plugin.answers.lock().keep(image, whom, &answered, default, now);
        Ok(Some((answered.auth, source)))
    }

    /// The account with the annotations that the plugin may see, and a token; `None` if the account lacks a required
    /// annotation.
    async fn account(
        &self,
        token: &Token,
        pod: &PodKey,
        name: &str,
    ) -> Result<Option<(Account, String)>, String> {
        let namespace = pod.namespace.to_string();
        let found = self.sources.account(namespace.clone(), name.to_owned()).await;
        let found = found.map_err(|why| format!("failed to get service account: {why}"))?;
        let Some(annotations) = annotations(token, &found.annotations) else {
            tracing::debug!(%pod, account = name, "a plugin is not asked: an annotation is missing");
            return Ok(None);
        };
        let wanted = TokenRef {
            namespace: namespace.clone(),
            account: name.to_owned(),
            account_uid: found.uid.clone(),
            audience: token.audience.clone(),
            life_s: DEFAULT_LIFE_S,
            pod: pod.name.to_string(),
            uid: pod.uid.to_string(),
        };
        let held = self.sources.token(wanted).await;
        let held = held.map_err(|why| format!("failed to get service account token: {why}"))?;
        Ok(Some((Account { namespace, name: name.to_owned(), uid: found.uid, annotations }, held.text)))
    }

    /// Runs the program once for concurrent identical questions; all of them get its answer.
    async fn single(
        &self,
        plugin: &Plugin,
        image: &str,
        held: Option<(Account, String)>,
    ) -> Result<ProviderResponse, String> {
        let whom = held.as_ref().map(|(account, token)| (hash(token), account.annotations.clone()));
        let question: Question = (image.to_owned(), whom);
        let asking = {
            let mut under_way = plugin.under_way.lock();
            under_way.retain(|_, asking| asking.upgrade().is_some());
            match under_way.get(&question).and_then(WeakShared::upgrade) {
                Some(asking) => asking,
                None => {
                    let asking = self.start(plugin, image.to_owned(), held);
                    if let Some(weak) = asking.downgrade() {
                        under_way.insert(question.clone(), weak);
                    }
                    asking
                }
            }
        };
        let answered = asking.await;
        plugin.under_way.lock().remove(&question);
        answered.map_err(|why| {
            format!("failed to get credential from external registry credential provider: {why}")
        })
    }

    fn start(
        &self,
        plugin: &Plugin,
        image: String,
        held: Option<(Account, String)>,
    ) -> Shared<ProviderFuture> {
        let (provider, tasks, metrics) = (plugin.provider.clone(), self.tasks.clone(), self.metrics.clone());
        let program = self.bin_dir.join(&provider.name);
        let asking = async move {
            let whom = held.as_ref().map(|(account, token)| (account, token.as_str()));
            let input = request(&provider, &image, whom);
            let mut command = Command::new(program);
            command.args(&provider.args);
            command.envs(provider.env.iter().map(|variable| (&variable.name, &variable.value)));
            let began = tasks.now().mono;
            let ran = run(command, input, &tasks).await;
            metrics.plugin_ran(&provider.name, tasks.now().mono.since(began), ran.is_err());
            let ran = ran.map_err(|why| {
                format!("error execing credential provider plugin {} for image {image}: {why}", provider.name)
            })?;
            answer(&provider, &ran, held.as_ref().map(|(_, token)| token.as_str())).map_err(|e| e.to_string())
        };
        asking.boxed().shared()
    }
}

/// Runs a program with `input`; returns its standard output. The program is killed at the time limit, and when the
/// caller drops the future.
async fn run(mut command: Command, input: Vec<u8>, tasks: &Tasks) -> Result<Vec<u8>, String> {
    let ends = tasks.now().mono.after(TIME_MAX);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    tokio::select! {
        // On drop, the child's handle kills the program; its output is lost, and no caller needs it.
        printed = talk(&mut child, input) => printed,
        () = tasks.wait_until(ends) => {
            // The program may have ended in this moment; then the kill fails without harm.
            let _ = child.kill().await;
            Err("context deadline exceeded".to_owned())
        }
    }
}

async fn talk(child: &mut Child, input: Vec<u8>) -> Result<Vec<u8>, String> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let ask = async {
        if let Some(mut stdin) = stdin {
            // A program may answer without reading its input.
            let _ = stdin.write_all(&input).await;
        }
    };
    let limit = u64::try_from(ANSWER_BYTES_MAX).unwrap_or(u64::MAX);
    let printed = async {
        let mut printed = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(limit.saturating_add(1)).read_to_end(&mut printed).await?;
        }
        io::Result::Ok(printed)
    };
    let complaint = beginning(stderr);
    let ((), printed, complaint) = tokio::join!(ask, printed, complaint);
    let printed = printed.map_err(|e| e.to_string())?;
    if printed.len() > ANSWER_BYTES_MAX {
        return Err(format!("its answer is longer than {ANSWER_BYTES_MAX} bytes"));
    }
    let status = child.wait().await.map_err(|e| e.to_string())?;
    if status.success() {
        return Ok(printed);
    }
    let complaint = complaint.map_err(|e| e.to_string())?;
    Err(format!("{status}: {}", String::from_utf8_lossy(&complaint).trim_end()))
}

/// The beginning of the standard error. The rest is read and dropped, so that the program does not block on the pipe.
async fn beginning(complaint: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(complaint) = complaint {
        let mut complaint = complaint.take(COMPLAINT_BYTES_MAX);
        complaint.read_to_end(&mut bytes).await?;
        tokio::io::copy(&mut complaint.into_inner(), &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
