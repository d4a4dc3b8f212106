//! Finding what a create call says is there already: the reply to an earlier call was lost, or a predecessor made
//! it. In: the configuration and the refusal. Out: the id of the object of the same pod UID (sandbox), name and
//! attempt, or an error that says why the name is taken although no such object is listed.

use std::collections::HashMap;

use agent_types::failure::{Class, DriverError};
use agent_types::ids::{ContainerId, PodKey, PodUid, SandboxId};
use agent_types::runtime::config::{ContainerConfig, SandboxConfig};
use agent_types::runtime::labels;
use orlop_proto::cri::v1;

use crate::CriClient;
use crate::error::CallError;

/// A creation that still holds the name ends within the deadline it was given; no use asking at once.
const IN_PROGRESS_RETRY_MS: u64 = 1000;

impl CriClient {
    pub(crate) async fn existing_sandbox(
        &self,
        config: &SandboxConfig,
        refusal: CallError,
    ) -> Result<SandboxId, DriverError> {
        let listed = self.list_sandboxes(Some(&config.pod.uid)).await?;
        let same = |s: &v1::PodSandbox| s.metadata.as_ref().is_some_and(|m| m.attempt == config.attempt);
        match listed.into_iter().find(same) {
            Some(sandbox) => {
                tracing::info!(pod = %config.pod, attempt = config.attempt, sandbox = sandbox.id, "sandbox exists");
                Ok(sandbox.id.into())
            }
            None => Err(self.still_in_progress(refusal)),
        }
    }

    pub(crate) async fn existing_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        pod: &PodKey,
        refusal: CallError,
    ) -> Result<ContainerId, DriverError> {
        let listed = self.list_containers(Some(&pod.uid)).await?;
        let wanted = (config.name.as_str(), config.attempt);
        let same =
            |c: &v1::Container| c.metadata.as_ref().is_some_and(|m| (m.name.as_str(), m.attempt) == wanted);
        let Some(found) = listed.into_iter().find(same) else { return Err(self.still_in_progress(refusal)) };
        if found.pod_sandbox_id != sandbox.as_str() {
            let message = format!(
                "attempt {} exists already as {} in another sandbox, {}; create the next attempt",
                config.attempt, found.id, found.pod_sandbox_id
            );
            let error = DriverError { class: Class::AlreadyExists, message, ..refusal.driver };
            self.log_failure(&error);
            return Err(error);
        }
        tracing::info!(pod = %pod, container = config.name, attempt = config.attempt, id = found.id, "container exists");
        Ok(found.id.into())
    }

    fn still_in_progress(&self, refusal: CallError) -> DriverError {
        let message =
            format!("{}; no such object is listed, so its creation is in progress", refusal.driver.message);
        let class = Class::Retryable { after_ms: IN_PROGRESS_RETRY_MS };
        let error = DriverError { class, message, ..refusal.driver };
        self.log_failure(&error);
        error
    }
}

/// Selects one pod's objects.
pub(crate) fn pod_selector(uid: Option<&PodUid>) -> HashMap<String, String> {
    uid.map(|uid| (labels::POD_UID.to_owned(), uid.to_string())).into_iter().collect()
}
