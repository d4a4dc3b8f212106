//! Who gets the page, what its headers are, and what a stream has.

use jiff::Timestamp;
use orlop_proto::node_api::v1alpha1::LogLine;

use super::*;
use crate::dashboard::model::{DashboardEvent, DashboardModel};

const TOKEN: &str = "00112233445566778899aabbccddeeff";
const HOST: &str = "127.0.0.1:8080";
/// A text that would be a script in a page.
const HOSTILE: &str = "</script><img src=x onerror=alert(1)>";

fn state(line: &str) -> PageState {
    let mut state = PageState::new(DashboardModel::new("the node at x".to_owned()), Timestamp::UNIX_EPOCH);
    let line = LogLine { message: line.to_owned(), ..LogLine::default() };
    state.take(DashboardEvent::Line(line), Duration::ZERO);
    state
}

fn site(address: &str) -> (watch::Sender<Published>, Site) {
    let (publisher, latest) = watch::channel(Published::of(&state(HOSTILE)));
    (publisher, Site::new(address.parse().unwrap(), TOKEN.to_owned(), latest))
}

fn request(method: Method, uri: &str, hosts: &[&str]) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri.parse().unwrap();
    for host in hosts {
        request.headers_mut().append(header::HOST, HeaderValue::from_str(host).unwrap());
    }
    request
}

fn path(rest: &str) -> String {
    format!("/{TOKEN}/{rest}")
}

/// The next bytes of a body.
async fn next(body: &mut PageBody) -> Option<String> {
    let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
    let bytes = frame.unwrap().into_data().unwrap_or_default();
    Some(String::from_utf8(bytes.to_vec()).unwrap())
}

#[test]
fn only_the_address_with_the_secret_has_something() {
    let (_publisher, site) = site(HOST);
    assert_eq!(site.url(), format!("http://{HOST}/{TOKEN}/"));
    let get = |uri: &str| site.route(&request(Method::GET, uri, &[HOST]));
    for (rest, route) in
        [("", PageRoute::Page), ("events", PageRoute::Events), ("boot.svg", PageRoute::Picture)]
    {
        assert_eq!(get(&path(rest)), Ok(route), "{rest}");
    }
    let other = TOKEN.replace('f', "e");
    for uri in
        ["/", "/events", "//events", "/favicon.ico", &format!("/{TOKEN}"), &format!("/{other}/"), &path("x")]
    {
        assert_eq!(get(uri), Err(StatusCode::NOT_FOUND), "{uri}");
    }
    // The beginning of the secret is not the secret.
    assert_eq!(get(&format!("/{}/", &TOKEN[..31])), Err(StatusCode::NOT_FOUND));
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::HEAD] {
        let found = site.route(&request(method.clone(), &path(""), &[HOST]));
        assert_eq!(found, Err(StatusCode::METHOD_NOT_ALLOWED), "{method}");
    }
}

#[test]
fn a_name_that_leads_here_is_not_this_host() {
    let (_publisher, site) = site(HOST);
    let of = |uri: &str, hosts: &[&str]| site.route(&request(Method::GET, uri, hosts));
    for own in [HOST, "localhost:8080", "LOCALHOST:8080"] {
        assert_eq!(of(&path(""), &[own]), Ok(PageRoute::Page), "{own}");
    }
    for other in ["evil.example", "evil.example:8080", "127.0.0.1", "127.0.0.1:8081", "127.0.0.2:8080", ""] {
        assert_eq!(of(&path(""), &[other]), Err(StatusCode::MISDIRECTED_REQUEST), "{other}");
    }
    for hosts in [&[] as &[&str], &[HOST, "evil.example"], &[HOST, HOST]] {
        assert_eq!(of(&path(""), hosts), Err(StatusCode::BAD_REQUEST), "{hosts:?}");
    }
    let absolute = |name: &str| of(&format!("http://{name}{}", path("")), &[HOST]);
    assert_eq!(absolute(HOST), Ok(PageRoute::Page));
    assert_eq!(absolute("evil.example"), Err(StatusCode::MISDIRECTED_REQUEST));
}

#[test]
fn hosts_without_a_port_and_of_the_other_family() {
    let (_publisher, short) = site("127.0.0.1:80");
    assert_eq!(short.authorities, ["127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"]);
    let (_publisher, six) = site("[::1]:8080");
    assert_eq!(six.authorities, ["[::1]:8080", "localhost:8080"]);
}

#[test]
fn each_answer_has_the_policy_and_refusals_say_nothing_of_the_node() {
    let (_publisher, site) = site(HOST);
    for (uri, status) in [
        (path(""), StatusCode::OK),
        (path("events"), StatusCode::OK),
        ("/".to_owned(), StatusCode::NOT_FOUND),
    ] {
        let response = site.answer(&request(Method::GET, &uri, &[HOST]));
        assert_eq!(response.status(), status, "{uri}");
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
        for (name, value) in HEADERS {
            assert_eq!(response.headers()[name], value, "{name}");
        }
    }
    let picture = site.answer(&request(Method::GET, &path("boot.svg"), &[HOST]));
    assert_eq!(picture.status(), StatusCode::NOT_FOUND);
}

#[test]
fn the_policy_names_the_script_and_the_style_of_the_page() {
    // echo -n 'a' | openssl dgst -sha256 -binary | base64, and the same of 'b'.
    let (a, b) =
        ("ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs=", "PiPoFgA5WUoziU9lZOGxNIu9egCI1CxKy3PurtWcAJ0=");
    let found = policy("<style>b</style><script type=\"application/json\">c</script><script>a</script>");
    let found = found.to_str().unwrap();
    let expected = format!("script-src 'sha256-{a}'; style-src 'sha256-{b}'");
    assert!(found.contains(&expected), "{found}");
    for part in ["<style>", "</style>", "<script>", STATE] {
        assert_eq!(PAGE.matches(part).count(), 1, "{part}");
    }
    // One script runs, the other one is data.
    assert_eq!((PAGE.matches("<script").count(), PAGE.matches("</script>").count()), (2, 2));
    for loaded in [
        "http:",
        "https:",
        "src=\"//",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
    ] {
        assert!(!PAGE.contains(loaded), "{loaded}");
    }
}

#[tokio::test]
async fn a_page_has_the_state_as_data() {
    let (_publisher, site) = site(HOST);
    let response = site.answer(&request(Method::GET, &path(""), &[HOST]));
    let mut body = response.into_body();
    let length = body.size_hint().exact();
    let text = next(&mut body).await.unwrap();
    assert_eq!(length, u64::try_from(text.len()).ok());
    assert!(body.is_end_stream() && next(&mut body).await.is_none());
    assert!(!text.contains(STATE) && !text.contains("<img src=x"), "{text}");
    assert!(text.contains("\\u003c/script\\u003e\\u003cimg src=x"), "{text}");
}

#[tokio::test]
async fn a_stream_has_the_state_at_once_and_then_the_newest_one() {
    let (publisher, site) = site(HOST);
    let mut body = site.answer(&request(Method::GET, &path("events"), &[HOST])).into_body();
    assert_eq!(body.size_hint().exact(), None);
    let first = next(&mut body).await.unwrap();
    assert!(
        first.starts_with("data: {") && first.ends_with("}\n\n") && first.contains("\\u003cimg"),
        "{first}"
    );
    assert_eq!(first.lines().count(), 2, "{first}");
    // A slow reader misses the states between.
    for number in 0..1000 {
        publisher.send_replace(Published::of(&state(&format!("line {number}"))));
    }
    let newest = next(&mut body).await.unwrap();
    assert!(newest.contains("\"line 999\""), "{newest}");
    drop(publisher);
    assert_eq!((next(&mut body).await, next(&mut body).await), (None, None));
}
