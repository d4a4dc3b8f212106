//! The calls of the protocol's service `Operations`.

use orlop_proto::node_api::v1alpha1::operations_server::Operations;
use orlop_proto::node_api::v1alpha1::{
    FactoryResetRequest, OperationRequest, OperationStatus, RestartServiceRequest, RollbackRequest,
    StopRequest, UpgradeRequest,
};
use tonic::{Request, Response, Status};

use super::handle::OperationStream;
use super::record::OperationVerb;
use super::request;
use crate::areas::ApiArea;
use crate::calls::{NodeApi, asks, class};
use crate::connection::CallPeer;
use crate::guard::{self, Role};
use crate::refusal::{Reason, Refusal};
use crate::shares::held;

/// The caller, for the record of an operation. A user of the cluster, whose name may have any form, is in quotes.
fn by(caller: Option<&CallPeer>) -> String {
    let known = caller.and_then(|caller| Some((caller.identity.as_ref().ok()?, caller.door)));
    known.map_or_else(String::new, |(who, door)| match who.role {
        Role::Cluster => format!("{:?} ({}, {door})", who.name, who.role.name()),
        Role::Operator | Role::Admin => format!("{} ({}, {door})", who.name, who.role.name()),
    })
}

/// Who may give up a node's state: those who may change its configuration, and no user of the cluster.
fn may_reset(caller: Option<&CallPeer>) -> Result<(), Refusal> {
    // A call without a connection is ended before its work begins.
    let missing = || Refusal::new(Reason::NotTrusted, "call", "it has no connection");
    let identity = caller.ok_or_else(missing)?.identity.as_ref().map_err(Clone::clone)?;
    guard::admin(identity)
}

impl NodeApi {
    async fn stop(
        &self,
        request: Request<StopRequest>,
        method: &'static str,
        what: OperationVerb,
    ) -> Result<Response<OperationStatus>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Operations).await;
        let (by, request) = (by(caller.as_ref()), request.into_inner());
        let object = request.id.clone();
        let work = async {
            let wish = request::stop(&request, what, by)?;
            self.0.operations.begin(wish).await
        };
        self.call(caller, method, object, work).await
    }
}

#[tonic::async_trait]
impl Operations for NodeApi {
    type WatchStream = OperationStream;

    async fn reboot(&self, request: Request<StopRequest>) -> Result<Response<OperationStatus>, Status> {
        self.stop(request, "Operations.Reboot", OperationVerb::Reboot).await
    }

    async fn shutdown(&self, request: Request<StopRequest>) -> Result<Response<OperationStatus>, Status> {
        self.stop(request, "Operations.Shutdown", OperationVerb::Shutdown).await
    }

    async fn restart_service(
        &self,
        request: Request<RestartServiceRequest>,
    ) -> Result<Response<OperationStatus>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Operations).await;
        let (by, request) = (by(caller.as_ref()), request.into_inner());
        let object = format!("{} {}", request.id, request.unit);
        let work = async {
            let wish = request::restart(&request, by)?;
            self.0.operations.begin(wish).await
        };
        self.call(caller, "Operations.RestartService", object, work).await
    }

    async fn factory_reset(
        &self,
        request: Request<FactoryResetRequest>,
    ) -> Result<Response<OperationStatus>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Operations).await;
        let (by, request) = (by(caller.as_ref()), request.into_inner());
        let allowed = may_reset(caller.as_ref());
        let object = format!("{} {}", request.id, request.scope);
        let work = async {
            allowed?;
            let wish = request::reset(&request, by)?;
            self.0.operations.begin(wish).await
        };
        self.call(caller, "Operations.FactoryReset", object, work).await
    }

    async fn upgrade(&self, request: Request<UpgradeRequest>) -> Result<Response<OperationStatus>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Operations).await;
        let (by, request) = (by(caller.as_ref()), request.into_inner());
        let how = if request.stage_only { "stage" } else { "now" };
        let object = format!("{} {how} {}", request.id, request.version);
        let work = async {
            let wish = request::upgrade(&request, by)?;
            self.0.operations.begin(wish).await
        };
        self.call(caller, "Operations.Upgrade", object, work).await
    }

    async fn rollback(&self, request: Request<RollbackRequest>) -> Result<Response<OperationStatus>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Operations).await;
        let (by, request) = (by(caller.as_ref()), request.into_inner());
        let object = request.id.clone();
        let work = async {
            let wish = request::rollback(&request, by)?;
            self.0.operations.begin(wish).await
        };
        self.call(caller, "Operations.Rollback", object, work).await
    }

    async fn get(&self, request: Request<OperationRequest>) -> Result<Response<OperationStatus>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Status).await;
        let id = request.into_inner().id;
        let work = self.0.operations.get(&id);
        self.call(caller, "Operations.Get", id.clone(), work).await
    }

    async fn watch(&self, request: Request<OperationRequest>) -> Result<Response<OperationStream>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Status).await;
        let id = request.into_inner().id;
        let class = class(caller.as_ref());
        let work = async {
            let share = self.0.shares.operations.take(class)?;
            Ok::<_, Refusal>(held(self.0.operations.watch(&id).await?, share))
        };
        self.call(caller, "Operations.Watch", id.clone(), work).await
    }

    async fn cancel(&self, request: Request<OperationRequest>) -> Result<Response<OperationStatus>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Operations).await;
        let id = request.into_inner().id;
        let work = self.0.operations.cancel(id.clone());
        self.call(caller, "Operations.Cancel", id, work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Door, Identity, Peer};

    #[test]
    fn only_an_administrator_gives_up_the_state_of_a_node() {
        let of = |identity| {
            let caller = CallPeer::new(Door::Tcp, Peer::Machine { cid: 2 }, identity);
            may_reset(Some(&caller)).map_err(|refusal| refusal.reason)
        };
        let with = |role| of(Ok(Identity { name: "ops-1".to_owned(), role }));
        assert_eq!(with(Role::Admin), Ok(()));
        assert_eq!(with(Role::Operator), Err(Reason::RoleTooLow));
        assert_eq!(with(Role::Cluster), Err(Reason::RoleTooLow));
        assert_eq!(of(Err(Refusal::new(Reason::UnknownKey, "x", "no"))), Err(Reason::UnknownKey));
        assert!(may_reset(None).is_err());
    }

    #[test]
    fn a_name_of_a_user_of_the_cluster_looks_like_no_administrator() {
        let of = |name: &str, role| {
            let identity = Identity { name: name.to_owned(), role };
            by(Some(&CallPeer::new(Door::Tcp, Peer::Machine { cid: 2 }, Ok(identity))))
        };
        assert_eq!(of("ops-1", Role::Admin), "ops-1 (admin, tcp)");
        assert_eq!(of("ops-1", Role::Cluster), "\"ops-1\" (cluster, tcp)");
        let false_name = of("ops-1 (admin, tcp)\" x", Role::Cluster);
        assert_eq!(false_name, r#""ops-1 (admin, tcp)\" x" (cluster, tcp)"#);
        let stranger = CallPeer::new(
            Door::Tcp,
            Peer::Machine { cid: 2 },
            Err(Refusal::new(Reason::UnknownKey, "x", "no")),
        );
        assert_eq!((by(Some(&stranger)), by(None)), (String::new(), String::new()));
    }
}
