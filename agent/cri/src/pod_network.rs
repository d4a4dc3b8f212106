//! [`PodNetwork`] over CRI `UpdateRuntimeConfig`: the runtime hears which addresses its pods have.

use agent_kubelet_api::drivers::PodNetwork;
use agent_types::failure::DriverError;
use orlop_proto::cri::v1;

use crate::CriClient;

impl PodNetwork for CriClient {
    async fn update_pod_cidr(&self, cidrs: &[String]) -> Result<(), DriverError> {
        let pod_cidr = cidrs.join(",");
        let call = self.ordinary("UpdateRuntimeConfig", &pod_cidr);
        let network_config = Some(v1::NetworkConfig { pod_cidr: pod_cidr.clone() });
        let runtime_config = Some(v1::RuntimeConfig { network_config });
        let request = v1::UpdateRuntimeConfigRequest { runtime_config };
        self.runtime(call, request, |mut c, r| async move { c.update_runtime_config(r).await }).await?;
        Ok(())
    }
}
