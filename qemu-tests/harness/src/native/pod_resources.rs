//! Client of the pod resources API of a native node's kubelet, over its socket.

use anyhow::{Context, Result};
use orlop_proto::pod_resources::v1::pod_resources_lister_client::PodResourcesListerClient as V1;
use orlop_proto::pod_resources::v1alpha1::pod_resources_lister_client::PodResourcesListerClient as V1alpha1;
use orlop_proto::pod_resources::{v1, v1alpha1};
use tonic::Status;
use tonic::transport::Channel;

use super::cri::channel;
use super::node::NativeNode;

/// The path that upstream's consumers use.
const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// A client of both versions.
pub struct PodResources<'a> {
    node: &'a NativeNode,
    v1: V1<Channel>,
    v1alpha1: V1alpha1<Channel>,
}

impl<'a> PodResources<'a> {
    /// The client of this node; connects at the first request.
    ///
    /// # Errors
    /// If there is no channel.
    pub fn of(node: &'a NativeNode) -> Result<PodResources<'a>> {
        let socket = node.inside(SOCKET);
        let channel = node.cri().block_on(async { channel(&socket) }).context("a channel")?;
        Ok(PodResources { node, v1: V1::new(channel.clone()), v1alpha1: V1alpha1::new(channel) })
    }

    /// All pods that have not ended.
    ///
    /// # Errors
    /// The kubelet's.
    pub fn list(&self) -> Result<Vec<v1::PodResources>, Status> {
        let mut client = self.v1.clone();
        let answer = self.node.cri().block_on(client.list(v1::ListPodResourcesRequest {}))?;
        Ok(answer.into_inner().pod_resources)
    }

    /// All pods, in the API's first version.
    ///
    /// # Errors
    /// The kubelet's.
    pub fn list_of_old(&self) -> Result<Vec<v1alpha1::PodResources>, Status> {
        let mut client = self.v1alpha1.clone();
        let answer = self.node.cri().block_on(client.list(v1alpha1::ListPodResourcesRequest {}))?;
        Ok(answer.into_inner().pod_resources)
    }

    /// One pod of the namespace `default`.
    ///
    /// # Errors
    /// The kubelet's.
    pub fn get(&self, name: &str) -> Result<Option<v1::PodResources>, Status> {
        let mut client = self.v1.clone();
        let request =
            v1::GetPodResourcesRequest { pod_name: name.to_owned(), pod_namespace: "default".to_owned() };
        Ok(self.node.cri().block_on(client.get(request))?.into_inner().pod_resources)
    }

    /// The node's allocatable resources.
    ///
    /// # Errors
    /// The kubelet's.
    pub fn allocatable(&self) -> Result<v1::AllocatableResourcesResponse, Status> {
        let mut client = self.v1.clone();
        let request = v1::AllocatableResourcesRequest {};
        Ok(self.node.cri().block_on(client.get_allocatable_resources(request))?.into_inner())
    }
}
