//! Looking: the relist over all pods, and one pod in full.
//!
//! In: nothing or a pod UID. Out: [`ListedPod`]s or a [`PodObservation`].
//! Invariants: objects without the kubelet's labels do not exist for us; an object that vanishes between list and
//! status is left out; any other failure fails the whole observation, so that absence is never made up; what a status
//! said before is taken only while the list shows nothing else (`status_cache`).

use std::collections::{BTreeMap, BTreeSet};

use agent_kubelet_api::drivers::{PodObservation, Sandboxes};
use agent_types::failure::DriverError;
use agent_types::ids::{PodKey, PodUid};
use agent_types::runtime::labels;
use agent_types::runtime::observed::{
    ContainerObserved, ListedPod, ListedSandbox, SandboxObserved, SandboxState,
};
use futures_util::{StreamExt as _, stream};
use orlop_proto::cri::v1;
use tonic::Code;

use crate::CriClient;
use crate::convert::observed;
use crate::error::CallError;
use crate::existing::pod_selector;

/// Status calls under way at once for one pod.
const STATUS_CALLS_MAX: usize = 8;

impl CriClient {
    pub(crate) async fn list_pods(&self) -> Result<Vec<ListedPod>, DriverError> {
        let (sandboxes, containers) =
            futures_util::try_join!(self.list_sandboxes(None), self.list_containers(None))?;
        let pods = group(sandboxes, containers);
        let there: BTreeSet<&PodUid> = pods.iter().map(|p| &p.pod.uid).collect();
        self.known.retain(|uid| there.contains(uid));
        Ok(pods)
    }

    pub(crate) async fn inspect_pod(
        &self,
        uid: &PodUid,
    ) -> Result<(Option<PodKey>, PodObservation), DriverError> {
        let look = self.known.look();
        let (sandboxes, containers) =
            futures_util::try_join!(self.list_sandboxes(Some(uid)), self.list_containers(Some(uid)))?;
        let key = sandboxes
            .iter()
            .map(|s| &s.labels)
            .chain(containers.iter().map(|c| &c.labels))
            .find_map(observed::pod_key);
        let listed_sandboxes: Vec<_> =
            sandboxes.iter().map(|s| (s.id.as_str(), observed::sandbox_state(s.state))).collect();
        let listed_containers: Vec<_> =
            containers.iter().map(|c| (c.id.as_str(), observed::container_state(c.state))).collect();
        let (of_sandboxes, of_containers) =
            self.known.split(uid, &listed_sandboxes, &listed_containers, look);
        let to_ask = containers.into_iter().filter(|c| of_containers.to_ask.contains(&c.id));
        let (mut sandboxes, mut containers) = futures_util::try_join!(
            gather(of_sandboxes.to_ask.into_iter().map(|id| self.sandbox_status(id))),
            gather(to_ask.map(|c| self.container_status(c.id, c.pod_sandbox_id))),
        )?;
        self.known.keep(uid, &sandboxes, &containers, look);
        sandboxes.extend(of_sandboxes.known);
        containers.extend(of_containers.known);
        sandboxes.sort_by(|a, b| (b.attempt, b.created, &b.id).cmp(&(a.attempt, a.created, &a.id)));
        Ok((key, PodObservation { sandboxes, containers: containers.into(), actuated: None }))
    }

    pub(crate) async fn list_sandboxes(
        &self,
        uid: Option<&PodUid>,
    ) -> Result<Vec<v1::PodSandbox>, CallError> {
        let filter = v1::PodSandboxFilter { label_selector: pod_selector(uid), ..Default::default() };
        let request = v1::ListPodSandboxRequest { filter: Some(filter) };
        let call = self.ordinary("ListPodSandbox", uid.map_or("all", PodUid::as_str));
        let answer =
            self.runtime(call, request, |mut c, r| async move { c.list_pod_sandbox(r).await }).await?;
        Ok(answer.items)
    }

    pub(crate) async fn list_containers(
        &self,
        uid: Option<&PodUid>,
    ) -> Result<Vec<v1::Container>, CallError> {
        let filter = v1::ContainerFilter { label_selector: pod_selector(uid), ..Default::default() };
        let request = v1::ListContainersRequest { filter: Some(filter) };
        let call = self.ordinary("ListContainers", uid.map_or("all", PodUid::as_str));
        let answer =
            self.runtime(call, request, |mut c, r| async move { c.list_containers(r).await }).await?;
        Ok(answer.containers)
    }

    async fn sandbox_status(&self, id: String) -> Result<Option<SandboxObserved>, CallError> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.clone(), verbose: false };
        let call = self.ordinary("PodSandboxStatus", &id);
        let answer =
            self.runtime(call, request, |mut c, r| async move { c.pod_sandbox_status(r).await }).await;
        Ok(unless_gone(answer)?.and_then(|a| a.status).map(observed::sandbox))
    }

    async fn container_status(
        &self,
        id: String,
        sandbox_id: String,
    ) -> Result<Option<ContainerObserved>, CallError> {
        let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose: false };
        let call = self.ordinary("ContainerStatus", &id);
        let answer = self.runtime(call, request, |mut c, r| async move { c.container_status(r).await }).await;
        Ok(unless_gone(answer)?.and_then(|a| a.status).map(|s| observed::container(&sandbox_id, s)))
    }
}

impl Sandboxes for CriClient {
    async fn sandboxes(&self) -> Result<Vec<ListedSandbox>, DriverError> {
        Ok(self.list_sandboxes(None).await?.into_iter().filter_map(listed_sandbox).collect())
    }
}

fn listed_sandbox(sandbox: v1::PodSandbox) -> Option<ListedSandbox> {
    let pod = observed::pod_key(&sandbox.labels)?;
    Some(ListedSandbox {
        uid: pod.uid,
        attempt: sandbox.metadata.map_or(0, |metadata| metadata.attempt),
        ready: observed::sandbox_state(sandbox.state) == SandboxState::Ready,
        shim_group: sandbox.annotations.get(labels::SHIM_GROUP).cloned(),
        id: sandbox.id.into(),
    })
}

fn unless_gone<A>(answer: Result<A, CallError>) -> Result<Option<A>, CallError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.code == Code::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs the calls, a few at once; stops at the first failure.
async fn gather<T>(
    calls: impl Iterator<Item = impl Future<Output = Result<Option<T>, CallError>>>,
) -> Result<Vec<T>, CallError> {
    let mut answers = stream::iter(calls).buffer_unordered(STATUS_CALLS_MAX);
    let mut found = Vec::new();
    while let Some(answer) = answers.next().await {
        found.extend(answer?);
    }
    Ok(found)
}

/// Lists joined by pod UID, in order of UID.
fn group(sandboxes: Vec<v1::PodSandbox>, containers: Vec<v1::Container>) -> Vec<ListedPod> {
    let mut pods: BTreeMap<PodUid, ListedPod> = BTreeMap::new();
    let empty = |pod| ListedPod { pod, sandboxes: BTreeMap::new(), containers: BTreeMap::new() };
    for s in sandboxes {
        if let Some(key) = observed::pod_key(&s.labels) {
            let pod = pods.entry(key.uid.clone()).or_insert_with(|| empty(key));
            let ready = observed::sandbox_state(s.state) == SandboxState::Ready;
            pod.sandboxes.insert(s.id.into(), ready);
        }
    }
    for c in containers {
        if let Some(key) = observed::pod_key(&c.labels) {
            let pod = pods.entry(key.uid.clone()).or_insert_with(|| empty(key));
            pod.containers.insert(c.id.into(), c.state);
        }
    }
    pods.into_values().collect()
}
