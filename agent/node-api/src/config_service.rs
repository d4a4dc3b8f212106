//! The service of the configuration: admits calls, has their work done, records them. Decisions are `configuration`'s and
//! `config_change`'s.
//!
//! In: calls. Out: answers, the record of changes, the start of its driver. Invariants: the record of a call names the candidate, and
//! has nothing of its text; administrators alone change something, and users of the cluster read; a change whose driver cannot be started is taken back; a client that
//! goes away stops no change between its record and its driver.

use orlop_config::change::{ChangeAuthor, ChangeRefusal, Confirmation};
use orlop_config::node::RunningSources;
use orlop_proto::node_api::v1alpha1::config_server::Config;
use orlop_proto::node_api::v1alpha1::{
    ConfigApplyRequest, ConfigApplyResponse, ConfigCheckRequest, ConfigCheckResponse, ConfigConfirmRequest,
    ConfigConfirmResponse, ConfigExplainRequest, ConfigExplainResponse, ConfigHistoryRequest,
    ConfigHistoryResponse, ConfigRevertRequest, ConfigRevertResponse,
};
use tonic::{Request, Response, Status};

use crate::areas::ApiArea;
use crate::calls::{NodeApi, asks, class};
use crate::collect::node_config;
use crate::config_change::{self, ConfirmWish, PlannedChange};
use crate::config_record::{self, DriverStart};
use crate::configuration::{self, ConfigCandidate};
use crate::connection::CallPeer;
use crate::facts::{admins, trusts_vsock_host};
use crate::guard::{self, Door, Identity};
use crate::refusal::{Reason, Refusal};

/// An administrator, the door, and when the connection was taken, milliseconds since the boot.
#[derive(Clone, Debug)]
struct ConfigAdmin {
    identity: Identity,
    /// The one that was shown; empty: none.
    key: String,
    door: Door,
    connected_ms: u64,
}

impl ConfigAdmin {
    /// The caller, if it may change the node.
    fn of(caller: Option<&CallPeer>) -> Result<ConfigAdmin, Refusal> {
        // A call without a connection is ended before its work begins.
        let missing = || Refusal::new(Reason::NotTrusted, "call", "it has no connection");
        let caller = caller.ok_or_else(missing)?;
        let identity = caller.identity.clone()?;
        guard::admin(&identity)?;
        let (key, connected_ms) = (caller.key.clone(), caller.since.0 / 1_000_000);
        Ok(ConfigAdmin { identity, key, door: caller.door, connected_ms })
    }

    fn author(&self) -> ChangeAuthor {
        ChangeAuthor { who: self.identity.name.clone(), door: self.door.to_string() }
    }
}

#[tonic::async_trait]
impl Config for NodeApi {
    async fn check(
        &self,
        request: Request<ConfigCheckRequest>,
    ) -> Result<Response<ConfigCheckResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Config).await;
        let request = request.into_inner();
        let (object, class) = (request.origin.clone(), class(caller.as_ref()));
        let work = async {
            let _share = self.0.shares.config.take(class)?;
            let candidate = ConfigCandidate::try_from(request)?;
            self.0.collector.with_running(move |running| configuration::check(running, &candidate)).await
        };
        self.call(caller, "Config.Check", object, work).await
    }

    async fn explain(
        &self,
        request: Request<ConfigExplainRequest>,
    ) -> Result<Response<ConfigExplainResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Config).await;
        let request = request.into_inner();
        let (object, class) = (request.below.clone(), class(caller.as_ref()));
        let work = async {
            let _share = self.0.shares.config.take(class)?;
            self.0.collector.with_running(move |running| configuration::explain(running, &request)).await?
        };
        self.call(caller, "Config.Explain", object, work).await
    }

    async fn apply(
        &self,
        request: Request<ConfigApplyRequest>,
    ) -> Result<Response<ConfigApplyResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Config).await;
        let request = request.into_inner();
        let object = request.origin.clone();
        let admin = ConfigAdmin::of(caller.as_ref());
        let api = self.clone();
        let work = async {
            let admin = admin?;
            to_its_end(api.begin(admin, request)).await
        };
        self.call(caller, "Config.Apply", object, work).await
    }

    async fn confirm(
        &self,
        request: Request<ConfigConfirmRequest>,
    ) -> Result<Response<ConfigConfirmResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Config).await;
        let number = request.into_inner().number;
        let admin = ConfigAdmin::of(caller.as_ref());
        let work = async {
            let admin = admin?;
            let (by, connected_ms) = (admin.author(), admin.connected_ms);
            let confirmed = config_record::update(&self.0.collector, move |record, now| {
                record.confirm(number, &by, connected_ms, now)
            });
            let number = confirmed.await?.map_err(|refused| config_change::refusal(&refused))?;
            Ok::<_, Refusal>(ConfigConfirmResponse { number })
        };
        self.call(caller, "Config.Confirm", change_name(number), work).await
    }

    async fn revert(
        &self,
        request: Request<ConfigRevertRequest>,
    ) -> Result<Response<ConfigRevertResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Config).await;
        let number = request.into_inner().number;
        let admin = ConfigAdmin::of(caller.as_ref());
        let api = self.clone();
        let work = async {
            let by = admin?.author();
            to_its_end(api.take_back(number, by)).await
        };
        self.call(caller, "Config.Revert", change_name(number), work).await
    }

    async fn history(
        &self,
        request: Request<ConfigHistoryRequest>,
    ) -> Result<Response<ConfigHistoryResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Config).await;
        let work = async {
            let changes = config_record::look(&self.0.collector, config_change::history).await?;
            Ok::<_, Refusal>(ConfigHistoryResponse { changes })
        };
        self.call(caller, "Config.History", String::new(), work).await
    }
}

impl NodeApi {
    /// Begins a change: the record first, then its driver.
    async fn begin(
        self,
        admin: ConfigAdmin,
        request: ConfigApplyRequest,
    ) -> Result<ConfigApplyResponse, Refusal> {
        let wish = ConfirmWish::new(&request)?;
        let candidate = ConfigCandidate::new(request.document, &request.origin, request.remove)?;
        let ConfigAdmin { identity, key, door, .. } = admin;
        let collector = &self.0.collector;
        let present = node_config(&collector.sources().root);
        guard::still_trusted((&identity, &key, door), &admins(&present), trusts_vsock_host(&present))?;
        let who = identity.name.clone();
        let plan =
            move |running: &RunningSources| config_change::plan(running, candidate, wish, (&identity, door));
        let PlannedChange { change, answer } = collector.with_running(plan).await??;
        let (keys, at_boot) = (change.keys.join(","), change.at_boot);
        let is_asked = change.confirmation == Confirmation::Asked;
        let begun = config_record::update(collector, move |record, now| {
            let number = record.begin(change, now);
            number.map(|number| (number, record.open.as_ref().map(|open| config_change::open(open, now))))
        });
        let (number, change) = match begun.await {
            Ok(Ok(begun)) => begun,
            Err(refusal) => {
                // A slow disk may have the record all the same.
                let _ = config_record::drive(collector, DriverStart::Again).await;
                return Err(refusal);
            }
            Ok(Err(refused)) => {
                if matches!(refused, ChangeRefusal::Open { .. }) {
                    // One whose driver has died ends by this; if it cannot be started, the refusal says enough.
                    let _ = config_record::drive(collector, DriverStart::IfStopped).await;
                }
                return Err(config_change::refusal(&refused));
            }
        };
        let (who, keys) = (who.as_str(), keys.as_str());
        tracing::info!(who, %door, change = number, keys, at_boot, is_asked, "change begun");
        // It shows a change that waits for a boot, and applies any other.
        let driven = config_record::drive(collector, DriverStart::Again).await;
        if !at_boot && let Err(refusal) = driven {
            // It may have started all the same, and then it takes the change back.
            let why = refusal.to_string();
            config_record::update(collector, move |record, _| record.failed(&why)).await?;
            return Err(refusal);
        }
        let (changes, problems) = answer.messages();
        Ok(ConfigApplyResponse { change, changes, problems })
    }

    /// Takes the open change back: the record first, then its driver.
    async fn take_back(self, number: u64, by: ChangeAuthor) -> Result<ConfigRevertResponse, Refusal> {
        let collector = &self.0.collector;
        let reverted = config_record::update(collector, move |record, now| record.revert(number, &by, now));
        let number = reverted.await?.map_err(|refused| config_change::refusal(&refused))?;
        config_record::drive(collector, DriverStart::IfStopped).await?;
        Ok(ConfigRevertResponse { number })
    }
}

/// Work that goes on when its client is gone.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    let ended = tokio::spawn(work).await;
    // Only the end of the process takes it away.
    ended.unwrap_or_else(|_| Err(Refusal::new(Reason::PartDown, "configuration", "the server ends")))
}

/// A change in the log.
fn change_name(number: u64) -> String {
    if number == 0 { "the open change".to_owned() } else { format!("change {number}") }
}
