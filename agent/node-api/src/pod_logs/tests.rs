//! Logs in a directory as a runtime leaves them, with pods that are made again, rotations and links of a container.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tokio::sync::Semaphore;

use super::*;
use crate::collect::Sources;

const UID: &str = "0f0e0d0c-0000-4000-8000-000000000001";

struct LogNode {
    dir: tempfile::TempDir,
    collector: Arc<Collector>,
    places: Arc<Semaphore>,
}

impl LogNode {
    fn new() -> LogNode {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let collector = Arc::new(Collector::new(Sources { root, ..Sources::default() }));
        LogNode { dir, collector, places: Arc::new(Semaphore::new(8)) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(DIRECTORY).join(path)
    }

    /// Writes lines `first` to `last` behind what is there.
    fn write(&self, path: &str, lines: std::ops::RangeInclusive<u32>) {
        let file = self.path(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut text = fs::read_to_string(&file).unwrap_or_default();
        for n in lines {
            text.push_str(&format!("2026-11-21T04:00:{n:02}Z stdout F {n}\n"));
        }
        fs::write(file, text).unwrap();
    }

    async fn stream(&self, request: &PodLogRequest) -> Result<LogStream, Refusal> {
        let place = self.places.clone().try_acquire_owned().unwrap();
        read(&self.collector, request, place).await
    }

    async fn lines(&self, request: &PodLogRequest) -> Result<Vec<String>, Reason> {
        let stream = self.stream(request).await.map_err(|refusal| refusal.reason)?;
        Ok(stream.map(|line| line.unwrap().message).collect().await)
    }
}

fn request(pod: &str, container: &str) -> PodLogRequest {
    let (namespace, pod, container) = ("default".to_owned(), pod.to_owned(), container.to_owned());
    PodLogRequest { namespace, pod, container, ..PodLogRequest::default() }
}

fn numbers(range: std::ops::RangeInclusive<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

#[tokio::test]
async fn the_last_instance_of_the_newest_pod_is_read_and_the_one_before_on_request() {
    let node = LogNode::new();
    node.write(&format!("default_web_{UID}/app/0.log"), 1..=3);
    node.write(&format!("default_web_{UID}/app/1.log"), 4..=9);
    node.write(&format!("default_web_{UID}/app/1.log.20261121-040000"), 20..=21);
    node.write("default_web2_u/app/0.log", 30..=30);
    let web = request("web", "");
    assert_eq!(node.lines(&web).await.unwrap(), numbers(4..=9));
    assert_eq!(node.lines(&PodLogRequest { previous: true, ..web.clone() }).await.unwrap(), numbers(1..=3));
    for (lines, first) in [(1, 9), (3, 7), (6, 4), (100, 4)] {
        assert_eq!(node.lines(&PodLogRequest { lines, ..web.clone() }).await.unwrap(), numbers(first..=9));
    }
    let stream = node.stream(&web).await.ok().unwrap();
    let times: Vec<u64> = stream.map(|line| line.unwrap().time_us).collect().await;
    let since = PodLogRequest { since_us: times[2], ..web.clone() };
    assert_eq!(node.lines(&since).await.unwrap(), numbers(6..=9));
    assert_eq!(pods(node.dir.path()), ["default/web", "default/web2"]);
    assert_eq!(node.places.available_permits(), 8, "a reader that is gone keeps its place");
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let node = LogNode::new();
    assert_eq!(node.lines(&request("web", "")).await, Err(Reason::NoSuchLog));
    node.write(&format!("default_web_{UID}/app/0.log"), 1..=1);
    node.write(&format!("default_web_{UID}/side/0.log"), 2..=2);
    let several = node.stream(&request("web", "")).await.err().unwrap();
    assert_eq!((several.reason, several.message.contains("app, side")), (Reason::BadRequest, true));
    assert_eq!(node.lines(&request("web", "side")).await.unwrap(), ["2"]);
    for (pod, container, reason) in [
        ("web", "other", Reason::NoSuchLog),
        ("we", "app", Reason::NoSuchLog),
        ("web_x", "app", Reason::BadRequest),
        ("..", "app", Reason::BadRequest),
        ("web", "../../x", Reason::BadRequest),
        ("", "app", Reason::BadRequest),
    ] {
        assert_eq!(node.lines(&request(pod, container)).await, Err(reason), "{pod} {container}");
    }
    let previous = PodLogRequest { previous: true, ..request("web", "app") };
    assert_eq!(node.lines(&previous).await, Err(Reason::NoSuchLog));
    assert_eq!(node.lines(&PodLogRequest { follow: true, ..previous }).await, Err(Reason::BadRequest));
}

#[tokio::test]
async fn a_container_that_moves_its_log_shows_no_other_file() {
    let node = LogNode::new();
    node.write(&format!("default_web_{UID}/app/0.log"), 1..=1);
    let secret = node.dir.path().join("secret");
    fs::write(&secret, "2026-11-21T04:00:00Z stdout F secret\n").unwrap();
    let log = node.path(&format!("default_web_{UID}/app/0.log"));
    fs::remove_file(&log).unwrap();
    symlink(&secret, &log).unwrap();
    assert_eq!(node.lines(&request("web", "app")).await, Err(Reason::NoSuchLog));
    // A directory of others in the place of all pods.
    fs::create_dir_all(node.dir.path().join("x/default_web_u/app")).unwrap();
    fs::copy(&secret, node.dir.path().join("x/default_web_u/app/0.log")).unwrap();
    let pods = node.dir.path().join(DIRECTORY);
    fs::remove_dir_all(&pods).unwrap();
    symlink(node.dir.path().join("x"), &pods).unwrap();
    assert_eq!(node.lines(&request("web", "app")).await, Err(Reason::NoSuchLog));
}

#[tokio::test]
async fn a_followed_log_goes_on_through_a_rotation_and_the_next_instance_until_the_pod_is_gone() {
    let node = LogNode::new();
    let file = format!("default_web_{UID}/app/0.log");
    node.write(&file, 1..=2);
    let follow = PodLogRequest { follow: true, ..request("web", "app") };
    let mut stream = node.stream(&follow).await.ok().unwrap();
    let mut seen = Vec::new();
    let mut until = async |last: &str| {
        while seen.last().map(String::as_str) != Some(last) {
            seen.push(stream.next().await.unwrap().unwrap().message);
        }
        seen.len()
    };
    assert_eq!(until("2").await, 2);
    node.write(&file, 3..=3);
    assert_eq!(until("3").await, 3);
    // As logs are rotated: moved away, still written to, made again.
    fs::rename(node.path(&file), node.path(&format!("{file}.1"))).unwrap();
    let mut old = fs::OpenOptions::new().append(true).open(node.path(&format!("{file}.1"))).unwrap();
    io::Write::write_all(&mut old, b"2026-11-21T04:00:04Z stdout F 4\n").unwrap();
    node.write(&file, 5..=5);
    assert_eq!(until("5").await, 5);
    node.write(&format!("default_web_{UID}/app/1.log"), 6..=6);
    assert_eq!(until("6").await, 6);
    fs::remove_dir_all(node.path(&format!("default_web_{UID}"))).unwrap();
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_log_that_is_not_followed_ends_where_it_ended_at_the_beginning() {
    let node = LogNode::new();
    let file = format!("default_web_{UID}/app/0.log");
    node.write(&file, 1..=2);
    let mut stream = node.stream(&request("web", "app")).await.ok().unwrap();
    node.write(&file, 3..=3);
    let mut seen = Vec::new();
    while let Some(line) = stream.next().await {
        seen.push(line.unwrap().message);
    }
    assert_eq!(seen, numbers(1..=2));
}
