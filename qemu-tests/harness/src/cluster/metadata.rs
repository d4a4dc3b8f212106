//! A platform's metadata service in a cluster's network, at 169.254.169.254.
//!
//! In: the service as it answers ([`FakeMetadata`]). Out: [`MetadataServer`], which VMs reach through their gateway, as on the
//! platforms. It stops when it is dropped; it must be dropped before the cluster.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use agent_provision::questions::METADATA_ADDRESS;
pub use agent_provision::testing::{FakeMetadata, MetadataFault};
use anyhow::{Context, Result};

use super::proxy::inside;
use super::wires::add_address;

const PORT: u16 = 80;

/// A running service.
pub struct MetadataServer {
    fake: Arc<FakeMetadata>,
    pid: i32,
    thread: Option<JoinHandle<()>>,
}

fn address() -> Result<SocketAddr> {
    format!("{METADATA_ADDRESS}:{PORT}").parse().context("the address of metadata services")
}

impl MetadataServer {
    /// Starts it in the network of process `pid`.
    ///
    /// # Errors
    /// If there is one already.
    pub fn start(pid: i32, fake: FakeMetadata) -> Result<MetadataServer> {
        add_address(pid, METADATA_ADDRESS)?;
        let at = address()?;
        // The socket stays in the network of the thread that makes it.
        let listener = inside(pid, async || -> Result<TcpListener> {
            TcpListener::bind(at).context("bind the port of the metadata service")
        })?;
        let fake = Arc::new(fake);
        let served = Arc::clone(&fake);
        let thread = std::thread::spawn(move || served.serve(&listener));
        Ok(MetadataServer { fake, pid, thread: Some(thread) })
    }

    /// The service.
    #[must_use]
    pub fn fake(&self) -> &FakeMetadata {
        &self.fake
    }
}

impl Drop for MetadataServer {
    fn drop(&mut self) {
        self.fake.end();
        // The thread waits for a connection.
        let woken = address().and_then(|at| {
            inside(self.pid, async || -> Result<TcpStream> {
                TcpStream::connect(at).context("wake the metadata service")
            })
        });
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}
