//! The registration server on `kubelet.sock`.
//!
//! In: calls of `Register`. Out: registered plugins; the check `device-plugin` of `/healthz`. Invariants: the checks are in upstream's
//! order, and a plugin whose call fails changes nothing; a plugin that registers in a loop does not delay the plugins of other resources;
//! the plugin's socket is a file in the directory itself and not a link, because a container that mounts the directory can create any link
//! there. Upstream: plugin/v1beta1/server.go.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use agent_linux::pinned_socket::PinnedSocket;
use agent_managers::devices::registration::{RegistrationError, check_register, server_failed};
use agent_plugins::devices::{ConnectError, DevicePlugin};
use orlop_proto::device_plugin::v1beta1::registration_server::{Registration, RegistrationServer};
use orlop_proto::device_plugin::v1beta1::{Empty, RegisterRequest};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::DevicePlugins;
use super::limits::{CALLS_MAX, CONNECTIONS_MAX, REGISTER_BYTES_MAX};
use super::{directory, messages};
use crate::pods::pod_dirs::chain;
use crate::serving::local_connections::accepted;

/// The registration socket's name in the directory.
pub(super) const SOCKET: &str = "kubelet.sock";

impl DevicePlugins {
    /// Creates the directory, removes old sockets, and serves the registration socket until the node stops.
    ///
    /// # Errors
    /// The directory or the socket cannot be created: the agent must not start, as upstream.
    pub fn start(&self) -> anyhow::Result<()> {
        directory::prepare(&self.directory)?;
        let listener = UnixListener::bind(self.directory.join(SOCKET))?;
        let accepted = accepted(SOCKET, listener, CONNECTIONS_MAX, self.node.tasks.clone());
        let service = RegistrationServer::new(self.clone()).max_decoding_message_size(REGISTER_BYTES_MAX);
        let served = Server::builder()
            .concurrency_limit_per_connection(CALLS_MAX)
            .add_service(service)
            .serve_with_incoming(accepted);
        self.node.tasks.start(report_end(served, self.health.clone()));
        Ok(())
    }

    async fn register(&self, request: RegisterRequest) -> Result<(), RegistrationError> {
        let RegisterRequest { version, endpoint, resource_name: resource, .. } = request;
        if self.clients.lock().may_name(&resource) {
            self.node.node_events.metrics().device_plugin_registered(&resource);
        }
        check_register(&version, &resource)?;
        let is_known = self.admitted(&resource).await?;
        let turns = if is_known { &self.registering } else { &self.registering_new };
        let stops = |_| RegistrationError::Dial("the agent stops".to_owned());
        let _turn = turns.acquire().await.map_err(stops)?;
        let (plugin, options) = self.connect(&endpoint).await?;
        self.install(plugin, &resource, messages::options(options))?;
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
        // Messages name the path in the directory, not the pinned one.
        let told = |error: &dyn std::fmt::Display| {
            error.to_string().replace(&pinned.display().to_string(), &path.display().to_string())
        };
        DevicePlugin::connect(&pinned).await.map_err(|error| match error {
            ConnectError::Dial(error) => RegistrationError::Dial(told(&error)),
            ConnectError::Options(error) => RegistrationError::Options(error.words()),
        })
    }
}

/// The registration server never ends by itself: its end makes the health check fail. A node that stops drops this task before.
async fn report_end<E: Error + 'static>(
    served: impl Future<Output = Result<(), E>>,
    health: Arc<watch::Sender<Result<(), String>>>,
) {
    let error = served.await.err().map(|error| chain(&error));
    let failed = server_failed(error.as_deref());
    tracing::error!(error = %failed, "no device plugin can register any more");
    // The earlier value is of no use.
    drop(health.send_replace(Err(failed)));
}

#[tonic::async_trait]
impl Registration for DevicePlugins {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let (resource, endpoint) = (request.resource_name.clone(), request.endpoint.clone());
        match DevicePlugins::register(self, request).await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(error) => {
                if self.clients.lock().may_log_failure(self.node.tasks.now().mono) {
                    tracing::warn!(resource, endpoint, %error, "device plugin is not registered");
                }
                Err(Status::unknown(error.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::io;

    use super::*;

    #[tokio::test]
    async fn the_health_check_fails_once_the_server_has_ended() {
        let failed = "device registration error: device plugin registration gRPC server failed and no device plugins can \
                      register";
        let ends = [
            (Ok(()), failed.to_owned()),
            (Err(io::Error::other("no descriptors")), format!("{failed}: no descriptors")),
        ];
        for (end, text) in ends {
            let health = Arc::new(watch::channel(Ok(())).0);
            report_end(ready(end), health.clone()).await;
            assert_eq!(*health.borrow(), Err(text));
        }
    }
}
