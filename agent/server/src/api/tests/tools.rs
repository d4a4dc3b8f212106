//! What people use to look into a node: paths, answers, redirections.

use agent_kubelet_api::node_logs::ServiceQuery;

use super::*;

impl NodeTools for FakeNode {
    async fn run_command(&self, of: ContainerOf, command: Vec<String>) -> Result<Vec<u8>, String> {
        let ContainerOf { uid, namespace, pod, container } = of;
        if self.broken {
            return Err("command 'x' exited with 1: no".to_owned());
        }
        Ok(format!("{namespace}/{pod}/{container} of {uid}: {command:?}").into_bytes())
    }

    async fn checkpoint(&self, of: ContainerOf, timeout_s: i64) -> Result<String, String> {
        if self.broken {
            Err("no criu".to_owned())
        } else {
            Ok(format!("/c/{}-{timeout_s}.tar", of.container))
        }
    }

    async fn node_file(&self, path: String) -> Result<NodeFile, NodeFileError> {
        let pieces = || {
            let (to, pieces) = mpsc::channel(1);
            to.try_send(Ok(Bytes::from("a line\n"))).unwrap();
            pieces
        };
        match path.trim_matches('/') {
            "" => Ok(NodeFile::Directory(vec!["a b.log".to_owned(), "dir/".to_owned()])),
            "dir" => Ok(NodeFile::Directory(Vec::new())),
            "a b.log" => Ok(NodeFile::Pieces(pieces(), true)),
            "journal" => Ok(NodeFile::Pieces(pieces(), false)),
            "bad" => Err(NodeFileError::Failed("bad: EIO".to_owned())),
            path => Err(NodeFileError::NotFound(format!("{path}: no such file or directory"))),
        }
    }

    async fn service_logs(&self, query: ServiceQuery) -> LogPieces {
        let (to, pieces) = mpsc::channel(1);
        to.try_send(Ok(Bytes::from(format!("{}\n", query.journal_arguments(&[]).join(" "))))).unwrap();
        pieces
    }

    fn started(&self) -> Wall {
        Wall(NOW.0 - 3_725_000_000_000)
    }

    fn flags(&self) -> Vec<(String, String)> {
        vec![("v".to_owned(), "2".to_owned()), ("config".to_owned(), "/etc/x".to_owned())]
    }

    fn command_line(&self) -> Vec<String> {
        vec!["orlop-agent".to_owned(), "--v=2".to_owned()]
    }

    fn set_verbosity(&self, level: u32) -> Result<(), String> {
        if self.broken {
            return Err("there is no log".to_owned());
        }
        self.checked("level", level == 4);
        Ok(())
    }
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> &'a str {
    response.headers()[name].to_str().unwrap()
}

#[tokio::test]
async fn commands_and_checkpoints() {
    let node = node();
    let post = |target: &'static str| ask(&node, ALL, Method::POST, target);
    let said = r#"default/web/c of u1: ["ls", "", "-l"]"#;
    for (target, status, body) in [
        ("/run/default/web/c?cmd=ls++-l", 200, said),
        ("/run/default/web/u1/c?cmd=ls%20%20-l&cmd=other", 200, said),
        ("/run/default/web/u2/c?cmd=ls", 404, "pod does not exist\n"),
        ("/run/default/none/c?cmd=ls", 404, "pod does not exist\n"),
        ("/run/default/web", 404, "404 page not found\n"),
        ("/checkpoint/default/web/c", 200, r#"{"items":["/c/c-0.tar"]}"#),
        ("/checkpoint/default/web/first?timeout=1&timeout=7", 200, r#"{"items":["/c/first-7.tar"]}"#),
        ("/checkpoint/default/web/c?timeout=x", 404, "cannot parse value of timeout parameter\n"),
        ("/checkpoint/default/web/other", 404, "container other does not exist\n"),
        ("/checkpoint/default/none/c", 404, "pod does not exist\n"),
    ] {
        assert_eq!(post(target).await, (status, body.to_owned()), "{target}");
    }
    for target in ["/run/default/web/c?cmd=ls", "/checkpoint/default/web/c"] {
        let response = respond(&node, ALL, Method::GET, target).await;
        assert_eq!((response.status().as_u16(), header(&response, "allow")), (405, "POST"), "{target}");
    }
    let node = FakeNode { broken: true, ..node };
    let failed = ask(&node, ALL, Method::POST, "/run/default/web/c?cmd=x").await;
    assert_eq!(failed, (500, "command 'x' exited with 1: no\n".to_owned()));
    let failed = ask(&node, ALL, Method::POST, "/checkpoint/default/web/c").await;
    assert_eq!(failed, (500, "checkpointing of default/web/c failed (no criu)\n".to_owned()));
}

#[tokio::test]
async fn logs_of_the_node() {
    let node = node();
    for (target, status, body) in [
        ("/logs/a%20b.log", 200, "a line\n"),
        ("/logs/journal", 200, "a line\n"),
        ("/logs/none", 404, "404 page not found\n"),
        ("/logs/%2e%2e/none", 404, "404 page not found\n"),
        ("/logs/%ff", 404, "404 page not found\n"),
        ("/logs/bad", 500, "bad: EIO\n"),
        ("/logs/?query=/a%20b.log", 200, "a line\n"),
        (
            "/logs/?query=/dir/none",
            406,
            "query: Invalid value: [\"/dir/none\"]: dir/none: no such file or directory\n",
        ),
        (
            "/logs/?query=kubelet&tailLines=3",
            200,
            "--utc --no-pager --output=short-precise --pager-end --lines=3\n",
        ),
        ("/logs/dir/?query=kubelet", 406, "path not allowed in query mode\n"),
        ("/logs/?query=", 400, "query: Invalid value: [\"\"]: may not be empty\n"),
        (
            "/logs/?boot=1",
            406,
            "[query: Required value: cannot be empty with options, boot: Invalid value: 1: must be less than 1]\n",
        ),
    ] {
        assert_eq!(get(&node, target).await, (status, body.to_owned()), "{target}");
    }
    let (status, page) = get(&node, "/logs/").await;
    assert!(status == 200 && page.contains(r#"<a href="a%20b.log">a b.log</a>"#), "{page}");
    for (target, to) in [("/logs", "logs/"), ("/logs/dir", "./dir/"), ("/logs/a%20b.log/", "../a%20b.log")] {
        let response = respond(&node, ALL, Method::GET, target).await;
        assert_eq!((response.status().as_u16(), header(&response, "location")), (301, to), "{target}");
    }
    for (target, kind) in [
        ("/logs/journal", "application/octet-stream"),
        ("/logs/?query=a", "text/plain;charset=UTF-8"),
        ("/logs/", "text/html; charset=utf-8"),
    ] {
        let response = respond(&node, ALL, Method::GET, target).await;
        assert_eq!(header(&response, "content-type"), kind, "{target}");
    }
    let plain = Paths { system_log_query: false, ..ALL };
    let (status, page) = ask(&node, plain, Method::GET, "/logs/?query=kubelet").await;
    assert!(status == 200 && page.contains("dir/"), "queries are off: {page}");
}

#[tokio::test]
async fn pages_about_the_process() {
    let node = node();
    let ask = async |path: &str, accept: Option<&str>| {
        let asked = RequestHead { method: &Method::GET, path, query: "", accept };
        status_and_body(answer(&node, ALL, asked, NOW).await).await
    };
    let (status, page) = ask("/statusz", None).await;
    assert_eq!(status, 200);
    for line in [
        "kubelet statusz",
        "Started: Sat Nov 21 10:57:55 UTC 2026",
        "Up: 1 hr 02 min 05 sec",
        "Emulation version: 1.36",
    ] {
        assert!(page.lines().any(|l| l == line), "{line} in {page}");
    }
    let (status, flags) = ask("/flagz", Some("text/html, */*;q=0.1")).await;
    assert!(status == 200 && flags.ends_with("\nconfig=/etc/x\nv=2\n"), "{flags}");
    let (status, document) =
        ask("/statusz", Some("application/json;v=v1beta1;g=config.k8s.io;as=Statusz")).await;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(
        (status, &document["uptimeSeconds"], &document["kind"]),
        (200, &json!(3725), &json!("Statusz"))
    );
    let (_, document) = ask("/flagz", Some("application/json; as=Flagz; g=config.k8s.io; v=v1beta1")).await;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["flags"], json!({"config": "/etc/x", "v": "2"}));
    for accept in ["application/json", "application/json;v=v1;g=config.k8s.io;as=Statusz", "image/png"] {
        assert_eq!(ask("/statusz", Some(accept)).await.0, 406, "{accept}");
    }
}

#[tokio::test]
async fn the_read_only_port_shows_and_does_nothing() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    with_read_only(async |to| {
        for (line, status) in [
            ("GET /pods", 200),
            ("GET /healthz", 200),
            ("GET /metrics/resource", 200),
            ("GET /metrics/node", 404),
            ("POST /pods", 405),
            ("GET /configz", 404),
            ("GET /runningpods/", 404),
            ("GET /containerLogs/default/web/c", 404),
            ("POST /run/default/web/c?cmd=ls", 404),
            ("POST /exec/default/web/c?output=1", 404),
            ("GET /logs/", 404),
            ("GET /%70ods", 404),
        ] {
            let mut stream = tokio::net::TcpStream::connect(to).await.unwrap();
            let request = format!("{line} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).await.unwrap();
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {said}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_log_level_is_set_by_a_number() {
    let node = node();
    let parse = |given: &str, why: &str| format!("strconv.ParseUint: parsing {given:?}: {why}\n");
    for (given, status, words) in [
        ("4", 200, "successfully set klog.logging.verbosity to 4\n".to_owned()),
        ("", 400, parse("", "invalid syntax")),
        ("+4", 400, parse("+4", "invalid syntax")),
        ("4 ", 400, parse("4 ", "invalid syntax")),
        ("-1", 400, parse("-1", "invalid syntax")),
        ("3000000000", 400, parse("3000000000", "value out of range")),
        ("99999999999", 400, parse("99999999999", "value out of range")),
    ] {
        assert_eq!(status_and_body(debug::set(&node, given)).await, (status, words), "{given:?}");
    }
    assert_eq!(*node.checked.lock().unwrap(), ["level true"]);
    let broken = FakeNode { broken: true, ..super::node() };
    assert_eq!(status_and_body(debug::set(&broken, "4")).await, (400, "there is no log\n".to_owned()));
    let level = "/debug/flags/v";
    let other = ask(&node, ALL, Method::GET, level).await;
    assert_eq!(other, (406, "unsupported http method\n".to_owned()));
    let off = Paths { debug_flags: false, ..ALL };
    let disabled = (405, "flags endpoint is disabled.\n".to_owned());
    assert_eq!(ask(&node, off, Method::PUT, level).await, disabled);
    for (paths, path, reads) in [
        (ALL, level, true),
        (ALL, "/debug/flags/w", false),
        (off, level, false),
        (Paths { debugging: false, ..ALL }, level, false),
    ] {
        assert_eq!(debug::is_level(&paths, path), reads, "{path}");
    }
}

#[tokio::test]
async fn profiles_and_why_there_are_none() {
    let node = node();
    assert_eq!(get(&node, "/debug/pprof/cmdline").await, (200, "orlop-agent\0--v=2".to_owned()));
    let (status, page) = get(&node, "/debug/pprof/").await;
    assert!(status == 200 && page.contains("\nheap: not here: the C library's allocator"), "{page}");
    let (status, words) = get(&node, "/debug/pprof/heap").await;
    assert!(status == 501 && words.contains("keeps no record"), "{words}");
    assert_eq!(get(&node, "/debug/pprof/other").await, (404, "Unknown profile\n".to_owned()));
    assert_eq!(get(&node, "/debug/pprof").await.0, 404);
    assert_eq!(ask(&node, ALL, Method::POST, "/debug/pprof/cmdline").await.0, 405);
}

#[tokio::test]
async fn one_output_alone_is_behind_its_gate() {
    let (node, split) = (node(), Paths { split_logs: true, ..ALL });
    let log = "/containerLogs/default/web/c?stream=Stdout";
    let words = "unable to return the given log stream: \"Stdout\". Please enable PodLogsQuerySplitStreams feature \
                 gate in kubelet\n";
    assert_eq!(get(&node, log).await, (400, words.to_owned()));
    assert_eq!(ask(&node, split, Method::GET, log).await.0, 200);
    assert_eq!(get(&node, "/containerLogs/default/web/c?stream=All").await.0, 200);
    for (query, status) in [("stream=Both", 422), ("stream=Stderr&tailLines=1", 422), ("stream=Stderr", 200)]
    {
        let target = format!("/containerLogs/default/web/c?{query}");
        assert_eq!(ask(&node, split, Method::GET, &target).await.0, status, "{query}");
    }
    assert_eq!(node.opened.lock().unwrap()[0].options.stream, Some(agent_kubelet_api::logs::Output::Stdout));
}
