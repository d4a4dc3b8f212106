//! A port on the host's loopback that leads to the API server in the plane's network namespace, where the same thread
//! is the nodes' name server.
//!
//! ```text
//! client ─► 127.0.0.1:<port> (host's namespace) ─► thread in the plane's namespace ─► 172.30.0.1:6443
//! ```
//! In: connections. Out: the same bytes; TLS goes through untouched. Invariant: the listener is made before
//! the thread changes its namespace, everything after that is made inside.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::names;

/// A running proxy; ends with all its connections when dropped.
pub struct Proxy {
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Leads a new port of the host's loopback to `target` as the process `pid` reaches it.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn start(pid: i32, target: SocketAddr) -> Result<Proxy> {
        Proxy::begin(pid, target, false)
    }

    /// The same; its thread is the name server of that namespace, too.
    ///
    /// # Errors
    /// If the namespace cannot be entered, or has a name server.
    pub fn start_with_names(pid: i32, target: SocketAddr) -> Result<Proxy> {
        Proxy::begin(pid, target, true)
    }

    fn begin(pid: i32, target: SocketAddr, with_names: bool) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listen on the loopback")?;
        listener.set_nonblocking(true).context("make the listener non-blocking")?;
        let port = listener.local_addr().context("ask for the port")?.port();
        let namespace = namespace(pid)?;
        let (stop, stopped) = oneshot::channel();
        let (entered, is_inside) = std::sync::mpsc::channel();
        let serve = move || {
            let begun = enter(&namespace).and_then(|runtime| {
                let names = with_names.then(|| runtime.block_on(names::listen())).transpose();
                Ok((runtime, names.context("be the nodes' name server")?))
            });
            let _ = entered.send(begun.as_ref().map(|_| ()).map_err(|e| format!("{e:#}")));
            if let Ok((runtime, names)) = begun {
                names.map(|socket| runtime.spawn(names::answer(socket)));
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(listener, target) => {}
                        _ = stopped => {}
                    }
                });
            }
        };
        let thread =
            std::thread::Builder::new().name("api-proxy".into()).spawn(serve).context("start a thread")?;
        is_inside.recv().context("the proxy's thread died")?.map_err(anyhow::Error::msg)?;
        Ok(Proxy { port, stop: Some(stop), thread: Some(thread) })
    }

    /// The host's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs `work` on a thread of its own in the network namespace of the process `pid`.
///
/// # Errors
/// If the namespace cannot be entered, or the work fails.
pub fn inside<T: Send>(pid: i32, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
    let namespace = namespace(pid)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| enter(&namespace)?.block_on(work()));
        thread.join().map_err(|_| anyhow::anyhow!("the thread in the namespace panicked"))?
    })
}

fn namespace(pid: i32) -> Result<File> {
    File::open(format!("/proc/{pid}/ns/net")).context("open the plane's network namespace")
}

fn enter(namespace: &File) -> Result<tokio::runtime::Runtime> {
    nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET)
        .context("enter the plane's network")?;
    // One thread: this one, which is in the namespace.
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start an async runtime")
}

async fn accept(listener: TcpListener, target: SocketAddr) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    while let Ok((mut client, _)) = listener.accept().await {
        tokio::spawn(async move {
            // If the API server is down, the client's connection ends.
            if let Ok(mut server) = TcpStream::connect(target).await {
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}
