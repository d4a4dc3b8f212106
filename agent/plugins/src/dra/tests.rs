//! A plugin on a real socket, which starts, ends and drops its connections.

use orlop_proto::dra_health::v1alpha1::HealthStatus;
use tokio::task::JoinHandle;

use super::*;
use crate::testing::FakeDraDriver;

fn driver(path: &Path) -> FakeDraDriver {
    FakeDraDriver::new("gpu.example.com", path, &["v1.DRAPlugin"])
}

fn claim(name: &str) -> Vec<Claim> {
    vec![Claim { namespace: "ns".to_owned(), uid: format!("uid-{name}"), name: name.to_owned() }]
}

fn start(path: &Path, version: DraVersion) -> (DraPlugin, JoinHandle<()>) {
    let (plugin, keeper) = DraPlugin::new(path.to_owned(), version);
    (plugin, tokio::spawn(keeper.run()))
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_called_in_its_version_and_refuses_in_gos_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dra.sock");
    let _served = driver(&path).serve();
    let (plugin, _keeper) = start(&path, DraVersion::V1);
    let prepared = plugin.prepare(claim("shared")).await.unwrap();
    let device = &prepared["uid-shared"].devices[0];
    assert_eq!((device.device_name.as_str(), device.share_id.as_deref()), ("d", Some("s")));
    let words = async |name: &str| plugin.prepare(claim(name)).await.unwrap_err().words();
    assert_eq!(words("hangs").await, "rpc error: code = DeadlineExceeded desc = context deadline exceeded");
    let refused = words("refused").await;
    assert!(refused.starts_with("rpc error: code = Internal desc = xxx") && refused.len() < 2100);
    let huge = words("huge").await;
    assert!(
        huge.starts_with("rpc error: code = ResourceExhausted desc = grpc: received message larger"),
        "{huge}"
    );
    let busy = plugin.unprepare(claim("busy")).await.unwrap_err().words();
    assert_eq!(busy, "rpc error: code = Unknown desc = busy");
    assert_eq!(plugin.unprepare(claim("c")).await.unwrap()["uid-c"], "");

    let (older, _keeper) = start(&path, DraVersion::V1Beta1);
    assert_eq!(older.unprepare(claim("stays")).await.unwrap()["uid-stays"], "the claim stays");
    let missing = older.prepare(claim("c")).await.unwrap_err();
    assert_eq!(missing.code(), Code::Unimplemented);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_too_much_memory_is_not_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dra.sock");
    let _served = driver(&path).serve();
    let (plugin, _keeper) = start(&path, DraVersion::V1);
    let many = plugin.prepare(claim("many")).await.unwrap_err().words();
    let begin = "rpc error: code = ResourceExhausted desc = a message of 400";
    assert!(many.starts_with(begin) && many.ends_with("at most 4194304 are accepted"), "{many}");
    plugin.prepare(claim("c")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_state_of_the_connection_is_known_without_a_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dra.sock");
    let driver = driver(&path);
    driver.health.send_replace(Some(HealthStatus::Healthy));
    let (plugin, keeper) = start(&path, DraVersion::V1);
    let down = plugin.prepare(claim("c")).await.unwrap_err().words();
    let expected = format!(
        "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial unix {}: connect: no \
         such file or directory\"",
        path.display()
    );
    assert_eq!(down, expected);
    let mut connectivity = plugin.connectivity();
    let served = driver.serve();
    assert_eq!(connectivity.next().await, Some(true));
    let mut reports = plugin.health().await.unwrap();
    assert_eq!(reports.next().await.unwrap().unwrap().len(), 1);
    tokio::time::advance(Duration::from_secs(10)).await;
    driver.drop_connections();
    let broken = reports.next().await.unwrap_err().words();
    assert_eq!(broken, "rpc error: code = Unavailable desc = error reading from server: EOF");
    // After a connection that lasted, the keeper connects again at once, so the plugin may be connected already.
    assert!(plugin.connected().await);
    plugin.prepare(claim("c")).await.unwrap();
    assert_eq!(*driver.connected.lock().unwrap(), 2, "one connection for all calls, made again once");

    served.stop();
    driver.drop_connections();
    let mut connectivity = plugin.connectivity();
    connectivity.last = true;
    assert_eq!(connectivity.next().await, Some(false));
    let _served = driver.serve();
    assert_eq!(connectivity.next().await, Some(true));
    keeper.abort();
    assert_eq!(connectivity.next().await, Some(false));
    assert_eq!(connectivity.next().await, None);
    let closing = plugin.prepare(claim("c")).await.unwrap_err().words();
    assert!(closing.ends_with("grpc: the client connection is closing"), "{closing}");
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_accepts_and_never_speaks_is_not_connected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dra.sock");
    // The kernel accepts the connection, and no process reads from it.
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (plugin, _keeper) = start(&path, DraVersion::V1);
    let silent = plugin.prepare(claim("c")).await.unwrap_err().words();
    assert!(silent.starts_with("rpc error: code = Unavailable desc = connection error: "), "{silent}");
    assert!(!plugin.state.borrow().is_connected());
}
