//! One more program of this binary: `orlop-serial`, which serves the virtio-serial port of the management API
//! ([`orlop_node_api::serial_port`]). It knows nothing of the API, so it is small and has no async runtime.
//!
//! In: the name under which the process was started. Out: bytes between the port and the server's socket, until the machine has the port
//! no more. udev has it started where the machine has the port.

use std::path::Path;

use agent_linux::host_channel::find_named_port;
use orlop_config::kubelet::nested::Logging;
use orlop_node_api::serial_port::{is_unplugged, open_port, serve_port};
use orlop_proto::node_api::SERIAL_SOCKET;
use orlop_proto::node_api_serial::PORT_NAME;

use super::environment::Environment;
use crate::logging;

/// The name of the program, a link to the agent's binary.
pub const NAME: &str = "orlop-serial";

/// Serves until the port is gone.
///
/// # Errors
/// The port cannot be opened, or fails.
pub fn start() -> anyhow::Result<()> {
    let environment = Environment::of_process();
    logging::init_lossy(&Logging::default(), environment.under_journald)?;
    let Some(path) = find_named_port(Path::new("/sys"), Path::new("/dev"), PORT_NAME) else {
        tracing::info!("this machine has no virtio-serial port {PORT_NAME}");
        return Ok(());
    };
    match open_port(&path).and_then(|port| serve_port(port, Path::new(SERIAL_SOCKET))) {
        Err(error) if is_unplugged(&error) => {
            tracing::info!("the virtio-serial port {PORT_NAME} is gone");
            Ok(())
        }
        served => Ok(served?),
    }
}
