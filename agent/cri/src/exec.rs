//! [`Exec`] over CRI `ExecSync`, [`Checkpoints`] over `CheckpointContainer`, [`ContainerLogs`] over `ReopenContainerLog`. The
//! runtime ends a command at the timeout; our deadline is the request timeout later, or none if it may run for ever.

use std::time::Duration;

use agent_kubelet_api::drivers::{Checkpoints, ContainerLogs, Exec, ExecOutput};
use agent_types::failure::DriverError;
use agent_types::ids::ContainerId;
use orlop_proto::cri::v1;

use crate::CriClient;
use crate::client::Call;

impl Exec for CriClient {
    async fn exec_sync(
        &self,
        container: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, DriverError> {
        let timeout = timeout.filter(|t| !t.is_zero());
        let request = v1::ExecSyncRequest {
            container_id: container.to_string(),
            cmd: command.to_vec(),
            timeout: timeout.map_or(0, whole_seconds),
        };
        let deadline = timeout.map(|t| t.saturating_add(self.request_timeout()));
        let call = Call { operation: "ExecSync", object: container.as_str(), deadline };
        let answer = self.runtime(call, request, |mut c, r| async move { c.exec_sync(r).await }).await?;
        Ok(ExecOutput { exit_code: answer.exit_code, stdout: answer.stdout, stderr: answer.stderr })
    }
}

impl ContainerLogs for CriClient {
    async fn reopen_log(&self, container: &ContainerId) -> Result<(), DriverError> {
        let request = v1::ReopenContainerLogRequest { container_id: container.to_string() };
        let call = self.ordinary("ReopenContainerLog", container.as_str());
        self.runtime(call, request, |mut c, r| async move { c.reopen_container_log(r).await }).await?;
        Ok(())
    }
}

impl Checkpoints for CriClient {
    async fn checkpoint(
        &self,
        container: &ContainerId,
        location: &str,
        timeout_s: i64,
    ) -> Result<(), DriverError> {
        let request = v1::CheckpointContainerRequest {
            container_id: container.to_string(),
            location: location.to_owned(),
            timeout: timeout_s,
        };
        let asked = u64::try_from(timeout_s).ok().filter(|s| *s > 0).map(Duration::from_secs);
        let deadline = Some(asked.unwrap_or_default().saturating_add(self.request_timeout()));
        let call = Call { operation: "CheckpointContainer", object: container.as_str(), deadline };
        self.runtime(call, request, |mut c, r| async move { c.checkpoint_container(r).await }).await?;
        Ok(())
    }
}

/// Rounded up: 0 would mean no limit.
fn whole_seconds(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_timeout_is_not_no_timeout() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_millis(1000)), 1);
        assert_eq!(whole_seconds(Duration::from_millis(1001)), 2);
    }
}
