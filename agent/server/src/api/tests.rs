//! Tables over paths and their answers, with a node of values.

use agent_types::time::Wall;
use http_body_util::BodyExt;

use super::*;
use crate::body::streamed;

mod surface;
mod tools;

struct FakeNode {
    pods: Vec<Pod>,
    broken: bool,
    opened: std::sync::Mutex<Vec<LogRequest>>,
    checked: std::sync::Mutex<Vec<String>>,
}

fn node() -> FakeNode {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
        "spec": {"containers": [{"name": "c"}, {"name": "waiting"}], "initContainers": [{"name": "first"}]},
        "status": {"phase": "Running",
            "containerStatuses": [
                {"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 1,
                 "containerID": "containerd://now", "state": {"running": {}},
                 "lastState": {"terminated": {"exitCode": 1, "containerID": "containerd://before"}}},
                {"name": "waiting", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                 "state": {"waiting": {"reason": "ContainerCreating"}}}],
            "initContainerStatuses": [
                {"name": "first", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                 "state": {"terminated": {"exitCode": 0, "containerID": "containerd://init"}}}]},
    });
    let pods = vec![serde_json::from_value(pod).unwrap()];
    FakeNode {
        pods,
        broken: false,
        opened: std::sync::Mutex::default(),
        checked: std::sync::Mutex::default(),
    }
}

impl NodeApi for FakeNode {
    async fn health(&self) -> Vec<Check> {
        let syncloop = if self.broken { Err("PLEG is not healthy".to_owned()) } else { Ok(()) };
        vec![("ping", Ok(())), ("log", Ok(())), ("syncloop", syncloop)]
    }

    async fn pods(&self) -> Vec<Pod> {
        self.pods.clone()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<(Arc<Pod>, Arc<PodStatus>)> {
        let is = |p: &&Pod| {
            p.metadata.name.as_deref() == Some(name) && p.metadata.namespace.as_deref() == Some(namespace)
        };
        let pod = self.pods.iter().find(is)?.clone();
        let status = pod.status.clone().unwrap_or_default();
        Some((Arc::new(pod), Arc::new(status)))
    }

    async fn running_pods(&self) -> Result<Vec<Pod>, String> {
        if self.broken { Err("the runtime is down".to_owned()) } else { Ok(Vec::new()) }
    }

    async fn metrics(&self, of: MetricsOf) -> String {
        format!("{of:?}\n")
    }

    fn checked(&self, check: &str, healthy: bool) {
        self.checked.lock().unwrap().push(format!("{check} {healthy}"));
    }

    fn requested(&self, _: &str, _: &str) {}

    fn answered(&self, _: &str, _: &str, _: Duration) {}

    async fn summary(&self, only_cpu_and_memory: bool) -> Result<String, String> {
        if self.broken {
            return Err("the runtime is down".to_owned());
        }
        Ok(json!({ "only": only_cpu_and_memory }).to_string())
    }

    async fn resource_metrics(&self) -> String {
        "resource_scrape_error 0\n".to_owned()
    }

    async fn cadvisor_metrics(&self) -> String {
        "container_scrape_error 0\n".to_owned()
    }

    fn configuration(&self) -> Value {
        json!({"kind": "KubeletConfiguration"})
    }

    async fn stream_url(&self, request: StreamRequest) -> Result<String, String> {
        Err(format!("no runtime for {request:?}"))
    }

    fn took_websocket(&self, _: &'static str) {}

    async fn open_log(&self, request: LogRequest) -> Result<LogPieces, String> {
        self.opened.lock().unwrap().push(request);
        if self.broken {
            return Err("open /var/log/x: no such file".to_owned());
        }
        let (to, pieces) = mpsc::channel(2);
        for piece in ["one\n", "two\n"] {
            to.send(Ok(Bytes::from(piece))).await.unwrap();
        }
        Ok(pieces)
    }
}

const ALL: Paths = Paths {
    debugging: true,
    system_log: true,
    system_log_query: true,
    profiling: true,
    debug_flags: true,
    split_logs: false,
    checkpoint: true,
};
const NOW: Wall = Wall(1_795_262_400_000_000_000);

/// Runs `client` against the read-only port of a node of values.
async fn with_read_only(client: impl AsyncFnOnce(std::net::SocketAddr)) {
    let (bound, mut listening) = tokio::sync::watch::channel(None);
    let stop = tokio_util::sync::CancellationToken::new();
    let clock: Clock = Arc::new(|| agent_types::time::Now { wall: NOW, ..Default::default() });
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let server = crate::read_only::serve(Arc::new(node()), clock, local, bound, stop.clone());
    let client = async {
        client(listening.wait_for(Option::is_some).await.unwrap().expect("waited for")).await;
        stop.cancel();
    };
    tokio::join!(server, client);
}

async fn respond(node: &FakeNode, paths: Paths, method: Method, target: &str) -> Response<Body> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    answer(node, paths, RequestHead { method: &method, path, query, accept: None }, NOW).await
}

async fn ask(node: &FakeNode, paths: Paths, method: Method, target: &str) -> (u16, String) {
    status_and_body(respond(node, paths, method, target).await).await
}

async fn status_and_body(response: Response<Body>) -> (u16, String) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn get(node: &FakeNode, target: &str) -> (u16, String) {
    ask(node, ALL, Method::GET, target).await
}

#[tokio::test]
async fn paths_and_answers() {
    let node = node();
    for (target, status, body) in [
        ("/healthz", 200, "ok"),
        ("/healthz/", 200, "ok"),
        ("/healthz/ping", 200, "ok"),
        ("/healthz/log", 200, "ok"),
        ("/healthz/syncloop", 200, "ok"),
        ("/healthz/other", 404, "404 page not found\n"),
        ("/healthz?verbose", 200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"),
        ("/runningpods/", 200, r#"{"apiVersion":"v1","items":[],"kind":"PodList","metadata":{}}"#),
        ("/configz", 200, r#"{"kubeletconfig":{"kind":"KubeletConfiguration"}}"#),
        ("/", 404, "404 page not found\n"),
        ("//pods", 404, "404 page not found\n"),
        ("/pods/x", 404, "404 page not found\n"),
        ("/%70ods", 404, "404 page not found\n"),
        ("/metrics", 200, "Node\n"),
        ("/metrics/probes", 200, "Probes\n"),
        ("/metrics/slis", 200, "Slis\n"),
        ("/metrics/node", 200, "OperatingSystem\n"),
        ("/metrics/node/x", 404, "404 page not found\n"),
        ("/metrics/cadvisor", 200, "container_scrape_error 0\n"),
        ("/stats/summary", 200, r#"{"only":false}"#),
        ("/stats/summary?only_cpu_and_memory=true", 200, r#"{"only":true}"#),
        ("/stats/summary?only_cpu_and_memory=1", 200, r#"{"only":false}"#),
        ("/stats/", 404, "404 page not found\n"),
        ("/stats/summary/x", 404, "404 page not found\n"),
        ("/metrics/resource", 200, "resource_scrape_error 0\n"),
        ("/debug/flags/v", 406, "unsupported http method\n"),
        ("/debug/flags/w", 404, "404 page not found\n"),
    ] {
        assert_eq!(get(&node, target).await, (status, body.to_owned()), "{target}");
    }
    let (status, pods) = get(&node, "/pods").await;
    let pods: Value = serde_json::from_str(&pods).unwrap();
    assert_eq!((status, pods["items"][0]["metadata"]["name"].as_str()), (200, Some("web")));
    assert!(pods["items"][0].get("kind").is_none());
    for target in [
        "/pods",
        "/healthz",
        "/configz",
        "/metrics",
        "/metrics/slis",
        "/metrics/node",
        "/containerLogs/default/web/c",
    ] {
        assert_eq!(ask(&node, ALL, Method::POST, target).await.0, 405, "{target}");
    }
    assert_eq!(ask(&node, ALL, Method::POST, "/stats/summary").await.0, 200);
    assert_eq!(ask(&node, ALL, Method::PUT, "/stats/summary").await.0, 405);
}

#[tokio::test]
async fn what_is_broken_is_said() {
    let node = FakeNode { broken: true, ..node() };
    let list = "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";
    assert_eq!(get(&node, "/healthz").await, (500, list.to_owned()));
    assert_eq!(*node.checked.lock().unwrap(), ["ping true", "log true", "syncloop false"]);
    assert_eq!(get(&node, "/healthz?exclude=syncloop").await.0, 200);
    assert_eq!(node.checked.lock().unwrap().len(), 5, "what is left out is not counted");
    assert_eq!(get(&node, "/healthz/ping").await.0, 200);
    let problem = "internal server error: PLEG is not healthy\n".to_owned();
    assert_eq!(get(&node, "/healthz/syncloop").await, (500, problem));
    assert_eq!(get(&node, "/runningpods/").await, (500, "the runtime is down".to_owned()));
    let problem = "Internal Error: the runtime is down".to_owned();
    assert_eq!(get(&node, "/stats/summary").await, (500, problem));
    let problem = "open /var/log/x: no such file".to_owned();
    assert_eq!(get(&node, "/containerLogs/default/web/c").await, (400, problem));
}

#[tokio::test]
async fn turned_off_handlers_answer_405() {
    let node = node();
    let off = Paths { debugging: false, ..ALL };
    for target in
        ["/containerLogs/default/web/c", "/exec/a/b/c", "/runningpods/", "/logs/", "/debug/pprof/heap"]
    {
        let (status, body) = ask(&node, off, Method::GET, target).await;
        assert_eq!((status, body.as_str()), (405, "Debug endpoints are disabled.\n"), "{target}");
    }
    for target in ["/configz", "/checkpoint/default/web/c", "/debug/flags/v", "/statusz", "/flagz"] {
        for method in [Method::GET, Method::POST] {
            let (status, body) = ask(&node, off, method, target).await;
            assert_eq!((status, body.as_str()), (404, "404 page not found\n"), "{target}");
        }
    }
    assert_eq!(ask(&node, off, Method::GET, "/pods").await.0, 200);
    assert_eq!(ask(&node, off, Method::GET, "/healthz").await.0, 200);
    let off = Paths { checkpoint: false, ..ALL };
    for method in [Method::GET, Method::POST] {
        assert_eq!(ask(&node, off, method, "/checkpoint/default/web/c").await.0, 404);
    }
    let off = Paths { system_log: false, profiling: false, ..ALL };
    assert_eq!(ask(&node, off, Method::GET, "/logs/").await.1, "logs endpoint is disabled.\n");
    assert_eq!(ask(&node, off, Method::GET, "/debug/pprof/").await.1, "profiling endpoint is disabled.\n");
}

#[tokio::test]
async fn logs_of_the_right_instance() {
    let node = node();
    let log = "/containerLogs/default/web";
    for (target, status, body) in [
        (format!("{log}/c"), 200, "one\ntwo\n"),
        (format!("{log}/c?previous=true&tailLines=5"), 200, "one\ntwo\n"),
        (format!("{log}/first"), 200, "one\ntwo\n"),
        (
            format!("{log}/waiting"),
            400,
            "container \"waiting\" in pod \"web\" is waiting to start: ContainerCreating",
        ),
        (
            format!("{log}/first?previous=1"),
            400,
            "previous terminated container \"first\" in pod \"web\" not found",
        ),
        (format!("{log}/other"), 404, "container \"other\" not found in pod \"web\"\n"),
        ("/containerLogs/default/none/c".to_owned(), 404, "pod \"none\" does not exist\n"),
        ("/containerLogs/other/web/c".to_owned(), 404, "pod \"web\" does not exist\n"),
        (format!("{log}/c?tailLines=-1"), 422, r#"{"message":"Invalid request."}"#),
        (format!("{log}/c?tailLines=x"), 400, r#"{"message":"Unable to decode query."}"#),
        (format!("{log}/"), 400, r#"{"message":"Missing container name."}"#),
        ("/containerLogs/default".to_owned(), 400, r#"{"message":"Missing podID."}"#),
        (format!("{log}/c/more"), 404, "404 page not found\n"),
        (format!("{log}/%63"), 200, "one\ntwo\n"),
        (format!("{log}/..%2f..%2fetc"), 404, "container \"../../etc\" not found in pod \"web\"\n"),
    ] {
        assert_eq!(get(&node, &target).await, (status, body.to_owned()), "{target}");
    }
    let ids: Vec<String> = node.opened.lock().unwrap().iter().map(|r| r.container_id.clone()).collect();
    assert_eq!(ids, ["now", "before", "init", "now"]);
    assert_eq!(node.opened.lock().unwrap()[1].options.tail, Some(5));
}

#[test]
fn streams_and_their_options() {
    use super::streams::find;
    let node = node();
    let of = |method: Method, target: &str| {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        find(&node, &method, path, query).map_err(|(status, words)| (status.as_u16(), words))
    };
    let exec = of(Method::POST, "/exec/default/web/c?command=ls&command=-l&output=1").unwrap();
    assert_eq!(exec.uid, "u1");
    let StreamTo::Exec(container, options) = exec.to else { panic!("not exec") };
    assert_eq!((container.as_str(), options.command.join(" ").as_str()), ("c", "ls -l"));
    assert!(options.stdout && !options.stdin);
    let attach = of(Method::GET, "/attach/default/web/u1/c?input=1").unwrap();
    assert!(matches!(attach.to, StreamTo::Attach(ref c, _) if c == "c"));
    assert_eq!(of(Method::POST, "/portForward/default/web").unwrap().to, StreamTo::Ports(Vec::new()));
    assert_eq!(of(Method::GET, "/portForward/default/web/u1?port=80").unwrap().to, StreamTo::Ports(vec![80]));
    for (method, target, status) in [
        (Method::POST, "/exec/default/web/c?command=ls", 400),
        (Method::POST, "/portForward/default/web?port=0", 400),
        (Method::POST, "/exec/default/none/c?output=1", 404),
        (Method::POST, "/exec/default/web/u2/c?output=1", 404),
        (Method::POST, "/exec/default/web?output=1", 404),
        (Method::POST, "/exec/default/web/u1/c/more?output=1", 404),
        (Method::PUT, "/exec/default/web/c?output=1", 405),
    ] {
        assert_eq!(of(method, target).unwrap_err().0, status, "{target}");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_is_no_whole_answer() {
    let (to, pieces) = mpsc::channel(2);
    to.send(Ok(Bytes::from("a"))).await.unwrap();
    to.send(Err(Broken("gone".to_owned()))).await.unwrap();
    assert_eq!(streamed(pieces).into_body().collect().await.unwrap_err(), Broken("gone".to_owned()));
}

#[test]
fn queries_are_decoded() {
    let of = |query: &str| pairs(query).into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
    assert_eq!(of("a=1&b&c=x%20y+z&&d=%41"), ["a=1", "b=", "c=x y z", "d=A"]);
    assert!(of("a=%&b=%4&c=%zz&d=%ff").is_empty(), "what cannot be decoded is left out");
    assert_eq!(of("a=%2b+%2541"), ["a=+ %41"], "no escape is read twice");
    assert_eq!(decoded("a+b%2Fc", false).as_deref(), Some("a+b/c"));
}
