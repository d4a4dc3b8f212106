//! [`Streaming`] over CRI `Exec`, `Attach` and `PortForward`: the runtime says where its streaming server waits.

use agent_kubelet_api::drivers::Streaming;
use agent_kubelet_api::streaming::StreamOptions;
use agent_types::failure::DriverError;
use agent_types::ids::{ContainerId, SandboxId};
use orlop_proto::cri::v1;

use crate::CriClient;

impl Streaming for CriClient {
    async fn exec_url(
        &self,
        container: &ContainerId,
        options: &StreamOptions,
    ) -> Result<String, DriverError> {
        let call = self.ordinary("Exec", container.as_str());
        let request = v1::ExecRequest {
            container_id: container.to_string(),
            cmd: options.command.clone(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
        };
        let answer = self.runtime(call, request, |mut c, r| async move { c.exec(r).await }).await?;
        Ok(answer.url)
    }

    async fn attach_url(
        &self,
        container: &ContainerId,
        options: &StreamOptions,
    ) -> Result<String, DriverError> {
        let call = self.ordinary("Attach", container.as_str());
        let request = v1::AttachRequest {
            container_id: container.to_string(),
            stdin: options.stdin,
            tty: options.tty,
            stdout: options.stdout,
            stderr: options.stderr,
        };
        let answer = self.runtime(call, request, |mut c, r| async move { c.attach(r).await }).await?;
        Ok(answer.url)
    }

    async fn port_forward_url(&self, sandbox: &SandboxId, ports: &[u16]) -> Result<String, DriverError> {
        let call = self.ordinary("PortForward", sandbox.as_str());
        let port = ports.iter().map(|port| i32::from(*port)).collect();
        let request = v1::PortForwardRequest { pod_sandbox_id: sandbox.to_string(), port };
        let answer = self.runtime(call, request, |mut c, r| async move { c.port_forward(r).await }).await?;
        Ok(answer.url)
    }
}
