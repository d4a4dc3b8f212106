//! Scenarios of a server of manifests.

use agent_types::pod::{self, CONFIG_HASH, CONFIG_SOURCE};
use agent_types::time::Wall;
use proptest::prelude::*;

use super::*;

const PERIOD: Duration = Duration::from_secs(20);

fn item(name: &str, image: &str) -> String {
    format!("{{metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: '{image}'}}]}}}}")
}

fn list(items: &[String]) -> UrlEvent {
    ok(&format!("apiVersion: v1\nkind: PodList\nitems: [{}]\n", items.join(", ")))
}

fn ok(body: &str) -> UrlEvent {
    UrlEvent::Answered(Ok(UrlAnswer { status: 200, body: body.as_bytes().to_vec() }))
}

fn down() -> UrlEvent {
    UrlEvent::Answered(Err("no server".to_owned()))
}

struct World {
    source: UrlSource,
    now: Now,
    delivered: Vec<PodUpdate>,
}

impl World {
    fn new() -> World {
        let url = "http://pods.test/list".to_owned();
        let config = UrlSourceConfig { url, node_name: "N1".to_owned(), check_period: PERIOD };
        World {
            source: UrlSource::new(config),
            now: Now { mono: Mono(1), wall: Wall(1) },
            delivered: Vec::new(),
        }
    }

    fn step(&mut self, event: UrlEvent) -> Vec<String> {
        let mut out = Outbox::new();
        self.source.step(self.now, event, &mut out);
        let mut words = Vec::new();
        for action in out.drain() {
            words.push(match action {
                UrlAction::Get => "get".to_owned(),
                UrlAction::Report(UrlReport::Failed { problem, last }) => format!("failed {last}: {problem}"),
                UrlAction::Report(UrlReport::Recovered) => "recovered".to_owned(),
                UrlAction::Report(UrlReport::UnknownFields(fields)) => {
                    format!("unknown {}", fields.join(" "))
                }
                UrlAction::Report(UrlReport::Duplicate(left)) => format!("left out {}", left.pod.name),
                UrlAction::Deliver(update) => {
                    let names: Vec<&str> = update.pods.iter().map(|p| pod::name(p)).collect();
                    let words = format!("{:?} {}", update.op, names.join(" "));
                    self.delivered.push(update);
                    words.trim_end().to_owned()
                }
            });
        }
        words
    }

    /// The deadline comes and the server answers.
    fn round(&mut self, answer: UrlEvent) -> Vec<String> {
        self.now.mono = self.source.deadline().unwrap_or(self.now.mono);
        assert_eq!(self.step(UrlEvent::Tick), ["get"]);
        assert_eq!(self.source.deadline(), None, "one request at a time");
        assert_eq!(self.step(UrlEvent::Tick), [""; 0]);
        let before = self.now.mono;
        let said = self.step(answer);
        assert_eq!(self.source.deadline(), Some(before.after(PERIOD)));
        said
    }
}

#[test]
fn pods_come_change_and_go() {
    let mut w = World::new();
    assert_eq!(w.round(list(&[item("a", "i"), item("b", "i")])), ["Add a-n1 b-n1"]);
    let first = w.delivered[0].pods[0].clone();
    assert_eq!(pod::annotation(&first, CONFIG_SOURCE), Some("http"));
    assert_eq!(pod::annotation(&first, CONFIG_HASH), Some(pod::uid(&first)));
    assert_eq!(pod::spec(&first).tolerations, None, "only a file's pod tolerates everything");
    assert_eq!(w.round(list(&[item("a", "i"), item("b", "i")])), [""; 0]);
    assert_eq!(w.round(list(&[item("b", "j"), item("a", "i")])), ["Remove b-n1", "Add b-n1"], "another UID");
    let single = format!(
        "apiVersion: v1\nkind: Pod\n{}",
        "metadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n"
    );
    assert_eq!(w.round(ok(&single)).last().unwrap(), "Add a-n1", "written otherwise, with its kind");
    assert_eq!(w.round(list(&[])), ["Remove a-n1"]);
}

#[test]
fn the_uid_is_of_the_manifest_and_the_url() {
    let uid = |url: &str, node: &str| {
        let mut w = World::new();
        (w.source.config.url, w.source.config.node_name) = (url.to_owned(), node.to_owned());
        w.round(list(&[item("a", "i")]));
        pod::uid(&w.delivered[0].pods[0]).to_owned()
    };
    assert_eq!(uid("http://x/", "n"), uid("http://x/", "m"), "as upstream: not of the node");
    assert_ne!(uid("http://x/", "n"), uid("http://x/2", "n"));
}

#[test]
fn a_server_that_is_down_changes_nothing_and_is_not_ready_either() {
    let mut w = World::new();
    for (n, said) in ["failed false: no server"; 3].into_iter().chain(["failed true: no server"]).enumerate()
    {
        assert_eq!(w.round(down()), [said], "{n}");
    }
    for _ in 0..5 {
        assert_eq!(w.round(down()), [""; 0], "said often enough");
    }
    assert!(!w.source.storage.seen());
    assert_eq!(w.round(list(&[item("a", "i")])), ["Add a-n1", "recovered"]);
    assert_eq!(w.round(down()), ["failed false: no server"]);
    let teapot = UrlEvent::Answered(Ok(UrlAnswer { status: 418, body: Vec::new() }));
    assert_eq!(w.round(teapot), ["failed false: the server answered with status 418"]);
    assert_eq!(w.round(list(&[item("a", "i")])), ["recovered"]);
    assert_eq!(w.source.storage.pods().count(), 1);
}

#[test]
fn an_answer_counts_whole_or_not_at_all() {
    let mut w = World::new();
    w.round(list(&[item("a", "i")]));
    for (items, words) in [
        (vec![item("b", "i"), "{metadata: {name: c}}".to_owned()], "not valid"),
        (vec![item("b", "i"), "{spec: 1}".to_owned()], "items[1]: spec"),
        (vec!["{spec: {containers: [{name: c, image: i}]}}".to_owned()], "metadata.name"),
    ] {
        let said = w.round(list(&items));
        assert!(said.len() == 1 && said[0].starts_with("failed") && said[0].contains(words), "{said:?}");
    }
    assert_eq!(w.source.storage.pods().count(), 1);
    let odd = item("a", "i").replace("spec:", "extra: 1, spec:");
    assert_eq!(w.round(list(&[odd]))[0], "unknown extra");
}

#[test]
fn an_empty_answer_means_no_pods_and_the_same_answer_again_brings_them_back() {
    let mut w = World::new();
    assert_eq!(w.round(ok("")), ["Add", "failed false: the answer is empty: no pods"], "seen");
    assert_eq!(w.round(list(&[item("a", "i")])), ["Add a-n1", "recovered"]);
    assert_eq!(w.round(ok(""))[0], "Remove a-n1");
    assert_eq!(w.round(list(&[item("a", "i")]))[0], "Add a-n1");
    let twice = list(&[item("a", "i"), item("a", "j")]);
    assert_eq!(w.round(twice.clone()), ["left out a-n1"]);
    assert_eq!(w.round(twice), [""; 0]);
}

#[test]
fn urls() {
    let headers = vec![("X".to_owned(), "secret".to_owned())];
    for (url, scheme, host, port, target) in [
        ("http://h", Scheme::Http, "h", 80, "/"),
        ("https://h/a?b=c", Scheme::Https, "h", 443, "/a?b=c"),
        ("http://[::1]:8080/p", Scheme::Http, "::1", 8080, "/p"),
    ] {
        let get = request(url, headers.clone()).unwrap();
        assert_eq!((get.scheme, &*get.host, get.port, &*get.target), (scheme, host, port, target), "{url}");
        assert_eq!(get.headers, headers);
    }
    for url in ["", "h/p", "/p", "ftp://h/", "http://", "http:///p", "//h/p", "http://h:0/"] {
        assert_eq!(request(url, Vec::new()), Err(UrlError::NoUrl), "{url}");
    }
    let error = request("http://u:hidden@h/", Vec::new()).unwrap_err();
    assert!(error == UrlError::Credentials && !error.to_string().contains("hidden"));
}

proptest! {
    #[test]
    fn any_answer_is_answered(status in 0u16..1000, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut w = World::new();
        w.round(list(&[item("a", "i")]));
        let gone = status == 200 && body.is_empty();
        w.round(UrlEvent::Answered(Ok(UrlAnswer { status, body })));
        prop_assert_eq!(w.source.storage.pods().count(), usize::from(!gone));
    }
}
