//! postStart and preStop: resolves the action of a hook from the pod's specification or from a container's
//! annotations.
//!
//! In: handlers, the container, the pod's address. Out: [`HookCall`]s, or the reason why there is nothing to
//! do. The pod worker decides when a hook runs and how its result counts. Upstream:
//! pkg/kubelet/lifecycle/handlers.go.

use agent_types::go_quote::quoted;
use agent_types::ids::{ContainerId, PodKey};
use agent_types::runtime::labels;
use agent_types::runtime::observed::ContainerObserved;
use agent_types::runtime::view::Slot;
use k8s_openapi::api::core::v1::{Container, ContainerPort, Lifecycle, LifecycleHandler, Pod};
use serde::{Deserialize, Serialize};

use crate::probe::check::{HttpGet, http_get};

/// Which hook of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Hook {
    /// After the start; the container has not started before it ends.
    PostStart,
    /// Before the stop, out of the grace.
    PreStop,
}

/// What a hook does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookAction {
    /// Run this in the container, as it is written; exit code 0 is success.
    Exec {
        /// Program and arguments.
        command: Vec<String>,
    },
    /// Any answer is a success, also one with an error status.
    HttpGet {
        /// The request.
        get: HttpGet,
        /// `httpGet.path` as it is written; failures name it.
        path: String,
    },
    /// Nothing, for so long.
    Sleep {
        /// Whole seconds, 0 included.
        seconds: u64,
    },
}

/// One hook to be run by the shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookCall {
    /// The instance.
    pub container: ContainerId,
    /// Its name in the pod.
    pub name: String,
    /// Which hook.
    pub hook: Hook,
    /// What to do.
    pub action: HookAction,
}

/// Why a hook failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookFailure {
    /// The error.
    pub error: String,
    /// What a command printed, as far as the shell keeps it.
    pub output: Vec<u8>,
}

impl From<String> for HookFailure {
    fn from(error: String) -> HookFailure {
        HookFailure { error, output: Vec::new() }
    }
}

/// Message of a container whose postStart hook failed. Upstream: `handlerRunner.Run` of pkg/kubelet/lifecycle/handlers.go.
#[must_use]
pub fn failure_message(call: &HookCall, pod: &PodKey, failure: &HookFailure) -> String {
    let failed = format!("for Container {:?} in Pod \"{pod}\" failed - error: {}", call.name, failure.error);
    match &call.action {
        HookAction::Exec { command } => format!(
            "Exec lifecycle hook ([{}]) {failed}, message: {}",
            command.join(" "),
            quoted(&failure.output)
        ),
        HookAction::HttpGet { path, .. } => format!("HTTP lifecycle hook ({path}) {failed}"),
        HookAction::Sleep { seconds } => format!("Sleep lifecycle hook ({seconds}) {failed}"),
    }
}

/// What `handler` of `container` does.
///
/// # Errors
/// What in it cannot be done: no handler (or a tcpSocket, which never was one), an unknown port name, no address.
pub fn action(handler: &LifecycleHandler, container: &Container, pod_ip: &str) -> Result<HookAction, String> {
    if let Some(exec) = &handler.exec {
        return Ok(HookAction::Exec { command: exec.command.clone().unwrap_or_default() });
    }
    if let Some(http) = &handler.http_get {
        let get = http_get(http, container, pod_ip)?;
        if get.host.is_empty() {
            return Err("the pod has no address yet".to_owned());
        }
        return Ok(HookAction::HttpGet { get, path: http.path.clone().unwrap_or_default() });
    }
    if let Some(sleep) = &handler.sleep {
        return Ok(HookAction::Sleep { seconds: u64::try_from(sleep.seconds).unwrap_or(0) });
    }
    Err(format!("invalid handler of container {}", container.name))
}

/// The container's data for its hook: from the pod, or for an orphan from the container's annotations.
#[must_use]
pub fn with_pre_stop(p: Option<&Pod>, c: &ContainerObserved) -> Option<(Container, LifecycleHandler)> {
    if let Some(p) = p {
        let container = Slot::of(p, &c.name).spec(p)?;
        let handler = container.lifecycle.as_ref()?.pre_stop.clone()?;
        return Some((container.into_owned(), handler));
    }
    let written = |key: &str| c.annotations.get(key).map(String::as_str);
    let handler: LifecycleHandler = serde_json::from_str(written(labels::PRE_STOP_HANDLER)?).ok()?;
    let ports: Option<Vec<ContainerPort>> =
        written(labels::CONTAINER_PORTS).and_then(|text| serde_json::from_str(text).ok());
    let lifecycle = Lifecycle { pre_stop: Some(handler.clone()), ..Lifecycle::default() };
    let name = c.name.clone();
    Some((Container { name, ports, lifecycle: Some(lifecycle), ..Container::default() }, handler))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn act(handler: Value) -> Result<HookAction, String> {
        let container: Container =
            serde_json::from_value(json!({"name": "c", "ports": [{"name": "web", "containerPort": 81}]}))
                .unwrap();
        action(&serde_json::from_value(handler).unwrap(), &container, "10.0.0.7")
    }

    #[test]
    fn failures_in_upstreams_words() {
        let pod = PodKey { namespace: "ns".into(), name: "p".into(), uid: "u".into() };
        let message = |action: Value, failure: HookFailure| {
            let (container, name) = (ContainerId::from("id"), "c".to_owned());
            let call = HookCall { container, name, hook: Hook::PostStart, action: act(action).unwrap() };
            failure_message(&call, &pod, &failure)
        };
        let error = "command 'sh -c x' exited with 1: no".to_owned();
        assert_eq!(
            message(
                json!({"exec": {"command": ["sh", "-c", "x"]}}),
                HookFailure { error, output: b"a\nno".to_vec() }
            ),
            "Exec lifecycle hook ([sh -c x]) for Container \"c\" in Pod \"p_ns(u)\" failed - error: command 'sh -c x' \
             exited with 1: no, message: \"a\\nno\""
        );
        for path in ["/x", "healthz", "//foo/bar", "/a b#c"] {
            assert_eq!(
                message(json!({"httpGet": {"port": 80, "path": path}}), "gone".to_owned().into()),
                format!(
                    "HTTP lifecycle hook ({path}) for Container \"c\" in Pod \"p_ns(u)\" failed - error: gone"
                )
            );
        }
        assert_eq!(
            message(json!({"httpGet": {"port": 80}}), "gone".to_owned().into()),
            "HTTP lifecycle hook () for Container \"c\" in Pod \"p_ns(u)\" failed - error: gone"
        );
        assert_eq!(
            message(json!({"sleep": {"seconds": 3}}), "over".to_owned().into()),
            "Sleep lifecycle hook (3) for Container \"c\" in Pod \"p_ns(u)\" failed - error: over"
        );
    }

    #[test]
    fn handlers() {
        let command = ["sh", "-c", "$(A)"].map(str::to_owned).to_vec();
        assert_eq!(
            act(json!({"exec": {"command": ["sh", "-c", "$(A)"]}})),
            Ok(HookAction::Exec { command }),
            "a shell's own business"
        );
        assert_eq!(act(json!({"sleep": {"seconds": 0}})), Ok(HookAction::Sleep { seconds: 0 }));
        assert_eq!(act(json!({"sleep": {"seconds": -3}})), Ok(HookAction::Sleep { seconds: 0 }));
        let Ok(HookAction::HttpGet { get, .. }) = act(json!({"httpGet": {"port": "web", "path": "/x"}}))
        else {
            panic!("a GET")
        };
        assert_eq!(get.url(), "http://10.0.0.7:81/x");
        assert_eq!(act(json!({"httpGet": {"port": "nowhere"}})).unwrap_err(), "port nowhere not found");
        for nothing in [json!({}), json!({"tcpSocket": {"port": 1}})] {
            assert_eq!(act(nothing).unwrap_err(), "invalid handler of container c");
        }
    }
}
