//! The calls of the protocol's services `Node` and `Logs`.

use orlop_proto::node_api::v1alpha1::logs_server::Logs;
use orlop_proto::node_api::v1alpha1::node_server::Node;
use orlop_proto::node_api::v1alpha1::{
    GetRequest, GetResponse, KindsRequest, KindsResponse, ListRequest, ListResponse, PodLogRequest,
    ReadRequest, VersionInfo, VersionRequest,
};
use tonic::{Request, Response, Status};

use crate::answers;
use crate::areas::ApiArea;
use crate::calls::{NodeApi, asks, class};
use crate::kinds;
use crate::logs::LogStream;
use crate::pod_logs;
use crate::refusal::{Reason, Refusal};
use crate::shares::held;
use crate::watching::{self, WATCHES_MAX, WatchStream};

#[tonic::async_trait]
impl Node for NodeApi {
    async fn version(&self, request: Request<VersionRequest>) -> Result<Response<VersionInfo>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Status).await;
        let work = async {
            let facts = self.0.collector.collect(&[]).await?;
            Ok::<_, Refusal>(answers::version(&self.0.version, &self.0.server_key, &facts))
        };
        self.call(caller, "Node.Version", String::new(), work).await
    }

    async fn kinds(&self, request: Request<KindsRequest>) -> Result<Response<KindsResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Status).await;
        let work = async { Ok::<_, Refusal>(KindsResponse { kinds: kinds::table() }) };
        self.call(caller, "Node.Kinds", String::new(), work).await
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Status).await;
        let request = request.into_inner();
        let object = format!("{} {}", request.kinds.join(","), request.names.join(","));
        let work = self.snapshot(&request);
        self.call(caller, "Node.Get", object, work).await
    }

    type WatchStream = WatchStream;

    async fn watch(&self, request: Request<GetRequest>) -> Result<Response<WatchStream>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Status).await;
        let request = request.into_inner();
        let object = format!("{} {}", request.kinds.join(","), request.names.join(","));
        let class = class(caller.as_ref());
        let work = async {
            let share = self.0.shares.changes.take(class)?;
            let place = self.0.watches.clone().try_acquire_owned().map_err(|_| {
                let message = format!("{WATCHES_MAX} readers of changes are there already");
                Refusal::new(Reason::TooManyStreams, "objects", message)
            })?;
            Ok::<_, Refusal>(held(watching::watch(self.clone(), request, place).await?, share))
        };
        self.call(caller, "Node.Watch", object, work).await
    }
}

#[tonic::async_trait]
impl Logs for NodeApi {
    type ReadStream = LogStream;
    type ReadPodStream = LogStream;

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Logs).await;
        let work = self.0.logs.list(&self.0.collector);
        self.call(caller, "Logs.List", String::new(), work).await
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<LogStream>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Logs).await;
        let request = request.into_inner();
        let object = match (request.file.as_str(), request.kernel) {
            ("", true) => "kernel".to_owned(),
            ("", false) => request.units.join(","),
            (file, _) => format!("file {file}"),
        };
        let class = class(caller.as_ref());
        let work = async {
            let share = self.0.shares.logs.take(class)?;
            Ok::<_, Refusal>(held(self.0.logs.read(&self.0.collector, &request).await?, share))
        };
        self.call(caller, "Logs.Read", object, work).await
    }

    async fn read_pod(&self, request: Request<PodLogRequest>) -> Result<Response<LogStream>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Logs).await;
        let request = request.into_inner();
        let object = format!("pod {}/{} {}", request.namespace, request.pod, request.container);
        let class = class(caller.as_ref());
        let work = async {
            let share = self.0.shares.logs.take(class)?;
            let place = self.0.logs.place()?;
            Ok::<_, Refusal>(held(pod_logs::read(&self.0.collector, &request, place).await?, share))
        };
        self.call(caller, "Logs.ReadPod", object, work).await
    }
}
