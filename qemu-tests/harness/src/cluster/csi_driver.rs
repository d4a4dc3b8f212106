//! A CSI driver for cases: a server of plugin registration and of CSI's node service on a socket inside a node.
//!
//! In: a node's root as the host reaches it. Out: a socket that serves until it is dropped, the received calls, and the
//! staged and published directories. The driver checks its callers: it refuses and records a publish without a stage,
//! and an unstage of a published volume. Invariant: dropping the value ends the server and removes its socket.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::stream;
use orlop_proto::csi::v1::node_server::{Node, NodeServer};
use orlop_proto::csi::v1::volume_capability::AccessType;
use orlop_proto::csi::v1::volume_usage::Unit;
use orlop_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, Topology, VolumeCapability, VolumeCondition,
    VolumeUsage, node_service_capability,
};
use orlop_proto::plugin_registration::registration_server::{Registration, RegistrationServer};
use orlop_proto::plugin_registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use super::csi_block::Devices;
use super::csi_mounts;

/// Directory of registered sockets, below a node's root.
const REGISTRY: &str = "var/lib/kubelet/plugins_registry";

/// Directory of the driver's disks, in the node.
pub const DISKS: &str = "/var/lib/e2e-csi";

/// Size of each volume as drivers report it, in bytes and in inodes.
pub const CAPACITY: i64 = 12_345_000;

/// The driver's answers.
#[derive(Clone, Debug, Default)]
pub struct DriverInfo {
    /// Name of the driver.
    pub name: String,
    /// The driver's id of the node.
    pub node_id: String,
    /// Most volumes at once.
    pub volumes_max: i64,
    /// Topology of the node.
    pub topology: HashMap<String, String>,
    /// NodeGetInfo never answers.
    pub hangs: bool,
    /// NodePublishVolume fails with this message.
    pub refuses: Option<String>,
    /// The driver stages, expands and measures volumes, and distinguishes single-node access modes.
    pub stages: bool,
    /// The volumes are abnormal, with this message.
    pub ill: Option<String>,
    /// NodeExpandVolume fails with this error.
    pub refuses_growth: Option<(Code, String)>,
    /// NodeStageVolume fails with this message.
    pub refuses_stage: Option<String>,
    /// NodeStageVolume takes effect and never answers.
    pub hangs_after_stage: bool,
    /// NodeUnstageVolume fails with this message.
    pub refuses_unstage: Option<String>,
    /// A call takes effect and never answers if this directory has a file with the call's name.
    pub hangs_in: Option<PathBuf>,
}

#[derive(Clone)]
struct Service {
    says: Arc<Mutex<DriverInfo>>,
    told: watch::Sender<Vec<RegistrationStatus>>,
    /// The node's root as the host reaches it.
    root: PathBuf,
    published: watch::Sender<Published>,
    staged: watch::Sender<Staged>,
    devices: Arc<Devices>,
    /// Staging and publishing mount file systems: only where the node has its own root.
    mounts: bool,
}

/// The published volumes, by their targets in the node.
pub type Published = BTreeMap<String, NodePublishVolumeRequest>;

/// The calls that concern stages, and their effects.
#[derive(Clone, Debug, Default)]
pub struct Staged {
    /// The staged volumes, by their staging paths in the node.
    pub now: BTreeMap<String, NodeStageVolumeRequest>,
    /// Number of stage calls.
    pub times: usize,
    /// The expand calls.
    pub grown: Vec<NodeExpandVolumeRequest>,
    /// Calls that a correct node does not make.
    pub wrong: Vec<String>,
}

impl Service {
    fn says(&self) -> DriverInfo {
        self.says.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A path of the node as the host reaches it.
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Never returns if the call must not answer.
    async fn hang_if_asked(&self, call: &str) {
        if self.says().hangs_in.is_some_and(|dir| dir.join(call).exists()) {
            std::future::pending::<()>().await;
        }
    }

    fn wrong(&self, what: String) -> Status {
        self.staged.send_modify(|all| all.wrong.push(what.clone()));
        Status::failed_precondition(what)
    }
}

fn is_block(capability: Option<&VolumeCapability>) -> bool {
    capability.is_some_and(|c| matches!(c.access_type, Some(AccessType::Block(_))))
}

/// The option that labels all files of a mount.
fn label(capability: Option<&VolumeCapability>) -> Option<String> {
    let Some(AccessType::Mount(mount)) = capability?.access_type.as_ref() else { return None };
    mount.mount_flags.iter().find(|flag| flag.starts_with("context=")).cloned()
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.says().name,
            // Empty: the socket that was asked. Only the node knows the socket's path in the node.
            endpoint: String::new(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        told: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.told.send_modify(|all| all.push(told.into_inner()));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Service {
    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let says = self.says();
        if says.hangs {
            return std::future::pending().await;
        }
        Ok(Response::new(NodeGetInfoResponse {
            node_id: says.node_id,
            max_volumes_per_node: says.volumes_max,
            accessible_topology: Some(Topology { segments: says.topology }),
        }))
    }

    /// Makes a directory with a file `f` that describes the volume.
    async fn node_publish_volume(
        &self,
        asked: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        if let Some(why) = self.says().refuses {
            return Err(Status::internal(why));
        }
        let asked = asked.into_inner();
        let staging = &asked.staging_target_path;
        if self.says().stages && !self.staged.borrow().now.contains_key(staging) {
            return Err(self.wrong(format!("{} is published and not staged at {staging:?}", asked.volume_id)));
        }
        let target = self.at(&asked.target_path);
        if is_block(asked.volume_capability.as_ref()) {
            // One that does not stage makes it here.
            let made = self.devices.make(&self.at(DISKS), &asked.volume_id);
            let made = made.and_then(|()| self.devices.publish(&asked.volume_id, &target));
            made.map_err(|e| Status::internal(format!("{e:#}")))?;
        } else if self.mounts {
            csi_mounts::bind(&self.at(staging), &target).map_err(|e| Status::internal(format!("{e:#}")))?;
        } else {
            let made =
                fs::create_dir_all(&target).and_then(|()| fs::write(target.join("f"), &asked.volume_id));
            made.map_err(|e| Status::internal(e.to_string()))?;
        }
        self.published.send_modify(|all| {
            all.insert(asked.target_path.clone(), asked);
        });
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        asked: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let asked = asked.into_inner();
        let target = self.at(&asked.target_path);
        if self.mounts {
            csi_mounts::unbind(&target).map_err(|e| Status::internal(format!("{e:#}")))?;
        } else if target.is_dir() {
            fs::remove_dir_all(&target).map_err(|e| Status::internal(e.to_string()))?;
        } else {
            Devices::unpublish(&target).map_err(|e| Status::internal(format!("{e:#}")))?;
        }
        if !self.says().stages {
            self.devices.remove(&asked.volume_id);
        }
        self.published.send_modify(|all| {
            all.remove(&asked.target_path);
        });
        self.hang_if_asked("unpublish").await;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        use node_service_capability::rpc::Type;
        use node_service_capability::{Rpc, Type as Kind};
        let kinds = if self.says().stages {
            vec![
                Type::StageUnstageVolume,
                Type::SingleNodeMultiWriter,
                Type::ExpandVolume,
                Type::GetVolumeStats,
                Type::VolumeCondition,
            ]
        } else {
            Vec::new()
        };
        let capability =
            |kind: Type| NodeServiceCapability { r#type: Some(Kind::Rpc(Rpc { r#type: kind.into() })) };
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: kinds.into_iter().map(capability).collect(),
        }))
    }

    /// A tenth of [`CAPACITY`] is in use, bytes and inodes alike.
    async fn node_get_volume_stats(
        &self,
        asked: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let asked = asked.into_inner();
        if !self.published.borrow().contains_key(&asked.volume_path) {
            return Err(self.wrong(format!("{} is measured at {}", asked.volume_id, asked.volume_path)));
        }
        let usage = |unit: Unit| VolumeUsage {
            available: CAPACITY / 10 * 9,
            total: CAPACITY,
            used: CAPACITY / 10,
            unit: unit.into(),
        };
        let ill = self.says().ill;
        let condition = VolumeCondition { abnormal: ill.is_some(), message: ill.unwrap_or_default() };
        Ok(Response::new(NodeGetVolumeStatsResponse {
            usage: vec![usage(Unit::Bytes), usage(Unit::Inodes)],
            volume_condition: Some(condition),
        }))
    }

    async fn node_expand_volume(
        &self,
        asked: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let asked = asked.into_inner();
        let (published, staged) = (self.published.borrow().clone(), self.staged.borrow().now.clone());
        if !published.contains_key(&asked.volume_path) || !staged.contains_key(&asked.staging_target_path) {
            return Err(self.wrong(format!("{} grows at {}", asked.volume_id, asked.volume_path)));
        }
        if let Some((code, why)) = self.says().refuses_growth {
            return Err(Status::new(code, why));
        }
        let capacity_bytes = asked.capacity_range.map(|r| r.required_bytes).unwrap_or_default();
        if is_block(asked.volume_capability.as_ref()) {
            let grown = self.devices.grow(&asked.volume_id, capacity_bytes.unsigned_abs());
            grown.map_err(|e| Status::internal(format!("{e:#}")))?;
        }
        self.staged.send_modify(|all| all.grown.push(asked));
        self.hang_if_asked("expand").await;
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes }))
    }

    /// Makes a file in the node's staging directory.
    async fn node_stage_volume(
        &self,
        asked: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        if let Some(why) = self.says().refuses_stage {
            return Err(Status::internal(why));
        }
        let asked = asked.into_inner();
        let path = self.at(&asked.staging_target_path);
        if is_block(asked.volume_capability.as_ref()) {
            let made = self.devices.make(&self.at(DISKS), &asked.volume_id);
            made.map_err(|e| Status::internal(format!("{e:#}")))?;
        }
        if self.mounts {
            let disk = self.at(DISKS).join(&asked.volume_id);
            let mounted = match label(asked.volume_capability.as_ref()) {
                // A label is a file system's: a bind mount has none of its own.
                Some(option) => csi_mounts::labelled(&option, &path),
                None => csi_mounts::make(&disk).and_then(|()| csi_mounts::bind(&disk, &path)),
            };
            mounted.map_err(|e| Status::internal(format!("{e:#}")))?;
        } else {
            fs::write(path.join("staged"), &asked.volume_id).map_err(|e| Status::internal(e.to_string()))?;
        }
        self.staged.send_modify(|all| {
            all.times += 1;
            all.now.insert(asked.staging_target_path.clone(), asked);
        });
        if self.says().hangs_after_stage {
            return std::future::pending().await;
        }
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        asked: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let asked = asked.into_inner();
        let held = self.published.borrow().values().any(|p| p.volume_id == asked.volume_id);
        if held {
            return Err(self.wrong(format!("{} is unstaged while it is published", asked.volume_id)));
        }
        if let Some(why) = self.says().refuses_unstage {
            return Err(Status::internal(why));
        }
        self.devices.remove(&asked.volume_id);
        let path = self.at(&asked.staging_target_path);
        if self.mounts {
            csi_mounts::unbind(&path).map_err(|e| Status::internal(format!("{e:#}")))?;
        }
        match fs::remove_file(path.join("staged")) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(Status::internal(e.to_string())),
            _ => {}
        }
        self.staged.send_modify(|all| {
            all.now.remove(&asked.staging_target_path);
        });
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }
}

/// Socket of the driver with this name.
pub(super) fn socket(root: &Path, name: &str) -> PathBuf {
    root.join(REGISTRY).join(format!("{name}.sock"))
}

/// A driver that serves.
pub struct CsiDriver {
    socket: PathBuf,
    server: JoinHandle<()>,
    says: Arc<Mutex<DriverInfo>>,
    told: watch::Receiver<Vec<RegistrationStatus>>,
    published: watch::Receiver<Published>,
    staged: watch::Receiver<Staged>,
    handle: Handle,
}

impl CsiDriver {
    /// Serves in the registry of the node whose root the host reaches at `root`, under a socket of the driver's name.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn start(handle: &Handle, root: &Path, says: DriverInfo) -> Result<CsiDriver> {
        let socket = socket(root, &says.name);
        let (to_published, published) = watch::channel(Published::new());
        let (to_staged, staged) = watch::channel(Staged::default());
        let (to, told) = watch::channel(Vec::new());
        let says = Arc::new(Mutex::new(says));
        let service = Service {
            says: says.clone(),
            told: to,
            root: root.to_owned(),
            published: to_published,
            staged: to_staged,
            devices: Arc::default(),
            mounts: root == Path::new("/"),
        };
        let listener = {
            let _inside = handle.enter();
            UnixListener::bind(&socket).with_context(|| format!("listen on {}", socket.display()))?
        };
        let incoming = stream::unfold(listener, |listener| async move {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let serve = Server::builder()
            .add_service(RegistrationServer::new(service.clone()))
            .add_service(NodeServer::new(service))
            .serve_with_incoming(incoming);
        let server = handle.spawn(async move {
            // Ends by being aborted; an error of the listener shows as an agent that cannot connect.
            let _ = serve.await;
        });
        Ok(CsiDriver { socket, server, says, told, published, staged, handle: handle.clone() })
    }

    /// Changes the driver's answers.
    pub fn say(&self, says: DriverInfo) {
        *self.says.lock().unwrap_or_else(PoisonError::into_inner) = says;
    }

    fn await_so<T>(&self, what: &watch::Receiver<T>, limit_s: u64, is: impl FnMut(&T) -> bool) -> Result<()> {
        let mut what = what.clone();
        let limit = Duration::from_secs(limit_s);
        let waited = async { tokio::time::timeout(limit, what.wait_for(is)).await.map(|_| ()) };
        Ok(self.handle.block_on(waited)?)
    }

    /// Waits for a registration status that fulfils `is`, past ones included.
    ///
    /// # Errors
    /// At the deadline.
    pub fn await_told(&self, limit_s: u64, is: impl Fn(&RegistrationStatus) -> bool) -> Result<()> {
        let waited = self.await_so(&self.told, limit_s, |all| all.iter().any(&is));
        waited.with_context(|| format!("within {limit_s} s the driver was told {:?}", *self.told.borrow()))
    }
}

/// Waits for changes of staged and published volumes since the last wait.
pub struct Changes {
    published: watch::Receiver<Published>,
    staged: watch::Receiver<Staged>,
}

impl Changes {
    /// The next change.
    ///
    /// # Errors
    /// If the driver is gone.
    pub async fn next(&mut self) -> Result<()> {
        tokio::select! {
            changed = self.published.changed() => changed,
            changed = self.staged.changed() => changed,
        }
        .context("the driver is gone")
    }
}

impl CsiDriver {
    /// Follows the staged and published volumes from now on.
    #[must_use]
    pub fn changes(&self) -> Changes {
        Changes { published: self.published.clone(), staged: self.staged.clone() }
    }

    /// The volumes that are published now.
    #[must_use]
    pub fn published(&self) -> Published {
        self.published.borrow().clone()
    }

    /// Waits until the published volumes fulfil `is`. A terminated pod vanishes as soon as it is deleted, its volumes
    /// later.
    ///
    /// # Errors
    /// At the deadline.
    pub fn await_published(&self, limit_s: u64, is: impl Fn(&Published) -> bool) -> Result<()> {
        let waited = self.await_so(&self.published, limit_s, is);
        waited.with_context(|| format!("after {limit_s} s published at {:?}", self.published().keys()))
    }

    /// The calls that concern stages, and their effects.
    #[must_use]
    pub fn staged(&self) -> Staged {
        self.staged.borrow().clone()
    }

    /// Waits until the staged volumes fulfil `is`.
    ///
    /// # Errors
    /// At the deadline.
    pub fn await_staged(&self, limit_s: u64, is: impl Fn(&Staged) -> bool) -> Result<()> {
        let waited = self.await_so(&self.staged, limit_s, is);
        waited.with_context(|| format!("within {limit_s} s the driver was asked for {:?}", self.staged()))
    }
}

impl Drop for CsiDriver {
    fn drop(&mut self) {
        self.server.abort();
        // The node may be gone, and its files with it.
        let _ = fs::remove_file(&self.socket);
    }
}
