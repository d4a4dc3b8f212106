//! The same over HTTP/1.1 (`DISABLE_HTTP2`).

use super::*;

#[tokio::test(start_paused = true)]
async fn each_request_has_a_connection_that_the_next_one_uses() {
    let fake = fake();
    add_node(&fake);
    add_pod(&fake, "p0");
    let client = fake.client_of_http1("system:node:n", "system:nodes");
    for _ in 0..3 {
        client.call(&get_node()).await.unwrap();
    }
    assert_eq!(client.stats().connections, 1);
    let (a, b) = (get_node(), get_node());
    let (a, b) = tokio::join!(client.call(&a), client.call(&b));
    assert!(a.is_ok() && b.is_ok());
    assert_eq!(client.stats().connections, 2);
    let (mut events, driver) = client.watch_pods("n");
    let driver = tokio::spawn(driver);
    assert_eq!(names(&next(&mut events).await), "listed p0");
    add_pod(&fake, "p1");
    assert_eq!(names(&next(&mut events).await), "applied p1");
    // The watch keeps its own; calls use another one, and all of them change to new connections when the
    // old ones are let go.
    client.call(&get_node()).await.unwrap();
    client.close_connections();
    client.call(&get_node()).await.unwrap();
    add_pod(&fake, "p2");
    assert_eq!(names(&next(&mut events).await), "applied p2");
    driver.abort();
    assert!(fake.seen().iter().all(|s| s.path.starts_with("/api/")), "{:?}", fake.seen());
}

#[tokio::test(start_paused = true)]
async fn a_cut_connection_is_replaced_and_writes_are_not_repeated() {
    let fake = fake();
    add_node(&fake);
    add_pod(&fake, "p0");
    let client = fake.client_of_http1("system:node:n", "system:nodes");
    client.call(&get_node()).await.unwrap();
    fake.fail("/nodes/n", Fault::Cut);
    client.call(&get_node()).await.expect("asked again on a new connection");
    fake.fail("/pods/p0/status", Fault::Cut);
    let error = client.call(&status_patch()).await.unwrap_err();
    assert_eq!(error.class, Class::DeadlineExceeded, "{error}");
    client.call(&status_patch()).await.unwrap();
    fake.fail("/pods/p0/status", Fault::Silence);
    assert_eq!(client.call(&status_patch()).await.unwrap_err().class, Class::DeadlineExceeded);
    let other = fake.pki.access(fake.server(), "system:node:m", "system:nodes");
    assert!(client.set_access(other).unwrap());
    assert_eq!(
        client.call(&status_patch()).await.unwrap_err().code,
        Some(403),
        "a new identity counts at once"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_of_http2_alone_is_told_what_it_does_not_speak() {
    let fake = fake();
    let mut config = (*fake.pki.server_config(&["localhost"], Validity::default())).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    fake.set_tls(Arc::new(config));
    let client = fake.client_of_http1("system:node:n", "system:nodes");
    let error = client.call(&get_node()).await.unwrap_err();
    assert_eq!(error.class, Class::Unavailable, "{error}");
}
