//! Hooks: only their end matters; what a failed command printed goes into the failure.

use std::time::Duration;

use agent_core::lifecycle_hooks::{HookAction, HookCall, HookFailure};
use agent_core::probe::check::{HttpGet, Scheme};
use agent_kubelet_api::drivers::Exec;
use tokio::time::{Instant, sleep_until};

use super::command::both;
use super::http::{HttpClient, HttpError};

/// `User-Agent` of hooks.
const HOOK_AGENT: &str = "kube-lifecycle/1.36";

/// Runs a hook to its end; see [`super::Handlers::hook`].
pub(super) async fn run(
    exec: &impl Exec,
    http: &HttpClient,
    call: &HookCall,
) -> Result<Option<String>, HookFailure> {
    match &call.action {
        HookAction::Exec { command } => match exec.exec_sync(&call.container, command, None).await {
            Ok(output) if output.exit_code == 0 => Ok(None),
            Ok(output) => {
                let (code, stderr) = (output.exit_code, both(&[], &output.stderr));
                let stderr = String::from_utf8_lossy(&stderr);
                let error = format!("command '{}' exited with {code}: {stderr}", command.join(" "));
                Err(HookFailure { error, output: both(&output.stdout, &output.stderr) })
            }
            Err(error) => Err(error.to_string().into()),
        },
        HookAction::HttpGet { get, .. } => request(http, get).await.map_err(HookFailure::from),
        HookAction::Sleep { seconds } => {
            let now = Instant::now();
            // Beyond the range of the clock: forever.
            match now.checked_add(Duration::from_secs(*seconds)) {
                // The hook itself is the wait.
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
            Ok(None)
        }
    }
}

/// Any answer will do. A server that speaks plain text where TLS was expected is asked again in plain text, without
/// the credentials that were meant for TLS.
async fn request(http: &HttpClient, get: &HttpGet) -> Result<Option<String>, String> {
    let error = match http.get(get, HOOK_AGENT).await {
        Ok(_) | Err(HttpError::Body(_)) => return Ok(None),
        Err(error) => error,
    };
    if !matches!(error, HttpError::NoTls { .. }) || get.scheme != Scheme::Https {
        return Err(error.to_string());
    }
    let mut plain = HttpGet { scheme: Scheme::Http, ..get.clone() };
    plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    match http.get(&plain, HOOK_AGENT).await {
        Ok(_) | Err(HttpError::Body(_)) => Ok(Some(get.authority())),
        Err(_) => Err(error.to_string()),
    }
}
