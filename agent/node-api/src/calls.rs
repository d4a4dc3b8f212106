//! What every call passes: who asks, whether that is allowed, the work, the record.
//!
//! In: requests of the services. Out: answers and refusals. Invariants: a call without an identity does no work; every call has one record;
//! users of the cluster have a share of the places of readers alone.

use std::sync::Arc;

use agent_kubelet_api::server_policy::bearer_token;
use orlop_proto::node_api::v1alpha1::{GetRequest, GetResponse};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::answers;
use crate::areas::ApiArea;
use crate::capture::CapturePlaces;
use crate::cluster::ClusterIdentities;
use crate::collect::{Collector, THREADS, node_config};
use crate::connection::CallPeer;
use crate::facts::accepts_cluster;
use crate::gate::Gate;
use crate::guard::{CallerClass, Door};
use crate::kinds::{self, ObjectKind};
use crate::logs::{LogReader, STREAMS_MAX as READERS_MAX};
use crate::operations::handle::{OperationHandle, WATCHERS_MAX};
use crate::refusal::Refusal;
use crate::shares::UserShare;
use crate::watching::WATCHES_MAX;

/// Characters of an object in the log.
const OBJECT_CHARS_MAX: usize = 200;

/// What users of the cluster may take of the places of readers.
#[derive(Debug)]
pub(crate) struct UserShares {
    pub(crate) logs: UserShare,
    pub(crate) changes: UserShare,
    pub(crate) operations: UserShare,
    pub(crate) config: UserShare,
}

impl Default for UserShares {
    fn default() -> UserShares {
        UserShares {
            logs: UserShare::of("logs", READERS_MAX),
            changes: UserShare::of("objects", WATCHES_MAX),
            operations: UserShare::of("operations", WATCHERS_MAX),
            config: UserShare::of("configuration", THREADS),
        }
    }
}

/// What the services work with.
#[derive(Debug)]
pub(crate) struct ApiParts {
    pub(crate) collector: Arc<Collector>,
    pub(crate) logs: LogReader,
    pub(crate) operations: OperationHandle,
    pub(crate) cluster: ClusterIdentities,
    /// Places of readers of changes.
    pub(crate) watches: Arc<Semaphore>,
    pub(crate) captures: CapturePlaces,
    pub(crate) shares: UserShares,
    pub(crate) gate: Arc<Gate>,
    pub(crate) version: String,
    /// Fingerprint of the key in the network.
    pub(crate) server_key: String,
}

/// The services; clones are the same server.
#[derive(Clone, Debug)]
pub(crate) struct NodeApi(pub(crate) Arc<ApiParts>);

impl NodeApi {
    /// Who asks for something of this area: by the connection, or by the token of the call.
    pub(crate) async fn caller(&self, asks: AskingCall, area: ApiArea) -> Option<CallPeer> {
        let AskingCall { caller, token } = asks;
        let mut caller = caller?;
        let Some(token) = token.filter(|_| caller.identity.is_err() && caller.door == Door::Tcp) else {
            return Some(caller);
        };
        if !accepts_cluster(&node_config(&self.0.collector.sources().root)) {
            return Some(caller);
        }
        caller.identity = match self.0.cluster.known(&token, area) {
            Some(identity) => Ok(identity),
            None => {
                caller.is_counted = true;
                match self.0.gate.admit_token(caller.door) {
                    Ok(()) => self.0.cluster.identify(caller.peer, &token, area).await,
                    Err(refusal) => Err(refusal),
                }
            }
        };
        if caller.identity.is_ok() {
            caller.prove();
        }
        Some(caller)
    }

    /// The answer to a request, as it is now.
    pub(crate) async fn snapshot(&self, request: &GetRequest) -> Result<GetResponse, Refusal> {
        let kinds: Vec<ObjectKind> = kinds::requested(request)?;
        let mut facts = self.0.collector.collect(&kinds).await?;
        if kinds.contains(&ObjectKind::Operations) {
            facts.operations = Some(self.0.operations.list().await);
        }
        answers::get(request, &facts)
    }

    /// Admits a call, does its work and records it.
    pub(crate) async fn call<T>(
        &self,
        caller: Option<CallPeer>,
        method: &'static str,
        object: String,
        work: impl Future<Output = Result<T, Refusal>> + Send,
    ) -> Result<Response<T>, Status> {
        // Every connection of the doors has one.
        let Some(caller) = caller else { return Err(Status::internal("a call without a connection")) };
        let object = short(&object);
        let result = match self.0.gate.admit(&caller) {
            Ok(()) => work.await,
            Err(refusal) => Err(refusal),
        };
        self.0.gate.record(&caller, method, &object, result.as_ref().err());
        result.map(Response::new).map_err(Status::from)
    }
}

/// Words of a request for the log: printable, and not too many.
fn short(text: &str) -> String {
    agent_core::console::text::clean(text, OBJECT_CHARS_MAX)
}

/// What a call has to say who it is from.
pub(crate) struct AskingCall {
    caller: Option<CallPeer>,
    /// A bearer token (RFC 6750).
    token: Option<String>,
}

pub(crate) fn asks<T>(request: &Request<T>) -> AskingCall {
    let header = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
    AskingCall {
        caller: request.extensions().get::<CallPeer>().cloned(),
        token: header.and_then(bearer_token).map(str::to_owned),
    }
}

/// The class of a caller.
pub(crate) fn class(caller: Option<&CallPeer>) -> CallerClass {
    caller.map_or(CallerClass::Stranger, |caller| CallerClass::of(&caller.identity))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::sync::watch;

    use super::*;
    use crate::collect::Sources;
    use crate::guard::{Identity, Peer, Role};
    use crate::operations::keeper::keeper;
    use crate::operations::notices::notices;
    use crate::refusal::Reason;

    fn of(identity: Result<Identity, Refusal>) -> CallPeer {
        CallPeer::new(Door::Vsock, Peer::Machine { cid: 2 }, identity)
    }

    fn stranger() -> CallPeer {
        of(Err(Refusal::new(Reason::NotTrusted, "cid 2", "this node does not trust the host of its machine")))
    }

    fn api() -> NodeApi {
        let collector = Arc::new(Collector::new(Sources::default()));
        let (notices, _notice_task) = notices(Path::new("/nowhere"));
        let (operations, _keeper) = keeper(collector.clone(), watch::channel(0).0, notices);
        let parts = ApiParts {
            collector,
            logs: LogReader::new(),
            operations,
            cluster: ClusterIdentities::new(Path::new("/nowhere")),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
            captures: CapturePlaces::default(),
            shares: UserShares::default(),
            gate: Arc::default(),
            version: "1".to_owned(),
            server_key: String::new(),
        };
        NodeApi(Arc::new(parts))
    }

    #[tokio::test]
    async fn a_stranger_s_call_does_no_work() {
        let mut done = false;
        let work = async {
            done = true;
            Ok::<_, Refusal>(())
        };
        let refused = api().call(Some(stranger()), "Node.Get", "node".to_owned(), work).await;
        assert_eq!(refused.unwrap_err().code(), tonic::Code::Unauthenticated);
        assert!(!done);
    }

    #[tokio::test]
    async fn a_flood_at_one_door_costs_the_other_nothing() {
        let api = api();
        let ask = |caller: CallPeer| {
            api.call(Some(caller), "Node.Kinds", String::new(), async { Ok::<_, Refusal>(()) })
        };
        let mut codes = Vec::new();
        for _ in 0..200 {
            codes.push(ask(stranger()).await.unwrap_err().code());
        }
        assert!(codes.contains(&tonic::Code::ResourceExhausted), "{codes:?}");
        let root = Identity { name: "uid 0".to_owned(), role: Role::Operator };
        let root = CallPeer::new(Door::Unix, Peer::Process { uid: 0, pid: None }, Ok(root));
        assert!(ask(root).await.is_ok());
    }

    #[tokio::test]
    async fn a_flood_of_a_user_of_the_cluster_costs_an_administrator_nothing() {
        let api = api();
        let ask = |name: &str, role| {
            let identity = Identity { name: name.to_owned(), role };
            let caller = CallPeer::new(Door::Tcp, Peer::Machine { cid: 2 }, Ok(identity));
            api.call(Some(caller), "Node.Kinds", String::new(), async { Ok::<_, Refusal>(()) })
        };
        let mut codes = Vec::new();
        for _ in 0..200 {
            codes.push(ask("ops", Role::Cluster).await.err().map(|status| status.code()));
        }
        assert!(codes.contains(&Some(tonic::Code::ResourceExhausted)), "{codes:?}");
        assert!(ask("ops-1", Role::Admin).await.is_ok());
    }

    #[tokio::test]
    async fn a_refused_token_is_one_call() {
        let api = api();
        let mut codes = Vec::new();
        for _ in 0..10 {
            let admitted = api.0.gate.admit_token(Door::Vsock);
            assert!(admitted.is_ok(), "{admitted:?}");
            let mut caller = stranger();
            caller.is_counted = true;
            let call = api.call(Some(caller), "Node.Kinds", String::new(), async { Ok::<_, Refusal>(()) });
            codes.push(call.await.unwrap_err().code());
        }
        assert_eq!(codes, [tonic::Code::Unauthenticated; 10]);
    }

    #[test]
    fn words_for_the_log_are_short_and_printable() {
        assert_eq!(short("a\u{1b}[2J\nb"), "a [2J b");
        assert!(short(&"x".repeat(9999)).len() <= OBJECT_CHARS_MAX);
    }
}
