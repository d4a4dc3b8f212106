//! The registration server on `kubelet.sock`.
//!
//! In: calls of `Register`. Out: plugins whose lists are followed. Invariants: the checks come in upstream's order, and a plugin whose
//! call fails changes nothing; the plugin's socket is a file of the directory itself and no link, because a container that has the
//! directory can put any link there. Upstream: plugin/v1beta1/server.go.

use std::path::Path;

use agent_linux::pinned_socket::PinnedSocket;
use agent_managers::devices::registration::{RegistrationError, check_register};
use agent_plugins::devices::{ConnectError, DevicePlugin};
use orlop_proto::device_plugin::v1beta1::registration_server::{Registration, RegistrationServer};
use orlop_proto::device_plugin::v1beta1::{Empty, RegisterRequest};
use tokio::net::UnixListener;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::DevicePlugins;
use super::limits::{CALLS_MAX, CONNECTIONS_MAX, REGISTER_BYTES_MAX, RESOURCES_MAX};
use super::{directory, messages};
use crate::pods::pod_dirs::chain;
use crate::serving::local_connections::accepted;

/// The registration socket's name in the directory.
pub(super) const SOCKET: &str = "kubelet.sock";

impl DevicePlugins {
    /// Makes the directory, removes sockets of an earlier time, and serves the registration socket until the node stops.
    ///
    /// # Errors
    /// The directory or the socket cannot be made: the agent must not start, as upstream.
    pub fn start(&self) -> anyhow::Result<()> {
        directory::prepare(&self.directory)?;
        let listener = UnixListener::bind(self.directory.join(SOCKET))?;
        let accepted = accepted(SOCKET, listener, CONNECTIONS_MAX, self.node.tasks.clone());
        let service = RegistrationServer::new(self.clone()).max_decoding_message_size(REGISTER_BYTES_MAX);
        let served = Server::builder()
            .concurrency_limit_per_connection(CALLS_MAX)
            .add_service(service)
            .serve_with_incoming(accepted);
        self.node.tasks.start(async move {
            if let Err(error) = served.await {
                tracing::error!(error = %chain(&error), "no device plugin can register any more");
            }
        });
        Ok(())
    }

    async fn register(&self, request: RegisterRequest) -> Result<(), RegistrationError> {
        let RegisterRequest { version, endpoint, resource_name: resource, .. } = request;
        if self.clients.lock().may_name(&resource) {
            self.node.node_events.metrics().device_plugin_registered(&resource);
        }
        check_register(&version, &resource)?;
        let dial = RegistrationError::Dial;
        if !self.clients.lock().has_room_for(&resource) {
            return Err(dial(format!("the node has {RESOURCES_MAX} device plugins, and accepts no more")));
        }
        let stops = |_| dial("the agent stops".to_owned());
        let _turn = self.registering.acquire().await.map_err(stops)?;
        let (plugin, options) = self.connect(&endpoint).await?;
        self.install(plugin, &resource, messages::options(options));
        Ok(())
    }

    async fn connect(
        &self,
        endpoint: &str,
    ) -> Result<(DevicePlugin, orlop_proto::device_plugin::v1beta1::DevicePluginOptions), RegistrationError>
    {
        let is_name =
            !endpoint.is_empty() && Path::new(endpoint).file_name().is_some_and(|name| name == endpoint);
        if !is_name {
            return Err(RegistrationError::Dial(format!("endpoint {endpoint:?} is no name of a file")));
        }
        let path = self.directory.join(endpoint);
        let socket = PinnedSocket::at(&path).map_err(|error| RegistrationError::Dial(chain(&error)))?;
        let pinned = socket.path();
        // The path in messages is the one that people know.
        let told = |error: &dyn std::fmt::Display| {
            error.to_string().replace(&pinned.display().to_string(), &path.display().to_string())
        };
        DevicePlugin::connect(&pinned).await.map_err(|error| match error {
            ConnectError::Dial(error) => RegistrationError::Dial(told(&error)),
            ConnectError::Options(error) => RegistrationError::Options(error.words()),
        })
    }
}

#[tonic::async_trait]
impl Registration for DevicePlugins {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let (resource, endpoint) = (request.resource_name.clone(), request.endpoint.clone());
        match DevicePlugins::register(self, request).await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(error) => {
                tracing::warn!(resource, endpoint, %error, "device plugin is not registered");
                Err(Status::unknown(error.to_string()))
            }
        }
    }
}
